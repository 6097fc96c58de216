"""Changes by processes that are not supervised: noticed, and told from those of the keeper itself."""

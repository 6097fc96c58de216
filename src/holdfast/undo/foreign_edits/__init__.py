"""Changes that no step made: found, and told from what steps left."""

"""A tree as pages of entries, named by their hashes: made, updated, compared, read."""

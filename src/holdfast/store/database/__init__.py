"""A database as the catalog uses it: the port, and SQLite."""

"""A file system, served to a client that speaks 9P2000.L (docs/internals/9p.md)."""

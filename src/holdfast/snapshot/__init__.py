"""Snapshot providers: writable copies of a tree, captured and brought back; each knows one way to make them."""

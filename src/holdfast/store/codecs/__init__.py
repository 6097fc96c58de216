"""Encodings of stored data: compression, columns, changesets, sessions, and MessagePack without a library."""

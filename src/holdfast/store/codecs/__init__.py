"""Encodings of what is stored: compression, columns, changesets, sessions, and MessagePack without a library."""

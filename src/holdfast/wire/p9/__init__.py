"""9P2000.L (docs/internals/9p.md): what a file system server hears from a guest's kernel, and answers.

The peer is not trusted. Nothing here does any I/O.
"""

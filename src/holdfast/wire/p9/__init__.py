"""9P2000.L (docs/internals/9p.md): the messages of a file system server with a guest's kernel.

The peer is not trusted. Nothing here does any I/O.
"""

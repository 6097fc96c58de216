"""A real directory served as a file system: each change goes through the interceptor.

`served_tree` is the face. Requests come in by kind (names, attributes, listings, files) and find their object among
the nodes; what the kernel may keep in its caches, and when it has to forget it, stands beside them.
"""

"""File systems served to a kernel that speaks FUSE.

`served_file_system` is the entry point: the requests, by kind (names, attributes, directories, files), become calls of
a `holdfast.vfs.file_system.FileSystem`. Its `KernelCaches` decide what the kernel may cache and when it must forget:
`live_caches` for a recorded directory, `frozen_caches` for what never changes.
"""

"""File systems served to a kernel that speaks FUSE.

`served_file_system` is the face: the requests, by kind (names, attributes, directories, files), become calls of a
`holdfast.vfs.file_system.FileSystem`. What the kernel may keep of it, and when it has to forget that, is for its
`KernelCaches` to say: `live_caches` for a recorded directory, `frozen_caches` for what never changes.
"""

"""The FUSE protocol of the Linux kernel (docs/internals/fuse-protocol.md): the messages of a file system server.

The peer is a kernel, ours or, over virtio-fs, a guest's; neither is trusted.
"""

"""The FUSE protocol of the Linux kernel (docs/internals/fuse-protocol.md): what a file system server hears and says.

The peer is a kernel, ours or, over virtio-fs, a guest's; neither is trusted.
"""

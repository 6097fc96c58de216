"""virtio-fs: a guest's kernel speaks FUSE through rings in its memory, which a monitor (QEMU) shares by vhost-user."""

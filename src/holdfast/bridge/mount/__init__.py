"""Mounting: the FUSE device and fusermount, overlays, and the mount namespaces of what is served."""

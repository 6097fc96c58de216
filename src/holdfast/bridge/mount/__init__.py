"""Mounting: the FUSE device and fusermount, overlays, and the mount namespaces of served trees."""

"""Disk images as snapshots: the format's header, and qemu-img."""

"""Virtio as a device sees it (docs/internals/virtio.md): a guest's memory, and the rings in it that requests come by.

The driver in the guest writes all of it, at any time, also while it is read here; nothing of it is trusted.
"""

"""The device's view of virtio (docs/internals/virtio.md): a guest's memory, and the rings in it for requests.

The driver in the guest may write all of it at any time, even while it is read here; so none of it is trusted.
"""

"""The vhost-user protocol (docs/internals/virtio.md), the back end's side: how a virtual machine monitor, the *front
end*, gives a device's rings and the guest's memory to another process.

The front end is trusted no more than its guest: a guest may have broken out into it.
"""

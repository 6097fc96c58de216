"""Virtual machines: QEMU in a box of namespaces, a guest that runs commands by the shim."""

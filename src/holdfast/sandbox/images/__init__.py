"""Images: what a virtual machine begins as, a kernel, an initrd and a root file system; see `store.ImageStore`."""

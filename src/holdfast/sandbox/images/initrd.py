"""The initrd of an image: busybox, the modules that a machine needs, and the program that is started first."""

from __future__ import annotations

import gzip
import hashlib
import os
from typing import TYPE_CHECKING, Final

from holdfast.sandbox.images import cpio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sandbox.images.kernel_modules import Module

NEEDED: Final = ("virtio_pci", "virtio_blk", "virtio_console", "squashfs", "overlay", "ext4", "virtio_net")
"""The modules that every machine requires."""
WANTED: Final = ("fuse", "virtiofs", "9p", "9pnet_fd", "virtio_rng", "vmgenid")
"""Modules that a kernel may lack: some have no 9P, and most have some of the others built in."""
_INIT: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "init.sh")
_DIRECTORIES: Final = (b"bin", b"dev", b"lower", b"modules", b"new", b"proc", b"sys", b"upper")


def build_initrd(busybox: bytes, modules: Sequence[Module]) -> bytes:
    """The initrd, compressed; another archive may be appended. The same parts give the same bytes.

    ``busybox`` is the program, linked statically. The modules are loaded in their order.
    """
    members = [cpio.directory(name) for name in _DIRECTORIES]
    members += [
        cpio.file(b"bin/busybox", busybox, 0o755),
        cpio.link(b"bin/sh", b"busybox"),
        cpio.file(b"init", first_program(), 0o755),
    ]
    for number, module in enumerate(modules):
        members.append(cpio.file(b"modules/%03d-%s.ko" % (number, os.fsencode(module.name)), module.content))
    # Every kernel with initrd support unpacks gzip. Better compression saves no time at boot.
    packed = gzip.compress(cpio.encode(members), 6, mtime=0)
    # The next archive must start at a multiple of 4; the kernel skips zeros.
    return packed + bytes(-len(packed) % 4)


def first_program() -> bytes:
    """``/init`` of the initrd."""
    with open(_INIT, "rb") as stream:
        return stream.read()


def init_key() -> str:
    """Identifies the first program and the requested modules, as a SHA-256."""
    made_of = hashlib.sha256(hashlib.sha256(first_program()).digest())
    made_of.update(" ".join((*NEEDED, "-", *WANTED)).encode())
    return made_of.hexdigest()


def boot_key(busybox: bytes, kernel_packages: str) -> str:
    """Identifies the parts of kernel and initrd, as a SHA-256: an image with the same key can share another's."""
    made_of = hashlib.sha256(init_key().encode())
    made_of.update(hashlib.sha256(busybox).digest())
    made_of.update(kernel_packages.encode())
    return made_of.hexdigest()

"""What a virtual machine begins as: a kernel, the first file system in its memory, and a root file system."""

from __future__ import annotations

from typing import NamedTuple


class Image(NamedTuple):
    """An image that has been built. The paths are of files that never change."""

    name: str
    id: str
    """The hash of its manifest, and with it of all three files."""
    kernel: bytes
    initrd: bytes
    root: bytes
    """A squashfs."""

"""The record of an object for the kernel, beside the record that every server has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.vfs.recorded.node import Node

if TYPE_CHECKING:
    from holdfast.bridge.fuse._listing_cache import CachedListing
    from holdfast.files.linux.file_handle import Identity


class KernelNode(Node):
    """See the module."""

    __slots__ = ("backed", "backing", "listed", "plain", "strips")

    def __init__(
        self, object_: Identity, parent: int, name: bytes, inode: int, *, is_directory: bool, is_local: bool
    ) -> None:
        super().__init__(object_, parent, name, inode, is_directory=is_directory, is_local=is_local)
        self.listed: CachedListing | None = None
        """The part of its entries that the kernel may cache, if it is a directory that was opened."""
        self.backing = 0
        """The kernel's id of the backing file for passthrough; 0 for none."""
        self.strips = False
        """Writes through the backing file clear set-id bits."""
        self.backed = 0
        """How many of its open handles have that."""
        self.plain = 0
        """How many have not."""

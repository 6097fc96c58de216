"""The port by which a served file system says what the kernel may keep of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from holdfast.bridge.server.transport import Reply
    from holdfast.vfs.file_system import Caller, Found, OpenedDirectory, OpenedFile
    from holdfast.wire.fuse.negotiation import Terms
    from holdfast.wire.fuse.protocol_constants import Init
    from holdfast.wire.fuse.replies import Attributes, NodeEntry, Validity


class OpenedByKernel(NamedTuple):
    """The answer to the opening of a file."""

    flags: int = 0
    """``FOPEN_*``"""
    backing: int = 0
    """The kernel's id of the backing file for passthrough; 0 for none."""


class ListingReader(Protocol):
    """An open directory whose entries the kernel keeps."""

    def begin(self) -> None:
        """The directory is about to be read from its start."""
        ...

    def note_told(self, count: int) -> None:
        """Report that ``count`` entries were told."""
        ...

    def close(self) -> None:
        """The reader is not used any more."""
        ...


class KernelCaches(Protocol):
    """See the module. For any number of threads."""

    @property
    def wished(self) -> Init:
        """The terms to propose to the kernel."""
        ...

    @property
    def needs_no_open(self) -> bool:
        """Whether nodes may be read that were not opened."""
        ...

    @property
    def forgets(self) -> bool:
        """Whether the kernel can be made to forget nodes, where it knows as many as it may."""
        ...

    def begin(self, terms: Terms) -> Collection[int]:
        """The opcodes that the kernel must do without (ENOSYS); called after the terms were agreed upon."""
        ...

    def missing(self, unique: int) -> Reply:
        """The reply that there is no such name."""
        ...

    def attributes(self, status: os.stat_result) -> Attributes:
        """The attributes of a node."""
        ...

    def validity(self, node: int) -> Validity:
        """How long the kernel may remember what a node is like."""
        ...

    def entry(self, found: Found) -> NodeEntry:
        """The entry for a looked-up name."""
        ...

    def created(self, found: Found) -> NodeEntry:
        """The same of a file that was made just now, and is open."""
        ...

    def open_file(self, caller: Caller, node: int, file: OpenedFile) -> OpenedByKernel:
        """A file was opened."""
        ...

    def close_file(self, node: int, file: OpenedFile, opened: OpenedByKernel) -> None:
        """Called just before the file is closed."""
        ...

    def open_directory(self, node: int, directory: OpenedDirectory) -> tuple[int, ListingReader | None]:
        """A directory was opened: returns ``FOPEN_*`` flags, and the observer of its reads."""
        ...

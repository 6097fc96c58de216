"""The port of file systems: the interface for servers of a protocol.

A node is an object under a unique number; `ROOT` always exists. Each method that finds a node counts as a lookup of it,
which the server gives back with `Names.forget`; a file system that counts nothing ignores that. Methods may be called
by any number of threads. They raise `OSError` to refuse (ESTALE for an unknown node, EROFS for every change of a
read-only file system), `TooManyError`, and `HoldfastError` where the store or the undo log fails. Those that change or
open an object raise `holdfast.vfs.patience.LaterError`, `holdfast.model.errors.HeldError` or
`holdfast.undo.interceptor.StepEndedError` before anything has happened: retry.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from holdfast.files.linux.directory_entries import Dirent

ROOT: Final = 1
"""The node of the root."""


class TooManyError(OSError):
    """There is no room for one more node or open file (ENFILE): some have to be given back first."""

    def __init__(self) -> None:
        super().__init__(errno.ENFILE, os.strerror(errno.ENFILE))


class Caller(NamedTuple):
    """The process that asks. Whether it may has been checked by its kernel."""

    thread: int
    """Thread id in this system; 0 if it belongs to another system, or is unknown."""
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """The known supplementary groups."""
    umask: int = 0
    """Still to be applied to objects that the caller makes."""


class Found(NamedTuple):
    """The object under a name."""

    node: int
    status: os.stat_result


class AttributeChange(NamedTuple):
    """New values of attributes; None leaves one unchanged."""

    permissions: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    accessed_ns: int | None = None
    """Since 1970; `NOW`: the present."""
    modified_ns: int | None = None


NOW: Final = -(1 << 127)
"""In place of a time."""


class Names(Protocol):
    """Names in directories. ``permissions`` are mode bits without a type."""

    def lookup(self, parent: int, name: bytes, /) -> Found:
        """Look a name up. Raises `FileNotFoundError`."""
        ...

    def forget(self, node: int, lookups: int, /) -> None:
        """Give lookups back."""
        ...

    def read_link(self, node: int, /) -> bytes | memoryview:
        """The target of a symbolic link."""
        ...

    def make_directory(self, caller: Caller, parent: int, name: bytes, permissions: int, /) -> Found:
        """Make a directory, and look it up; the other methods that make an object do so too."""
        ...

    def make_node(self, caller: Caller, parent: int, name: bytes, mode: int, device: int, /) -> Found:
        """Make an empty file, a pipe, a socket or a device; ``mode`` has the type."""
        ...

    def make_symlink(self, caller: Caller, parent: int, name: bytes, target: bytes, /) -> Found:
        """Make a symbolic link."""
        ...

    def link(self, caller: Caller, node: int, parent: int, name: bytes, /) -> Found:
        """Give a node another name."""
        ...

    def unlink(self, caller: Caller, parent: int, name: bytes, /) -> None:
        """Take a name away that is no directory's."""
        ...

    def rmdir(self, caller: Caller, parent: int, name: bytes, /) -> None:
        """Take an empty directory away."""
        ...

    def rename(self, caller: Caller, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, /) -> None:
        """Rename, with ``RENAME_NOREPLACE`` or ``RENAME_EXCHANGE`` if ``flags`` say so."""
        ...


class OpenedFile(Protocol):
    """A file that is open. ``strips``: the change takes set-id bits away, as the caller may not set them."""

    @property
    def flags(self) -> int:
        """As in open(2), and as requested."""
        ...

    def read(self, size: int, offset: int, /) -> bytes | memoryview:
        """At most ``size`` bytes from ``offset``; fewer only at the end."""
        ...

    def write(self, caller: Caller, data: memoryview, offset: int, /, *, appends: bool, strips: bool) -> int:
        """Write at ``offset``, or at the end if it ``appends``; how many bytes."""
        ...

    def seek(self, offset: int, whence: int, /) -> int:
        """Where the next data or hole is, as lseek(2)."""
        ...

    def sync(self, /, *, data_only: bool) -> None:
        """Make written data durable."""
        ...

    def allocate(self, caller: Caller, mode: int, offset: int, length: int, /, *, strips: bool) -> None:
        """As fallocate(2)."""
        ...

    def copy_to(
        self, caller: Caller, offset: int, target: OpenedFile, target_offset: int, length: int, /, *, strips: bool
    ) -> int:
        """Copy within the file system, at most ``length`` bytes; how many, which may be fewer before the end, too."""
        ...

    def close(self) -> None:
        """The file is not used any more."""
        ...


class Files(Protocol):
    """Opening files. ``flags`` as in open(2)."""

    def open(self, caller: Caller, node: int, flags: int, /, *, strips: bool) -> OpenedFile:
        """Open an existing regular file; ``O_TRUNC`` empties it."""
        ...

    def create(
        self, caller: Caller, parent: int, name: bytes, flags: int, permissions: int, /, *, strips: bool
    ) -> tuple[Found, OpenedFile, bool]:
        """Open a file by its name, and make it unless it is there, which ``O_EXCL`` refuses; whether it was made."""
        ...

    def create_unnamed(self, caller: Caller, parent: int, flags: int, permissions: int, /) -> tuple[Found, OpenedFile]:
        """Make and open a file that has no name yet (``O_TMPFILE``)."""
        ...


class Attributes(Protocol):
    """The attributes of nodes. ``file`` is an open file of the caller, which gives access also without a name."""

    def status(self, node: int, file: OpenedFile | None = None, /) -> os.stat_result:
        """As stat(2) has it."""
        ...

    def links(self, status: os.stat_result, /) -> int:
        """How many names it has that can be seen."""
        ...

    def birth_ns(self, node: int, file: OpenedFile | None = None, /) -> int | None:
        """When it was made, in nanoseconds since 1970; None if that is not known."""
        ...

    def change(
        self, caller: Caller, node: int, change: AttributeChange, file: OpenedFile | None = None, /, *, strips: bool
    ) -> os.stat_result:
        """Make a node other than it is; how it is then."""
        ...

    def get_xattr(self, node: int, name: bytes, /) -> bytes:
        """The value of an extended attribute."""
        ...

    def list_xattrs(self, caller: Caller, node: int, /) -> Sequence[bytes]:
        """The names of the extended attributes that the caller may see."""
        ...

    def set_xattr(
        self, caller: Caller, node: int, name: bytes, value: memoryview, flags: int, /, *, clears_setgid: bool
    ) -> None:
        """As setxattr(2)."""
        ...

    def remove_xattr(self, caller: Caller, node: int, name: bytes, /) -> None:
        """Take an extended attribute away."""
        ...

    def usage(self, node: int, /) -> os.statvfs_result:
        """As statvfs(3) has it."""
        ...

    def sync(self) -> None:
        """Make all of it durable."""
        ...


class OpenedDirectory(Protocol):
    """A directory that is open."""

    def entries(self, offset: int, /) -> AbstractContextManager[Iterator[Dirent]]:
        """The entries from an offset on: 0, or that of an entry which was given before, by this directory or another
        one that was opened from the same node. ``.`` and ``..`` are among them.
        """
        ...

    def lookup(self, entry: Dirent, /) -> Found:
        """Look up the object of an entry, the last that was given."""
        ...

    def sync(self, /, *, data_only: bool) -> None:
        """Make its entries durable."""
        ...

    def close(self) -> None:
        """The directory is not used any more."""
        ...


class Directories(Protocol):
    """Opening directories."""

    def open(self, node: int, /) -> OpenedDirectory:
        """Open one."""
        ...


class FileSystem(Protocol):
    """See the module."""

    @property
    def is_read_only(self) -> bool:
        """Whether it cannot be changed (EROFS)."""
        ...

    @property
    def names(self) -> Names: ...

    @property
    def files(self) -> Files: ...

    @property
    def attributes(self) -> Attributes: ...

    @property
    def directories(self) -> Directories: ...

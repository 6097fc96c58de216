"""One object of a recorded directory: its record while the other side knows it, and its open descriptors."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.undo.interceptor import Place

if TYPE_CHECKING:
    from holdfast.files.linux.file_handle import Identity

OBJECT: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Node:
    """The record of a node, and all of its open descriptors. A server may add fields, in a subclass."""

    __slots__ = ("identity", "inode", "is_directory", "is_local", "name", "open", "others", "parent", "writers")

    def __init__(
        self, object_: Identity, parent: int, name: bytes, inode: int, *, is_directory: bool, is_local: bool
    ) -> None:
        self.identity = object_
        self.inode = inode
        self.parent = parent
        self.name = name
        """By which it was last found, in ``parent``."""
        self.others: tuple[tuple[int, bytes], ...] = ()
        """Some others by which it was found before, each with its directory."""
        self.is_directory = is_directory
        self.is_local = is_local
        """On the same file system as the root, and shown by the same mount."""
        self.open: set[int] = set()
        """Descriptors of its open handles, if it is no directory."""
        self.writers = 0
        """How many of them can write."""


class LocatedNode(NamedTuple):
    """An object with an open descriptor."""

    fd: int
    """``O_PATH``, or one that is open."""
    path: bytes | None
    """Relative to the root; None if it has no name in the tree any more."""
    moves: int = -1
    """See `Place`."""

    @property
    def place(self) -> Place:
        """For the interceptor; only if it has a path."""
        return Place(-1, b"", self.path or b"", self.moves)


def stale_error() -> OSError:
    """The object is unreachable: the caller must look it up again."""
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))

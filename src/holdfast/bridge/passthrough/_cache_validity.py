"""What the kernel is told of objects, and for how long it may believe that."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.wire.fuse import replies
from holdfast.wire.fuse.replies import NEVER, Attributes, NodeEntry, Validity

if TYPE_CHECKING:
    import os

    from holdfast.bridge.passthrough._node_registry import NodeRegistry
    from holdfast.bridge.server.transport import Reply
    from holdfast.wire.fuse.request_bodies import Header


_LONG: Final = Validity(60)
_BRIEFLY: Final = Validity(1)
_PART: Final = 0.75


class LogNames(Protocol):
    """What the undo log keeps, as far as it can be seen from here."""

    def names_of(self, found: os.stat_result, /) -> int:
        """How many of an object's names are in the log."""
        ...


class CacheValidity:
    """See the module."""

    def __init__(self, objects: NodeRegistry, kept: LogNames, *, is_told: bool) -> None:
        """``is_told``: the kernel is told of what others change, and so may remember where names lead, and what is not
        written to is like, for long. (For ever would be long for what it was told the moment before it asked.)
        """
        self._objects = objects
        self._kept = kept
        self.is_told = is_told
        self.good_for = float(_LONG.seconds * _PART)
        """So many seconds what the kernel was told of a directory's entries is enough for who looks at each again."""
        self._valid = _LONG if is_told else _BRIEFLY

    def missing(self, header: Header) -> Reply:
        """That there is no such name. Unless changes by others are told, it may be there in a moment."""
        if self.is_told:
            return replies.negative(header.unique, self._valid)
        return replies.error(header.unique, errno.ENOENT)

    def attributes(self, found: os.stat_result) -> Attributes:
        """The attributes of an object. Names that it has in the undo log are not counted."""
        hidden = self._kept.names_of(found) if found.st_nlink else 0
        if not hidden:
            return replies.attributes(found)
        # (What a directory has more than one link for is not its name.)
        links = 0 if stat.S_ISDIR(found.st_mode) else max(found.st_nlink - hidden, 0)
        return replies.attributes(found, links=links)

    def valid(self, node: int) -> Validity:
        """How long that may be remembered: not while a process may write, as no event tells of writes through a
        mapping.
        """
        return NEVER if self._objects.is_written(node) else self._valid

    def entry(self, node: int, found: os.stat_result) -> NodeEntry:
        """For the reply to a lookup."""
        return NodeEntry(node, self.attributes(found), self._valid, self.valid(node))

    def made(self, node: int, found: os.stat_result) -> NodeEntry:
        """For the reply to a request that has made an empty file, which is open: it may be remembered (and is looked at
        at once, by the kernel), as nothing can be written through a mapping before it has grown, which the kernel sees.
        """
        valid = self.valid(node) if found.st_size else self._valid
        return NodeEntry(node, self.attributes(found), self._valid, valid)

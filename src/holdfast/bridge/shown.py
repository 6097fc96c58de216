"""What the kernel is told of objects, and for how long it may believe that."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING, Protocol

from holdfast.wire.fuse import replies
from holdfast.wire.fuse.replies import FOREVER, NEVER, Attributes, Entry, Valid

if TYPE_CHECKING:
    import os

    from holdfast.bridge.objects import Objects
    from holdfast.bridge.server import Reply
    from holdfast.wire.fuse.bodies import Header


class Kept(Protocol):
    """What the undo log keeps, as far as it can be seen from here."""

    def names_of(self, found: os.stat_result, /) -> int:
        """How many of an object's names are in the log."""
        ...


class Shown:
    """See the module."""

    def __init__(self, objects: Objects, kept: Kept, valid: Valid) -> None:
        """``valid`` is how long the kernel may remember where names lead, and what is not written to is like."""
        self._objects = objects
        self._kept = kept
        self.names = valid

    def missing(self, header: Header) -> Reply:
        """That there is no such name. Where nobody tells of what others make, it may be there in a moment."""
        if self.names is FOREVER:
            return replies.negative(header.unique, FOREVER)
        return replies.error(header.unique, errno.ENOENT)

    def attributes(self, found: os.stat_result) -> Attributes:
        """What an object is like. A name that only the undo log has for it is nobody's."""
        if found.st_nlink and not stat.S_ISDIR(found.st_mode):
            links = found.st_nlink - self._kept.names_of(found)
            return replies.attributes(found, links=max(links, 0))
        return replies.attributes(found)

    def valid(self, node: int) -> Valid:
        """How long that may be remembered: not while somebody may write, as through a mapping nobody is told of it."""
        return NEVER if self._objects[node].writers else self.names

    def entry(self, node: int, found: os.stat_result) -> Entry:
        """For the reply to whatever has looked it up."""
        return Entry(node, self.attributes(found), self.names, self.valid(node))

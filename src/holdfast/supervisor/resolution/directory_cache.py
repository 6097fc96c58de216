"""Recently resolved directories of the workspace: a repeated path is not resolved again.

Resolving a directory takes five system calls and a third of the time of a whole call; checking that the path still
leads to the same object takes one. Its location is trusted for two milliseconds: only the interceptor, which reports
it, or an outside process may move it meanwhile, and the latter could have done so a moment later as well.
"""

from __future__ import annotations

import os
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.caller_identity import Caller
    from holdfast.supervisor.resolution.handler_context import HandlerContext
    from holdfast.supervisor.resolution.territory import Location

_FRESH_NS = 2_000_000
_MOST = 64
_AT_FDCWD = -100


class _Directory(NamedTuple):
    way: bytes
    """How its callers get there, from their directory in ``/proc``."""
    fd: int
    """As long as it is open, no other object has the same number."""
    device: int
    inode: int
    where: Location
    until: int
    arrangement: int


class DirectoryCache:
    """See the module. For the serving thread, and for callers that see what the keeper sees."""

    def __init__(self) -> None:
        self._known: dict[tuple[HandlerContext, Caller, int, bytes], _Directory] = {}

    def find(self, context: HandlerContext, caller: Caller, dirfd: int, head: bytes) -> tuple[int, Location] | None:
        """The directory of ``head`` relative to ``dirfd``, and its location; None if it must be resolved.

        Its descriptor is borrowed, until the end of the call. If there is one, the caller is alive.
        """
        known = self._known.get((context, caller, dirfd, head))
        if known is None:
            return None
        way, fd, device, inode, where, until, arrangement = known
        if monotonic_ns() > until or arrangement != context.interceptor.arrangement:
            return None
        try:
            found = os.stat(way, dir_fd=caller.fd)
        except OSError:
            return None
        return (fd, where) if found.st_ino == inode and found.st_dev == device else None

    def remember(
        self, context: HandlerContext, caller: Caller, dirfd: int, head: bytes, fd: int, where: Location
    ) -> list[int]:
        """``head`` has just led to the directory ``fd``, which is taken over, in the workspace.

        Returns descriptors that are not needed any more, but perhaps for this call.
        """
        unused: list[int] = []
        if len(self._known) >= _MOST:
            unused = [known.fd for known in self._known.values()]
            self._known.clear()
        begin = b"cwd" if dirfd == _AT_FDCWD else b"fd/%d" % dirfd
        found = os.fstat(fd)
        key = context, caller, dirfd, head
        if (known := self._known.get(key)) is not None:
            unused.append(known.fd)
        self._known[key] = _Directory(
            os.path.join(begin, head),
            fd,
            found.st_dev,
            found.st_ino,
            where,
            monotonic_ns() + _FRESH_NS,
            context.interceptor.arrangement,
        )
        return unused

    def forget(self) -> None:
        """Close all, between two calls: an open directory keeps a file system from being unmounted."""
        for known in self._known.values():
            os.close(known.fd)
        self._known.clear()


DIRECTORIES = DirectoryCache()

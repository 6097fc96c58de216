"""The restrictions of ``openat2`` on path resolution (``RESOLVE_*``), which the kernel enforces as far as it can."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from holdfast.files.linux.syscalls import (
    RESOLVE_BENEATH,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    openat2,
)
from holdfast.supervisor.operations.registers import check_flags, os_error
from holdfast.supervisor.resolution.path_resolver import split
from holdfast.supervisor.resolution.procfs import is_in_proc
from holdfast.supervisor.resolution.sticky_directories import check_link

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.path_resolver import PathResolver, ResolvedName, ResolvedObject

_RESOLVE_CACHED = 0x20
_CLOSED = RESOLVE_BENEATH | RESOLVE_IN_ROOT
_KNOWN = 0x3F


class Confined:
    """Looks as `PathResolver` does, under such rules."""

    def __init__(self, resolver: PathResolver, resolve: int) -> None:
        self._sight = resolver
        # The target of a link in /proc would be the keeper's, not the caller's.
        self._resolve = resolve | RESOLVE_NO_MAGICLINKS
        self._start = -1
        self._head = b""

    def object(self, dirfd: int, path: bytes, *, follow: bool = True) -> ResolvedObject:
        """See `PathResolver.object`."""
        self._begin(dirfd, path)
        fd = self._open(path, 0 if follow else os.O_NOFOLLOW)
        return self._sight.check_found(self, fd, dirfd, path, follow=follow)

    def locate(self, dirfd: int, path: bytes) -> ResolvedName:
        """See `PathResolver.locate`."""
        self._begin(dirfd, path)
        return self._parent(path)

    def follow(self, resolved: ResolvedName, link: int, /) -> ResolvedName | ResolvedObject:
        """See `PathResolver.follow`."""
        if self._resolve & RESOLVE_NO_SYMLINKS:
            raise os_error(errno.ELOOP)
        check_link(resolved.dir_fd, link, self._sight.uid)
        target = os.readlink(b"", dir_fd=link)
        if is_in_proc(link):
            raise os_error(errno.ELOOP)
        if not target.startswith(b"/"):
            return self._parent(os.path.join(self._head, target))
        if self._resolve & RESOLVE_BENEATH:
            raise os_error(errno.EXDEV)
        return self._parent(target)

    def _begin(self, dirfd: int, path: bytes) -> None:
        if not path:
            raise os_error(errno.ENOENT)
        self._start = self._sight.start(dirfd, b"" if self._resolve & _CLOSED else path)
        if self._sight.caller.foreign and not self._resolve & _CLOSED:
            if path.startswith(b"/"):
                self._resolve |= RESOLVE_IN_ROOT
            elif not self._resolve & RESOLVE_NO_SYMLINKS or b".." in path.split(b"/"):
                raise os_error(errno.EXDEV)  # the way might lead over the caller's root, where the kernel would go on

    def _parent(self, path: bytes) -> ResolvedName:
        self._head, name, slash = split(path)
        dir_fd = self._open(self._head, os.O_DIRECTORY) if self._head else self._start
        return self._sight.resolve_name(dir_fd, name, slash, self._head)

    def _open(self, path: bytes, flags: int) -> int:
        with self._sight.caller_credentials():
            fd = self._sight.keep_open(openat2(self._start, path, os.O_PATH | flags, self._resolve))
        if is_in_proc(fd):
            raise os_error(errno.ELOOP)
        return fd


def check_resolve(resolve: int) -> None:
    """Raise the error of ``openat2`` for these rules that does not depend on the path."""
    check_flags(resolve, _KNOWN)
    if resolve & _CLOSED == _CLOSED:
        raise os_error(errno.EINVAL)
    if resolve & _RESOLVE_CACHED:
        # The answer is allowed at any time: then the caller asks again without this rule.
        raise os_error(errno.EAGAIN)

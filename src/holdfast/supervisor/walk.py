"""Resolving a path name by name, as the caller would: where the kernel, asked by the keeper, sees something else."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext
from typing import TYPE_CHECKING

from holdfast.files.kernel import RESOLVE_NO_MAGICLINKS, openat2
from holdfast.supervisor.proc import is_in_proc
from holdfast.supervisor.process_owner import is_itself, own_numbers

if TYPE_CHECKING:
    from holdfast.supervisor.resolve import PathResolver

_OBJECT = os.O_PATH | os.O_CLOEXEC
_LINK = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
MOST_LINKS = 40
"""Of links that one path leads through."""


def walk(sight: PathResolver, start: int, path: bytes, *, follow: bool) -> int:
    """Resolve ``path`` name by name to an object that is there."""
    root = sight.root()
    top = os.fstat(root)
    at = root if path.startswith(b"/") else start
    follow = follow or path.endswith((b"/", b"/."))
    waiting = _names(path)
    links = 0
    while waiting:
        name = waiting.pop()
        if name == b"..":
            if not os.path.samestat(os.fstat(at), top):
                at = step(sight, at, b"..", _DIRECTORY)
            continue
        inner = step(sight, at, name, _LINK)
        found = os.fstat(inner)
        if not stat.S_ISLNK(found.st_mode) or not (waiting or follow):
            if waiting and not stat.S_ISDIR(found.st_mode):
                raise _error(errno.ENOTDIR)
            at = inner
            continue
        links += 1
        if links > MOST_LINKS:
            raise _error(errno.ELOOP)
        target = target_of(sight, at, name, inner)
        if target is None:
            at = sight.meant = step(sight, at, name, _OBJECT)
            continue
        if target.startswith(b"/"):
            at = root
        waiting += _names(target)
    if path.endswith((b"/", b"/.")) and not stat.S_ISDIR(os.fstat(at).st_mode):
        raise _error(errno.ENOTDIR)
    if stat.S_ISDIR(os.fstat(at).st_mode):
        is_itself(sight, at)  # (what is done to a name in it would be done by the keeper, too)
    return at


def step(sight: PathResolver, at: int, name: bytes, flags: int) -> int:
    """What is at a name in a directory, opened with the flags for ``O_PATH``.

    Raises `OSError`: EACCES if the directory is what a ``/proc`` says of somebody who is not of the caller's tree.
    """
    # What /proc says of itself is open to the caller, but not to another process in its name.
    with nullcontext() if is_itself(sight, at) else sight.acting():
        return sight.held(os.open(name, flags, dir_fd=at))


def target_of(sight: PathResolver, at: int, name: bytes, link: int) -> bytes | None:
    """Where a link leads; None if it is an object itself that it stands for, rather than a path."""
    if is_in_proc(at):
        if name in (b"self", b"thread-self"):  # (in its root, that is: no link elsewhere is called so)
            process, thread = own_numbers(sight, at)
            return b"%d" % process if name == b"self" else b"%d/task/%d" % (process, thread)
        try:
            os.close(openat2(at, name, _OBJECT, RESOLVE_NO_MAGICLINKS))
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
    target = os.readlink(b"", dir_fd=link)
    if not target:
        raise _error(errno.ENOENT)
    return target


def _names(path: bytes) -> list[bytes]:
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))

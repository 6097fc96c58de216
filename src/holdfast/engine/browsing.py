"""Looking at a workspace's files for somebody who may be anybody: bounded, and never outside of it (I7)."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from holdfast.files.kernel import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, openat2
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError, RefusedError, StorageError, UsageError
from holdfast.model.ids import Hash, Hasher
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_READ_BYTES: Final = 16 << 20
_PIECE = 1 << 20
_HIDDEN = b".holdfast"
_RULES = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS
_TRIES = 16

Kind = Literal["file", "directory", "link", "other"]


class Item(NamedTuple):
    """What a directory holds."""

    name: bytes
    kind: Kind
    size: int
    """Of a file, in bytes; 0 otherwise."""
    mode: int
    """The 12 permission bits."""
    mtime: int
    """Nanoseconds since 1970-01-01 UTC."""
    target: bytes | None
    """Of a link."""


class Read(NamedTuple):
    """A part of a file."""

    content: bytes
    offset: int
    size: int
    """Of the whole file."""
    hash: Hash | None
    """Of the whole file, if the part is the whole."""


def list_directory(root: bytes, path: bytes) -> Sequence[Item]:
    """What the directory ``path`` (empty: the root) holds, sorted by name. What is Holdfast's own is left out.

    Links that stay within the workspace are followed on the way, not in the list. Raises `NotFoundError`, `EscapeError`
    for a path that leads out, `RefusedError` for what is no directory.
    """
    fd = _opened(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(fd) as entries:
            names = sorted(os.fsencode(entry.name) for entry in entries)
        found = (_item(fd, name) for name in names if path or name != _HIDDEN)
        return [item for item in found if item is not None]
    except OSError as error:
        raise _translated(path, error) from error
    finally:
        os.close(fd)


def read_file(root: bytes, path: bytes, *, offset: int = 0, limit: int = MAX_READ_BYTES) -> Read:
    """At most ``limit`` bytes of the file ``path`` from ``offset``. Raises as `list_directory`, and `UsageError`."""
    if offset < 0 or not 0 <= limit <= MAX_READ_BYTES:
        raise UsageError(f"offset is a number from 0, limit one from 0 to {MAX_READ_BYTES}")
    fd = _opened(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedError(f"{display(path)} is no regular file", code="not_a_file")
        content = bytearray()
        while len(content) < limit and (
            piece := os.pread(fd, min(_PIECE, limit - len(content)), offset + len(content))
        ):
            content += piece
        size = max(found.st_size, offset + len(content) if content else 0)
        whole = offset == 0 and not os.pread(fd, 1, len(content))
        return Read(bytes(content), offset, len(content) if whole else size, _hash(content) if whole else None)
    except OSError as error:
        raise _translated(path, error) from error
    finally:
        os.close(fd)


def _hash(content: bytearray) -> Hash:
    hasher = Hasher()
    hasher.update(content)
    return hasher.hash()


def _item(fd: int, name: bytes) -> Item | None:
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(found.st_mode) else None
    except FileNotFoundError:
        return None  # it is gone meanwhile
    kind: Kind = "other"
    if target is not None:
        kind = "link"
    elif stat.S_ISDIR(found.st_mode):
        kind = "directory"
    elif stat.S_ISREG(found.st_mode):
        kind = "file"
    size = found.st_size if kind == "file" else 0
    return Item(name, kind, size, stat.S_IMODE(found.st_mode), found.st_mtime_ns, target)


def _opened(root: bytes, path: bytes, flags: int) -> int:
    if path.partition(b"/")[0] == _HIDDEN or b"\0" in path:
        raise EscapeError(f"refused path {display(path)!r}")
    try:
        base = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _translated(root, error) from error
    try:
        for _ in range(_TRIES):
            try:
                fd = openat2(base, path or b".", flags | os.O_CLOEXEC, _RULES)
            except BlockingIOError:
                continue  # a rename elsewhere raced with the look-up
            return _checked(fd, base, path)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    except OSError as error:
        raise _translated(path, error) from error
    finally:
        os.close(base)


def _checked(fd: int, base: int, path: bytes) -> int:
    """The descriptor, if no link has led to what is Holdfast's own."""
    at, own = (os.readlink(f"/proc/self/fd/{each}") for each in (fd, base))
    if os.fsencode(at).removeprefix(os.fsencode(own).rstrip(b"/") + b"/").partition(b"/")[0] == _HIDDEN:
        os.close(fd)
        raise EscapeError(f"refused path {display(path)!r}")
    return fd


def _translated(path: bytes, error: OSError) -> HoldfastError:
    shown = display(path) or "."
    match error.errno:
        case errno.ENOENT:
            return NotFoundError(f"there is no {shown}", code="no_such_path")
        case errno.EXDEV | errno.ELOOP:
            return EscapeError(f"{shown} leads out of the workspace")
        case errno.ENOTDIR:
            return RefusedError(f"{shown} is no directory", code="not_a_directory")
        case errno.ENAMETOOLONG | errno.EINVAL:
            return UsageError(f"{shown[:80]} is no path: {error.strerror}")
        case _:
            return StorageError(f"{shown} cannot be read: {error.strerror}")

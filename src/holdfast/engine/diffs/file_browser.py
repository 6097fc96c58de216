"""Reading a workspace's files for an untrusted peer: bounded, and never outside of the workspace (I7)."""

from __future__ import annotations

import errno
import heapq
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.files.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, openat2
from holdfast.files.protected_directories import find_protected
from holdfast.model.command_results import Read
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError, RefusedError, StorageError, UsageError
from holdfast.model.ids import Hash, Hasher
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.files.protected_directories import ProtectedDirectories
    from holdfast.model.answers.words import EntryKind

MAX_READ_BYTES: Final = 16 << 20
_PIECE = 1 << 20
_HIDDEN = b".holdfast"
_RULES = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS
_TRIES = 16
_MOST_LINKS = 40
"""On the way to one file, as the kernel has it."""
_DIRECTORY = os.O_PATH | os.O_DIRECTORY


class DirectoryEntry(NamedTuple):
    """An entry of a directory."""

    name: bytes
    kind: EntryKind
    size: int
    """Of a file, in bytes; 0 otherwise."""
    mode: int
    """The 12 permission bits."""
    mtime: int
    """Nanoseconds since 1970-01-01 UTC."""
    target: bytes | None
    """Of a link."""


class DirectoryListing(NamedTuple):
    """A part of what a directory holds."""

    items: Sequence[DirectoryEntry]
    """Sorted by name."""
    total: int
    """How many the directory holds."""
    following: bytes | None
    """The name to continue after; None at the end."""


def list_directory(
    root: bytes, path: bytes, *, own: Sequence[bytes] = (), after: bytes = b"", limit: int | None = None
) -> DirectoryListing:
    """The entries of the directory ``path`` (empty: the root) after the name ``after``, at most ``limit``.

    Holdfast's own files are left out, including the directories ``own``. Memory is bounded by the answer, however large
    the directory. Links within the workspace are followed in the path, but not in the list. Raises `NotFoundError`,
    `EscapeError` for a path that leads out, `RefusedError` if it is no directory.
    """
    out_of_reach = find_protected(own)
    fd = _open_entry(root, path, os.O_RDONLY | os.O_DIRECTORY, out_of_reach)
    try:
        total = 0

        def behind() -> Iterator[bytes]:
            nonlocal total
            for name in _names(fd, out_of_reach):
                total += 1
                if name > after:
                    yield name

        names = sorted(behind()) if limit is None else heapq.nsmallest(limit + 1, behind())
        shown = names[:limit]
        items = [item for item in (_item(fd, name) for name in shown) if item is not None]
        return DirectoryListing(items, total, shown[-1] if len(shown) < len(names) else None)
    except OSError as error:
        raise _translated(path, error) from error
    finally:
        os.close(fd)


def _names(fd: int, own: ProtectedDirectories) -> Iterator[bytes]:
    numbers = {inode for _, inode in own.places}
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            if name == _HIDDEN:
                continue
            if entry.inode() in numbers and own.is_one(entry.stat(follow_symlinks=False)):
                continue
            yield name


def find_directory(root: bytes, path: bytes, *, own: Sequence[bytes] = ()) -> bytes:
    """The absolute path of the directory that ``path`` leads to in the workspace, with no link in it.

    A caller that opens it by this name may find another directory, if a process replaced it meanwhile. Raises as
    `list_directory`.
    """
    fd = _open_entry(root, path, _DIRECTORY, find_protected(own))
    try:
        return os.fsencode(os.readlink(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)


def read_file(
    root: bytes, path: bytes, *, own: Sequence[bytes] = (), offset: int = 0, limit: int = MAX_READ_BYTES
) -> Read:
    """At most ``limit`` bytes of the file ``path`` from ``offset``. Raises as `list_directory`, and `UsageError`."""
    if offset < 0 or not 0 <= limit <= MAX_READ_BYTES:
        raise UsageError(f"offset is a number from 0, limit one from 0 to {MAX_READ_BYTES}")
    fd = _open_entry(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, find_protected(own))
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


def _item(fd: int, name: bytes) -> DirectoryEntry | None:
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(found.st_mode) else None
    except FileNotFoundError:
        return None  # it is gone meanwhile
    kind: EntryKind = "other"
    if target is not None:
        kind = "link"
    elif stat.S_ISDIR(found.st_mode):
        kind = "directory"
    elif stat.S_ISREG(found.st_mode):
        kind = "file"
    size = found.st_size if kind == "file" else 0
    return DirectoryEntry(name, kind, size, stat.S_IMODE(found.st_mode), found.st_mtime_ns, target)


def _open_entry(root: bytes, path: bytes, flags: int, own: ProtectedDirectories) -> int:
    """Open ``path`` beneath the root, outside of Holdfast's own files.

    Its directory is opened and checked first, and the rest is relative to that, so no process can move it elsewhere in
    between. A link at the end is followed in the same way.
    """
    if b"\0" in path:
        raise EscapeError(f"refused path {display(path)!r}")
    try:
        base = os.open(root, _DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _translated(root, error) from error
    try:
        at = path
        for _ in range(_MOST_LINKS):
            head, _, name = at.rstrip(b"/").rpartition(b"/")
            if at.startswith(b"/") or name in (b"", b".", b".."):
                head, name = at, b""
            directory = _open_beneath(base, head, _DIRECTORY)
            try:
                _check(base, directory, name, path, own)
                if not name:
                    return _open_beneath(directory, b"", flags)
                try:
                    fd = _open_beneath(directory, name, flags | os.O_NOFOLLOW)
                except OSError as error:
                    if (target := _target(directory, name, error)) is None:
                        raise
                    at = target if target.startswith(b"/") else os.path.join(head, target)
                    continue
            finally:
                os.close(directory)
            return _checked(fd, base, path, own)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except OSError as error:
        raise _translated(path, error) from error
    finally:
        os.close(base)


def _open_beneath(base: int, path: bytes, flags: int) -> int:
    for _ in range(_TRIES):
        try:
            return openat2(base, path or b".", flags | os.O_CLOEXEC, _RULES)
        except BlockingIOError:
            continue  # a rename somewhere else raced with the look-up
        except OSError as error:
            if error.errno != errno.ENOSYS or not flags & os.O_PATH:
                raise
            flags &= ~os.O_PATH  # a supervisor can pass only descriptors that are open for reading
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _target(directory: int, name: bytes, error: OSError) -> bytes | None:
    """The target of the link that could not be opened; None if it is no link."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        return None
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def _checked(fd: int, base: int, path: bytes, own: ProtectedDirectories) -> int:
    """The descriptor, if it is not a directory that is Holdfast's own."""
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            _check(base, fd, b"", path, own)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check(base: int, directory: int, name: bytes, path: bytes, own: ProtectedDirectories) -> None:
    """Raise `EscapeError` if the directory, or ``name`` in it, is Holdfast's own."""
    own.check(directory, path)
    at, top = (os.readlink(f"/proc/self/fd/{each}") for each in (directory, base))
    below = os.path.join(os.fsencode(at), name).removeprefix(os.fsencode(top).rstrip(b"/") + b"/")
    if _HIDDEN in below.split(b"/"):
        raise EscapeError(f"refused path {display(path)!r}")


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

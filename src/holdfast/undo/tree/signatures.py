"""The signature of an object at the end of a step, and the comparison with its present state.

Every change of an object's content or metadata sets its ctime. So does a name that comes or goes, even in the undo log,
and so do entries of a directory. For an object with several names and another ctime, owner, extended attributes and
content decide: the content by the hash of a small file from the end of the step. For a directory and a pipe only owner
and attributes decide.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.linux.metadata import mtime_of, read_xattrs, read_xattrs_at
from holdfast.model.ids import Hasher, hash_bytes
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.records import ObjectDescription, Signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.linux.metadata import Xattrs
    from holdfast.undo.tree.rooted_directories import Directories

NOT_OURS = Signature(0, 0, 0, 0, 0)
"""Equal to nothing that is: another process had changed it before the step could be finished."""
CHECKED_BYTES = 1 << 20
"""Larger files are not hashed."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20


def signature(directories: Directories, path: bytes, alive_until: int | None = None) -> Signature | None:
    """The present signature of the path; None if it is empty.

    An object that was changed after ``alive_until`` (ns) is `NOT_OURS`.
    """
    return _look(directories, path, alive_until, 0)


def _look(directories: Directories, path: bytes, alive_until: int | None, known: int) -> Signature | None:
    """`signature`; if the ctime is ``known``, without the values that it proves unchanged."""
    try:
        place = place_at(directories, path)
        if path:
            found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
            parent = os.fstat(place.dir_fd).st_ino
            xattrs = partial(read_xattrs_at, place.dir_fd, place.name)
        else:
            # By its descriptor: without search permission, its entry "." cannot be examined.
            found, parent, xattrs = os.fstat(place.dir_fd), 0, partial(read_xattrs, place.dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return NOT_OURS  # a link on the way
    if alive_until is not None and found.st_ctime_ns > alive_until:
        return NOT_OURS
    if found.st_ctime_ns == known:
        return _outline(found, directories.device, parent)
    return signature_of(found, directories.device, xattrs, parent)


def place_at(directories: Directories, path: bytes) -> Place:
    """Where ``path`` is, the root too. Raises `OSError`."""
    return directories.place(path) if path else Place(directories.directory(b""), b".", b"")


def signature_of(found: os.stat_result, device: int, xattrs: Callable[[], Xattrs], parent: int = 0) -> Signature:
    """The signature of an examined object, in the directory with the inode number ``parent``; ``device`` is that of the
    workspace's root. ``xattrs`` reads its extended attributes, and is called only if the ctime cannot show their
    changes.
    """
    left = _outline(found, device, parent)
    if left.ctime and left.names == 1:
        return left
    return msgspec.structs.replace(left, described=describe_object(found, xattrs))


def _outline(found: os.stat_result, device: int, parent: int) -> Signature:
    """The signature without owner and attributes."""
    # The root's device may have another number after a new mount.
    device = 0 if found.st_dev == device else found.st_dev
    # Size and times of a directory change with its entries, also by other steps; those of a pipe change with its data.
    if stat.S_ISDIR(found.st_mode) or stat.S_ISFIFO(found.st_mode):
        return Signature(found.st_ino, found.st_mode, 0, 0, 0, 1, parent, device=device)
    return Signature(
        found.st_ino,
        found.st_mode,
        found.st_size,
        mtime_of(found),
        found.st_ctime_ns,
        found.st_nlink,
        parent,
        device=device,
    )


def describe_object(found: os.stat_result, xattrs: Callable[[], Xattrs]) -> ObjectDescription:
    """Owner and extended attributes of the examined object."""
    try:
        attributes = _digest(xattrs())
    except OSError:
        attributes = b""
    return ObjectDescription(found.st_uid, found.st_gid, attributes)


NO_XATTRS = hash_bytes(msgspec.msgpack.encode(()))
"""`ObjectDescription.attributes` of an object without attributes."""


@lru_cache(maxsize=8)
def _digest(xattrs: Xattrs) -> bytes:
    # Neighbouring objects usually have the same attributes, or none.
    return hash_bytes(msgspec.msgpack.encode(xattrs))


def unknown_signature(left: Signature) -> Signature:
    """Stands for an object that is still written to: no present object equals it."""
    return Signature(left.inode, 0, 0, 0, 0, parent=left.parent, device=left.device)


def is_unknown(left: Signature | None) -> bool:
    """Whether the result is unknown."""
    return left is not None and left.inode != 0 and left.mode == 0


def with_hash(place: Callable[[], Place], left: Signature) -> Signature:
    """``left`` with the hash of the content, if that may ever decide, the file is small and still as it was left.

    ``place`` is where that is; it may raise `OSError`.
    """
    if left.names == 1 or not stat.S_ISREG(left.mode) or left.size > CHECKED_BYTES:
        return left
    try:
        there = place()
        check = content_at(there)
        found = os.stat(there.name, dir_fd=there.dir_fd, follow_symlinks=False)
    except OSError:
        return left
    is_still = (left.inode, left.mode, left.size, left.mtime, left.ctime) == (
        found.st_ino,
        found.st_mode,
        found.st_size,
        mtime_of(found),
        found.st_ctime_ns,
    )
    return msgspec.structs.replace(left, check=check) if is_still else left


def is_as_left(directories: Directories, path: bytes, left: Signature | None) -> bool:
    """Whether the path is as a step left it."""
    now = _look(directories, path, None, left.ctime if left else 0)
    return is_same(left, now, partial(place_at, directories, path))


def is_untouched(directories: Directories, path: bytes, left: Signature | None) -> bool:
    """Whether the path is as a step left it, except for the ctime, which chattr(1) may have changed."""
    now = signature(directories, path)
    if left is None or now is None or not stat.S_ISREG(left.mode):
        return is_as_left(directories, path, left)
    return (left.key, left.mode, left.size, left.mtime) == (now.key, now.mode, now.size, now.mtime)


def is_same(left: Signature | None, now: Signature | None, place: Callable[[], Place]) -> bool:
    """Whether a step's result, now with the signature ``now``, is unchanged, at any path.

    ``place`` returns its place, and is called if more must be compared; it may raise `OSError`.
    """
    if left is None or now is None:
        return left is now
    if (left.inode, left.mode, left.size, left.mtime) != (now.inode, now.mode, now.size, now.mtime):
        return False
    if left.ctime == now.ctime and left.ctime:
        return True
    try:
        if left.described is not None and not is_described(left.described, now.described or described_at(place())):
            return False
        if left.ctime == now.ctime:
            return True
        if left.names == 1:
            return False
        return not stat.S_ISREG(left.mode) or (left.check != b"" and content_at(place()) == left.check)
    except OSError:
        return False


def is_described(left: ObjectDescription | None, now: ObjectDescription | None) -> bool:
    """Whether owner and attributes are as they were left, as far as they are known."""
    if left is None or now is None:
        return True
    return (left.uid, left.gid) == (now.uid, now.gid) and left.attributes in (b"", now.attributes)


def described_at(place: Place) -> ObjectDescription:
    """Owner and extended attributes of the object at the place. Raises `OSError`."""
    found = os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)
    return describe_object(found, partial(read_xattrs_at, place.dir_fd, place.name))


def content_at(place: Place) -> bytes:
    """The hash of the file at the place, or of the target of the link; empty if it is neither. Raises `OSError`."""
    if stat.S_ISLNK(os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False).st_mode):
        return hash_bytes(os.readlink(place.name, dir_fd=place.dir_fd))
    fd = os.open(place.name, _READ, dir_fd=place.dir_fd)
    try:
        return content_through(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def content_through(fd: int) -> bytes:
    """The hash of a file that is open for reading, from where that is to its end. Raises `OSError`."""
    hasher = Hasher()
    while piece := os.read(fd, _CHUNK):
        hasher.update(piece)
    return hasher.hash()

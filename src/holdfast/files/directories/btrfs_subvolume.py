"""Subvolumes of btrfs: snapshots of them, including nested ones, and their removal.

Needs no program, and no privilege beyond ownership of the files. Sources: ``linux/btrfs.h``, btrfs-subvolume(8).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux import syscalls
from holdfast.files.linux.metadata import proc_path
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

_BTRFS: Final = 0x9123683E
_ROOT_INODE: Final = 256
"""The inode number of the root of every subvolume."""
_STUB_INODE: Final = 2
"""The inode number of an empty directory in a snapshot that replaces a nested subvolume."""
_SNAP_CREATE_V2, _SNAP_DESTROY = 0x50009417, 0x5000940F
_SUBVOL_GETFLAGS, _SUBVOL_SETFLAGS = 0x80089419, 0x4008941A
_FS_INFO, _GET_SUBVOL_ROOTREF, _INO_LOOKUP_USER = 0x8400941F, 0xD000943D, 0xD000943E
_INO_LOOKUP = 0xD0009412
_READ_ONLY: Final = 2

_CREATE = struct.Struct("=qQQ32x4040s")  # descriptor, transaction, flags, name
_DESTROY = struct.Struct("=q4088s")
_FLAGS = struct.Struct("=Q")
_FS_INFO_BYTES: Final = 1024
_FSID: Final = slice(16, 32)
_PAGE: Final = 4096
_REF = struct.Struct("=QQ")
_REFS_AT, _REFS_COUNT_AT, _MOST_REFS = 8, 4088, 255
_LOOKED_UP_NAME, _LOOKED_UP_PATH = slice(16, 272), slice(272, None)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RULES = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS


class _Inner(NamedTuple):
    """A subvolume in another one."""

    directory: bytes
    """Where it lies there, without a slash at either end; empty for the top."""
    name: bytes


def is_subvolume(path: bytes) -> bool:
    """Whether the directory ``path``, not a link, is the root of a subvolume. Raises `OSError`."""
    with _opened(path) as fd:
        return syscalls.file_system(fd) == _BTRFS and os.fstat(fd).st_ino == _ROOT_INODE


def subvolume_number(path: bytes) -> int | None:
    """The number of the subvolume with the root ``path``, not a link: unique for ever in its file system. None if
    ``path`` is no such root. Raises `OSError`.
    """
    with _opened(path) as fd:
        if os.fstat(fd).st_ino != _ROOT_INODE or syscalls.file_system(fd) != _BTRFS:
            return None
        asked = bytearray(_PAGE)
        _REF.pack_into(asked, 0, 0, _ROOT_INODE)
        fcntl.ioctl(fd, _INO_LOOKUP, asked, True)
        return _REF.unpack_from(asked)[0]


def same_btrfs(one: bytes, other: bytes) -> bool:
    """Whether two directories are in one file system, which is btrfs: devices differ between subvolumes. Raises
    `OSError`.
    """
    found: list[bytes] = []
    for path in (one, other):
        with _opened(path) as fd:
            if syscalls.file_system(fd) != _BTRFS:
                return False
            about = bytearray(_FS_INFO_BYTES)
            fcntl.ioctl(fd, _FS_INFO, about, True)
            found.append(bytes(about[_FSID]))
    return found[0] == found[1]


def has_inner(path: bytes) -> bool:
    """Whether the subvolume ``path`` contains other subvolumes. Raises `OSError`, also where a kernel cannot tell."""
    with _opened(path) as fd:
        return bool(_inner(fd))


def snapshot_subvolume(source: bytes, target: bytes, *, read_only: bool, without: Iterable[bytes] = ()) -> None:
    """Make the new ``target`` a snapshot of the subvolume ``source``: its whole content at one moment.

    Nested subvolumes get snapshots too, each of its own moment. ``without`` are directories to leave out, as paths in
    ``source``. Durable when it returns. Raises `OSError`, including `FileExistsError`; partial results stay.
    """
    absent = tuple(without)
    with _opened(source) as source_fd, _opened(os.path.dirname(target)) as parent:
        name = os.path.basename(target)
        # (One to be ``read_only`` is so from the beginning, if no work is left: each change takes a commit.)
        done = not _inner(source_fd) and not any(_has(source_fd, path) for path in absent)
        _take(source_fd, parent, name, read_only=read_only and done)
        with _opened(target) as fd:
            if done and not any(_has(fd, path) for path in absent):
                return
            _set_read_only(fd, False)
            for path in absent:
                _leave_out(fd, path)
            _carry(source_fd, fd, read_only=read_only)
            _set_read_only(fd, read_only)
            syscalls.syncfs(fd)


def remove_subvolume(path: bytes) -> None:
    """Remove the subvolume ``path`` with its content, including other subvolumes; or a plain directory. Harmless if
    there is none. Durable when it returns. Raises `OSError`.

    Without permission to remove subvolumes (mount option ``user_subvol_rm_allowed``) it removes file by file.
    """
    try:
        with _opened(os.path.dirname(path)) as parent:
            _remove(parent, os.path.basename(path))
            os.fsync(parent)
    except FileNotFoundError:
        return


def _remove(parent: int, name: bytes) -> None:
    about = os.stat(name, dir_fd=parent, follow_symlinks=False)
    path = os.fsencode(proc_path(parent)) + b"/" + name
    if about.st_ino != _ROOT_INODE or not is_subvolume(path):
        remove_whole(path)
        return
    with _opened_in(parent, name) as fd:
        inner = _inner(fd)
        if inner or os.geteuid():  # root alone may remove one that is read-only
            _set_read_only(fd, False)
        for one in inner:
            with _opened_in(fd, one.directory) as directory:
                _remove(directory, one.name)
    try:
        fcntl.ioctl(parent, _SNAP_DESTROY, bytearray(_DESTROY.pack(0, name)))
    except PermissionError:
        remove_whole(path)


def _take(source: int, parent: int, name: bytes, *, read_only: bool) -> None:
    flags = _READ_ONLY if read_only else 0
    fcntl.ioctl(parent, _SNAP_CREATE_V2, bytearray(_CREATE.pack(source, 0, flags, name)))


def _carry(source: int, target: int, *, read_only: bool) -> None:
    """Put snapshots of the subvolumes that lie in ``source`` where its snapshot ``target`` has stubs."""
    for directory, name in _inner(source):
        path = _join(directory, name)
        try:
            with _opened_in(target, directory) as parent:
                if os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino != _STUB_INODE:
                    continue
                with _same_time(parent):
                    os.rmdir(name, dir_fd=parent)
                    with _opened_in(source, path) as inside:
                        _take(inside, parent, name, read_only=False)
                        with _opened_in(parent, name) as taken:
                            _carry(inside, taken, read_only=read_only)
                            _set_read_only(taken, read_only)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it has come, or gone, since
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error


def _leave_out(top: int, path: bytes) -> None:
    """Remove what a snapshot is not to hold."""
    directory, name = os.path.split(path)
    try:
        with _opened_in(top, directory) as parent, _same_time(parent):
            remove_whole(os.fsencode(proc_path(parent)) + b"/" + name)
    except (FileNotFoundError, NotADirectoryError):
        return


def _has(top: int, path: bytes) -> bool:
    try:
        with _opened_in(top, path):
            return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to another place
            return False
        raise


def _inner(fd: int) -> list[_Inner]:
    """The subvolumes directly in the one whose root is ``fd``."""
    found: list[_Inner] = []
    least = 0
    while True:
        refs = bytearray(_PAGE)
        _FLAGS.pack_into(refs, 0, least)
        more = False
        try:
            fcntl.ioctl(fd, _GET_SUBVOL_ROOTREF, refs, True)
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            more = True
        for at in range(min(refs[_REFS_COUNT_AT], _MOST_REFS)):
            tree, directory = _REF.unpack_from(refs, _REFS_AT + at * _REF.size)
            looked_up = bytearray(_PAGE)
            _REF.pack_into(looked_up, 0, directory, tree)
            try:
                fcntl.ioctl(fd, _INO_LOOKUP_USER, looked_up, True)
            except FileNotFoundError:
                continue
            name, path = (bytes(looked_up[part]).split(b"\0", 1)[0] for part in (_LOOKED_UP_NAME, _LOOKED_UP_PATH))
            found.append(_Inner(path.rstrip(b"/"), name))
        if not more:
            return found
        (least,) = _FLAGS.unpack_from(refs, 0)


def _set_read_only(fd: int, wanted: bool) -> None:
    have = bytearray(_FLAGS.size)
    fcntl.ioctl(fd, _SUBVOL_GETFLAGS, have, True)
    (flags,) = _FLAGS.unpack(have)
    changed = flags | _READ_ONLY if wanted else flags & ~_READ_ONLY
    if changed != flags:
        fcntl.ioctl(fd, _SUBVOL_SETFLAGS, bytearray(_FLAGS.pack(changed)))


@contextmanager
def _same_time(directory: int) -> Generator[None]:
    """Changes of the directory's entries in the block do not change its times."""
    found = os.fstat(directory)
    yield
    os.utime(directory, ns=(found.st_atime_ns, found.st_mtime_ns))


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


@contextmanager
def _opened(path: bytes) -> Generator[int]:
    fd = os.open(path, _DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _opened_in(top: int, path: bytes) -> Generator[int]:
    """The directory ``path`` below ``top``, reached by no link; empty: itself."""
    fd = syscalls.openat2(top, path or b".", _DIRECTORY, _RULES)
    try:
        yield fd
    finally:
        os.close(fd)

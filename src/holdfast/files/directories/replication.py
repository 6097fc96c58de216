"""Whole directories with everything in them: copied as they are, made read-only, removed.

Unlike a checkpoint this leaves nothing out: ignored files, ``.git``, hard links, holes, all metadata. No link is
followed on the way, on either side.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.files.linux import syscalls
from holdfast.files.linux.long_paths import open_below
from holdfast.files.linux.metadata import apply_metadata, read_metadata
from holdfast.files.linux.reflink import copy_content

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.files.linux.metadata import Metadata
    from holdfast.files.protected_directories import ProtectedDirectories

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ITSELF = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_RULES = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_HERE = _RULES | syscalls.RESOLVE_NO_XDEV
"""Stops at any mount inside, whatever its source."""
_WRITE = 0o222
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors for a directory that is gone, or was replaced by another kind of entry."""


def replicate(source: bytes, target: bytes, *, without: ProtectedDirectories) -> None:
    """Copy ``source`` to the new directory ``target``, sharing the blocks of files where that is possible.

    Each file is of one moment, if its blocks can be shared; the tree need not be. Entries that vanish meanwhile are
    left out, and so are sockets, and the directories ``without``. Owners are kept if the user may give files away. On
    another mount inside ``source`` files are copied. Durable when it returns. Raises `OSError`, including
    `FileExistsError`; partial results stay.
    """
    source_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.mkdir(target, 0o700)
        target_fd = os.open(target, _DIRECTORY)
        try:
            _Copy(source_fd, target_fd, without).run()
            syscalls.syncfs(target_fd)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


class _Copy:
    def __init__(self, source: int, target: int, without: ProtectedDirectories) -> None:
        self._source = source
        self._target = target
        self._without = without
        self._root = os.geteuid() == 0
        self._linked: dict[tuple[int, int], bytes] = {}
        """Where the copy of a file with several names is."""

    def run(self) -> None:
        directories: list[bytes] = [b""]
        made: list[tuple[bytes, Metadata]] = []
        for at in directories:  # grows while it is walked
            try:
                self._directory(at, directories, made)
            except OSError as error:
                if error.errno not in _GONE or error.filename != at or not at:
                    raise
                with _opened(self._target, os.path.dirname(at)) as above:
                    os.rmdir(os.path.basename(at), dir_fd=above)
        for at, metadata in reversed(made):  # writing to a directory changes its time
            with _opened(self._target, at) as target:
                self._apply(target, metadata)

    def _directory(self, at: bytes, directories: list[bytes], made: list[tuple[bytes, Metadata]]) -> None:
        """Copy the entries of a directory, except those of subdirectories, which are added to ``directories``."""
        with _opened(self._source, at) as source, _opened(self._target, at) as target:
            made.append((at, read_metadata(source, readable=True)))
            for name in map(os.fsencode, os.listdir(source)):
                try:
                    found = os.stat(name, dir_fd=source, follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        if not self._without.is_one(found):
                            os.mkdir(name, 0o700, dir_fd=target)
                            directories.append(_join(at, name))
                    else:
                        self._leaf(source, target, at, name, found)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise OSError(error.errno, error.strerror, _join(at, name)) from error

    def _leaf(self, source: int, target: int, at: bytes, name: bytes, found: os.stat_result) -> None:
        identity = (found.st_dev, found.st_ino)
        if identity in self._linked:
            above, first = os.path.split(self._linked[identity])
            with _opened(self._target, above) as there:
                os.link(first, name, src_dir_fd=there, dst_dir_fd=target, follow_symlinks=False)
            return
        if stat.S_ISREG(found.st_mode):
            self._file(source, target, name)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            self._same_metadata(source, target, name)
        elif stat.S_ISFIFO(found.st_mode) or _is_whiteout(found) or (self._root and not stat.S_ISSOCK(found.st_mode)):
            os.mknod(name, stat.S_IFMT(found.st_mode) | 0o600, found.st_rdev, dir_fd=target)
            self._same_metadata(source, target, name)
        else:
            return
        if found.st_nlink > 1:
            self._linked[identity] = _join(at, name)

    def _file(self, source: int, target: int, name: bytes) -> None:
        source_fd = os.open(name, _FILE, dir_fd=source)
        try:
            target_fd = os.open(name, _NEW_FILE, 0o600, dir_fd=target)
            try:
                copy_content(source_fd, target_fd)
                self._apply(target_fd, read_metadata(source_fd, readable=True))
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)

    def _same_metadata(self, source: int, target: int, name: bytes) -> None:
        with _itself(source, name) as source_fd, _itself(target, name) as target_fd:
            self._apply(target_fd, read_metadata(source_fd))

    def _apply(self, fd: int, wanted: Metadata) -> None:
        give_metadata(fd, wanted, root=self._root)


def give_metadata(fd: int, wanted: Metadata, *, root: bool) -> None:
    """Give a new copy the metadata of its original, as far as the user may. Raises `OSError`."""
    if not root:
        made = os.fstat(fd)
        mode = wanted.mode if wanted.uid == made.st_uid else wanted.mode & ~0o6000
        xattrs = tuple(pair for pair in wanted.xattrs if not pair[0].startswith("security."))
        wanted = wanted._replace(uid=made.st_uid, gid=made.st_gid, mode=mode, xattrs=xattrs)
    apply_metadata(fd, wanted)


def _is_whiteout(found: os.stat_result) -> bool:
    """Whether it is a whiteout of overlayfs: a pseudo-device that any user may make, in place of a removed entry."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def make_read_only(directory: bytes) -> None:
    """Remove write permission for all users from the directory and its whole content. Raises `OSError`."""
    top = os.open(directory, _DIRECTORY)
    try:
        for _, fd, names in _walk(top):
            for name in names:
                with _itself(fd, name) as inner:
                    found = os.fstat(inner)
                    if stat.S_ISREG(found.st_mode):
                        os.chmod(f"/proc/self/fd/{inner}", stat.S_IMODE(found.st_mode) & ~_WRITE)
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~_WRITE)
    finally:
        os.close(top)


def remove_whole(directory: bytes) -> None:
    """Remove the directory and its content, whatever its permissions; harmless if it is gone. Follows no link, not even
    in place of the directory.

    Mounts inside stay complete, with their mount points and all directories above: EBUSY. Raises `OSError`, with the
    path that cannot be removed.
    """
    above, name = os.path.split(directory.rstrip(b"/"))
    try:
        parent = os.open(above or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        with _prefix_errors(above, name):
            try:
                if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=parent)
                    return
                with _itself(parent, name, _HERE) as fd:
                    _unlock(fd, name)
            except FileNotFoundError:
                return
            # (If entries in there vanish meanwhile that is an error: others may be left.)
            with _opened(parent, name, _HERE) as top, _prefix_errors(name):
                _empty(top)
            os.rmdir(name, dir_fd=parent)
    finally:
        os.close(parent)


def _empty(top: int) -> None:
    paths: list[bytes] = []
    for at, fd, names in _walk(top, unlock=True):
        with _prefix_errors(at):
            for name in names:
                os.unlink(name, dir_fd=fd)
        paths.append(at)
    for at in reversed(paths[1:]):
        above, _, name = at.rpartition(b"/")
        with _opened(top, above, _HERE) as fd, _prefix_errors(above):
            os.rmdir(name, dir_fd=fd)


@contextmanager
def _prefix_errors(above: bytes, name: bytes = b"") -> Generator[None]:
    """Errors of the block with a path relative to ``above`` are raised with that prepended. ``name`` stands in for a
    missing path.
    """
    try:
        yield
    except OSError as error:
        path = error.filename if isinstance(error.filename, bytes) else name
        if above.startswith(b"/"):
            above = os.path.realpath(above)  # (the name of a descriptor means nothing to others)
        raise OSError(error.errno, error.strerror, os.path.join(above, path)) from error


def _walk(top: int, *, unlock: bool = False) -> Generator[tuple[bytes, int, list[bytes]]]:
    """Every directory below and including ``top``, those above first: its path, its descriptor, and the names of
    what else is in it. With ``unlock`` each gets the permissions that it takes to go on, and none is another mount's.
    """
    found: list[bytes] = [b""]
    for at in found:  # grows while it is walked
        with _opened(top, at, _HERE if unlock else _RULES) as fd:
            names: list[bytes] = []
            for name in map(os.fsencode, os.listdir(fd)):
                if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    names.append(name)
                    continue
                if unlock:
                    with _prefix_errors(at), _itself(fd, name, _HERE) as inner:
                        _unlock(inner, name)
                found.append(_join(at, name))
            yield at, fd, names


def _unlock(fd: int, name: bytes) -> None:
    """Give its owner all permissions for ``name``, which was a directory a moment ago, and may be a link by now."""
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from error


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


@contextmanager
def _opened(top: int, path: bytes, rules: int = _RULES) -> Generator[int]:
    """The directory ``path`` below ``top``, however deep it is, reached by no link."""
    try:
        fd = open_below(top, path, _DIRECTORY, rules)
    except OSError as error:
        raise _said(error, path) from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _itself(directory: int, name: bytes, rules: int = _RULES) -> Generator[int]:
    """A descriptor of the entry ``name`` in ``directory``, not following a link."""
    try:
        fd = syscalls.openat2(directory, name, _ITSELF, rules)
    except OSError as error:
        raise _said(error, name) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _said(error: OSError, path: bytes) -> OSError:
    if error.errno == errno.EXDEV:
        return OSError(errno.EBUSY, "something is mounted there", path)
    return OSError(error.errno, error.strerror, path)

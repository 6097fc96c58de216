"""Access to a directory tree that no path can escape (I7).

Every directory is reached from the root's descriptor without following a link: in one ``openat2`` call with
``RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS``, or component by component with ``O_NOFOLLOW`` where the kernel lacks it.
Operations are then relative to the descriptor of the last directory, on a name without ``/``: if a directory is swapped
for a link at any moment, the operation fails or happens in the old directory.
"""

from __future__ import annotations

import errno
import os
import stat

from holdfast.files.write.ownership import inherited_mode
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError, RefusedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.paths import check_path, display

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from types import TracebackType

    from holdfast.files.ignore.reserved_paths import ReservedPaths
    from holdfast.files.write.directory_modes import DirectoryModes
    from holdfast.files.write.ownership import Owner

NOT_A_DIRECTORY = "not_a_directory"
"""The code of the `NotFoundError` for a path that leads through an object that is neither directory nor link."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_OPEN = 256
_LEAST_OPEN = 8
_SHARE = 8
"""At most this part of the descriptors that this process may have open is used to remember directories."""
_TRIES = 16


class EntryLocation(NamedTuple):
    """Where a path is: the descriptor of its directory, borrowed from the `Root`, and the name in it."""

    dir_fd: int
    name: bytes


class Root:
    """A directory tree, reached from its root's descriptor. For one thread at a time.

    Paths are checked by `check_path` before anything else; the empty path is the root itself for methods that take a
    directory. Every method raises `EscapeError` for a path that is never allowed or leads through a link, another
    `RefusedError` for one that is ``reserved`` (see `holdfast.files.ignore.reserved_paths`), `NotFoundError` for a
    missing one (with the code `NOT_A_DIRECTORY` if a file is in the way) and `StorageError` for all other refusals of
    the operating system. No operation here is durable by itself.
    """

    def __init__(
        self,
        path: bytes | str | int,
        *,
        beneath: bool | None = None,
        reserved: ReservedPaths | None = None,
        modes: DirectoryModes | None = None,
    ) -> None:
        """Open the directory ``path`` (links in the path of the root itself are followed), or take over a descriptor.

        ``beneath`` chooses the implementation: True for ``openat2``, False for the walk by component, None for what the
        kernel has. `remember_modes` notes in ``modes``.
        """
        import resource

        try:
            self.fd = path if isinstance(path, int) else os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            named = os.fsencode(path) if not isinstance(path, int) else b""
            raise _translated(error, named) from error
        self._beneath = _has_openat2(self.fd) if beneath is None else beneath
        self._reserved = reserved
        self.modes = modes
        self.opened: Mapping[bytes, int] = {}
        """Directories that are open for now, with the permissions that they had before; see
        `holdfast.files.write._writable_directories`.
        """
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = _MOST_OPEN if allowed == resource.RLIM_INFINITY else allowed // _SHARE
        self._most_open = max(_LEAST_OPEN, min(_MOST_OPEN, share))
        self._open: dict[bytes, int] = {}

    def __enter__(self) -> Root:
        """Return itself; leaving closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Close every descriptor; a second call does nothing."""
        self.forget()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def forget(self, path: bytes = b"") -> None:
        """Close the remembered descriptors of ``path`` and all below it (by default all): the next use looks again."""
        below = path + b"/"
        for known in [known for known in self._open if not path or known == path or known.startswith(below)]:
            os.close(self._open.pop(known))

    def directory(self, path: bytes) -> int:
        """The descriptor of the directory ``path``, remembered until `forget` or until many others were asked for."""
        if not path:
            return self.fd
        fd = self._open.pop(path, -1)
        if fd < 0:
            fd = self._resolve(self.check(path))
            if self._reserved is not None:
                try:
                    self._check_way(path, fd, self._reserved)
                except BaseException:
                    os.close(fd)
                    raise
        self._remember(path, fd)
        return fd

    def _remember(self, path: bytes, fd: int) -> None:
        if len(self._open) >= self._most_open:
            os.close(self._open.pop(next(iter(self._open))))
        self._open[path] = fd

    def check(self, path: bytes) -> bytes:
        """Return ``path`` if it may be used: not refused by `check_path`, and not reserved."""
        check_path(path)
        if self._reserved is not None:
            self._reserved.check(path)
        return path

    def _check_way(self, path: bytes, fd: int, reserved: ReservedPaths) -> None:
        """Raise `RefusedError` if the directory ``path``, open as ``fd``, is reserved or lies in one that is."""
        above: list[bytes] = []
        at = path
        while (at := at.rpartition(b"/")[0]) and at not in self._open:
            above.append(at)
        # The nearest are needed again soonest. Only half as many as can be open: those just borrowed by a caller must
        # stay open.
        nearest = frozenset(above[: self._most_open // 2])
        for at in reversed(above):
            above_fd = self._resolve(at)
            try:
                reserved.check(at, above_fd)
            except RefusedError:
                os.close(above_fd)
                raise
            if at in nearest:
                self._remember(at, above_fd)
            else:
                os.close(above_fd)
        reserved.check(path, fd)

    def make_directory(self, path: bytes, owner: Owner | None = None) -> int:
        """As `directory`, but each directory that is missing is made, and given to ``owner``."""
        missing: list[bytes] = []
        at = path
        while at:
            try:
                self.directory(at)
                break
            except NotFoundError as error:
                if error.code == NOT_A_DIRECTORY:
                    raise
                missing.append(at)
                at = at.rpartition(b"/")[0]
        for at in reversed(missing):
            self.make_one(at, owner)
        return self.directory(path)

    def make_one(self, path: bytes, owner: Owner | None = None, stands_for: bytes | None = None) -> None:
        """Make the directory ``path``, whose parent exists; harmless if it exists already.

        It gets the remembered permissions of the directory ``stands_for`` (default: ``path``), or `inherited_mode`. If
        that is one of `opened`, its owner may write to it.
        """
        parent, _, name = path.rpartition(b"/")
        place = path if stands_for is None else stands_for
        # A killed call has noted the directories that it opened, but perhaps not those that it removed.
        mode = self.opened.get(place)
        if mode is None and self.modes is not None:
            mode = self.modes.get(place)
        if mode is not None and (owner is None or place in self.opened):
            mode |= stat.S_IRWXU  # files will be written into it
        parent_fd = self.directory(parent)
        try:
            wanted = inherited_mode(os.fstat(parent_fd)) if mode is None else mode
            os.mkdir(name, wanted, dir_fd=parent_fd)
            fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
            try:
                if owner is not None:
                    owner.take_directory(fd)
                made = stat.S_IMODE(os.fstat(fd).st_mode)
                if mode is None:
                    wanted |= made & 0o7000
                if made != wanted:
                    os.fchmod(fd, wanted)  # what the umask took, and what the directory above does not hand down
            except BaseException:
                os.close(fd)
                raise
            self._remember(path, fd)
        except FileExistsError:
            pass  # another process was first; its directory is checked when it is opened
        except OSError as error:
            raise _translated(error, path) from error

    def locate(self, path: bytes) -> EntryLocation:
        """The directory of ``path`` and its name there; the path itself need not exist."""
        self.check(path)
        parent, _, name = path.rpartition(b"/")
        return EntryLocation(self.directory(parent), name)

    def lstat(self, path: bytes) -> os.stat_result:
        """The metadata of the file, link or directory at ``path``."""
        dir_fd, name = self.locate(path)
        try:
            return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except OSError as error:
            raise _translated(error, path) from error

    def readlink(self, path: bytes) -> bytes:
        """The target of the link at ``path``; `RefusedError` if it is no link."""
        dir_fd, name = self.locate(path)
        try:
            return os.readlink(name, dir_fd=dir_fd)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise RefusedError(f"{display(path)} is not a symbolic link") from error
            raise _translated(error, path) from error

    def open_file(self, path: bytes) -> int:
        """Open the regular file at ``path`` for reading; the caller closes the descriptor.

        Raises `RefusedError` for anything else than a regular file. Never blocks on a fifo, and never opens a device.
        """
        dir_fd, name = self.locate(path)
        try:
            fd = open_regular(dir_fd, name)
        except OSError as error:
            raise _translated(error, path) from error
        if fd is None:
            raise RefusedError(f"{display(path)} is not a regular file")
        return fd

    def list(self, path: bytes = b"") -> list[bytes]:
        """The names in the directory ``path``, unsorted."""
        try:
            # A listing moves the offset of its open file description, so it needs its own.
            fd = os.open(b".", _DIRECTORY, dir_fd=self.directory(path))
            try:
                return [os.fsencode(name) for name in os.listdir(fd)]
            finally:
                os.close(fd)
        except OSError as error:
            raise _translated(error, path) from error

    def holds_only(self, path: bytes, known: Container[bytes]) -> bool:
        """True if all that is in the directory ``path`` is among the paths ``known``."""
        try:
            fd = os.open(b".", _DIRECTORY, dir_fd=self.directory(path))
            try:
                with os.scandir(fd) as found:
                    return all(path + b"/" + os.fsencode(item.name) in known for item in found)
            finally:
                os.close(fd)
        except OSError as error:
            raise _translated(error, path) from error

    def unlink(self, path: bytes) -> None:
        """Remove the file or link at ``path``."""
        dir_fd, name = self.locate(path)
        try:
            os.unlink(name, dir_fd=dir_fd)
        except OSError as error:
            raise _translated(error, path) from error

    def rmdir(self, path: bytes) -> bool:
        """Remove the directory at ``path`` if it is empty; False if it is not. Forgets its descriptor."""
        dir_fd, name = self.locate(path)
        try:
            os.rmdir(name, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise _translated(error, path) from error
        self.forget(path)
        return True

    def remember_modes(self, paths: Iterable[bytes]) -> None:
        """Note the permissions of the directories ``paths``, which are about to be removed, durably in `modes`, if that
        is kept: a process that is killed after the removal notes nothing. A missing directory is no error.
        """
        if self.modes is None:
            return

        for path in paths:
            try:
                info = self.lstat(path)
            except HoldfastError:
                continue
            if stat.S_ISDIR(info.st_mode):
                self.modes.removed(path, removed_mode(self.opened, path, info.st_mode))
        self.modes.save()

    def rename(self, old: bytes, new: bytes) -> None:
        """Rename ``old`` to ``new`` within the tree; `RefusedError` if ``new`` exists: nothing is ever replaced."""
        from holdfast.files.linux.exclusive_rename import move_if_absent

        source, target = self.locate(old), self.locate(new)
        try:
            if not move_if_absent(source.dir_fd, source.name, target.dir_fd, target.name):
                raise RefusedError(f"{display(new)} exists already")
        except OSError as error:
            raise _translated(error, old) from error
        self.forget(old)

    def _resolve(self, path: bytes) -> int:
        try:
            if self._beneath:
                from holdfast.files.linux import syscalls

                rules = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
                for _ in range(_TRIES):
                    try:
                        # O_NOFOLLOW would hide a link in the last place behind an ENOTDIR.
                        return syscalls.openat2(self.fd, path, _DIRECTORY & ~os.O_NOFOLLOW, rules)
                    except InterruptedError:
                        continue
                    except BlockingIOError:
                        continue  # EAGAIN: a rename elsewhere raced with the look-up
            return self._walk(path)
        except OSError as error:
            raise _translated(error, path) from error

    def _walk(self, path: bytes) -> int:
        parent, _, name = path.rpartition(b"/")
        known = self._open.get(parent)
        kept = at = self.fd if known is None else known
        try:
            for part in path.split(b"/") if known is None else (name,):
                try:
                    inner = os.open(part, _DIRECTORY, dir_fd=at)
                except NotADirectoryError:
                    # O_DIRECTORY hides the ELOOP that tells a link from a file.
                    if stat.S_ISLNK(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode):
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                    raise
                if at != kept:
                    os.close(at)
                at = inner
        except OSError:
            if at != kept:
                os.close(at)
            raise
        return at


def open_root(path: bytes, *, readable: bool = True) -> int:
    """Open the directory at ``path``, absolute and without links, following no link anywhere in it: for reading, or
    (not ``readable``) as a base for further access.

    A user who may rename a directory above a workspace must not be able to redirect a change to another place. Raises
    `EscapeError` if a part of the path is a link by now, and otherwise `OSError`.
    """
    parts = [*filter(None, path.split(b"/"))]
    # (Directories in the path must be searchable, and may be unreadable: the home of all homes often is.)
    ways = [_WAY] * len(parts) + [_DIRECTORY if readable else _WAY]
    at = os.open(b"/", ways[0])
    try:
        for part, flags in zip(parts, ways[1:], strict=True):
            try:
                inner = os.open(part, flags, dir_fd=at)
            except NotADirectoryError:
                if stat.S_ISLNK(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode):
                    raise EscapeError(
                        f"{display(path)} leads through a symbolic link at {display(part)}, which was not there before",
                        hint="nothing was touched; name the workspace by its real path",
                    ) from None
                raise
            os.close(at)
            at = inner
    except BaseException:
        os.close(at)
        raise
    return at


def open_regular(dir_fd: int, name: bytes) -> int | None:
    """Open the regular file ``name`` in the directory for reading; None if it is anything else. Raises `OSError`."""
    # Opening a device or a tape has effects even without reading, so the type is checked first, and then proved.
    if not stat.S_ISREG(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        return None
    try:
        fd = os.open(name, _FILE, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return fd


def _translated(error: OSError, path: bytes) -> HoldfastError:
    shown = display(path)
    match error.errno:
        case errno.ENOENT:
            return NotFoundError(f"there is no {shown!r}")
        case errno.ENOTDIR:
            return NotFoundError(f"{shown!r} leads through something that is no directory", code=NOT_A_DIRECTORY)
        case errno.ELOOP | errno.EXDEV:
            return EscapeError(f"refused path {shown!r}: it leads through a symbolic link")
        case _:
            failure = StorageError(f"{shown!r}: {error.strerror}")
            failure.__cause__ = error
            return failure


def _has_openat2(fd: int) -> bool:
    from holdfast.files.linux import syscalls

    try:
        os.close(syscalls.openat2(fd, b".", _DIRECTORY, syscalls.RESOLVE_BENEATH))
    except OSError:
        return False  # ENOSYS before Linux 5.6, EPERM or others from a seccomp filter that does not know it
    return True


def removed_mode(opened: Mapping[bytes, int], path: bytes, mode: int) -> int:
    """The mode to remember of the directory ``path``, which is removed: that from before it was opened."""
    before = opened.get(path)
    return mode if before is None or stat.S_IMODE(mode) != before | stat.S_IRWXU else before

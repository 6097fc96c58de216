"""Does to a tree what programs do, each operation through an interceptor, as a file system server would."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from holdfast.undo.safeguards.guard import risk_of
from holdfast.undo.tree.rooted_directories import Directories

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from types import TracebackType

    from holdfast.undo.interceptor import Interceptor, Place
    from holdfast.undo.journal.records import StepId

_HERE: Final = -100
"""``AT_FDCWD``"""
_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeOperations(Protocol):
    """Operations on a tree, by the paths in it, in the name of a step. Each raises `OSError` as the system would."""

    below: bytes
    """The directory in the tree that the paths of random operations begin at."""
    path: bytes
    """Where the tree is."""
    step: StepId

    def __enter__(self) -> TreeOperations:
        """Return itself; leaving closes it."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the open descriptors."""
        ...

    def write(self, path: bytes, content: bytes, *, at: int | None = None) -> None:
        """Write a file whole, or ``content`` at an offset of one that is there."""
        ...

    def truncate(self, path: bytes, size: int) -> None:
        """As ``truncate``."""
        ...

    def mkdir(self, path: bytes, mode: int = 0o777) -> None:
        """As ``mkdir``."""
        ...

    def symlink(self, target: bytes, path: bytes) -> None:
        """As ``symlink``."""
        ...

    def mkfifo(self, path: bytes) -> None:
        """As ``mkfifo``."""
        ...

    def link(self, source: bytes, path: bytes) -> None:
        """As ``link``."""
        ...

    def unlink(self, path: bytes) -> None:
        """As ``unlink``."""
        ...

    def rmdir(self, path: bytes) -> None:
        """As ``rmdir``."""
        ...

    def rename(self, source: bytes, target: bytes, flags: int = 0) -> None:
        """As ``renameat2``."""
        ...

    def exchange(self, source: bytes, target: bytes) -> None:
        """As ``renameat2`` with ``RENAME_EXCHANGE``."""
        ...

    def chmod(self, path: bytes, mode: int) -> None:
        """As ``chmod``, which follows no link."""
        ...

    def utime(self, path: bytes, mtime: int) -> None:
        """Set access time and mtime, in nanoseconds."""
        ...

    def setxattr(self, path: bytes, name: str, value: bytes) -> None:
        """As ``lsetxattr``."""
        ...

    def removexattr(self, path: bytes, name: str) -> None:
        """As ``lremovexattr``."""
        ...


class InterceptedActor:
    """Operations on the tree below ``root``, in the name of a step. Each raises `OSError` as the system would."""

    def __init__(self, interceptor: Interceptor, root: bytes, step: StepId, below: bytes = b"") -> None:
        """``below`` is the directory in the tree that the paths of random operations begin at."""
        self.below = below
        self.path = root
        self._interceptor = interceptor
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.step = step

    def __enter__(self) -> InterceptedActor:
        """Return itself; leaving closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the open descriptors."""
        os.close(self._root)

    def open(self, path: bytes, flags: int, mode: int = 0o666) -> int:
        """As ``open``, without following a link in the last place."""
        with _Looking(self._root) as look:
            place = look.place(path)
            try:
                fd = os.open(place.name, _OBJECT, dir_fd=place.dir_fd)
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
                return self._interceptor.create(
                    self.step, place, "f", lambda: os.open(place.name, flags | os.O_EXCL, mode, dir_fd=place.dir_fd)
                )
            try:
                if flags & os.O_EXCL and flags & os.O_CREAT:
                    raise FileExistsError(path)
                self._interceptor.before_open(self.step, place, fd, risk_of(flags))
                return os.open(proc_path(fd), flags & ~(os.O_CREAT | os.O_EXCL) | os.O_NONBLOCK)
            finally:
                os.close(fd)

    def write(self, path: bytes, content: bytes, *, at: int | None = None) -> None:
        """Write a file whole, or ``content`` at an offset of one that is there."""
        fd = self.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if at is None else 0))
        try:
            os.pwrite(fd, content, at or 0)
        finally:
            os.close(fd)

    def truncate(self, path: bytes, size: int) -> None:
        """As ``truncate``."""
        fd = self.open(path, os.O_WRONLY)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def mkdir(self, path: bytes, mode: int = 0o777) -> None:
        """As ``mkdir``."""
        with _Looking(self._root) as look:
            place = look.place(path)
            self._interceptor.create(self.step, place, "d", lambda: os.mkdir(place.name, mode, dir_fd=place.dir_fd))

    def symlink(self, target: bytes, path: bytes) -> None:
        """As ``symlink``."""
        with _Looking(self._root) as look:
            place = look.place(path)
            self._interceptor.create(self.step, place, "l", lambda: os.symlink(target, place.name, dir_fd=place.dir_fd))

    def mkfifo(self, path: bytes) -> None:
        """As ``mkfifo``."""
        with _Looking(self._root) as look:
            place = look.place(path)
            self._interceptor.create(
                self.step, place, "p", lambda: os.mknod(place.name, stat.S_IFIFO | 0o644, dir_fd=place.dir_fd)
            )

    def link(self, source: bytes, path: bytes) -> None:
        """As ``link``."""
        with _Looking(self._root) as look, _Looking(self._root) as other:
            origin, place = look.place(source), other.place(path)
            fd = os.open(origin.name, _OBJECT, dir_fd=origin.dir_fd)
            try:
                self._interceptor.link(
                    self.step,
                    fd,
                    place,
                    lambda: os.link(
                        origin.name,
                        place.name,
                        src_dir_fd=origin.dir_fd,
                        dst_dir_fd=place.dir_fd,
                        follow_symlinks=False,
                    ),
                )
            finally:
                os.close(fd)

    def unlink(self, path: bytes) -> None:
        """As ``unlink``."""
        with _Looking(self._root) as look:
            place = look.place(path)
            self._interceptor.unlink(self.step, place, lambda: os.unlink(place.name, dir_fd=place.dir_fd))

    def rmdir(self, path: bytes) -> None:
        """As ``rmdir``."""
        with _Looking(self._root) as look:
            place = look.place(path)
            self._interceptor.rmdir(self.step, place, lambda: os.rmdir(place.name, dir_fd=place.dir_fd))

    def rename(self, source: bytes, target: bytes, flags: int = 0) -> None:
        """As ``renameat2``."""
        with _Looking(self._root) as look, _Looking(self._root) as other:
            origin, place = look.place(source), other.place(target)
            self._interceptor.rename(
                self.step,
                origin,
                place,
                flags,
                lambda: renameat2(origin.dir_fd, origin.name, place.dir_fd, place.name, flags),
            )

    def exchange(self, source: bytes, target: bytes) -> None:
        """As ``renameat2`` with ``RENAME_EXCHANGE``."""
        self.rename(source, target, RENAME_EXCHANGE)

    def chmod(self, path: bytes, mode: int) -> None:
        """As ``chmod``."""
        self._change(path, lambda through_path: os.chmod(through_path, mode))

    def chown(self, path: bytes, uid: int, gid: int) -> None:
        """As ``lchown``."""
        self._change(path, lambda through_path: os.chown(through_path, uid, gid))

    def utime(self, path: bytes, mtime: int) -> None:
        """Set access time and mtime, in nanoseconds."""
        self._change(path, lambda through_path: os.utime(through_path, ns=(mtime, mtime)))

    def setxattr(self, path: bytes, name: str, value: bytes) -> None:
        """As ``setxattr``."""
        self._change(path, lambda through_path: os.setxattr(through_path, name, value))

    def removexattr(self, path: bytes, name: str) -> None:
        """As ``removexattr``."""
        self._change(path, lambda through_path: os.removexattr(through_path, name))

    def _change(self, path: bytes, perform: Callable[[str], None]) -> None:
        with _Looking(self._root) as look:
            place: Place = look.place(path)
            fd = os.open(place.name, _OBJECT, dir_fd=place.dir_fd)
            try:
                self._interceptor.before_metadata_change(self.step, place, fd)
                perform(proc_path(fd))
            finally:
                os.close(fd)


class SystemActor:
    """`TreeOperations` by the system's own calls."""

    def __init__(self, root: bytes, step: StepId = 0, below: bytes = b"") -> None:
        """For ``below`` see `TreeOperations`."""
        self.below = below
        self.path = root
        self.step = step

    def __enter__(self) -> SystemActor:
        """See `TreeOperations`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `TreeOperations`."""

    def write(self, path: bytes, content: bytes, *, at: int | None = None) -> None:
        """See `TreeOperations`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_TRUNC if at is None else 0)
        fd = os.open(self._at(path), flags, 0o666)
        try:
            os.pwrite(fd, content, at or 0)
        finally:
            os.close(fd)

    def truncate(self, path: bytes, size: int) -> None:
        """See `TreeOperations`."""
        fd = os.open(self._at(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def mkdir(self, path: bytes, mode: int = 0o777) -> None:
        """See `TreeOperations`."""
        os.mkdir(self._at(path), mode)

    def symlink(self, target: bytes, path: bytes) -> None:
        """See `TreeOperations`."""
        os.symlink(target, self._at(path))

    def mkfifo(self, path: bytes) -> None:
        """See `TreeOperations`."""
        os.mkfifo(self._at(path), 0o644)

    def link(self, source: bytes, path: bytes) -> None:
        """See `TreeOperations`."""
        os.link(self._at(source), self._at(path), follow_symlinks=False)

    def unlink(self, path: bytes) -> None:
        """See `TreeOperations`."""
        os.unlink(self._at(path))

    def rmdir(self, path: bytes) -> None:
        """See `TreeOperations`."""
        os.rmdir(self._at(path))

    def rename(self, source: bytes, target: bytes, flags: int = 0) -> None:
        """See `TreeOperations`."""
        renameat2(_HERE, self._at(source), _HERE, self._at(target), flags)

    def chmod(self, path: bytes, mode: int) -> None:
        """See `TreeOperations`."""
        if os.path.islink(self._at(path)):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        os.chmod(self._at(path), mode)

    def utime(self, path: bytes, mtime: int) -> None:
        """See `TreeOperations`."""
        os.utime(self._at(path), ns=(mtime, mtime), follow_symlinks=False)

    def setxattr(self, path: bytes, name: str, value: bytes) -> None:
        """See `TreeOperations`."""
        os.setxattr(self._at(path), name, value, follow_symlinks=False)

    def removexattr(self, path: bytes, name: str) -> None:
        """See `TreeOperations`."""
        os.removexattr(self._at(path), name, follow_symlinks=False)

    def exchange(self, source: bytes, target: bytes) -> None:
        """See `TreeOperations`."""
        self.rename(source, target, RENAME_EXCHANGE)

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self.path, path)


class _Looking(Directories):
    def __enter__(self) -> _Looking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_NAMES = (b"a", b"b", b"c", b"d", b"e")


def act_at_random(actor: TreeOperations, chance: Random) -> None:
    """One operation, chosen at random, on paths of a few names; an error that the system gives is an answer as well."""
    above = [actor.below] if actor.below else []
    path, other = (b"/".join([*above, *chance.choices(_NAMES, k=chance.choice((1, 1, 2, 2, 3)))]) for _ in range(2))
    operations: tuple[Callable[[], None], ...] = (
        lambda: actor.write(path, chance.randbytes(chance.choice((0, 10, 100, 20_000)))),
        lambda: actor.write(path, chance.randbytes(10)),
        lambda: actor.write(path, b"x" * chance.choice((1, 30_000)), at=chance.choice((0, 5, 40_000))),
        lambda: actor.truncate(path, chance.choice((0, 3, 50_000))),
        lambda: actor.mkdir(path, chance.choice((0o777, 0o700, 0o2755))),
        lambda: actor.mkdir(path),
        lambda: actor.symlink(other, path),
        lambda: actor.mkfifo(path),
        lambda: actor.link(path, other),
        lambda: actor.unlink(path),
        lambda: actor.unlink(other),
        lambda: actor.rmdir(path),
        lambda: actor.rename(path, other),
        lambda: actor.rename(path, other),
        lambda: actor.rename(path, other, RENAME_NOREPLACE),
        lambda: actor.rename(path, other, RENAME_EXCHANGE),
        lambda: actor.chmod(path, chance.choice((0o644, 0o755, 0o4755, 0o1777, 0o600))),
        lambda: actor.utime(path, chance.randrange(10**18)),
        lambda: actor.setxattr(path, "user." + chance.choice("ab"), chance.randbytes(3)),
        lambda: actor.removexattr(path, "user.a"),
    )
    with suppress(OSError):
        chance.choice(operations)()

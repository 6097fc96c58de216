"""Resolves a path as the caller would, and holds the result by descriptors, so that the operation happens exactly
there.

Usually the keeper sees the same tree as the caller, and the kernel resolves the path in one call from the caller's
directory. Where it cannot (a link in ``/proc`` would mean the keeper instead of the caller, another root, another mount
namespace), the path is walked name by name.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from holdfast.files.linux.long_paths import open_below, path_of
from holdfast.files.linux.process_credentials import assume_credentials, thread_umask
from holdfast.files.linux.syscalls import (
    RESOLVE_BENEATH,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    check_changeable,
    openat2,
)
from holdfast.supervisor.resolution.caller_identity import CALLERS
from holdfast.supervisor.resolution.directory_cache import DIRECTORIES
from holdfast.supervisor.resolution.procfs import is_caller_itself, is_in_proc, own_numbers
from holdfast.supervisor.resolution.sticky_directories import check_link
from holdfast.supervisor.resolution.territory import Location, Territory, absolute, is_deleted
from holdfast.supervisor.syscalls.pending_call import SlowError
from holdfast.undo.interceptor import Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from holdfast.supervisor.resolution.handler_context import HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall


T = TypeVar("T")

AT_FDCWD = -100
MOST_LINKS = 40
"""Of links that one path leads through, as in the kernel."""

_OBJECT = os.O_PATH | os.O_CLOEXEC
_LINK = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_SPECIAL = frozenset({b"/", b".", b".."})
_AS_IS = nullcontext()


class ResolvedName(NamedTuple):
    """A name in a directory, whether it exists or not."""

    dir_fd: int
    name: bytes
    """Also ``.`` and ``..`` and ``/``, which nothing can be done to; then it lies outside."""
    slash: bytes
    """``/`` if the caller has written one behind the name, so that it must be a directory's; else empty."""
    where: Location

    own_fd: int = -1
    """The directory on the mount of the undo log; only inside. The caller's descriptors never come from there: by
    ``..`` they would reach directories outside of the caller's own view of the file systems.
    """

    @property
    def path(self) -> bytes | None:
        """Relative to the workspace's root; None outside."""
        return self.where.path

    @property
    def place(self) -> Place:
        """For the interceptor; only inside."""
        return Place(self.own_fd, self.name, self.where.path or b"")

    @property
    def is_special(self) -> bool:
        """Whether it is a name that every directory has."""
        return self.name in _SPECIAL

    @property
    def full(self) -> bytes:
        """The name as the caller has given it."""
        return self.name + self.slash


class ResolvedObject(NamedTuple):
    """An existing object."""

    fd: int
    """``O_PATH``."""
    where: Location

    @property
    def path(self) -> bytes | None:
        """Relative to the workspace's root; None outside, and if it has no name any more."""
        return self.where.path

    @property
    def place(self) -> Place:
        """For the interceptor; only inside."""
        return Place(-1, b"", self.where.path or b"")


class PathLookup(Protocol):
    """A way to look."""

    def locate(self, dirfd: int, path: bytes) -> ResolvedName:
        """See `PathResolver.locate`."""
        ...

    def follow(self, resolved: ResolvedName, link: int, /) -> ResolvedName | ResolvedObject:
        """See `PathResolver.follow`."""
        ...


class PathResolver:
    """The tree as the caller of one call sees it. Closes at its end the descriptors that it has opened."""

    __slots__ = (
        "_again",
        "_begun",
        "_call",
        "_context",
        "_fds",
        "_inside",
        "_led",
        "_recalls",
        "_seen",
        "_sure",
        "caller",
        "meant",
        "territory",
    )

    def __init__(self, call: PendingCall, context: HandlerContext) -> None:
        """The arguments must have been read before: that the caller is still there is found out afterwards."""
        self._call = call
        self._context = context
        self._fds: list[int] = []
        self._sure = False
        self.meant = -1
        """The last object behind a link in ``/proc`` that stands for an object, not a path; -1 if there was none."""
        self._seen = -1, b""  # the last descriptor that was looked at, and where it is
        self.caller = CALLERS.find(call, context)
        self.territory = _territory(context)
        self._recalls = self._look_as_caller()
        # The last results are kept: the two names of a rename are usually in one directory.
        self._begun: tuple[int | None, int] = None, -1  # a descriptor of the caller, and our copy of it
        self._led: tuple[int, bytes, int] = -1, b"", -1  # where a path began, the path, and where it led
        self._inside: tuple[int, Location | None] = -1, None  # a directory, and where it is
        self._again: tuple[int, bytes, int] = -1, b"", -1  # the last recalled directory: its start, path and descriptor

    def __enter__(self) -> PathResolver:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything."""
        for fd in self._fds:
            os.close(fd)

    # In the caller's name ------------------------------------------------------------------------------------------

    @property
    def is_own(self) -> bool:
        """Whether the caller may do what the keeper may."""
        return self.caller.credentials is None

    @property
    def uid(self) -> int:
        """In whose name the caller accesses files."""
        return os.geteuid() if self.caller.credentials is None else self.caller.credentials.uid

    def caller_credentials(self) -> AbstractContextManager[None]:
        """Within the block, operations use the caller's credentials."""
        credentials = self.caller.credentials
        return _AS_IS if credentials is None else assume_credentials(credentials)

    @property
    def native_guard(self) -> Callable[[], None] | None:
        """For the interceptor: a check to call before it carries the call out in its own way; None if it must not."""
        return self.check_waiting if self.is_own else None

    def check_waiting(self) -> None:
        """Raise `OSError` (EINTR) if the caller no longer waits. Call it right before a change.

        A killed caller does not wait for the keeper, and its parent may act on its end: natively, none of its
        operations happens after that. A death between this check and the change remains possible: that is a few
        microseconds, and a process takes longer to end.
        """
        if not self._context.is_valid(self._call):
            raise _error(errno.EINTR)

    def by_caller(self, perform: Callable[[], T]) -> Callable[[], T]:
        """``perform``, with the caller's credentials, and only if it still waits."""

        def performed() -> T:
            with self.caller_credentials():
                self.check_waiting()
                return perform()

        return performed

    def check_removable(self, resolved: ResolvedName, *directories: ResolvedName) -> None:
        """Raise `OSError` if the caller may not take the name of something that is no directory out of its directory,
        or change the other ``directories``.

        To be asked before the object gets a name in the log: that sets its ctime, and where the call fails afterwards,
        the next step takes the object for changed by another process.
        """
        try:
            found = os.lstat(resolved.name, dir_fd=resolved.dir_fd)
        except OSError:
            return  # (the call itself knows the error)
        if not stat.S_ISDIR(found.st_mode):
            with self.caller_credentials():
                for directory in (resolved, *directories):
                    check_changeable(directory.dir_fd)

    def create_by_caller(self, perform: Callable[[], T]) -> Callable[[], T]:
        """``perform``, with the caller's credentials and umask, and only if it still waits."""
        umask = self.caller.umask

        def performed() -> T:
            with self.caller_credentials(), thread_umask(umask):
                self.check_waiting()
                return perform()

        return performed

    # Looking -------------------------------------------------------------------------------------------------------

    def locate_writable(self, dirfd: int, path: bytes, *, makes: bool = False) -> ResolvedName:
        """`locate`, for a call that changes the object at the name, and `check_writable`."""
        resolved = self.locate(dirfd, path)
        self.check_writable(resolved, makes=makes)
        return resolved

    def check_writable(self, found: ResolvedName | ResolvedObject, *, makes: bool = False) -> None:
        """Raise `OSError` with EROFS where nothing may be changed; for a call that ``makes`` a name, as in the kernel,
        with EEXIST if it is there.
        """
        if found.where.read_only:
            if makes and isinstance(found, ResolvedName) and self.is_taken(found):
                raise _error(errno.EEXIST)
            raise _error(errno.EROFS)

    def is_taken(self, resolved: ResolvedName) -> bool:
        """Whether the name exists, as far as the caller may see it."""
        try:
            with self.caller_credentials():
                os.stat(resolved.full, dir_fd=resolved.dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def locate(self, dirfd: int, path: bytes) -> ResolvedName:
        """The directory that holds what ``path`` names, and the name in it; a link there is not followed."""
        if not path:
            raise _error(errno.ENOENT)
        head, name, slash = split(path)
        if not self._recalls:
            return self._parent(self.start(dirfd, path), head, name, slash)
        if (known := self._recall(dirfd, head)) is not None:
            return self.resolve_name(known, name, slash, head)
        start = self.start(dirfd, path)
        resolved = self._parent(start, head, name, slash)
        if self._recalls and resolved.path is not None and (not head or self._led == (start, head, resolved.dir_fd)):
            self._remember(dirfd, head, resolved.dir_fd)
        return resolved

    def follow(self, resolved: ResolvedName, link: int, /) -> ResolvedName | ResolvedObject:
        """The target of the link at ``resolved``, open as ``link``: a name, or an object that it stands for."""
        check_link(resolved.dir_fd, link, self.uid)
        target = target_of(self, resolved.dir_fd, resolved.name, link)
        if target is None:
            return self.check_reachable(step(self, resolved.dir_fd, resolved.name, _OBJECT), held=True)
        start = resolved.dir_fd
        if target.startswith(b"/"):
            start = self.root() if self.caller.foreign else AT_FDCWD
        return self._parent(start, *split(target))

    def resolve_name(self, dir_fd: int, name: bytes, slash: bytes, head: bytes) -> ResolvedName:
        """The name in a directory, which ``head`` has led to. Raises `OSError` if it is out of reach."""
        inside = self.directory(dir_fd)
        where = self.territory.child(inside, name)
        if inside.forbidden and not head:
            # The caller's own directory is mostly there because it was removed: it lies in the undo log now.
            raise _error(errno.ENOENT)
        if inside.forbidden or where.forbidden:
            raise _error(errno.EACCES)
        if name in _SPECIAL:
            return ResolvedName(dir_fd, name, slash, Location(where.absolute, None))
        if inside.path is None or where.path is None:
            return ResolvedName(dir_fd, name, slash, where._replace(path=None))
        own_fd = self._own(dir_fd, inside.path) if self.caller.foreign else dir_fd
        return ResolvedName(dir_fd, name, slash, where, own_fd)

    def directory(self, dir_fd: int) -> Location:
        """Where a directory is; outside if it has been removed."""
        known, where = self._inside
        if known != dir_fd or where is None:
            where = self._find_directory(dir_fd)
            self._inside = dir_fd, where
        return where

    def _find_directory(self, dir_fd: int) -> Location:
        where = self._where(dir_fd)
        if where.path is not None:
            return where._replace(path=None) if is_deleted(dir_fd, where.absolute) else where
        if self.caller.foreign and not where.forbidden:
            try:
                step(self, dir_fd, b"..", _DIRECTORY)
            except FileNotFoundError:
                # It has left the caller's mount, so its path is invalid: it was removed.
                return where._replace(forbidden=True)
        return where

    def object(self, dirfd: int, path: bytes, *, follow: bool = True) -> ResolvedObject:
        """The object at ``path``."""
        if not path:
            raise _error(errno.ENOENT)
        if self._recalls and (near := self._find_nearby(dirfd, path, follow=follow)) is not None:
            return near
        fd = self._object(self.start(dirfd, path), path, follow=follow)
        return self.check_found(self, fd, dirfd, path, follow=follow, held=fd == self.meant or not path.strip(b"./"))

    def check_found(
        self, look: PathLookup, fd: int, dirfd: int, path: bytes, *, follow: bool, held: bool = False
    ) -> ResolvedObject:
        """`check_reachable` of what ``path`` leads to, which ``look`` has opened as ``fd``."""
        try:
            return self.check_reachable(fd, held=held)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG or stat.S_ISDIR(os.fstat(fd).st_mode):
                raise
        # The kernel gives no path of this length. The directory's is available, or can be found out.
        resolved = look.locate(dirfd, path)
        for _ in range(MOST_LINKS):
            if resolved.is_special:
                break  # it was a directory only since
            fd = step(self, resolved.dir_fd, resolved.name, _LINK)
            if not (follow and stat.S_ISLNK(os.fstat(fd).st_mode)):
                return ResolvedObject(fd, resolved.where)
            following = look.follow(resolved, fd)
            if isinstance(following, ResolvedObject):
                return following
            resolved = following
        raise _error(errno.ENAMETOOLONG)

    def descriptor(self, number: int, *, usable: bool = False) -> ResolvedObject:
        """The object of the caller's descriptor; EBADF if it must be ``usable`` and is only an ``O_PATH`` one."""
        opened = self.check_reachable(self._opened(number, _OBJECT), held=True)
        if usable and not os.stat(b"fd/%d" % number, dir_fd=self.caller.fd, follow_symlinks=False).st_mode & 0o600:
            raise _error(errno.EBADF)
        return opened

    def check_reachable(self, fd: int, *, held: bool = False) -> ResolvedObject:
        """The object of ``fd``. Raises `OSError` if it is out of reach.

        ``held``: the caller has it open, or as its directory, and has not named it: then it may be in the undo log,
        because it was removed.
        """
        opened = self.resolve_object(fd, held=held)
        if opened.where.forbidden:
            if not held or not self._is_detached(fd):
                raise _error(errno.EACCES)
            return ResolvedObject(fd, Location(opened.where.absolute, None))
        return opened

    def resolve_object(self, fd: int, *, held: bool = True) -> ResolvedObject:
        """The object of ``fd``; outside if it has no name any more."""
        where = self._where(fd, held=held)
        if where.path is not None and is_deleted(fd, where.absolute):
            if os.fstat(fd).st_nlink and not self._is_detached(fd):
                raise _error(errno.EACCES)
            return ResolvedObject(fd, where._replace(path=None))
        return ResolvedObject(fd, where)

    def _is_detached(self, fd: int) -> bool:
        """Whether a removed object is the caller's alone, and no longer concerns the undo log."""
        return self._context.interceptor.release_removed(self._context.step(self._call), fd)

    def keep_open(self, fd: int) -> int:
        """``fd``, which is closed at the end."""
        self._fds.append(fd)
        return fd

    def start(self, dirfd: int, path: bytes = b"") -> int:
        """The directory at which the caller begins to resolve ``path``."""
        if path.startswith(b"/"):
            if not self._sure and not self.caller.is_alive():
                self._renew()
            self._sure = True
            return self.root() if self.caller.foreign else AT_FDCWD
        known, fd = self._begun
        if known != dirfd:
            fd = self._opened(None if dirfd == AT_FDCWD else dirfd, _DIRECTORY)
            self._begun = dirfd, fd
        return fd

    def holds(self, tgid: int) -> bool:
        """Whether a process is of the tree that the call comes from; see `HandlerContext.holds`."""
        return self._context.holds(tgid)

    # The rest ------------------------------------------------------------------------------------------------------

    def _look_as_caller(self) -> bool:
        """Use the caller's view from now on. Whether its directories may be recalled."""
        caller = self.caller
        if caller.foreign:
            self.territory.show(caller)
        return caller.credentials is None and not (caller.foreign or self._call.patient)

    def _recall(self, dirfd: int, head: bytes) -> int | None:
        """The directory that ``head`` leads to, if that was found out just now, inside."""
        if head.startswith(b"/"):
            self.start(dirfd, head)
            if not self._recalls:
                return None
        start, led, found = self._again
        if start == dirfd and led == head and found >= 0:
            return found
        known = DIRECTORIES.find(self._context, self.caller, dirfd, head)
        if known is None:
            return None
        self._sure = True
        self._inside = known
        self._again = dirfd, head, known[0]
        return known[0]

    def _find_nearby(self, dirfd: int, path: bytes, *, follow: bool) -> ResolvedObject | None:
        """`object`, if its directory was found just now and no link must be followed."""
        head, name, slash = split(path)
        if slash or name in _SPECIAL or (known := self._recall(dirfd, head)) is None:
            return None
        fd = self.keep_open(os.open(name, _LINK, dir_fd=known))
        if follow and stat.S_ISLNK(os.fstat(fd).st_mode):
            return None
        where = self.territory.child(self.directory(known), name)
        if where.forbidden:
            raise _error(errno.EACCES)
        return ResolvedObject(fd, where)

    def _remember(self, dirfd: int, head: bytes, dir_fd: int) -> None:
        if dir_fd in self._fds:
            self._fds.remove(dir_fd)
            where = self.directory(dir_fd)
            self._fds += DIRECTORIES.remember(self._context, self.caller, dirfd, head, dir_fd, where)

    def _parent(self, start: int, head: bytes, name: bytes, slash: bytes) -> ResolvedName:
        dir_fd = start
        if head:
            dir_fd = self._directory(start, head)
        if self.caller.credentials is not None and not is_caller_itself(self, dir_fd):
            with self.caller_credentials():
                os.stat(b".", dir_fd=dir_fd)  # without search permission a caller must not learn its entries
        return self.resolve_name(dir_fd, name, slash, head)

    def _directory(self, start: int, path: bytes) -> int:
        known, led, found = self._led
        if known == start and led == path:
            return found
        fd = self._at_once(start, path, _DIRECTORY)
        if fd is None:
            return walk(self, start, path + b"/", follow=True, ends=False)
        self._led = start, path, fd
        return fd

    def _object(self, start: int, path: bytes, *, follow: bool) -> int:
        fd = self._at_once(start, path, _OBJECT if follow else _LINK)
        return walk(self, start, path, follow=follow) if fd is None else fd

    def _at_once(self, start: int, path: bytes, flags: int) -> int | None:
        """Let the kernel resolve the path; None if it does not see it as the caller does, or cannot."""
        rules = RESOLVE_NO_MAGICLINKS
        if self.caller.foreign:
            if path.startswith(b"/"):
                rules |= RESOLVE_IN_ROOT
            elif b".." in path.split(b"/"):
                return None  # its own root is where that ends
            else:
                rules |= RESOLVE_NO_SYMLINKS
        try:
            with self.caller_credentials():
                fd = self.keep_open(openat2(start, path, flags, rules))
        except OSError:
            return None  # perhaps the way leads through what /proc says of the keeper: the walk knows
        if is_in_proc(fd):
            return None
        with suppress(OSError):  # it may be longer than the kernel's paths
            self._seen = fd, absolute(fd)
        return fd

    def _where(self, fd: int, *, held: bool = True) -> Location:
        seen, path = self._seen
        return self.territory.locate(path if seen == fd else self._absolute(fd, held=held))

    def _absolute(self, fd: int, *, held: bool) -> bytes:
        """The path of any length; for an object other than a directory only if it is ``held``."""
        try:
            return absolute(fd)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG or not (held or stat.S_ISDIR(os.fstat(fd).st_mode)):
                raise
        if not self._call.patient:
            raise SlowError
        return path_of(fd)

    def _own(self, dir_fd: int, path: bytes) -> int:
        """The workspace's directory at ``path``, which the caller sees as ``dir_fd``, on our own mount: objects can be
        renamed from there into the undo log, which is impossible between two mounts, even of the same file system.
        """
        try:
            rules = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS
            own = self.keep_open(open_below(self._context.root_fd, path, _DIRECTORY, rules))
        except OSError:
            return dir_fd  # it was moved meanwhile: a removed file is then copied
        return own if os.path.samestat(os.fstat(own), os.fstat(dir_fd)) else dir_fd

    def _opened(self, number: int | None, flags: int) -> int:
        name = b"cwd" if number is None else b"fd/%d" % number
        try:
            fd = os.open(name, flags, dir_fd=self.caller.fd)
        except (FileNotFoundError, ProcessLookupError):
            if self.caller.is_alive():
                raise _error(errno.ENOENT if number is None else errno.EBADF) from None
            self._renew()
            fd = os.open(name, flags, dir_fd=self.caller.fd)
        self._sure = True
        return self.keep_open(fd)

    def _renew(self) -> None:
        self.caller = CALLERS.find(self._call, self._context, fresh=True)
        self._recalls = self._look_as_caller()

    def root(self) -> int:
        """The caller's root directory."""
        return self.keep_open(os.open(b"root", _DIRECTORY, dir_fd=self.caller.fd))


def walk(resolver: PathResolver, start: int, path: bytes, *, follow: bool, ends: bool = True) -> int:
    """Resolve ``path`` name by name to an existing object, where the kernel would show the keeper another one than the
    caller. Unless it ``ends`` there, it is a parent of another name.
    """
    root = resolver.root()
    top = os.fstat(root)
    at = root if path.startswith(b"/") else start
    follow = follow or path.endswith((b"/", b"/."))
    waiting = _names(path)
    links = 0
    while waiting:
        name = waiting.pop()
        if name == b"..":
            if not os.path.samestat(os.fstat(at), top):
                at = step(resolver, at, b"..", _DIRECTORY)
            continue
        inner = step(resolver, at, name, _LINK)
        found = os.fstat(inner)
        if not stat.S_ISLNK(found.st_mode) or not (waiting or follow):
            if waiting and not stat.S_ISDIR(found.st_mode):
                raise _error(errno.ENOTDIR)
            at = inner
            continue
        links += 1
        if links > MOST_LINKS:
            raise _error(errno.ELOOP)
        if ends and not waiting:
            check_link(at, inner, resolver.uid)
        target = target_of(resolver, at, name, inner)
        if target is None:
            at = resolver.meant = step(resolver, at, name, _OBJECT)
            continue
        if target.startswith(b"/"):
            at = root
        waiting += _names(target)
    if path.endswith((b"/", b"/.")) and not stat.S_ISDIR(os.fstat(at).st_mode):
        raise _error(errno.ENOTDIR)
    if stat.S_ISDIR(os.fstat(at).st_mode):
        is_caller_itself(resolver, at)  # an operation on a name in it would be the keeper's, too
    return at


def step(resolver: PathResolver, at: int, name: bytes, flags: int) -> int:
    """The entry ``name`` of a directory, opened with the flags for ``O_PATH``.

    Raises `OSError`: EACCES if the directory is a ``/proc`` directory of a process outside of the caller's tree.
    """
    # The caller's own directory in /proc is open to the caller, but not to another process with its credentials.
    with nullcontext() if is_caller_itself(resolver, at) else resolver.caller_credentials():
        return resolver.keep_open(os.open(name, flags, dir_fd=at))


def target_of(resolver: PathResolver, at: int, name: bytes, link: int) -> bytes | None:
    """The target of a link; None if it stands for an object rather than a path."""
    if is_in_proc(at):
        if name in (b"self", b"thread-self"):  # in its root, since links elsewhere do not have these names
            process, thread = own_numbers(resolver, at)
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


def split(path: bytes) -> tuple[bytes, bytes, bytes]:
    """The directory of a path (empty: where it begins), the last name (``/`` for the root), and a slash behind it."""
    trimmed = path.rstrip(b"/")
    head, _, name = trimmed.rpartition(b"/")
    if path.startswith(b"/"):
        head = head or b"/"
    if not trimmed:
        return head, b"/", b""
    return head, name, b"/" if len(trimmed) != len(path) else b""


@lru_cache(maxsize=4)
def _territory(context: HandlerContext) -> Territory:
    return Territory(context)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))

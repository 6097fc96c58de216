"""``open``, ``creat``, ``openat``, ``openat2``: opening for writing, and creating.

Later writes, mappings and truncations through the descriptor run native: the content was captured here.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.linux.unreadable_file import takes_long
from holdfast.supervisor.confinement import landlock
from holdfast.supervisor.operations._blocking_open import LEASED, NOBODY_READS, NOTHING, reopen_in_time
from holdfast.supervisor.operations._caller_limits import check_room
from holdfast.supervisor.operations._confined import Confined, check_resolve
from holdfast.supervisor.operations.registers import integer, os_error, unsigned
from holdfast.supervisor.resolution.path_resolver import (
    AT_FDCWD,
    MOST_LINKS,
    PathResolver,
    ResolvedName,
    ResolvedObject,
    step,
)
from holdfast.supervisor.resolution.procfs import is_native, is_setting, may_cut_unasked
from holdfast.supervisor.resolution.sticky_directories import check_found
from holdfast.supervisor.resolution.territory import reopen
from holdfast.supervisor.syscalls.caller_memory import read_path, read_structure
from holdfast.supervisor.syscalls.pending_call import Reply, SlowError
from holdfast.undo.safeguards.guard import risk_of

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall

_TTY_NUMBER = 4
"""The place of the terminal in ``stat``, counted from after the name (proc_pid_stat(5), field 7)."""
_PSEUDO = range(136, 144)
_PSEUDO_EACH = 256

O_TMPFILE = os.O_TMPFILE & ~os.O_DIRECTORY
_LINK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMING = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_WRITING = os.O_WRONLY | os.O_RDWR
_CAN_WRITE = (os.O_WRONLY, os.O_RDWR)
"""The accesses by which a descriptor can be written to. With the fourth, nothing can be done through it but ``ioctl``,
and yet it takes the permission to write.
"""
_LARGE_FILE = (0o100000 | 0o400000) & ~os.O_NOFOLLOW
"""The kernel's, which C libraries of 64-bit machines call 0: x86-64 and aarch64 have it and ``O_NOFOLLOW`` swapped."""
_KNOWN = (
    os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_NOCTTY | os.O_TRUNC | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC
    | os.O_DSYNC | os.O_ASYNC | os.O_DIRECT | _LARGE_FILE | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NOATIME
    | os.O_CLOEXEC | os.O_PATH | os.O_TMPFILE
)  # fmt: skip
_TRIES = 100
_SLOW_BYTES = 1 << 20
"""Copying more takes longer than others should have to wait."""
_OWN_TERMINAL = os.makedev(5, 0)
"""``/dev/tty``, which is another one for every session; see `open_terminal`."""
_HOW = struct.Struct("=QQQ")


class OpenRequest(NamedTuple):
    """The caller's request."""

    flags: int
    mode: int
    resolve: int = 0

    @property
    def writes(self) -> bool:
        """Whether content may change."""
        return bool(self.flags & (_WRITING | os.O_TRUNC))


def open_path(call: PendingCall, context: HandlerContext, dirfd: int, path: bytes, wish: OpenRequest) -> Reply:
    """Open what ``path`` leads to."""
    flags = wish.flags
    if flags & os.O_PATH or not (wish.writes or flags & (os.O_CREAT | O_TMPFILE)):
        # It cannot change anything, even if a thread changes the path meanwhile. (For `openat2` a thread could change
        # the flags as well.)
        return _read_confined(call, context, dirfd, path, wish) if call.name == "openat2" else Reply(native=True)
    if flags & os.O_CREAT and flags & os.O_DIRECTORY:
        raise os_error(errno.EINVAL)
    with PathResolver(call, context) as resolver:
        if flags & (os.O_CREAT | os.O_TRUNC):
            check_room(resolver.caller)
        look = Confined(resolver, wish.resolve) if wish.resolve else resolver
        if flags & O_TMPFILE or not flags & os.O_CREAT:
            follow = not flags & os.O_NOFOLLOW
            return open_found(resolver, call, context, look.object(dirfd, path, follow=follow), wish)
        resolved = look.locate(dirfd, path)
        for _ in range(_TRIES):
            try:
                return _open_or_create(resolver, call, context, look, resolved, wish)
            except FileExistsError:
                # An outside process was quicker, and with O_EXCL an existing file is an error.
                if flags & os.O_EXCL:
                    raise
        raise os_error(errno.EAGAIN)


def _read_confined(call: PendingCall, context: HandlerContext, dirfd: int, path: bytes, wish: OpenRequest) -> Reply:
    """`openat2` without writing. If the file cannot be returned it fails like an unknown call: programs fall back."""
    if wish.flags & os.O_PATH:
        raise os_error(errno.ENOSYS)
    with PathResolver(call, context) as resolver:
        look = Confined(resolver, wish.resolve) if wish.resolve else resolver
        opened = look.object(dirfd, path, follow=not wish.flags & os.O_NOFOLLOW)
        mode = os.fstat(opened.fd).st_mode
        if stat.S_ISLNK(mode):
            raise os_error(errno.ELOOP)
        if wish.flags & os.O_DIRECTORY and not stat.S_ISDIR(mode):
            raise os_error(errno.ENOTDIR)
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or is_native(opened.fd, opened.where, mode):
            raise os_error(errno.ENOSYS)
        return _reply(reopen_in_time(resolver, opened.fd, wish.flags & ~_NAMING, LEASED), wish)


def _open_or_create(
    resolver: PathResolver,
    call: PendingCall,
    context: HandlerContext,
    look: PathResolver | Confined,
    resolved: ResolvedName,
    wish: OpenRequest,
) -> Reply:
    for _ in range(MOST_LINKS):
        if not resolved.is_special:
            if resolved.slash:
                raise os_error(errno.EISDIR)
            if wish.flags & os.O_EXCL or (resolver.is_own and not _is_there(resolved)):
                return _create(resolver, call, context, resolved, wish)
        try:
            fd = step(resolver, resolved.dir_fd, resolved.name, _LINK)
        except FileNotFoundError:
            return _create(resolver, call, context, resolved, wish)
        found = os.fstat(fd)
        if not stat.S_ISLNK(found.st_mode):
            if wish.flags & os.O_EXCL:
                raise os_error(errno.EEXIST)
            check_found(resolved.dir_fd, found, resolver.uid)
            return open_found(resolver, call, context, ResolvedObject(fd, resolved.where), wish)
        if wish.flags & os.O_NOFOLLOW:
            raise os_error(errno.ELOOP)
        following = look.follow(resolved, fd)
        if isinstance(following, ResolvedObject):
            return open_found(resolver, call, context, following, wish)
        resolved = following
    raise os_error(errno.ELOOP)


def _is_there(resolved: ResolvedName) -> bool:
    # An exception takes longer than the system call.
    return os.access(resolved.name, os.F_OK, dir_fd=resolved.dir_fd, follow_symlinks=False)


def _create(
    resolver: PathResolver, call: PendingCall, context: HandlerContext, resolved: ResolvedName, wish: OpenRequest
) -> Reply:
    resolver.check_writable(resolved, makes=True)
    flags, mode = wish.flags | os.O_EXCL, wish.mode & 0o7777  # which follows no link
    performed = resolver.create_by_caller(lambda: os.open(resolved.name, flags, mode, dir_fd=resolved.dir_fd))
    if resolved.path is None:
        fd = performed()
    else:
        fd = context.interceptor.create(context.step(call), resolved.place, "f", performed)
    return _reply(fd, wish)


def open_found(
    resolver: PathResolver, call: PendingCall, context: HandlerContext, opened: ResolvedObject, wish: OpenRequest
) -> Reply:
    """Open an existing object, as in ``wish``."""
    found = os.fstat(opened.fd)
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFDIR:
        if wish.flags & O_TMPFILE:
            resolver.check_writable(opened)
            # It has no name, so nothing changes: the call that gives it one is recorded.
            create = resolver.create_by_caller(
                lambda: os.open(b".", wish.flags & ~os.O_NOFOLLOW, wish.mode, dir_fd=opened.fd)
            )
            return _reply(create(), wish)
        raise os_error(errno.EISDIR)
    if wish.flags & os.O_DIRECTORY:
        raise os_error(errno.ENOTDIR)
    if kind == stat.S_IFLNK:
        raise os_error(errno.ELOOP)
    if wish.writes:
        resolver.check_writable(opened)  # pipes and devices too: no opening by the kernel, no new times
    if opened.path is None and is_native(opened.fd, opened.where, found.st_mode):
        if wish.writes and os.geteuid() == 0 and is_setting(opened.fd, opened.where):
            # Only root may. A program that the kernel starts for it, such as at a crash, would be outside of the tree.
            raise os_error(errno.EACCES)
        if _is_harmless(call, wish):
            return Reply(native=True)
        if kind == stat.S_IFCHR and found.st_rdev == _OWN_TERMINAL and call.name != "openat2":
            return _reply(open_terminal(resolver, wish.flags), wish)
        if kind != stat.S_IFCHR or found.st_rdev == _OWN_TERMINAL:
            # Only the caller itself could open it; and by then, the path might lead into the workspace.
            raise os_error(errno.ENOSYS if call.name == "openat2" else errno.EACCES)
    if kind == stat.S_IFREG:
        return _open_file(resolver, call, context, opened, wish, found)
    flags = wish.flags & ~(_NAMING | os.O_TRUNC) | os.O_NOCTTY
    if kind == stat.S_IFIFO:
        fd = _open_pipe(resolver, opened, flags)
    else:
        fd = reopen_in_time(resolver, opened.fd, flags, NOTHING)
    if opened.path is not None:
        try:
            # Its data is not in the tree, but the write changes its mtime.
            context.interceptor.before_metadata_change(context.step(call), opened.place, opened.fd)
        except BaseException:
            os.close(fd)
            raise
    return _reply(fd, wish)


def open_terminal(resolver: PathResolver, flags: int) -> int:
    """The terminal of the caller's session, opened with ``flags``, for a ``/dev/tty`` that the caller may not open
    itself. By its name in ``/dev/pts``: ``/dev/tty`` would be the keeper's own terminal.

    Raises `OSError`: ENXIO without one, as in the kernel; EACCES if it is no pseudo-terminal, and for a caller with
    another view of the file systems than the keeper: there, another terminal may have the same number.
    """
    file = resolver.keep_open(os.open(b"stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=resolver.caller.fd))
    number = int(os.read(file, 4096).rpartition(b") ")[2].split(b" ")[_TTY_NUMBER])
    if not number:
        raise os_error(errno.ENXIO)
    # The kernel puts the upper bits of the minor number above the major one.
    device = os.makedev(number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00)
    if os.major(device) not in _PSEUDO or resolver.caller.foreign:
        raise os_error(errno.EACCES)
    index = (os.major(device) - _PSEUDO.start) * _PSEUDO_EACH + os.minor(device)
    found = resolver.keep_open(os.open(b"/dev/pts/%d" % index, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
    about = os.fstat(found)
    if not stat.S_ISCHR(about.st_mode) or about.st_rdev != device:
        raise os_error(errno.EACCES)
    with resolver.caller_credentials():
        return reopen(found, flags & (os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK) | os.O_NOCTTY | os.O_CLOEXEC)


def _is_harmless(call: PendingCall, wish: OpenRequest) -> bool:
    """Whether the kernel may do an opening for writing whose path may change meanwhile: if the domain forbids it there.
    A domain does not forbid truncation without opening for writing, and is asked too late where a server does that.
    """
    if not landlock.version() or call.name == "openat2":
        return False
    if not wish.flags & os.O_TRUNC:
        return True
    return wish.flags & os.O_ACCMODE in _CAN_WRITE and not may_cut_unasked()


def _open_file(
    resolver: PathResolver,
    call: PendingCall,
    context: HandlerContext,
    opened: ResolvedObject,
    wish: OpenRequest,
    found: os.stat_result,
) -> Reply:
    """Open an existing file. It is truncated only after its content was captured."""
    if opened.path is None:
        return _reply(reopen_in_time(resolver, opened.fd, wish.flags & ~_NAMING, LEASED), wish)
    if wish.writes and not call.patient and (found.st_size > _SLOW_BYTES or takes_long(found)):
        raise SlowError
    fd = reopen_in_time(resolver, opened.fd, wish.flags & ~(_NAMING | os.O_TRUNC), LEASED)
    try:
        if wish.writes:
            context.interceptor.before_open(context.step(call), opened.place, opened.fd, risk_of(wish.flags))
            if wish.flags & os.O_TRUNC:
                with resolver.caller_credentials():
                    resolver.check_waiting()
                    if wish.flags & os.O_ACCMODE in _CAN_WRITE:
                        os.truncate(fd, 0)
                    else:
                        # The descriptor itself cannot write: it is for reading, or (3) for neither. As in the kernel,
                        # no lease delays this: truncate would wait for its end.
                        os.close(reopen(opened.fd, os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC))
    except BaseException:
        os.close(fd)
        raise
    return _reply(fd, wish)


def _open_pipe(resolver: PathResolver, opened: ResolvedObject, flags: int) -> int:
    """Open a named pipe; without a reader that waits, for as long as the caller does."""
    if flags & os.O_ACCMODE == os.O_RDWR:
        with resolver.caller_credentials():
            return reopen(opened.fd, flags)
    return reopen_in_time(resolver, opened.fd, flags, NOBODY_READS)


def _reply(fd: int, wish: OpenRequest) -> Reply:
    return Reply(fd=fd, cloexec=bool(wish.flags & os.O_CLOEXEC))


def open_request(flags: int, mode: int) -> OpenRequest:
    """The meaning of an ``open`` without ``open_how``, which ignores unknown flags."""
    flags &= _KNOWN
    if flags & O_TMPFILE and (not flags & os.O_DIRECTORY or not flags & _WRITING or flags & os.O_CREAT):
        raise os_error(errno.EINVAL)
    return OpenRequest(flags, mode & 0o7777)


def open_(call: PendingCall, context: HandlerContext) -> Reply:
    """``open``."""
    wish = open_request(integer(call.args[1]), unsigned(call.args[2]))
    return open_path(call, context, AT_FDCWD, read_path(call, call.args[0]), wish)


def creat(call: PendingCall, context: HandlerContext) -> Reply:
    """``creat``."""
    wish = open_request(os.O_CREAT | os.O_WRONLY | os.O_TRUNC, unsigned(call.args[1]))
    return open_path(call, context, AT_FDCWD, read_path(call, call.args[0]), wish)


def openat(call: PendingCall, context: HandlerContext) -> Reply:
    """``openat``."""
    wish = open_request(integer(call.args[2]), unsigned(call.args[3]))
    return open_path(call, context, integer(call.args[0]), read_path(call, call.args[1]), wish)


def openat2(call: PendingCall, context: HandlerContext) -> Reply:
    """``openat2``."""
    raw = read_structure(call, call.args[2], call.args[3], _HOW.size)
    if any(raw[_HOW.size :]):
        raise os_error(errno.E2BIG)
    flags, mode, resolve = _HOW.unpack_from(raw)
    path = read_path(call, call.args[1])
    if flags & ~_KNOWN or mode & ~0o7777 or (mode and not flags & (os.O_CREAT | O_TMPFILE)):
        raise os_error(errno.EINVAL)
    check_resolve(resolve)
    return open_path(call, context, integer(call.args[0]), path, open_request(flags, mode)._replace(resolve=resolve))


HANDLERS: dict[str, Handler] = {"open": open_, "creat": creat, "openat": openat, "openat2": openat2}

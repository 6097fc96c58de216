"""The requests that open files, made or there, work on what they hold, and close them.

What a file holds is kept as it is opened, before it may be written to. What is written, mapped or cut short through
that handle later is not asked for again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.bridge.passthrough._node import LocatedNode
from holdfast.bridge.server.request_threads import LaterError, is_patient
from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.unreadable_file import takes_long
from holdfast.undo.safeguards.guard import LOSING_MODES, risk_of
from holdfast.wire.fuse import protocol_constants, replies
from holdfast.wire.fuse.node_table import Handles
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.fuse.replies import OpenedFile

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from holdfast.bridge.passthrough._backing_files import BackingFiles
    from holdfast.bridge.passthrough._cache_invalidation import CacheInvalidator
    from holdfast.bridge.passthrough._cache_validity import CacheValidity
    from holdfast.bridge.passthrough._fd_budget import MountFdBudget
    from holdfast.bridge.passthrough._host_interface import BridgeHost, Callers
    from holdfast.bridge.passthrough._node import Node
    from holdfast.bridge.passthrough._node_registry import NodeRegistry
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.undo.safeguards.guard import Risk
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.request_bodies import Header

MOST_HANDLES: Final = 1 << 16
SLOW_BYTES: Final = 1 << 20
"""Keeping a copy of more takes longer than others should have to wait."""
_WRITING: Final = os.O_WRONLY | os.O_RDWR
_CHANGING: Final = _WRITING | os.O_TRUNC
_CAN_WRITE: Final = (os.O_WRONLY, os.O_RDWR)
"""By a descriptor of the fourth access nothing can be written, though it takes the permission."""
_PASSED: Final = os.O_ACCMODE | os.O_SYNC | os.O_DSYNC | os.O_NOATIME
"""What is for us to do as well. Not O_APPEND: what the page cache writes back has its place; nor O_DIRECT, which would
say how our memory has to lie.
"""
_TRIES: Final = 100
_SET_IDS: Final = stat.S_ISUID | stat.S_ISGID
_libc = ctypes.CDLL(None, use_errno=True)


class FileHandle(NamedTuple):
    """An open file."""

    kept: Node
    fd: int
    flags: int
    """As in open(2), as it was asked for."""
    backing: int

    @property
    def writes(self) -> bool:
        """Whether its content can be changed by it."""
        return bool(self.flags & _WRITING)


def _may_map(flags: int) -> bool:
    """Whether what is opened so can be written to through a mapping, which the kernel reports to no one with
    passthrough.
    """
    return flags & os.O_ACCMODE == os.O_RDWR


def _strip(fd: int) -> None:
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & (stat.S_ISUID | stat.S_ISGID):
        os.fchmod(fd, mode & ~(stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0)))


class OpenRequests:
    """See the module."""

    def __init__(
        self,
        host: BridgeHost,
        objects: NodeRegistry,
        shown: CacheValidity,
        callers: Callers,
        backings: BackingFiles,
        share: MountFdBudget,
        teller: CacheInvalidator,
        *,
        most: int,
    ) -> None:
        """At most ``most`` files may be open at a time, and as many as the mount's ``share`` has room for."""
        self._host = host
        self._objects = objects
        self._shown = shown
        self._callers = callers
        self._backings = backings
        self._share = share
        self._teller = teller
        self._handles: Handles[FileHandle] = Handles(most)

    def operations(self) -> Mapping[int, Operation]:
        """By opcode."""
        return {
            Opcode.OPEN: self._open,
            Opcode.CREATE: self._create,
            Opcode.TMPFILE: self._tmpfile,
            Opcode.RELEASE: self._release,
        }

    def close(self) -> None:
        """Close all files."""
        for handle in self._handles.clear():
            self._objects.close_opened(handle.kept, handle.fd, writes=handle.writes)
            self._share.give()

    def handle(self, node: int, number: int) -> FileHandle:
        """What a request that has a handle means. Raises `FormatError`."""
        return self._handles.get(number, node)

    def descriptor(self, header: Header, number: int | None) -> int | None:
        """The descriptor of a request that may have a handle."""
        return None if number is None else self._handles.get(number, header.node).fd

    # -- operations -----------------------------------------------------------------------------------------------

    def _open(self, header: Header, body: request_bodies.Open) -> Reply:
        self._handles.check_room()
        with self._share.one_more(), self._reached(header.node, body.flags) as thing:
            fd = self._opened(header, thing, body.flags, body.open_flags)
            self._objects.note_read(self._objects[header.node])
            opened = self._added(header, header.node, fd, body.flags)
            if opened.backing and _may_map(body.flags):
                self._teller.note_mappable(header.node)
            return replies.opened(header.unique, opened)

    @contextmanager
    def _reached(self, node: int, flags: int) -> Generator[LocatedNode]:
        """What is to be opened. Where it is, is asked only if it may be changed."""
        if flags & _CHANGING:
            with self._objects.located(node) as thing:
                yield thing
        else:
            with self._objects.descriptor(node) as fd:
                yield LocatedNode(fd, None)

    def _opened(self, header: Header, thing: LocatedNode, flags: int, open_flags: int) -> int:
        found = os.fstat(thing.fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        fd = self.reopened(thing.fd, flags & _PASSED)
        try:
            if flags & _CHANGING:
                self.capture(header, thing, found, risk_of(flags))
                if flags & os.O_TRUNC:
                    with self._callers.stripping(header, open_flags & protocol_constants.OPEN_KILL_SUIDGID):
                        os.truncate(fd if flags & os.O_ACCMODE in _CAN_WRITE else proc_path(fd), 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _create(self, header: Header, body: request_bodies.Create) -> Reply:
        self._handles.check_room()
        flags = body.flags & _PASSED | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._share.one_more(), self._objects.directory(header.node) as dir_fd:
            place = self._objects.place(header.node, dir_fd, body.name)
            perform = self._callers.creating(
                header, body.umask, body.extras, lambda: os.open(body.name, flags, body.permissions, dir_fd=dir_fd)
            )
            for _ in range(_TRIES):
                try:
                    fd = self._host.interceptor.create(self._host.step(header.pid), place, "f", perform)
                except FileExistsError:
                    # Another process was quicker, and it is not to be created at any price.
                    if body.flags & os.O_EXCL:
                        raise
                else:
                    return self._entered(header, body, fd, header.node, body.name)
                try:
                    node, _ = self._objects.enter(header.node, dir_fd, body.name)
                except FileNotFoundError:
                    continue
                try:
                    with self._objects.located(node) as thing:
                        fd = self._opened(header, thing, body.flags, body.open_flags)
                        found = os.fstat(fd)
                    handle = self._added(header, node, fd, body.flags)
                except BaseException:
                    self._objects.forget(node, 1)
                    raise
                return replies.created(header.unique, self._shown.entry(node, found), handle)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _tmpfile(self, header: Header, body: request_bodies.Create) -> Reply:
        self._handles.check_room()
        flags = body.flags & (_PASSED | os.O_EXCL) | os.O_TMPFILE | os.O_CLOEXEC
        with self._share.one_more(), self._objects.directory(header.node) as dir_fd:
            # It has no name, so nothing changes: the request that gives it one is recorded.
            create = self._callers.creating(
                header, body.umask, body.extras, lambda: os.open(b".", flags, body.permissions, dir_fd=dir_fd)
            )
            return self._entered(header, body, create(), header.node, b"")

    def _entered(self, header: Header, body: request_bodies.Create, fd: int, parent: int, name: bytes) -> Reply:
        """The reply for what was created as ``fd``."""
        try:
            node, found = self._objects.enter_opened(fd, parent, name)
        except BaseException:
            os.close(fd)
            raise
        handle = self._added(header, node, fd, body.flags)
        return replies.created(header.unique, self._shown.made(node, found), handle)

    def _release(self, header: Header, body: request_bodies.Release) -> Reply:
        handle = self._handles.release(body.handle, header.node)
        self._backings.give(handle.kept, handle.backing)
        if handle.backing and _may_map(handle.flags):
            self._objects.note_mapped(header.node, handle.fd)
        self._objects.close_opened(handle.kept, handle.fd, writes=handle.writes)
        self._share.give()
        return replies.done(header.unique)

    def _added(self, header: Header, node: int, fd: int, flags: int) -> OpenedFile:
        kept = self._objects[node]
        writes = bool(flags & _WRITING)
        self._objects.note_opened(kept, fd, writes=writes)
        backing = self._backings.take(kept, fd, self._callers.stripping(header, header.uid), strips=bool(header.uid))
        try:
            if backing and writes and header.uid and not kept.strips:
                # Root had it opened, whose writes take no set-id bits away; and so would these not.
                _strip(fd)
            number = self._handles.add(node, FileHandle(kept, fd, flags, backing))
        except BaseException:
            self._backings.give(kept, backing)
            self._objects.close_opened(kept, fd, writes=writes)
            raise
        return OpenedFile(number, protocol_constants.FOPEN_PASSTHROUGH if backing else 0, backing)

    # -- for others -----------------------------------------------------------------------------------------------

    def reopened(self, fd: int, flags: int) -> int:
        """Open a regular file again. Raises `OSError`, and `LaterError` while a process has a lease on it."""
        try:
            opened = os.open(proc_path(fd), flags | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError as error:
            raise LaterError from error
        os.set_blocking(opened, True)
        return opened

    def before_loss(self, header: Header, node: int, fd: int, lost: int) -> None:
        """Before so many bytes are lost by a descriptor that is open. Raises `OSError` and `HeldError`."""
        if self._host.interceptor.is_guarded and lost > 0:
            with self._objects.located(node, fd) as thing:
                if thing.path is not None:
                    self._host.interceptor.before_loss(self._host.step(header.pid), thing.place, thing.fd, lost)

    def capture(self, header: Header, thing: LocatedNode, found: os.stat_result, risk: Risk) -> None:
        """Keep what a file holds before that may change. Raises `OSError`, `LaterError` and `HeldError`."""
        interceptor, step = self._host.interceptor, self._host.step(header.pid)
        if thing.path is None:
            if not interceptor.release_removed(step, thing.fd):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # the kernel looks it up again
            return
        if not is_patient() and (found.st_size > SLOW_BYTES or takes_long(found)):
            raise LaterError
        interceptor.before_open(step, thing.place, thing.fd, risk)


class ContentRequests:
    """The requests for what open files hold, as far as the kernel does not read and write it itself."""

    def __init__(self, opening: OpenRequests, callers: Callers) -> None:
        self._opening = opening
        self._callers = callers

    def operations(self) -> Mapping[int, Operation]:
        """By opcode."""
        return {
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.LSEEK: self._lseek,
            Opcode.FSYNC: self._fsync,
            Opcode.FALLOCATE: self._fallocate,
            Opcode.COPY_FILE_RANGE: self._copy,
            Opcode.COPY_FILE_RANGE_64: self._copy,
        }

    def _read(self, header: Header, body: request_bodies.Read) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        return replies.data(header.unique, os.pread(handle.fd, body.size, body.offset))

    def _write(self, header: Header, body: request_bodies.Write) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        appends = body.flags & os.O_APPEND and not body.write_flags & protocol_constants.WRITE_CACHE
        strips = body.write_flags & protocol_constants.WRITE_KILL_SUIDGID and os.fstat(handle.fd).st_mode & _SET_IDS
        with self._callers.stripping(header, strips):
            count = os.pwritev(handle.fd, (body.data,), body.offset, os.RWF_APPEND if appends else 0)
        return replies.written(header.unique, count)

    def _lseek(self, header: Header, body: request_bodies.Seek) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        return replies.position(header.unique, os.lseek(handle.fd, body.offset, body.whence))

    def _fsync(self, header: Header, body: request_bodies.Sync) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        (os.fdatasync if body.data_only else os.fsync)(handle.fd)
        return replies.done(header.unique)

    def _fallocate(self, header: Header, body: request_bodies.Allocate) -> Reply:
        handle = self._opening.handle(header.node, body.handle)
        if body.mode & LOSING_MODES:
            size = os.fstat(handle.fd).st_size
            self._opening.before_loss(header, header.node, handle.fd, min(body.length, size - body.offset))
        offset, length = ctypes.c_int64(body.offset), ctypes.c_int64(body.length)
        with self._callers.stripping(header, header.uid):
            failed = _libc.fallocate(handle.fd, body.mode, offset, length)
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return replies.done(header.unique)

    def _copy(self, header: Header, body: request_bodies.CopyRange) -> Reply:
        source = self._opening.handle(header.node, body.handle)
        target = self._opening.handle(body.to_node, body.to_handle)
        with self._callers.stripping(header, header.uid):
            count = os.copy_file_range(source.fd, target.fd, body.length, body.offset, body.to_offset)
        told = replies.written if header.opcode == Opcode.COPY_FILE_RANGE else replies.copied
        return told(header.unique, count)

"""The requests that open or create files, work on their content and close them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from holdfast.vfs.node_table import Handles
from holdfast.wire.fuse import protocol_constants, replies
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.fuse.replies import OpenedFile as Opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.fuse.kernel_caches import KernelCaches, OpenedByKernel
    from holdfast.bridge.fuse.served_file_system import FuseCallers
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.vfs.file_system import Caller, Files, OpenedFile
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.request_bodies import Header


class _Handle(NamedTuple):
    file: OpenedFile
    opened: OpenedByKernel


class FileRequests:
    """See the module."""

    def __init__(self, files: Files, caches: KernelCaches, callers: FuseCallers, *, most: int) -> None:
        """At most ``most`` files may be open at a time."""
        self._files = files
        self._caches = caches
        self._callers = callers
        self._handles: Handles[_Handle] = Handles(most)

    def operations(self) -> Mapping[int, Operation]:
        """By opcode."""
        return {
            Opcode.OPEN: self._open,
            Opcode.CREATE: self._create,
            Opcode.TMPFILE: self._tmpfile,
            Opcode.RELEASE: self._release,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.LSEEK: self._lseek,
            Opcode.FSYNC: self._fsync,
            Opcode.FALLOCATE: self._fallocate,
            Opcode.COPY_FILE_RANGE: self._copy,
            Opcode.COPY_FILE_RANGE_64: self._copy,
        }

    def close(self) -> None:
        """Close all files."""
        for handle in self._handles.clear():
            handle.file.close()

    def file(self, node: int, number: int) -> OpenedFile:
        """The file of a request that has a handle. Raises `OSError` (EBADF)."""
        return self._handles.get(number, node).file

    # -- opening --------------------------------------------------------------------------------------------------

    def _open(self, header: Header, body: request_bodies.Open) -> Reply:
        self._handles.check_room()
        caller = self._callers.of(header)
        strips = bool(body.open_flags & protocol_constants.OPEN_KILL_SUIDGID)
        file = self._files.open(caller, header.node, body.flags, strips=strips)
        return replies.opened(header.unique, self._added(caller, header.node, file))

    def _create(self, header: Header, body: request_bodies.Create) -> Reply:
        self._handles.check_room()
        caller = self._callers.making(header, body.umask, body.extras)
        strips = bool(body.open_flags & protocol_constants.OPEN_KILL_SUIDGID)
        found, file, is_new = self._files.create(
            caller, header.node, body.name, body.flags, body.permissions, strips=strips
        )
        opened = self._added(caller, found.node, file)
        entry = self._caches.created(found) if is_new else self._caches.entry(found)
        return replies.created(header.unique, entry, opened)

    def _tmpfile(self, header: Header, body: request_bodies.Create) -> Reply:
        self._handles.check_room()
        caller = self._callers.making(header, body.umask, body.extras)
        found, file = self._files.create_unnamed(caller, header.node, body.flags, body.permissions)
        opened = self._added(caller, found.node, file)
        return replies.created(header.unique, self._caches.created(found), opened)

    def _added(self, caller: Caller, node: int, file: OpenedFile) -> Opened:
        try:
            opened = self._caches.open_file(caller, node, file)
            try:
                return Opened(self._handles.add(node, _Handle(file, opened)), *opened)
            except BaseException:
                self._caches.close_file(node, file, opened)
                raise
        except BaseException:
            file.close()
            raise

    def _release(self, header: Header, body: request_bodies.Release) -> Reply:
        if not (self._caches.needs_no_open and not body.handle):
            file, opened = self._handles.release(body.handle, header.node)
            self._caches.close_file(header.node, file, opened)
            file.close()
        return replies.done(header.unique)

    # -- content, as far as the kernel does not read and write it itself -------------------------------------------

    def _read(self, header: Header, body: request_bodies.Read) -> Reply:
        if self._caches.needs_no_open and not body.handle:
            file = self._files.open(self._callers.of(header), header.node, os.O_RDONLY, strips=False)
        else:
            file = self._handles.get(body.handle, header.node).file
        return replies.data(header.unique, file.read(body.size, body.offset))

    def _write(self, header: Header, body: request_bodies.Write) -> Reply:
        file = self._handles.get(body.handle, header.node).file
        write_flags = body.write_flags
        count = file.write(
            self._callers.of(header),
            body.data,
            body.offset,
            appends=bool(body.flags & os.O_APPEND and not write_flags & protocol_constants.WRITE_CACHE),
            strips=bool(write_flags & protocol_constants.WRITE_KILL_SUIDGID),
        )
        return replies.written(header.unique, count)

    def _lseek(self, header: Header, body: request_bodies.Seek) -> Reply:
        file = self._handles.get(body.handle, header.node).file
        return replies.position(header.unique, file.seek(body.offset, body.whence))

    def _fsync(self, header: Header, body: request_bodies.Sync) -> Reply:
        self._handles.get(body.handle, header.node).file.sync(data_only=body.data_only)
        return replies.done(header.unique)

    def _fallocate(self, header: Header, body: request_bodies.Allocate) -> Reply:
        file, strips = self._handles.get(body.handle, header.node).file, bool(header.uid)
        file.allocate(self._callers.of(header), body.mode, body.offset, body.length, strips=strips)
        return replies.done(header.unique)

    def _copy(self, header: Header, body: request_bodies.CopyRange) -> Reply:
        source = self._handles.get(body.handle, header.node).file
        target = self._handles.get(body.to_handle, body.to_node).file
        caller, strips = self._callers.of(header), bool(header.uid)
        count = source.copy_to(caller, body.offset, target, body.to_offset, body.length, strips=strips)
        told = replies.written if header.opcode == Opcode.COPY_FILE_RANGE else replies.copied
        return told(header.unique, count)

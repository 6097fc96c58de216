"""The requests that look names up, make them, move them and take them away."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from holdfast.bridge.server.request_threads import LaterError
from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.syscalls import RENAME_EXCHANGE, renameat2
from holdfast.model.errors import RefusedError
from holdfast.undo.journal.records import file_type
from holdfast.wire.fuse import protocol_constants, replies
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.fuse.request_errors import TOO_MANY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.bridge.passthrough._cache_validity import CacheValidity
    from holdfast.bridge.passthrough._host_interface import BridgeHost, Callers
    from holdfast.bridge.passthrough._node_registry import NodeRegistry
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.undo.journal.records import FileType
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.request_bodies import Extras, Header


class NameRequests:
    """See the module."""

    def __init__(self, host: BridgeHost, objects: NodeRegistry, shown: CacheValidity, callers: Callers) -> None:
        self._host = host
        self._objects = objects
        self._shown = shown
        self._callers = callers

    def operations(self) -> Mapping[int, Operation]:
        """By opcode."""
        return {
            Opcode.LOOKUP: self._lookup,
            Opcode.READLINK: self._readlink,
            Opcode.MKDIR: self._mkdir,
            Opcode.MKNOD: self._mknod,
            Opcode.SYMLINK: self._symlink,
            Opcode.LINK: self._link,
            Opcode.UNLINK: self._unlink,
            Opcode.RMDIR: self._rmdir,
            Opcode.RENAME: self._rename,
            Opcode.RENAME2: self._rename,
        }

    def _lookup(self, header: Header, body: request_bodies.Name) -> Reply:
        try:
            with self._objects.directory(header.node) as dir_fd:
                return self._entered(header, dir_fd, body.name)
        except FileNotFoundError:
            return self._shown.missing(header)
        except RefusedError as error:
            if error.code != TOO_MANY:
                raise
            raise LaterError from error  # the kernel is about to forget something

    def _entered(self, header: Header, dir_fd: int, name: bytes) -> Reply:
        node, found = self._objects.enter(header.node, dir_fd, name)
        return replies.entry(header.unique, self._shown.entry(node, found))

    def _readlink(self, header: Header, _: request_bodies.Nothing) -> Reply:
        with self._objects.descriptor(header.node) as fd:
            return replies.data(header.unique, os.readlink(b"", dir_fd=fd))

    # -- made -----------------------------------------------------------------------------------------------------

    def _mkdir(self, header: Header, body: request_bodies.MakeDirectory) -> Reply:
        def perform(dir_fd: int) -> None:
            os.mkdir(body.name, body.permissions, dir_fd=dir_fd)

        return self._make(header, body.name, "d", perform, body.umask, body.extras)

    def _mknod(self, header: Header, body: request_bodies.MakeNode) -> Reply:
        def perform(dir_fd: int) -> None:
            os.mknod(body.name, body.mode, body.rdev, dir_fd=dir_fd)

        return self._make(header, body.name, file_type(body.mode), perform, body.umask, body.extras)

    def _symlink(self, header: Header, body: request_bodies.Symlink) -> Reply:
        def perform(dir_fd: int) -> None:
            os.symlink(body.target, body.name, dir_fd=dir_fd)

        return self._make(header, body.name, "l", perform, 0, body.extras)

    def _make(
        self,
        header: Header,
        name: bytes,
        type_: FileType,
        perform: Callable[[int], None],
        umask: int,
        extras: Extras,
    ) -> Reply:
        with self._objects.directory(header.node) as dir_fd:
            place = self._objects.place(header.node, dir_fd, name)
            performed = self._callers.creating(header, umask, extras, lambda: perform(dir_fd))
            self._host.interceptor.create(self._host.step(header.pid), place, type_, performed)
            return self._entered(header, dir_fd, name)

    def _link(self, header: Header, body: request_bodies.Link) -> Reply:
        interceptor, step = self._host.interceptor, self._host.step(header.pid)
        with self._objects.directory(header.node) as dir_fd, self._objects.located(body.node) as source:
            place = self._objects.place(header.node, dir_fd, body.name)

            def perform() -> None:
                os.link(proc_path(source.fd), body.name, dst_dir_fd=dir_fd, follow_symlinks=True)

            found = os.fstat(source.fd)
            if source.path is not None:
                interceptor.link(step, source.fd, place, perform)
            elif not found.st_nlink:
                # It has no name yet (O_TMPFILE): it is this that creates it, as far as anyone can see.
                interceptor.create(step, place, file_type(found.st_mode), perform)
            else:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return self._entered(header, dir_fd, body.name)

    # -- taken away, and moved ------------------------------------------------------------------------------------

    def _unlink(self, header: Header, body: request_bodies.Name) -> Reply:
        with self._objects.directory(header.node) as dir_fd:
            place = self._objects.place(header.node, dir_fd, body.name)
            self._host.interceptor.unlink(
                self._host.step(header.pid), place, lambda: os.unlink(body.name, dir_fd=dir_fd)
            )
        return replies.done(header.unique)

    def _rmdir(self, header: Header, body: request_bodies.Name) -> Reply:
        with self._objects.directory(header.node) as dir_fd:
            place = self._objects.place(header.node, dir_fd, body.name)
            self._host.interceptor.rmdir(self._host.step(header.pid), place, lambda: os.rmdir(body.name, dir_fd=dir_fd))
        return replies.done(header.unique)

    def _rename(self, header: Header, body: request_bodies.Rename) -> Reply:
        if body.flags & protocol_constants.RENAME_WHITEOUT:
            # A device that only overlay file systems make: nothing here could reverse it.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        objects, name, new_name = self._objects, body.name, body.new_name
        with objects.directory(header.node) as dir_fd, objects.directory(body.parent) as new_dir_fd:
            source = objects.place(header.node, dir_fd, name)
            target = objects.place(body.parent, new_dir_fd, new_name)
            self._host.interceptor.rename(
                self._host.step(header.pid),
                source,
                target,
                body.flags,
                lambda: renameat2(dir_fd, name, new_dir_fd, new_name, body.flags),
            )
            objects.note_moved(body.parent, new_dir_fd, new_name)
            if body.flags & RENAME_EXCHANGE:
                objects.note_moved(header.node, dir_fd, name)
        return replies.done(header.unique)

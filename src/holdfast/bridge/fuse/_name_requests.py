"""The requests that look names up, make them, move them and take them away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.vfs.file_system import TooManyError
from holdfast.vfs.patience import LaterError
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.protocol_constants import Opcode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.fuse.kernel_caches import KernelCaches
    from holdfast.bridge.fuse.served_file_system import FuseCallers
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.vfs.file_system import Found, Names
    from holdfast.wire.fuse import request_bodies
    from holdfast.wire.fuse.request_bodies import Header


class NameRequests:
    """See the module."""

    def __init__(self, names: Names, caches: KernelCaches, callers: FuseCallers) -> None:
        self._names = names
        self._caches = caches
        self._callers = callers

    def operations(self) -> Mapping[int, Operation]:
        """By opcode."""
        return {
            Opcode.LOOKUP: self._lookup,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget,
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
            found = self._names.lookup(header.node, body.name)
        except FileNotFoundError:
            return self._caches.missing(header.unique)
        except TooManyError as error:
            if not self._caches.forgets:
                raise
            raise LaterError from error  # the kernel will soon forget some names
        return self._entered(header, found)

    def _entered(self, header: Header, found: Found) -> Reply:
        return replies.entry(header.unique, self._caches.entry(found))

    def _forget(self, _: Header, body: request_bodies.Forget) -> Reply:
        for node, lookups in body.forgets:
            self._names.forget(node, lookups)

    def _readlink(self, header: Header, _: request_bodies.Nothing) -> Reply:
        return replies.data(header.unique, self._names.read_link(header.node))

    def _mkdir(self, header: Header, body: request_bodies.MakeDirectory) -> Reply:
        caller = self._callers.making(header, body.umask, body.extras)
        return self._entered(header, self._names.make_directory(caller, header.node, body.name, body.permissions))

    def _mknod(self, header: Header, body: request_bodies.MakeNode) -> Reply:
        caller = self._callers.making(header, body.umask, body.extras)
        return self._entered(header, self._names.make_node(caller, header.node, body.name, body.mode, body.rdev))

    def _symlink(self, header: Header, body: request_bodies.Symlink) -> Reply:
        caller = self._callers.making(header, 0, body.extras)
        return self._entered(header, self._names.make_symlink(caller, header.node, body.name, body.target))

    def _link(self, header: Header, body: request_bodies.Link) -> Reply:
        caller = self._callers.of(header)
        return self._entered(header, self._names.link(caller, body.node, header.node, body.name))

    def _unlink(self, header: Header, body: request_bodies.Name) -> Reply:
        self._names.unlink(self._callers.of(header), header.node, body.name)
        return replies.done(header.unique)

    def _rmdir(self, header: Header, body: request_bodies.Name) -> Reply:
        self._names.rmdir(self._callers.of(header), header.node, body.name)
        return replies.done(header.unique)

    def _rename(self, header: Header, body: request_bodies.Rename) -> Reply:
        name, parent, new_name, flags = body
        self._names.rename(self._callers.of(header), header.node, name, parent, new_name, flags)
        return replies.done(header.unique)

"""Answers each request by a call of a file system's port, and a reply with the result.

The session checks which fids a request may name; this module checks whether they are files or directories.
"""

from __future__ import annotations

import errno
import os
import stat
from fcntl import F_UNLCK
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.bridge.p9._fids import (
    AttributeFid,
    AttributeRoom,
    DirectoryFid,
    FileFid,
    NewAttributeFid,
    ObjectFid,
    Positions,
    Qids,
)
from holdfast.bridge.p9.byte_range_locks import ByteRangeLocks, HeldRange, LockOwner
from holdfast.vfs.file_system import NOW, ROOT, AttributeChange, Caller
from holdfast.wire.p9 import protocol_constants, replies, request_bodies
from holdfast.wire.p9.protocol_constants import LockStatus, Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.bridge.p9._fids import Kept
    from holdfast.vfs.file_system import FileSystem, Found
    from holdfast.wire.p9.session import Buffer, Request

_NO_GROUP: Final = 65534
"""The group of the caller, if it is not in the request."""
_TREES: Final = (b"", b"/")
"""Names for the only tree."""
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_TYPE_SHIFT: Final = 12
"""From ``DT_*`` to a mode."""
_CHANGES: Final = frozenset(
    (
        Type.LCREATE,
        Type.SYMLINK,
        Type.MKNOD,
        Type.RENAME,
        Type.SETATTR,
        Type.XATTRCREATE,
        Type.LINK,
        Type.MKDIR,
        Type.RENAMEAT,
        Type.UNLINKAT,
        Type.REMOVE,
    )
)


class Answer(NamedTuple):
    """The result of a request: see `holdfast.wire.p9.session.Session.finish`."""

    reply: bytes | tuple[Buffer, ...]
    kept: Kept | None = None


def _refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Operations:
    """The operations of one client. For any number of threads."""

    def __init__(
        self, file_system: FileSystem, locks: ByteRangeLocks, *, is_read_only: bool = False, uid: int | None = None
    ) -> None:
        """``uid``: the user of a client that names none; by default the owner of the root."""
        root = file_system.attributes.status(ROOT)
        self._names = file_system.names
        self._files = file_system.files
        self._attributes = file_system.attributes
        self._directories = file_system.directories
        self._locks = locks
        self._is_read_only = is_read_only or file_system.is_read_only
        self._uid = root.st_uid if uid is None else uid
        self._positions = Positions(file_system.names)
        self._room = AttributeRoom()
        self._qids = Qids(root)
        self._by_type: dict[int, Callable[[Request[Kept]], Answer]] = {
            Type.STATFS: self._statfs,
            Type.LOPEN: self._lopen,
            Type.LCREATE: self._lcreate,
            Type.SYMLINK: self._symlink,
            Type.MKNOD: self._mknod,
            Type.RENAME: self._rename,
            Type.READLINK: self._readlink,
            Type.GETATTR: self._getattr,
            Type.SETATTR: self._setattr,
            Type.XATTRWALK: self._xattrwalk,
            Type.XATTRCREATE: self._xattrcreate,
            Type.READDIR: self._readdir,
            Type.FSYNC: self._fsync,
            Type.LOCK: self._lock,
            Type.GETLOCK: self._getlock,
            Type.LINK: self._link,
            Type.MKDIR: self._mkdir,
            Type.RENAMEAT: self._renameat,
            Type.UNLINKAT: self._unlinkat,
            Type.ATTACH: self._attach,
            Type.WALK: self._walk,
            Type.READ: self._read,
            Type.WRITE: self._write,
            Type.CLUNK: self._clunk,
            Type.REMOVE: self._remove,
        }

    def perform(self, request: Request[Kept]) -> Answer:
        """Perform a request. Raises the errors of the file system; those that ask for a retry mean that nothing has
        happened.
        """
        operation = self._by_type.get(request.type)
        if operation is None:
            # AUTH: users are believed. (diod's clients recognise only by this errno that none is needed.)
            raise _refusal(errno.ENOENT)
        if self._is_read_only and request.type in _CHANGES:
            raise _refusal(errno.EROFS)
        return operation(request)

    # -- fids -----------------------------------------------------------------------------------------------------

    def _attach(self, request: Request[Kept]) -> Answer:
        body = request.body
        assert isinstance(body, request_bodies.Attach)
        if body.tree not in _TREES:
            raise _refusal(errno.ENOENT)
        root = self._attributes.status(ROOT)
        uid = self._uid if body.uid is None else body.uid
        kept = ObjectFid(self._positions, self._positions.hold(self._positions.root), uid)
        return Answer(replies.found(request.tag, request.type, self._qids.of(root)), kept)

    def _walk(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.Walk)
        if not body.names and body.new_fid == body.fid:
            return Answer(replies.walked(request.tag, ()))
        positions, qids = self._positions, list[replies.Qid]()
        at = positions.hold(known.position)
        try:
            for name in body.names:
                if name == b"..":
                    # (Never by its name: above the root are objects that are not served.)
                    status = self._attributes.status(at.node)
                    if not stat.S_ISDIR(status.st_mode):
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                    following = positions.hold(at.above or at)
                    positions.release(at)
                    at = following
                    status = self._attributes.status(at.node)
                else:
                    following, status = positions.look_up(at, name)
                    positions.release(at)
                    at = following
                qids.append(self._qids.of(status))
        except OSError:
            positions.release(at)
            if not qids:
                raise
            return Answer(replies.walked(request.tag, qids))
        except BaseException:
            positions.release(at)
            raise
        return Answer(replies.walked(request.tag, qids), ObjectFid(positions, at, known.uid))

    def _clunk(self, request: Request[Kept]) -> Answer:
        assert request.fid is not None
        kept = request.fid.kept
        if isinstance(kept, NewAttributeFid):
            self._set_attribute(kept)
        return Answer(replies.done(request.tag, request.type))

    def _remove(self, request: Request[Kept]) -> Answer:
        assert request.fid is not None
        kept = request.fid.kept
        if not isinstance(kept, ObjectFid) or isinstance(kept, NewAttributeFid):
            raise _refusal(errno.EBADF)
        above, name, is_directory = self._own_name(kept)
        remove = self._names.rmdir if is_directory else self._names.unlink
        remove(_caller(kept), above, name)
        return Answer(replies.done(request.tag, request.type))

    def _own_name(self, kept: ObjectFid) -> tuple[int, bytes, bool]:
        """The directory and the name by which it was found, and whether it is a directory itself.

        Raises `OSError`: EBUSY for the root, ENOENT if another object has the name by now, or none.
        """
        position = kept.position
        if position.above is None:
            raise _refusal(errno.EBUSY)
        found = self._names.lookup(position.above.node, position.name)
        self._names.forget(found.node, 1)
        if found.node != position.node:
            raise _refusal(errno.ENOENT)
        return position.above.node, position.name, stat.S_ISDIR(found.status.st_mode)

    # -- opening --------------------------------------------------------------------------------------------------

    def _lopen(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.Open)
        node, flags = known.position.node, body.flags
        status = self._attributes.status(node)
        if stat.S_ISDIR(status.st_mode):
            if flags & _WRITING:
                raise _refusal(errno.EISDIR)
            directory, hold = self._directories.open(node), self._positions.hold
            kept: ObjectFid = DirectoryFid(self._positions, hold(known.position), known.uid, directory, status.st_dev)
        elif flags & os.O_DIRECTORY:
            raise _refusal(errno.ENOTDIR)
        elif stat.S_ISLNK(status.st_mode):
            raise _refusal(errno.ELOOP)
        elif flags & _WRITING and self._is_read_only:
            raise _refusal(errno.EROFS)
        else:
            file = self._files.open(_caller(known), node, flags, strips=_strips(known))
            position = self._positions.hold(known.position)
            kept = FileFid(self._positions, position, known.uid, file, self._locks)
        return Answer(replies.opened(request.tag, request.type, self._qids.of(status)), kept)

    def _lcreate(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.Create)
        self._positions.check_room()
        flags = body.flags | (os.O_EXCL if body.exclusive else 0)
        caller = _caller(known, body.gid)
        found, file, _ = self._files.create(
            caller, known.position.node, body.name, flags, body.permissions, strips=_strips(known)
        )
        position = self._positions.enter(known.position, body.name, found)
        kept = FileFid(self._positions, position, known.uid, file, self._locks)
        return Answer(replies.opened(request.tag, request.type, self._qids.of(found.status)), kept)

    # -- open files and directories -------------------------------------------------------------------------------

    def _read(self, request: Request[Kept]) -> Answer:
        body, entry = request.body, request.fid
        assert isinstance(body, request_bodies.Read)
        assert entry is not None
        if isinstance(entry.kept, AttributeFid):
            data: Buffer = entry.kept.value[body.offset : body.offset + body.size]
        else:
            data = _file(request).file.read(body.size, body.offset)
        return Answer(replies.data(request.tag, request.type, data))

    def _write(self, request: Request[Kept]) -> Answer:
        body, entry = request.body, request.fid
        assert isinstance(body, request_bodies.Write)
        assert entry is not None
        if isinstance(entry.kept, NewAttributeFid):
            self._write_attribute(entry.kept, body)
            count = len(body.data)
        else:
            opened = _file(request)
            file = opened.file
            # (Clients send the end of the file that they know. Others may append as well.)
            appends = bool(file.flags & os.O_APPEND)
            count = file.write(_caller(opened), body.data, body.offset, appends=appends, strips=_strips(opened))
        return Answer(replies.written(request.tag, count))

    def _fsync(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.Sync)
        if isinstance(known, DirectoryFid):
            known.directory.sync(data_only=body.data_only)
        else:
            _file(request).file.sync(data_only=body.data_only)
        return Answer(replies.done(request.tag, request.type))

    def _readdir(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.Read)
        if not isinstance(known, DirectoryFid):
            raise _refusal(errno.ENOTDIR)
        listing = replies.DirectoryListing(body.size)
        with known.directory.entries(body.offset) as entries:
            for name, inode, type_, offset in entries:
                mode = type_ << _TYPE_SHIFT
                if not listing.add(name, self._qids.entry(mode, known.device, inode), mode, offset):
                    break
        return Answer(replies.data(request.tag, request.type, listing.data))

    def _lock(self, request: Request[Kept]) -> Answer:
        opened, wanted = self._range(request)
        try:
            is_set = self._locks.set(opened.position.node, wanted)
            status = LockStatus.SUCCESS if is_set else LockStatus.BLOCKED
        except OverflowError:
            status = LockStatus.ERROR
        return Answer(replies.locked(request.tag, status))

    def _getlock(self, request: Request[Kept]) -> Answer:
        body, (opened, wanted) = request.body, self._range(request)
        assert isinstance(body, request_bodies.Lock)
        held = self._locks.conflict(opened.position.node, wanted)
        if held is None:
            reply = replies.lock(request.tag, F_UNLCK, body.start, body.end, body.process, body.client)
        else:
            reply = replies.lock(request.tag, held.kind, held.start, held.end, held.owner.process, held.owner.client)
        return Answer(reply)

    def _range(self, request: Request[Kept]) -> tuple[FileFid, HeldRange]:
        body, opened = request.body, _file(request)
        assert isinstance(body, request_bodies.Lock)
        owner = LockOwner(self._positions, body.process, body.client)
        return opened, HeldRange(body.kind, body.start, body.end, owner, opened)

    # -- names ----------------------------------------------------------------------------------------------------

    def _readlink(self, request: Request[Kept]) -> Answer:
        node = _object(request).position.node
        if not stat.S_ISLNK(self._attributes.status(node).st_mode):
            raise _refusal(errno.EINVAL)
        return Answer(replies.target(request.tag, bytes(self._names.read_link(node))))

    def _made(self, request: Request[Kept], found: Found) -> Answer:
        self._names.forget(found.node, 1)
        return Answer(replies.found(request.tag, request.type, self._qids.of(found.status)))

    def _mkdir(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.MakeDirectory)
        caller = _caller(known, body.gid)
        return self._made(request, self._names.make_directory(caller, known.position.node, body.name, body.permissions))

    def _mknod(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.MakeNode)
        device = os.makedev(body.major, body.minor)
        caller = _caller(known, body.gid)
        return self._made(request, self._names.make_node(caller, known.position.node, body.name, body.mode, device))

    def _symlink(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.Symlink)
        caller = _caller(known, body.gid)
        return self._made(request, self._names.make_symlink(caller, known.position.node, body.name, body.target))

    def _link(self, request: Request[Kept]) -> Answer:
        body, known, target = request.body, _object(request), _second(request)
        assert isinstance(body, request_bodies.Link)
        found = self._names.link(_caller(known), target.position.node, known.position.node, body.name)
        self._names.forget(found.node, 1)
        return Answer(replies.done(request.tag, request.type))

    def _rename(self, request: Request[Kept]) -> Answer:
        body, known, directory = request.body, _object(request), _second(request)
        assert isinstance(body, request_bodies.Rename)
        above, name, _ = self._own_name(known)
        self._names.rename(_caller(known), above, name, directory.position.node, body.name, 0)
        self._positions.move(known.position, directory.position, body.name)
        return Answer(replies.done(request.tag, request.type))

    def _renameat(self, request: Request[Kept]) -> Answer:
        body, known, new = request.body, _object(request), _second(request)
        assert isinstance(body, request_bodies.RenameAt)
        self._names.rename(_caller(known), known.position.node, body.name, new.position.node, body.new_name, 0)
        return Answer(replies.done(request.tag, request.type))

    def _unlinkat(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.UnlinkAt)
        remove = self._names.rmdir if body.is_directory else self._names.unlink
        remove(_caller(known), known.position.node, body.name)
        return Answer(replies.done(request.tag, request.type))

    # -- what objects are like ------------------------------------------------------------------------------------

    def _statfs(self, request: Request[Kept]) -> Answer:
        return Answer(replies.statfs(request.tag, self._attributes.usage(_object(request).position.node)))

    def _getattr(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.GetAttr)
        node = known.position.node
        file = known.file if isinstance(known, FileFid) else None
        status = self._attributes.status(node, file)
        told = replies.attributes(status, links=self._attributes.links(status))
        if body.mask & protocol_constants.GETATTR_BTIME:
            born = self._attributes.birth_ns(node, file)
            if born is not None:
                told = told._replace(btime_ns=born, valid=told.valid | protocol_constants.GETATTR_BTIME)
        return Answer(replies.attr(request.tag, self._qids.of(status), told))

    def _setattr(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.SetAttr)
        valid, node = body.valid, known.position.node
        file = known.file if isinstance(known, FileFid) else None
        if valid & protocol_constants.SETATTR_SIZE and stat.S_ISDIR(self._attributes.status(node, file).st_mode):
            raise _refusal(errno.EISDIR)
        change = AttributeChange(
            body.permissions if valid & protocol_constants.SETATTR_MODE else None,
            body.uid if valid & protocol_constants.SETATTR_UID else None,
            body.gid if valid & protocol_constants.SETATTR_GID else None,
            body.size if valid & protocol_constants.SETATTR_SIZE else None,
            _time(valid & protocol_constants.SETATTR_ATIME, body.atime_ns),
            _time(valid & protocol_constants.SETATTR_MTIME, body.mtime_ns),
        )
        self._attributes.change(_caller(known), node, change, file, strips=_strips(known))
        return Answer(replies.done(request.tag, request.type))

    def _xattrwalk(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.XattrWalk)
        node = known.position.node
        if body.name:
            value = self._attributes.get_xattr(node, body.name)
        else:
            value = b"".join(name + b"\0" for name in self._attributes.list_xattrs(_caller(known), node))
        return Answer(replies.attribute(request.tag, len(value)), AttributeFid(self._room, value))

    def _xattrcreate(self, request: Request[Kept]) -> Answer:
        body, known = request.body, _object(request)
        assert isinstance(body, request_bodies.XattrCreate)
        kept = NewAttributeFid(known, self._room, body.name, body.size, body.flags)
        return Answer(replies.done(request.tag, request.type), kept)

    def _write_attribute(self, kept: NewAttributeFid, body: request_bodies.Write) -> None:
        end = body.offset + len(body.data)
        if body.offset > len(kept.value) or end > kept.size:
            raise _refusal(errno.EINVAL)
        kept.value[body.offset : end] = body.data

    def _set_attribute(self, kept: NewAttributeFid) -> None:
        node, caller = kept.position.node, _caller(kept)
        if len(kept.value) != kept.size:
            raise _refusal(errno.EINVAL)
        if not kept.size and kept.flags == os.XATTR_REPLACE:
            self._attributes.remove_xattr(caller, node, kept.name)
        else:
            value = memoryview(bytes(kept.value))
            self._attributes.set_xattr(caller, node, kept.name, value, kept.flags, clears_setgid=False)


def _object(request: Request[Kept]) -> ObjectFid:
    assert request.fid is not None
    assert isinstance(request.fid.kept, ObjectFid)
    return request.fid.kept


def _second(request: Request[Kept]) -> ObjectFid:
    assert request.second is not None
    assert isinstance(request.second.kept, ObjectFid)
    return request.second.kept


def _file(request: Request[Kept]) -> FileFid:
    known = _object(request)
    if not isinstance(known, FileFid):
        raise _refusal(errno.EISDIR)
    return known


def _caller(known: ObjectFid, gid: int = _NO_GROUP) -> Caller:
    return Caller(0, known.uid, gid)


def _strips(known: ObjectFid) -> bool:
    """Whether what the fid's user does to a file takes its set-id bits away."""
    return known.uid != 0


def _time(is_valid: int, nanoseconds: int | None) -> int | None:
    if not is_valid:
        return None
    return NOW if nanoseconds is None else nanoseconds

"""A file system in memory, just enough to have a kernel say everything that it can say."""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Callable, Sequence
from fcntl import F_UNLCK, F_WRLCK
from typing import Any

from holdfast.vfs.node_table import Handles, Nodes
from holdfast.wire.fuse import notifications, protocol_constants, replies, request_bodies
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.fuse.replies import Attributes, DirectoryListing, NodeEntry, OpenedFile, Validity
from holdfast.wire.fuse.request_bodies import Body, Header

Pieces = Sequence[bytes | bytearray | memoryview]
NOW = 1_700_000_000
BLOCK = 4096
VALID = Validity(3600)
BTIME = 0x800
BASIC = 0x7FF


class File:
    """An inode."""

    def __init__(self, inode: int, mode: int, uid: int, gid: int, rdev: int = 0) -> None:
        self.inode = inode
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.rdev = rdev
        self.links = 2 if stat.S_ISDIR(mode) else 1
        self.times = [NOW * 10**9] * 3
        self.content = bytearray()
        self.entries: dict[bytes, File] = {}
        self.xattrs: dict[bytes, bytes] = {}

    def attributes(self) -> Attributes:
        (atime, atime_ns), (mtime, mtime_ns), (ctime, ctime_ns) = (divmod(time, 10**9) for time in self.times)
        size = len(self.content)
        return Attributes(
            self.inode, size, -(-size // 512), atime, mtime, ctime, atime_ns, mtime_ns, ctime_ns,
            self.mode, self.links, self.uid, self.gid, self.rdev, BLOCK, 0,
        )  # fmt: skip

    def strip_privilege(self) -> None:
        self.mode &= ~stat.S_ISUID
        if self.mode & stat.S_IXGRP:
            self.mode &= ~stat.S_ISGID


class MemoryServer:
    """Answers requests. ``notify`` sends a notification later, from where no request waits; ``disturb`` sends the
    client a signal.
    """

    def __init__(self, notify: Callable[[bytes], None], disturb: Callable[[], None]) -> None:
        self.notify = notify
        self.disturb = disturb
        self.inodes = 1
        self.root = File(1, stat.S_IFDIR | 0o755, 0, 0)
        self.nodes: Nodes[File] = Nodes(self.root, self.root, 10_000)
        self.handles: Handles[File] = Handles(1000)
        self.locks: list[tuple[File, int, request_bodies.Lock]] = []
        self.waiting: dict[int, tuple[Header, Body]] = {}
        """Requests that are not answered yet."""
        self.ready: list[Pieces] = []
        """Replies to requests that have waited."""
        self.retrieved: list[tuple[int, int, bytes]] = []
        self.is_woken = False
        self.lacking: frozenset[Opcode] = frozenset()
        self.backing = 0
        """What the kernel calls the file that it is to read itself for ``through``."""
        self.excess = 0

    # What the tests ask for directly.

    def find(self, path: str) -> File:
        found = self.root
        for name in path.encode().split(b"/"):
            found = found.entries[name] if name else found
        return found

    def node_of(self, path: str) -> int:
        return self.nodes._by_key[self.find(path)]

    def make(self, parent: File, name: bytes, mode: int, content: bytes = b"", header: Header | None = None) -> File:
        self.inodes += 1
        uid, gid = (header.uid, header.gid) if header else (0, 0)
        if parent.mode & stat.S_ISGID:
            gid = parent.gid
        made = File(self.inodes, mode, uid, gid)
        made.content += content
        if name:
            if name in parent.entries:
                raise FileExistsError(errno.EEXIST, "there already")
            parent.entries[name] = made
            parent.links += stat.S_ISDIR(mode)
        else:
            made.links = 0
        return made

    # Requests.

    def answer(self, header: Header, body: Body) -> Pieces | None:
        """The reply, or None if there is none, or none yet."""
        handler = getattr(self, Opcode(header.opcode).name.lower(), None)
        if handler is None or header.opcode in self.lacking:
            return (replies.error(header.unique, errno.ENOSYS),)
        try:
            answer = handler(header, body)
        except OSError as error:
            return (replies.error(header.unique, error.errno or errno.EIO),)
        return (answer,) if isinstance(answer, bytes) else answer

    def entry(self, file: File) -> NodeEntry:
        return NodeEntry(self.nodes.enter(file, lambda: file), file.attributes(), VALID, VALID)

    def child(self, header: Header, name: bytes) -> File:
        try:
            return self.nodes[header.node].entries[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such name") from None

    def lookup(self, header: Header, body: request_bodies.Name) -> bytes:
        found = self.nodes[header.node].entries.get(body.name)
        return (
            replies.negative(header.unique, VALID) if found is None else replies.entry(header.unique, self.entry(found))
        )

    def forget(self, header: Header, body: request_bodies.Forget) -> None:
        for node, count in body.forgets:
            self.excess += self.nodes.forget(node, count).excess

    batch_forget = forget

    def getattr(self, header: Header, body: request_bodies.GetAttr) -> bytes:
        if body.handle is not None:
            self.handles.get(body.handle, header.node)
        return replies.attr(header.unique, self.nodes[header.node].attributes(), VALID)

    def statx(self, header: Header, body: request_bodies.StatX) -> bytes:
        file = self.nodes[header.node]
        a = file.attributes()
        found = replies.StatX(
            BASIC | BTIME, BLOCK, 0, a.links, a.uid, a.gid, a.mode, a.inode, a.size, a.blocks, 0,
            (a.atime, a.atime_nanoseconds), (1234567890, 5), (a.ctime, a.ctime_nanoseconds),
            (a.mtime, a.mtime_nanoseconds), (0, 0), (0, 0),
        )  # fmt: skip
        return replies.statx(header.unique, found, VALID)

    def setattr(self, header: Header, body: request_bodies.SetAttr) -> bytes:
        file = self.nodes[header.node]
        if body.valid & protocol_constants.FATTR_MODE:
            file.mode = stat.S_IFMT(file.mode) | body.permissions
        if body.valid & protocol_constants.FATTR_UID:
            file.uid = body.uid
        if body.valid & protocol_constants.FATTR_GID:
            file.gid = body.gid
        if body.valid & protocol_constants.FATTR_SIZE:
            del file.content[body.size :]
            file.content += bytes(body.size - len(file.content))
        if body.valid & protocol_constants.FATTR_KILL_SUIDGID:
            file.strip_privilege()
        times = (body.atime_ns, body.mtime_ns, body.ctime_ns)
        given = (protocol_constants.FATTR_ATIME, protocol_constants.FATTR_MTIME, protocol_constants.FATTR_CTIME)
        now = (protocol_constants.FATTR_ATIME_NOW, protocol_constants.FATTR_MTIME_NOW, 0)
        for at in range(3):
            if body.valid & given[at]:
                file.times[at] = NOW * 10**9 if body.valid & now[at] else times[at]
        return replies.attr(header.unique, file.attributes(), VALID)

    def readlink(self, header: Header, body: Body) -> Pieces:
        return replies.data(header.unique, self.nodes[header.node].content)

    def symlink(self, header: Header, body: request_bodies.Symlink) -> bytes:
        made = self.make(self.nodes[header.node], body.name, stat.S_IFLNK | 0o777, body.target, header)
        return replies.entry(header.unique, self.entry(made))

    def mknod(self, header: Header, body: request_bodies.MakeNode) -> bytes:
        made = self.make(self.nodes[header.node], body.name, body.mode & ~body.umask, b"", header)
        made.rdev = body.rdev
        return replies.entry(header.unique, self.entry(made))

    def mkdir(self, header: Header, body: request_bodies.MakeDirectory) -> bytes:
        mode = stat.S_IFDIR | body.permissions & ~body.umask
        return replies.entry(
            header.unique, self.entry(self.make(self.nodes[header.node], body.name, mode, b"", header))
        )

    def unlink(self, header: Header, body: request_bodies.Name) -> bytes:
        file = self.child(header, body.name)
        del self.nodes[header.node].entries[body.name]
        file.links -= 1
        return replies.done(header.unique)

    def rmdir(self, header: Header, body: request_bodies.Name) -> bytes:
        if self.child(header, body.name).entries:
            raise OSError(errno.ENOTEMPTY, "not empty")
        del self.nodes[header.node].entries[body.name]
        self.nodes[header.node].links -= 1
        return replies.done(header.unique)

    def rename(self, header: Header, body: request_bodies.Rename) -> bytes:
        moved = self.child(header, body.name)
        source, target = self.nodes[header.node], self.nodes[body.parent]
        there = target.entries.get(body.new_name)
        if body.flags & protocol_constants.RENAME_NOREPLACE and there:
            raise FileExistsError(errno.EEXIST, "there already")
        if body.flags & protocol_constants.RENAME_EXCHANGE:
            if there is None:
                raise FileNotFoundError(errno.ENOENT, "nothing to exchange")
            source.entries[body.name] = there
        else:
            del source.entries[body.name]
            if there:
                there.links -= 1
        if body.flags & protocol_constants.RENAME_WHITEOUT:
            self.make(source, body.name, stat.S_IFCHR, b"", header)
        target.entries[body.new_name] = moved
        return replies.done(header.unique)

    rename2 = rename

    def link(self, header: Header, body: request_bodies.Link) -> bytes:
        file = self.nodes[body.node]
        if body.name in self.nodes[header.node].entries:
            raise FileExistsError(errno.EEXIST, "there already")
        self.nodes[header.node].entries[body.name] = file
        file.links += 1
        return replies.entry(header.unique, self.entry(file))

    def open(self, header: Header, body: request_bodies.Open) -> bytes:
        file = self.nodes[header.node]
        if body.flags & os.O_TRUNC:
            file.content.clear()
        if file is self.root.entries.get(b"through"):
            handle = OpenedFile(self.handles.add(header.node, file), protocol_constants.FOPEN_PASSTHROUGH, self.backing)
            return replies.opened(header.unique, handle)
        # What waits is to ask each time; other content stays.
        asks = file in (self.root.entries.get(b"slow"), self.root.entries.get(b"resent"))
        flags = protocol_constants.FOPEN_DIRECT_IO if asks else protocol_constants.FOPEN_KEEP_CACHE
        return replies.opened(header.unique, OpenedFile(self.handles.add(header.node, file), flags))

    def opendir(self, header: Header, body: request_bodies.Open) -> bytes:
        return replies.opened(header.unique, OpenedFile(self.handles.add(header.node, self.nodes[header.node])))

    def create(self, header: Header, body: request_bodies.Create) -> bytes:
        mode = stat.S_IFREG | body.permissions & ~body.umask
        made = self.make(self.nodes[header.node], body.name, mode, b"", header)
        if body.extras.groups:
            made.gid = body.extras.groups[0]
        found = self.entry(made)
        return replies.created(header.unique, found, OpenedFile(self.handles.add(found.node, made)))

    tmpfile = create

    def read(self, header: Header, body: request_bodies.Read) -> Pieces | None:
        file = self.handles.get(body.handle, header.node)
        if file is self.root.entries.get(b"slow"):
            self.waiting[header.unique] = header, body
            self.disturb()
            return None
        if file is self.root.entries.get(b"resent") and not header.unique & protocol_constants.RESEND_BIT:
            self.notify(notifications.resend())
            return None
        return replies.data(header.unique, memoryview(bytes(file.content))[body.offset : body.offset + body.size])

    def write(self, header: Header, body: request_bodies.Write) -> bytes:
        file = self.handles.get(body.handle, header.node)
        if body.write_flags & protocol_constants.WRITE_KILL_SUIDGID:
            file.strip_privilege()
        file.content += bytes(max(body.offset - len(file.content), 0))
        file.content[body.offset : body.offset + len(body.data)] = body.data
        return replies.written(header.unique, len(body.data))

    def statfs(self, header: Header, body: Body) -> bytes:
        return replies.statfs(header.unique, os.statvfs_result((BLOCK, BLOCK, 1000, 900, 800, 70, 60, 60, 0, 255)))

    def release(self, header: Header, body: request_bodies.Release) -> bytes:
        self.handles.release(body.handle, header.node)
        if body.release_flags & protocol_constants.RELEASE_FLOCK_UNLOCK:
            self.unlock(self.nodes[header.node], body.lock_owner, 0, protocol_constants.OFFSET_MAX)
        return replies.done(header.unique)

    releasedir = release

    def flush(self, header: Header, body: request_bodies.Flush) -> bytes:
        self.handles.get(body.handle, header.node)
        self.unlock(self.nodes[header.node], body.lock_owner, 0, protocol_constants.OFFSET_MAX)
        return replies.done(header.unique)

    def fsync(self, header: Header, body: request_bodies.Sync) -> bytes:
        self.handles.get(body.handle, header.node)
        return replies.done(header.unique)

    fsyncdir = fsync

    def syncfs(self, header: Header, body: Body) -> bytes:
        return replies.done(header.unique)

    def access(self, header: Header, body: request_bodies.Access) -> bytes:
        return replies.done(header.unique)

    def setxattr(self, header: Header, body: request_bodies.SetXattr) -> bytes:
        xattrs = self.nodes[header.node].xattrs
        if body.flags & os.XATTR_CREATE and body.name in xattrs:
            raise OSError(errno.EEXIST, "there already")
        xattrs[body.name] = bytes(body.value)
        return replies.done(header.unique)

    def getxattr(self, header: Header, body: request_bodies.GetXattr) -> Pieces | bytes:
        value = self.nodes[header.node].xattrs.get(body.name)
        if value is None:
            raise OSError(errno.ENODATA, "no such attribute")
        return self.sized(header, body.size, value)

    def listxattr(self, header: Header, body: request_bodies.GetXattr) -> Pieces | bytes:
        return self.sized(header, body.size, b"".join(name + b"\0" for name in self.nodes[header.node].xattrs))

    def sized(self, header: Header, size: int, value: bytes) -> Pieces | bytes:
        if not size:
            return replies.size(header.unique, len(value))
        if size < len(value):
            raise OSError(errno.ERANGE, "too little room")
        return replies.data(header.unique, value)

    def removexattr(self, header: Header, body: request_bodies.Name) -> bytes:
        if self.nodes[header.node].xattrs.pop(body.name, None) is None:
            raise OSError(errno.ENODATA, "no such attribute")
        return replies.done(header.unique)

    def listing(self, header: Header, body: request_bodies.Read) -> Pieces:
        directory = self.handles.get(body.handle, header.node)
        plus = header.opcode == Opcode.READDIRPLUS
        listing = DirectoryListing(body.size)
        named = [(b".", directory), (b"..", self.root), *sorted(directory.entries.items())]
        for offset, (name, file) in enumerate(named[body.offset :], body.offset + 1):
            if not listing.fits(name, plus=plus):
                break
            if plus:
                found = None if offset <= 2 else self.entry(file)
                assert listing.add_plus(name, found, file.inode, file.mode, offset)
            else:
                assert listing.add(name, file.inode, file.mode, offset)
        return replies.data(header.unique, listing.data)

    readdir = readdirplus = listing

    def conflict(self, file: File, wanted: request_bodies.Lock) -> request_bodies.Lock | None:
        for other, _, lock in self.locks:
            overlaps = lock.start <= wanted.end and wanted.start <= lock.end and lock.is_flock == wanted.is_flock
            if other is file and overlaps and lock.owner != wanted.owner and F_WRLCK in (lock.kind, wanted.kind):
                return lock
        return None

    def unlock(self, file: File, owner: int, start: int, end: int) -> None:
        self.locks = [
            (other, node, lock)
            for other, node, lock in self.locks
            if not (other is file and lock.owner == owner and start <= lock.start and lock.end <= end)
        ]
        for unique, (header, body) in list(self.waiting.items()):
            if isinstance(body, request_bodies.Lock) and self.conflict(self.nodes[header.node], body) is None:
                del self.waiting[unique]
                self.locks.append((self.nodes[header.node], header.node, body))
                self.ready.append((replies.done(unique),))

    def getlk(self, header: Header, body: request_bodies.Lock) -> bytes:
        other = self.conflict(self.nodes[header.node], body)
        if other is None:
            return replies.lock(header.unique, F_UNLCK)
        return replies.lock(header.unique, other.kind, other.start, other.end, other.pid)

    def setlk(self, header: Header, body: request_bodies.Lock) -> bytes | None:
        file = self.nodes[header.node]
        if body.kind == F_UNLCK:
            self.unlock(file, body.owner, body.start, body.end)
        elif self.conflict(file, body) is None:
            self.locks.append((file, header.node, body))
        elif header.opcode == Opcode.SETLKW:
            self.waiting[header.unique] = header, body
            return None
        else:
            raise BlockingIOError(errno.EAGAIN, "locked")
        return replies.done(header.unique)

    setlkw = setlk

    def interrupt(self, header: Header, body: request_bodies.Interrupt) -> Pieces | None:
        if self.waiting.pop(body.unique, None) is not None:
            self.ready.append((replies.error(body.unique, errno.EINTR),))
        return None

    def ioctl(self, header: Header, body: request_bodies.Ioctl) -> bytes:
        return replies.no_ioctl(header.unique)

    def poll(self, header: Header, body: request_bodies.Poll) -> bytes:
        if self.is_woken:
            return replies.ready(header.unique, body.events & select.POLLIN)
        if body.flags & protocol_constants.POLL_SCHEDULE_NOTIFY:
            self.is_woken = True
            self.notify(notifications.wake(body.waker))
        return replies.ready(header.unique, 0)

    def notify_reply(self, header: Header, body: request_bodies.Retrieved) -> None:
        self.retrieved.append((header.unique, body.offset, bytes(body.data)))

    def fallocate(self, header: Header, body: request_bodies.Allocate) -> bytes:
        file = self.handles.get(body.handle, header.node)
        if body.mode & 2:  # a hole
            end = min(body.offset + body.length, len(file.content))
            file.content[body.offset : end] = bytes(max(end - body.offset, 0))
        elif not body.mode:
            file.content += bytes(max(body.offset + body.length - len(file.content), 0))
        return replies.done(header.unique)

    def lseek(self, header: Header, body: request_bodies.Seek) -> bytes:
        file = self.handles.get(body.handle, header.node)
        size = len(file.content)
        if not 0 <= body.offset < size:
            raise OSError(errno.ENXIO, "beyond the end")
        at = body.offset
        while at < size:
            block = at // BLOCK * BLOCK
            if any(file.content[block : block + BLOCK]) == (body.whence == os.SEEK_DATA):
                return replies.position(header.unique, at)
            at = block + BLOCK
        if body.whence == os.SEEK_DATA:
            raise OSError(errno.ENXIO, "no more data")
        return replies.position(header.unique, size)

    def copy(self, header: Header, body: request_bodies.CopyRange) -> int:
        source = self.handles.get(body.handle, header.node)
        target = self.handles.get(body.to_handle, body.to_node)
        content = source.content[body.offset : body.offset + body.length]
        target.content += bytes(max(body.to_offset - len(target.content), 0))
        target.content[body.to_offset : body.to_offset + len(content)] = content
        return len(content)

    def copy_file_range(self, header: Header, body: request_bodies.CopyRange) -> bytes:
        return replies.written(header.unique, self.copy(header, body))

    def copy_file_range_64(self, header: Header, body: request_bodies.CopyRange) -> bytes:
        return replies.copied(header.unique, self.copy(header, body))


def shown(body: Any) -> str:
    """A body as a fixture has it: what it shows of the frame as bytes."""

    def one(value: Any) -> str:
        if isinstance(value, memoryview):
            return repr(bytes(value))
        return hex(value) if isinstance(value, protocol_constants.Init) else repr(value)

    fields = (f"{field}={one(value)}" for field, value in zip(body._fields, body, strict=True))
    return f"{type(body).__name__}({', '.join(fields)})"

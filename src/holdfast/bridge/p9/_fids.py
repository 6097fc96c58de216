"""The state of a fid: an object that a walk led to, and its open file or directory; or an extended attribute."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Final

from holdfast.vfs.file_system import ROOT, TooManyError
from holdfast.wire.p9.replies import qid

if TYPE_CHECKING:
    import os

    from holdfast.bridge.p9.byte_range_locks import ByteRangeLocks
    from holdfast.vfs.file_system import Found, Names, OpenedDirectory, OpenedFile
    from holdfast.wire.p9.replies import Qid

MOST_POSITIONS: Final = 1 << 17
"""The positions of all fids, and of the directories that led to them."""
MOST_ATTRIBUTE_BYTES: Final = 1 << 22
"""Of all attributes that a client reads or writes at a time."""
_OTHER_DEVICE: Final = 1 << 63


class Qids:
    """Makes qids. They identify an object itself, as its inode does, and not the node: the node differs when the object
    is looked up again after its last fid was clunked, and the inode number would change for users of a client.
    """

    def __init__(self, root: os.stat_result) -> None:
        self._device = root.st_dev

    def of(self, status: os.stat_result) -> Qid:
        """The qid of an object."""
        return self.entry(status.st_mode, status.st_dev, status.st_ino)

    def entry(self, mode: int, device: int, inode: int) -> Qid:
        """The qid of an object of this type."""
        if device == self._device:
            return qid(mode, inode)
        # (A mount in the tree may have the same inode numbers as the rest of it.)
        digest = hashlib.blake2b(b"%d:%d" % (device, inode), digest_size=8).digest()
        return qid(mode, int.from_bytes(digest, "little") | _OTHER_DEVICE)


class Position:
    """An object, and the path by which a client reached it: ``..`` leads back there, wherever it was moved since."""

    __slots__ = ("above", "name", "node", "users")

    def __init__(self, above: Position | None, name: bytes, node: int) -> None:
        self.above = above
        """None: it is the root."""
        self.name = name
        self.node = node
        self.users = 1


class Positions:
    """The positions of one client. Each holds one lookup of its node until all users have released it. Thread-safe."""

    def __init__(self, names: Names, most: int = MOST_POSITIONS) -> None:
        """At most ``most`` positions, beside the root."""
        self._names = names
        self._most = most
        self._count = 0
        self._lock = threading.Lock()
        self.root = Position(None, b"", ROOT)

    def __len__(self) -> int:
        return self._count

    def look_up(self, above: Position, name: bytes) -> tuple[Position, os.stat_result]:
        """Look a name up; returns its position, held. Raises `OSError`."""
        self.check_room()
        found = self._names.lookup(above.node, name)
        return self.enter(above, name, found), found.status

    def check_room(self) -> None:
        """Raises `TooManyError` if there is no room for one more."""
        if self._count >= self._most:
            raise TooManyError

    def enter(self, above: Position, name: bytes, found: Found) -> Position:
        """The position of a looked-up object, held. (The limit may be exceeded by a few threads.)"""
        with self._lock:
            above.users += 1
            self._count += 1
            return Position(above, name, found.node)

    def hold(self, position: Position) -> Position:
        """Add a user to a position."""
        with self._lock:
            position.users += 1
        return position

    def release(self, position: Position) -> None:
        """Remove a user from a position."""
        unused: list[int] = []
        with self._lock:
            at = position
            while True:
                at.users -= 1
                if at.users or at.above is None:
                    break
                unused.append(at.node)
                at = at.above
            self._count -= len(unused)
        for node in unused:
            self._names.forget(node, 1)

    def move(self, position: Position, above: Position, name: bytes) -> None:
        """Record that the position has a new name, and maybe a new directory."""
        with self._lock:
            at: Position | None = above
            while at is not None and at is not position:
                at = at.above
            before = position.above
            if at is position or before is None:
                return  # others have moved an ancestor of this: no path may lead back to itself
            above.users += 1
            position.above, position.name = above, name
        self.release(before)


class ObjectFid:
    """An object that is not open."""

    __slots__ = ("position", "positions", "uid")

    def __init__(self, positions: Positions, position: Position, uid: int) -> None:
        """``position`` is held by the fid from now on. ``uid``: who it was attached for."""
        self.positions = positions
        self.position = position
        self.uid = uid

    def close(self) -> None:
        """The positions are not used any more."""
        self.positions.release(self.position)


class FileFid(ObjectFid):
    """A file that is open."""

    __slots__ = ("_locks", "file")

    def __init__(
        self, positions: Positions, position: Position, uid: int, file: OpenedFile, locks: ByteRangeLocks
    ) -> None:
        super().__init__(positions, position, uid)
        self._locks = locks
        self.file = file

    def close(self) -> None:
        """See `ObjectFid`."""
        try:
            self._locks.release(self.position.node, self)
            self.file.close()
        finally:
            super().close()


class DirectoryFid(ObjectFid):
    """A directory that is open."""

    __slots__ = ("device", "directory")

    def __init__(
        self, positions: Positions, position: Position, uid: int, directory: OpenedDirectory, device: int
    ) -> None:
        super().__init__(positions, position, uid)
        self.directory = directory
        self.device = device
        """The device of the tree, and of all of it except mounts inside."""

    def close(self) -> None:
        """See `ObjectFid`."""
        try:
            self.directory.close()
        finally:
            super().close()


class AttributeRoom:
    """How much of attributes is kept for a client. Safe for several threads."""

    def __init__(self, most: int = MOST_ATTRIBUTE_BYTES) -> None:
        self._left = most
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Reserve ``size`` bytes. Raises `TooManyError` if there is no room."""
        with self._lock:
            if size > self._left:
                raise TooManyError
            self._left -= size

    def give(self, size: int) -> None:
        """Release ``size`` bytes."""
        with self._lock:
            self._left += size


class AttributeFid:
    """An extended attribute, or the list of names, to be read."""

    __slots__ = ("_room", "value")

    def __init__(self, room: AttributeRoom, value: bytes) -> None:
        """Raises `TooManyError` if there is no room for it."""
        room.take(len(value))
        self._room = room
        self.value = value

    def close(self) -> None:
        """The attribute is not used any more."""
        self._room.give(len(self.value))


class NewAttributeFid(ObjectFid):
    """An extended attribute to be written."""

    __slots__ = ("_room", "flags", "name", "size", "value")

    def __init__(self, known: ObjectFid, room: AttributeRoom, name: bytes, size: int, flags: int) -> None:
        """An extended attribute of the object of ``known``. Raises `TooManyError` if there is no room for it."""
        room.take(size)
        super().__init__(known.positions, known.positions.hold(known.position), known.uid)
        self._room = room
        self.name = name
        self.size = size
        self.flags = flags
        self.value = bytearray()
        """As much as was written up to now."""

    def close(self) -> None:
        """See `ObjectFid`."""
        self._room.give(self.size)
        super().close()


Kept = ObjectFid | AttributeFid

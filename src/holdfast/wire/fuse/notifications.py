"""Encodes notifications: messages to the kernel that are no replies.

Each is one message, written to the device like a reply. The kernel may wait for locks that a request holds before the
write returns: never send one from a thread for which requests wait, except `invalidate_inode` without content. ENOENT
from the write means that the kernel does not know the node or the name, which is as good.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from holdfast.wire.fuse.protocol_constants import EXPIRE_ONLY, Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD: Final = struct.Struct("=IiQ")
_INODE: Final = struct.Struct("=IiQ" + "Qqq")
_ENTRY: Final = struct.Struct("=IiQ" + "QII")
_DELETE: Final = struct.Struct("=IiQ" + "QQI4x")
_STORE: Final = struct.Struct("=IiQ" + "QQI4x")
_RETRIEVE: Final = struct.Struct("=IiQ" + "QQQI4x")
_POLL: Final = struct.Struct("=IiQ" + "Q")
_PRUNE: Final = struct.Struct("=IiQ" + "I12x")

PRUNE_MOST: Final = 512
"""Limit of nodes in one notification."""


def invalidate_inode(node: int, offset: int = -1, length: int = 0) -> bytes:
    """Forget the attributes, and ``length`` bytes (0: all) of the content from ``offset``, none if that is below 0.

    With content, this waits until dirty pages of the cache are written back; without, it never waits.
    """
    return _INODE.pack(_INODE.size, Notice.INVAL_INODE, 0, node, offset, length)


def invalidate_entry(parent: int, name: bytes, *, expire_only: bool = False) -> bytes:
    """Forget a name, and everything below it. With ``expire_only`` (if `Init.HAS_EXPIRE_ONLY` was agreed) look it up
    again at the next use, and leave mounts and open files below unchanged.
    """
    flags = EXPIRE_ONLY if expire_only else 0
    size = _ENTRY.size + len(name) + 1
    return _ENTRY.pack(size, Notice.INVAL_ENTRY, 0, parent, len(name), flags) + name + b"\0"


def delete(parent: int, child: int, name: bytes) -> bytes:
    """The name is gone: as `invalidate_entry`, and watchers of the directory are told. No effect if it belongs to
    another node than ``child`` by now.
    """
    size = _DELETE.size + len(name) + 1
    return _DELETE.pack(size, Notice.DELETE, 0, parent, child, len(name)) + name + b"\0"


def store(node: int, offset: int, content: bytes | memoryview) -> Sequence[bytes | memoryview]:
    """Put this into the page cache; the file grows if it ends there. In pieces, for ``writev``."""
    size = len(content)
    return _STORE.pack(_STORE.size + size, Notice.STORE, 0, node, offset, size), content


def retrieve(unique: int, node: int, offset: int, size: int) -> bytes:
    """Ask for the content of the page cache: answered by a NOTIFY_REPLY with this ``unique``, from ``offset`` as far as
    it is cached.
    """
    return _RETRIEVE.pack(_RETRIEVE.size, Notice.RETRIEVE, 0, unique, node, offset, size)


def resend() -> bytes:
    """Send all requests again that were not answered, with `RESEND_BIT` (if `Init.HAS_RESEND` was agreed)."""
    return _HEAD.pack(_HEAD.size, Notice.RESEND, 0)


def wake(waker: int) -> bytes:
    """An event for a POLL with this waker has happened: the kernel polls again."""
    return _POLL.pack(_POLL.size, Notice.POLL, 0, waker)


def new_epoch() -> bytes:
    """Look up every name again at its next use (from 7.44 on): in one message what a large undo needs."""
    return _HEAD.pack(_HEAD.size, Notice.INC_EPOCH, 0)


def prune(nodes: Sequence[int]) -> bytes:
    """Forget these nodes, at most `PRUNE_MOST`, unless they are in use (from 7.45 on); the FORGETs follow."""
    size = _PRUNE.size + 8 * len(nodes)
    return _PRUNE.pack(size, Notice.PRUNE, 0, len(nodes)) + struct.pack(f"={len(nodes)}Q", *nodes)

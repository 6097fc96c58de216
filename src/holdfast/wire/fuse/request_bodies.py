"""The content of requests, by kind of body. The opcode is in the header; some share a body.

``bytes`` are copies; a `memoryview` shows the frame itself, and is valid until that is reused. A handle or an owner of
locks is None where the request has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from holdfast.wire.fuse.protocol_constants import Init


class Header(NamedTuple):
    """The beginning of every request."""

    opcode: int
    """An `Opcode`, or one that is newer than those."""
    unique: int
    """Names the request in its reply. With `RESEND_BIT` it may have come before."""
    node: int
    uid: int
    """User id of the caller's file system credentials; `NO_ID` if unknown."""
    gid: int
    pid: int
    """Of the calling *thread*; 0 where no process of this namespace calls."""
    extension_bytes: int
    """At the end of the frame."""


class Offer(NamedTuple):
    """INIT: the kernel's version and features. Of another `MAJOR` only the version counts."""

    major: int
    minor: int
    max_readahead: int
    flags: Init


class Nothing(NamedTuple):
    """READLINK, STATFS, SYNCFS, DESTROY: all is in the header."""


class Name(NamedTuple):
    """LOOKUP, UNLINK, RMDIR: an entry of the header's node. REMOVEXATTR: an attribute of it."""

    name: bytes


class Forget(NamedTuple):
    """FORGET, BATCH_FORGET: lookups that are given back, as (node, count)."""

    forgets: tuple[tuple[int, int], ...]


class GetAttr(NamedTuple):
    """GETATTR."""

    handle: int | None


class StatX(NamedTuple):
    """STATX; flags and mask as in statx(2)."""

    handle: int | None
    flags: int
    mask: int


class SetAttr(NamedTuple):
    """SETATTR: a field that `valid` (``FATTR_*``) does not name is 0 or None and to be left as it is."""

    valid: int
    handle: int | None
    lock_owner: int | None
    size: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    permissions: int
    uid: int
    gid: int


class Extras(NamedTuple):
    """The extensions of a creation, if they were agreed upon."""

    contexts: tuple[tuple[bytes, bytes], ...] = ()
    """Security attributes, name and value, that it has from its beginning."""
    groups: tuple[int, ...] = ()
    """The caller's supplementary group that is the directory's, if it has one."""


NO_EXTRAS: Final = Extras()


class Symlink(NamedTuple):
    """SYMLINK."""

    name: bytes
    target: bytes
    extras: Extras


class MakeNode(NamedTuple):
    """MKNOD: ``mode`` has the type, of a regular file, pipe, socket or device; ``rdev`` as in `os.makedev`."""

    name: bytes
    mode: int
    rdev: int
    umask: int
    extras: Extras


class MakeDirectory(NamedTuple):
    """MKDIR."""

    name: bytes
    permissions: int
    umask: int
    extras: Extras


class Create(NamedTuple):
    """CREATE; and TMPFILE, whose file has no name yet (``name`` is empty). ``flags`` as in open(2)."""

    name: bytes
    flags: int
    permissions: int
    umask: int
    open_flags: int
    extras: Extras


class Rename(NamedTuple):
    """RENAME, RENAME2: from the header's node to ``parent``."""

    name: bytes
    parent: int
    new_name: bytes
    flags: int


class Link(NamedTuple):
    """LINK: give ``node`` another name, in the header's node."""

    node: int
    name: bytes


class Open(NamedTuple):
    """OPEN, OPENDIR. ``flags`` as in open(2), never to create."""

    flags: int
    open_flags: int


class Read(NamedTuple):
    """READ, READDIR, READDIRPLUS: at most ``size`` bytes of answer. An offset in a directory is one that we gave."""

    handle: int
    offset: int
    size: int
    lock_owner: int | None
    flags: int


class Write(NamedTuple):
    """WRITE."""

    handle: int
    offset: int
    data: memoryview
    write_flags: int
    lock_owner: int | None
    flags: int


class Release(NamedTuple):
    """RELEASE, RELEASEDIR: the last use of a handle."""

    handle: int
    flags: int
    release_flags: int
    lock_owner: int


class Flush(NamedTuple):
    """FLUSH: a descriptor was closed, and the POSIX locks of this owner with it."""

    handle: int
    lock_owner: int


class Sync(NamedTuple):
    """FSYNC, FSYNCDIR."""

    handle: int
    data_only: bool


class SetXattr(NamedTuple):
    """SETXATTR; ``flags`` as in setxattr(2)."""

    name: bytes
    value: memoryview
    flags: int
    extended_flags: int


class GetXattr(NamedTuple):
    """GETXATTR, and LISTXATTR with an empty name. With ``size`` 0 only the length is wanted."""

    name: bytes
    size: int


class Lock(NamedTuple):
    """GETLK, SETLK, SETLKW. ``end`` is included; ``kind`` as in fcntl(2); ``pid`` is the caller's."""

    handle: int
    owner: int
    start: int
    end: int
    kind: int
    pid: int
    is_flock: bool


class Access(NamedTuple):
    """ACCESS: may the caller? As in access(2)."""

    mask: int


class Interrupt(NamedTuple):
    """INTERRUPT: the caller of that request no longer waits. It may be answered already, or not have arrived yet."""

    unique: int


class BlockMap(NamedTuple):
    """BMAP."""

    block: int
    block_bytes: int


class Ioctl(NamedTuple):
    """IOCTL."""

    handle: int
    flags: int
    command: int
    argument: int
    data: memoryview
    out_size: int


class Poll(NamedTuple):
    """POLL: which of ``events`` are true? ``waker`` is for a notification, if one was requested."""

    handle: int
    waker: int
    flags: int
    events: int


class Retrieved(NamedTuple):
    """NOTIFY_REPLY: what the page cache holds, as RETRIEVE asked; its id is the header's ``unique``."""

    offset: int
    data: memoryview


class Allocate(NamedTuple):
    """FALLOCATE; ``mode`` as in fallocate(2)."""

    handle: int
    offset: int
    length: int
    mode: int


class Seek(NamedTuple):
    """LSEEK: to data or to a hole. ``offset`` can be below 0, ``whence`` as in lseek(2)."""

    handle: int
    offset: int
    whence: int


class CopyRange(NamedTuple):
    """COPY_FILE_RANGE and its successor with 64 bits: at most ``length`` bytes, as many as the reply can tell."""

    handle: int
    offset: int
    to_node: int
    to_handle: int
    to_offset: int
    length: int


class Map(NamedTuple):
    """SETUPMAPPING: show a file in the memory that a guest shares (DAX)."""

    handle: int
    offset: int
    length: int
    flags: int
    window_offset: int


class Unmap(NamedTuple):
    """REMOVEMAPPING, as (offset in the window, length)."""

    mappings: tuple[tuple[int, int], ...]


Body = (
    Nothing | Name | Forget | GetAttr | StatX | SetAttr | Symlink | MakeNode | MakeDirectory | Create | Rename | Link
    | Open | Read | Write | Release | Flush | Sync | SetXattr | GetXattr | Lock | Access | Interrupt | BlockMap | Ioctl
    | Poll | Retrieved | Allocate | Seek | CopyRange | Map | Unmap
)  # fmt: skip

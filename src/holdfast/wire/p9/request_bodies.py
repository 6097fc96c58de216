"""The content of requests, by kind of body. Type and tag are in the header; some types share a body.

``bytes`` are copies; a `memoryview` shows the message itself. The first number is the fid of the request, or, in `Auth`
and `Attach`, the new one. A group is that of the process that creates.
"""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple


class Version(NamedTuple):
    """VERSION: a new session, of these terms at most."""

    msize: int
    version: bytes


class Auth(NamedTuple):
    """AUTH: a conversation by ``auth_fid`` will authenticate the user. ``uid`` is None if only the name is given."""

    auth_fid: int
    user: bytes
    tree: bytes
    uid: int | None


class Attach(NamedTuple):
    """ATTACH: ``fid`` becomes the root of ``tree``, for this user; ``auth_fid`` is None without authentication."""

    fid: int
    auth_fid: int | None
    user: bytes
    tree: bytes
    uid: int | None


class Flush(NamedTuple):
    """FLUSH: the client waits no longer for the answer to the request of this tag."""

    tag: int


class Walk(NamedTuple):
    """WALK: ``new_fid`` becomes the object at the names from ``fid``, which may be the same. ``..`` may be a name."""

    fid: int
    new_fid: int
    names: tuple[bytes, ...]


class Fid(NamedTuple):
    """READLINK, STATFS, CLUNK, REMOVE: of this fid."""

    fid: int


class Open(NamedTuple):
    """LOPEN; ``flags`` are this system's, as in open(2), never to create."""

    fid: int
    flags: int


class Create(NamedTuple):
    """LCREATE: a file in the directory ``fid``, which becomes the open file. ``flags`` as in `Open`; ``exclusive``
    decides whether the name may exist already.
    """

    fid: int
    name: bytes
    flags: int
    permissions: int
    gid: int
    exclusive: bool


class Symlink(NamedTuple):
    """SYMLINK."""

    fid: int
    name: bytes
    target: bytes
    gid: int


class MakeNode(NamedTuple):
    """MKNOD: ``mode`` has the type, of a regular file, pipe, socket or device."""

    fid: int
    name: bytes
    mode: int
    major: int
    minor: int
    gid: int


class MakeDirectory(NamedTuple):
    """MKDIR."""

    fid: int
    name: bytes
    permissions: int
    gid: int


class Link(NamedTuple):
    """LINK: what ``target_fid`` is gets another name, in the directory ``fid``."""

    fid: int
    target_fid: int
    name: bytes


class Rename(NamedTuple):
    """RENAME: give the object of ``fid`` this name in ``directory_fid`` in place of its own."""

    fid: int
    directory_fid: int
    name: bytes


class RenameAt(NamedTuple):
    """RENAMEAT."""

    fid: int
    name: bytes
    new_fid: int
    new_name: bytes


class UnlinkAt(NamedTuple):
    """UNLINKAT: of a directory, as rmdir(2), or of anything else, as unlink(2)."""

    fid: int
    name: bytes
    is_directory: bool


class GetAttr(NamedTuple):
    """GETATTR: ``mask`` names the attributes that the client needs (``GETATTR_*``)."""

    fid: int
    mask: int


class SetAttr(NamedTuple):
    """SETATTR: a field that is not in `valid` (``SETATTR_*``) is 0 and stays unchanged. A time in `valid` is None for
    the server's present time. SETATTR_CTIME comes with every change and asks for nothing more.
    """

    fid: int
    valid: int
    permissions: int
    uid: int
    gid: int
    size: int
    atime_ns: int | None
    mtime_ns: int | None


class XattrWalk(NamedTuple):
    """XATTRWALK: ``new_fid`` becomes readable as the attribute of this name, or with an empty one as the list of names,
    each with a NUL after it.
    """

    fid: int
    new_fid: int
    name: bytes


class XattrCreate(NamedTuple):
    """XATTRCREATE: ``fid`` becomes the attribute. Its ``size`` bytes are written to it, and set when it is clunked.

    ``flags`` as in setxattr(2). To remove an attribute Linux says size 0, and XATTR_REPLACE.
    """

    fid: int
    name: bytes
    size: int
    flags: int


class Read(NamedTuple):
    """READ, READDIR: at most ``size`` bytes of data. An offset in a directory is one that we gave."""

    fid: int
    offset: int
    size: int


class Write(NamedTuple):
    """WRITE."""

    fid: int
    offset: int
    data: memoryview


class Sync(NamedTuple):
    """FSYNC."""

    fid: int
    data_only: bool


class Lock(NamedTuple):
    """LOCK, GETLOCK. ``end`` is included; ``kind`` as in fcntl(2); ``client`` and ``process`` together own the lock.

    GETLOCK never has F_UNLCK as its kind. Linux sends that for any kind of lock; it is decoded as F_WRLCK, which
    conflicts with every other lock.
    """

    fid: int
    kind: int
    start: int
    end: int
    process: int
    client: bytes
    wait: bool


Body = (
    Version | Auth | Attach | Flush | Walk | Fid | Open | Create | Symlink | MakeNode | MakeDirectory | Link | Rename
    | RenameAt | UnlinkAt | GetAttr | SetAttr | XattrWalk | XattrCreate | Read | Write | Sync | Lock
)  # fmt: skip

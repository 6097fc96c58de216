"""Archives in cpio's "newc" format, as the kernel unpacks them at boot: an encoder alone.

The source of the format is the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Member(NamedTuple):
    """A file of an archive. It belongs to root, and its time is 1970."""

    name: bytes
    """Its path, relative to the root, without ``/`` at either end. Its directories must come before it."""
    mode: int
    """Type and permissions, as in ``st_mode``."""
    content: bytes = b""
    """The content of a regular file, or the target of a symbolic link."""


def directory(name: bytes, mode: int = 0o755) -> Member:
    """A directory."""
    return Member(name, stat.S_IFDIR | mode)


def file(name: bytes, content: bytes, mode: int = 0o644) -> Member:
    """A regular file."""
    return Member(name, stat.S_IFREG | mode, content)


def link(name: bytes, target: bytes) -> Member:
    """A symbolic link."""
    return Member(name, stat.S_IFLNK | 0o777, target)


def encode(members: Iterable[Member]) -> bytes:
    """The whole archive. Its length is a multiple of 4, so that another one may follow it."""
    return b"".join(_pieces(members))


def _pieces(members: Iterable[Member]) -> Iterator[bytes]:
    number = 0
    for number, member in enumerate(members, 1):
        yield _header(member.name, member.mode, len(member.content), number)
        yield member.content
        yield bytes(-len(member.content) % 4)
    yield _header(b"TRAILER!!!", 0, 0, number + 1)


def _header(name: bytes, mode: int, size: int, number: int) -> bytes:
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (number, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name) + 1, 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name + b"\0"
    return header + bytes(-len(header) % 4)

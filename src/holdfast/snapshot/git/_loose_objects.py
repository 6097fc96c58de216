"""Packing many loose objects: making, syncing and removing a file for each takes longer than all the rest.

Each object is read from its file, and gets into a pack under the name of its content. Large objects, and those with a
wrong name, are left for copying as files. Sources: gitformat-loose(5), gitformat-pack(5).
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from typing import TYPE_CHECKING

from holdfast.model.errors import StorageError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.snapshot.git._command import Git

MANY = 200
"""Of fewer, each is copied by itself."""
PREFIX = b"holdfast-loose-"
"""Prefix of the packs that are made here. (``loose-`` is that of `git maintenance`.)"""

_LARGE = 1 << 20
"""Bytes, of a file and of its content."""
_MOST_BYTES = 64 << 20
"""Of a pack, which is made in memory."""
_KINDS = {b"commit": 1, b"tree": 2, b"blob": 3, b"tag": 4}
_HEAD = 32
_DIGESTS = {40: hashlib.sha1, 64: hashlib.sha256}
_LITTLE = 16 << 10
_OF_LITTLE, _OF_MUCH = (12, 5), (15, 8)
"""The window and the memory of zlib: with what little content can make use of, it takes a third of the time."""


class PreparedPack(NamedTuple):
    """A pack that is not written yet."""

    names: tuple[str, ...]
    """Of its objects, in hexadecimal digits."""
    content: bytes
    checksum: bytes


def packed(objects: Iterable[tuple[str, bytes]]) -> Iterator[PreparedPack]:
    """Packs of objects, given as names, in hexadecimal digits, and the contents of their files; the packs leave out
    large and invalid ones. All names have the same length.
    """
    names: list[str] = []
    pieces: list[bytes] = []
    size = 0
    for name, data in objects:
        piece = _entry(name, data)
        if piece is None:
            continue
        names.append(name)
        pieces.append(piece)
        size += len(piece)
        if size >= _MOST_BYTES:
            yield _closed(names, pieces)
            names, pieces, size = [], [], 0
    if names:
        yield _closed(names, pieces)


def is_small(size: int) -> bool:
    """Whether a file of this size may get into a pack."""
    return size <= _LARGE


def make_index(git: Git, pack: bytes, target: bytes, digits: int) -> None:
    """Make the index ``target`` of the file ``pack``, of objects with names of this many digits. Git reads all of the
    pack. Raises `StorageError`.
    """
    kind = "sha256" if digits == 64 else "sha1"
    git("index-pack", "--no-rev-index", f"--object-format={kind}", "-o", target, pack)


def _entry(name: str, data: bytes) -> bytes | None:
    """An object in the format of a pack; None if it is left out."""
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, _LARGE + _HEAD)
    except zlib.error:
        return None
    head = text[:_HEAD].partition(b"\0")[0]
    kind, _, size = head.partition(b" ")
    whole = stream.eof and kind in _KINDS and size.isdigit() and len(text) == len(head) + 1 + int(size)
    if not whole or _DIGESTS[len(name)](text).hexdigest() != name:
        return None
    first, left = _KINDS[kind] << 4 | int(size) & 15, int(size) >> 4
    written = bytearray()
    while left:
        written.append(first | 128)
        first, left = left & 127, left >> 7
    written.append(first)
    squeezing = zlib.compressobj(1, zlib.DEFLATED, *(_OF_LITTLE if len(text) <= _LITTLE else _OF_MUCH))
    return b"".join((written, squeezing.compress(memoryview(text)[len(head) + 1 :]), squeezing.flush()))


def _closed(names: list[str], pieces: list[bytes]) -> PreparedPack:
    content = b"".join([struct.pack(">4sII", b"PACK", 2, len(pieces)), *pieces])
    checksum = _DIGESTS[len(names[0])](content).digest()
    return PreparedPack(tuple(names), content + checksum, checksum.hex().encode())


def is_made_here(name: bytes) -> bool:
    """Whether a file of a directory of packs is the index of one that was made here."""
    return name.startswith(PREFIX) and os.path.splitext(name)[1] == b".idx"


def names_in(index: bytes, digits: int) -> set[str]:
    """The names in a pack's index (version 2), with this many hexadecimal digits. Raises `StorageError` if it is no
    such index, `OSError`.
    """
    with open(index, "rb") as file:
        head = file.read(8 + 256 * 4)
        if head[:8] != b"\xfftOc\0\0\0\2" or len(head) < 8 + 256 * 4:
            raise StorageError(f"{os.fsdecode(index)} is no index of a pack", code="git_failed")
        size, count = digits // 2, int.from_bytes(head[-4:], "big")
        # Each object has a checksum and an offset besides its name; the file may claim any number.
        if os.fstat(file.fileno()).st_size < len(head) + count * (size + 8) + 2 * size:
            raise StorageError(f"{os.fsdecode(index)} names more objects than it has room for", code="git_failed")
        names = file.read(count * size)
    return {names[at : at + size].hex() for at in range(0, len(names), size)}

"""The file of a kernel that a machine is started with: an ELF file that boots by PVH where the packed one holds it.

A bzImage unpacks itself in the guest, which takes more than half of a boot by emulation. Unpacked once, here, the
kernel begins at once. Sources: the kernel's Documentation/arch/x86/boot.rst and scripts/extract-vmlinux; PVH's entry
point is the note that xen/include/public/elfnote.h calls ``XEN_ELFNOTE_PHYS32_ENTRY``.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.model.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_BYTES: Final = 512 << 20
"""No kernel is anywhere near that large once it is unpacked."""
_LZ4_BLOCK: Final = 8 << 20
"""The unpacked size of a block in LZ4's legacy frame, except the last."""
_PVH_ENTRY: Final = 18
_PT_NOTE: Final = 4
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")


def bootable(packed: bytes) -> bytes:
    """The file to start a machine with: the ELF file in the bzImage ``packed`` if that boots by PVH, else ``packed``.

    ``packed`` is also returned if it is no bzImage, such as the kernel of another architecture.
    """
    payload = _payload(packed)
    if payload is None:
        return packed
    try:
        kernel = _unpacked(payload)
    except Exception:  # noqa: BLE001 - each library has its own, and a packed kernel unpacks itself
        return packed
    return kernel if kernel is not None and boots_by_pvh(kernel) else packed


def _payload(packed: bytes) -> bytes | None:
    """The compressed kernel in a bzImage; None without one."""
    if len(packed) < 0x260 or packed[0x202:0x206] != b"HdrS" or int.from_bytes(packed[0x206:0x208], "little") < 0x208:
        return None
    setup = (packed[0x1F1] or 4) + 1
    offset, length = struct.unpack_from("<II", packed, 0x248)
    start = setup * 512 + offset
    return packed[start : start + length] if start + length <= len(packed) else None


def _unpacked(payload: bytes) -> bytes | None:
    """The unpacked payload; None for an unknown compression. The compressed data may be followed by its length."""
    for magic, unpack in _UNPACKERS:
        if payload.startswith(magic):
            kernel = unpack(payload)
            if len(kernel) > _MOST_BYTES:
                raise FormatError("the kernel is too large once it is unpacked")
            return kernel
    return None


def _gzip(payload: bytes) -> bytes:
    return zlib.decompressobj(31).decompress(payload, _MOST_BYTES + 1)


def _xz(payload: bytes) -> bytes:
    return lzma.LZMADecompressor().decompress(payload, _MOST_BYTES + 1)


def _bzip2(payload: bytes) -> bytes:
    return bz2.BZ2Decompressor().decompress(payload, _MOST_BYTES + 1)


def _zstd(payload: bytes) -> bytes:
    import zstandard

    with zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(payload) as stream:
        return stream.read(_MOST_BYTES + 1)


class _Block(Protocol):
    """The part of lz4 that is used, which has no type annotations."""

    def decompress(self, source: bytes, *, uncompressed_size: int) -> bytes: ...


def _lz4() -> _Block:
    from lz4 import block

    return block


def _lz4_legacy(payload: bytes) -> bytes:
    """Format: the magic, then blocks, each with its length in front. Data after the last block is ignored."""
    unpack = _lz4()
    unpacked = bytearray()
    at = 4
    while at + 4 <= len(payload) and len(unpacked) <= _MOST_BYTES:
        length = int.from_bytes(payload[at : at + 4], "little")
        at += 4
        if length == 0 or at + length > len(payload):
            break
        block = unpack.decompress(payload[at : at + length], uncompressed_size=_LZ4_BLOCK)
        unpacked += block
        at += length
        if len(block) < _LZ4_BLOCK:
            break
    return bytes(unpacked)


_UNPACKERS: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\x02\x21\x4c\x18", _lz4_legacy),
    (b"\x28\xb5\x2f\xfd", _zstd),
    (b"\xfd7zXZ\x00", _xz),
    (b"\x1f\x8b", _gzip),
    (b"BZh", _bzip2),
)


def boots_by_pvh(kernel: bytes) -> bool:
    """True if the ELF file has an entry by PVH, which QEMU requires of an unpacked kernel."""
    try:
        return any(kind == _PVH_ENTRY and name == b"Xen\0" for kind, name in _notes(kernel))
    except (struct.error, OverflowError):
        return False


def _notes(kernel: bytes) -> Iterator[tuple[int, bytes]]:
    if kernel[:6] != b"\x7fELF\x02\x01":
        return
    (offset,) = struct.unpack_from("<Q", kernel, 0x20)
    size, count = struct.unpack_from("<HH", kernel, 0x36)
    for number in range(count):
        segment = _SEGMENT.unpack_from(kernel, offset + number * size)
        if segment[0] != _PT_NOTE:
            continue
        at, end = segment[2], segment[2] + segment[5]
        while at + 12 <= min(end, len(kernel)):
            name_bytes, bytes_of_it, kind = struct.unpack_from("<III", kernel, at)
            yield kind, kernel[at + 12 : at + 12 + name_bytes]
            at += 12 + name_bytes + -name_bytes % 4 + bytes_of_it + -bytes_of_it % 4

"""Small ELF files: kernel modules, kernels and programs."""

from __future__ import annotations

import struct


def module(*fields: bytes) -> bytes:
    """A module whose section ``.modinfo`` has ``fields``."""
    information = b"".join(field + b"\0" for field in fields)
    names = b"\0.shstrtab\0.modinfo\0"
    sections_at = 64 + len(information) + len(names)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 62, 1, 0, 0, sections_at, 0, 64, 0, 0, 64, 3, 1
    )
    sections = (
        bytes(64)
        + struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 64 + len(information), len(names), 0, 0, 1, 0)
        + struct.pack("<IIQQQQIIQQ", 11, 1, 0, 0, 64, len(information), 0, 0, 1, 0)
    )
    return header + information + names + sections


def program(segment: int, content: bytes = b"") -> bytes:
    """An executable with one segment of this type."""
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return header + struct.pack("<IIQQQQQQ", segment, 4, 120, 0, 0, len(content), len(content), 4) + content


def kernel(*, pvh: bool, filling: int = 0) -> bytes:
    """A kernel with a note, the one of PVH or another; ``filling`` bytes behind."""
    note = struct.pack("<III4sQ", 4, 8, 18 if pvh else 5, b"Xen\0", 0x1000000)
    other = struct.pack("<III8s", 5, 0, 1, b"Linux\0\0\0")
    return program(4, other + note) + bytes(filling)


def bzimage(payload: bytes, *, setup: int = 3) -> bytes:
    """A packed kernel that holds ``payload``."""
    head = bytearray((setup + 1) * 512)
    head[0x1F1] = setup
    head[0x202:0x206] = b"HdrS"
    head[0x206:0x208] = b"\x0f\x02"
    struct.pack_into("<II", head, 0x248, 32, len(payload))
    return bytes(head) + bytes(32) + payload + b"behind it"

"""Writes down what a kernel and a server say to each other.

A file holds exchanges of one opcode: ``>`` the request in hexadecimal, ``=`` what it is decoded to if it is, ``<`` the
reply if it has one at once. Process ids, users and the kernel's random numbers are replaced, and so is the time of day.
"""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

from holdfast.wire.fuse.protocol_constants import FATTR_ATIME_NOW, FATTR_MTIME_NOW, Opcode
from holdfast.wire.fuse.request_bodies import Header

from .memory_server import NOW

_MOST_EXCHANGES, _MOST_BYTES = 12, 2048
_SECRETS = {
    Opcode.READ: (24, 8),
    Opcode.WRITE: (24, 8),
    Opcode.RELEASE: (16, 8),
    Opcode.RELEASEDIR: (16, 8),
    Opcode.FLUSH: (16, 8),
    Opcode.SETATTR: (24, 8),
    Opcode.GETLK: (8, 8),
    Opcode.SETLK: (8, 8),
    Opcode.SETLKW: (8, 8),
    Opcode.INTERRUPT: (0, 8),
    Opcode.POLL: (8, 8),
    Opcode.IOCTL: (16, 8),
}
"""Where in a body numbers are that differ from run to run."""


class Recording:
    """Exchanges by opcode, those that say something new."""

    def __init__(self) -> None:
        self.exchanges: dict[Opcode, list[str]] = {}
        self._seen: set[str] = set()
        self._numbers: dict[int, int] = {0: 0}

    def add(self, header: Header, frame: bytes, decoded: str | None, reply: bytes | None) -> None:
        """``decoded`` is None if the request was refused, ``reply`` if it was not answered at once or at all."""
        opcode = Opcode(header.opcode)
        known = self.exchanges.setdefault(opcode, [])
        sort = f"{opcode}{len(frame)}{None if reply is None else (len(reply), reply[4:8])}"
        if len(known) >= _MOST_EXCHANGES or len(frame) + len(reply or b"") > _MOST_BYTES:
            return
        if sort in self._seen and len(known) >= _MOST_EXCHANGES // 2:
            return
        self._seen.add(sort)
        lines = [f"> {self.anonymous(header, frame).hex()}"]
        if decoded is not None:
            lines.append(f"= {decoded}")
        if reply is not None:
            reply = reply[:8] + self._number(header.unique) + reply[16:]
            if opcode == Opcode.GETLK:
                reply = reply[:36] + bytes(4)
            lines.append(f"< {reply.hex()}")
        known.append("\n".join(lines))

    def anonymous(self, header: Header, frame: bytes) -> bytes:
        """The request as a fixture has it."""
        data = bytearray(frame)
        data[8:16] = self._number(header.unique)
        struct.pack_into("=III", data, 24, 1000, 1000, 4242 if header.pid else 0)
        if header.opcode in _SECRETS:
            at, size = _SECRETS[Opcode(header.opcode)]
            place = slice(40 + at, 40 + at + size)
            data[place] = self._number(int.from_bytes(data[place], sys.byteorder))
        if header.opcode in (Opcode.GETLK, Opcode.SETLK, Opcode.SETLKW) and any(data[76:80]):
            struct.pack_into("=I", data, 76, 4242)
        if header.opcode == Opcode.SETATTR:
            for bit, seconds, nanoseconds in ((FATTR_ATIME_NOW, 72, 96), (FATTR_MTIME_NOW, 80, 100)):
                if int.from_bytes(data[40:44], sys.byteorder) & bit:
                    struct.pack_into("=Q", data, seconds, NOW)
                    struct.pack_into("=I", data, nanoseconds, 0)
        return bytes(data)

    def _number(self, secret: int) -> bytes:
        kept = secret & 1 << 63 if secret & ~(1 << 63) in self._numbers else 0
        number = self._numbers.setdefault(secret ^ kept, len(self._numbers))
        return struct.pack("=Q", number | kept)

    def write(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for opcode, exchanges in self.exchanges.items():
            (folder / f"{opcode.name.lower()}.txt").write_text("\n\n".join(exchanges) + "\n")

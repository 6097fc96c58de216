"""What a real kernel (Linux 6.18, FUSE 7.45) has said, as `record` wrote it down; and the same with a part missing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.model.errors import FormatError
from holdfast.wire.fuse.negotiation import decode_offer, encode_terms, negotiate
from holdfast.wire.fuse.protocol_constants import UNANSWERED, Opcode
from holdfast.wire.fuse.request_errors import errno_of
from holdfast.wire.fuse.requests import Decoder, decode_header

from .memory_server import shown
from .record import SESSIONS

FOLDER = Path(__file__).parent / "recorded"
FILES = sorted(FOLDER.glob("*/*.txt"))


class Exchange(NamedTuple):
    request: bytes
    decoded: str | None
    reply: bytes | None


def exchanges(path: Path) -> Iterator[Exchange]:
    for text in path.read_text().split("\n\n"):
        lines = {line[0]: line[2:] for line in text.splitlines()}
        reply = lines.get("<")
        yield Exchange(bytes.fromhex(lines[">"]), lines.get("="), None if reply is None else bytes.fromhex(reply))


@cache
def decoder(session: str) -> Decoder:
    frame = memoryview(next(exchanges(FOLDER / session / "init.txt")).request)
    agreed = negotiate(decode_offer(frame), SESSIONS[session][0])
    assert agreed is not None
    return Decoder(agreed)


def named(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_what_the_kernel_said_is_understood(path: Path) -> None:
    for request, decoded, reply in exchanges(path):
        frame = memoryview(request)
        header = decode_header(frame)
        assert Opcode(header.opcode).name.lower() == path.stem
        if header.opcode == Opcode.INIT:
            offer = decode_offer(frame)
            agreed = negotiate(offer, SESSIONS[path.parent.name][0])
            assert agreed is not None
            assert shown(offer) == decoded
            assert encode_terms(header.unique, agreed) == reply
            continue
        try:
            assert shown(decoder(path.parent.name).decode(header, frame)) == decoded
        except FormatError as error:
            assert decoded is None
            assert reply is not None
            assert struct.unpack("=IiQ", reply) == (16, -errno_of(error), header.unique)
        if header.opcode in UNANSWERED:
            assert reply is None


@pytest.mark.parametrize("path", FILES, ids=named)
def test_what_is_cut_off_or_goes_on_is_refused(path: Path) -> None:
    for request, decoded, _ in exchanges(path):
        header = decode_header(memoryview(request))
        if header.opcode == Opcode.INIT or decoded is None:
            continue
        for length in range(len(request)):
            with pytest.raises(FormatError):
                whole(path, request[:length])
        # A file that is to have no name has one all the same, which nobody looks at.
        if header.opcode == Opcode.TMPFILE:
            continue
        for length in range(40, len(request)):
            with pytest.raises(FormatError):
                whole(path, struct.pack("=I", length) + request[4:length])
        for more in (b"\0", b"a", bytes(8), bytes(16)):
            with pytest.raises(FormatError):
                whole(path, struct.pack("=I", len(request) + len(more)) + request[4:] + more)


def whole(path: Path, request: bytes) -> None:
    frame = memoryview(request)
    decoder(path.parent.name).decode(decode_header(frame), frame)


def test_the_recording_has_what_this_kernel_says() -> None:
    """All but what needs a block device (BMAP, DESTROY) or virtio-fs (SYNCFS, the mappings)."""
    missing = {Opcode.BMAP, Opcode.DESTROY, Opcode.SYNCFS, Opcode.SETUPMAPPING, Opcode.REMOVEMAPPING}
    assert {path.stem.upper() for path in FILES} == {opcode.name for opcode in set(Opcode) - missing}

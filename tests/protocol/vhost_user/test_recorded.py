"""What QEMU 7.2 has said for ``vhost-user-fs-pci``, while a guest (Linux 6.1) mounted a directory, wrote, read and
removed files in it: one machine until it ended; and one of 5 GB that was paused and went on, and was rebooted.

A record has the message as it came and the number of its descriptors, what it means with descriptors numbered from 100,
and the reply.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.model.errors import FormatError
from holdfast.wire.vhost_user.messages import HEADER_BYTES, GetVringBase, decode_header
from holdfast.wire.vhost_user.protocol_constants import ProtocolFeature
from holdfast.wire.vhost_user.session import Device, Session

FOLDER = Path(__file__).parent / "recorded"
PLAIN = Device(2).protocol_features
DEVICES = {
    "memory_slots": Device(2),
    "paused_and_rebooted": Device(
        2, protocol_features=(PLAIN | ProtocolFeature.STATUS) & ~ProtocolFeature.CONFIGURE_MEM_SLOTS
    ),
}


class Exchange(NamedTuple):
    message: bytes
    descriptors: list[int]
    decoded: str
    reply: bytes | None


def exchanges(name: str) -> Iterator[Exchange]:
    number = 100
    for text in (FOLDER / f"{name}.txt").read_text().split("\n\n"):
        lines = {line[0]: line[2:] for line in text.splitlines()}
        data, _, count = lines[">"].partition(" ")
        descriptors = list(range(number, number + int(count or 0)))
        number += len(descriptors)
        reply = bytes.fromhex(lines["<"]) if "<" in lines else None
        yield Exchange(bytes.fromhex(data), descriptors, lines["="], reply)


@pytest.mark.parametrize("name", DEVICES)
def test_what_qemu_said_is_understood_and_answered(name: str) -> None:
    session = Session(DEVICES[name])
    started: list[int] = []
    for message, descriptors, decoded, reply in exchanges(name):
        header = decode_header(message[:HEADER_BYTES])
        body = session.receive(header, message[HEADER_BYTES:], descriptors)
        assert str(body) == decoded
        if isinstance(body, GetVringBase):
            assert reply is not None
            (session.vrings[body.vring].base,) = struct.unpack("=I", reply[-4:])
        assert session.reply(header, body) == reply
        started.append(sum(vring.is_running for vring in session.vrings))
    assert max(started) == 2
    assert session.features == 1 << 32 | 7 << 28


@pytest.mark.parametrize("name", DEVICES)
def test_the_same_without_its_beginning_starts_nothing(name: str) -> None:
    every = list(exchanges(name))
    owned = next(at for at, exchange in enumerate(every) if exchange.decoded == "SetOwner()")
    for begin in range(owned + 1, len(every)):
        session = Session(DEVICES[name])
        for message, descriptors, _, _ in every[begin:]:
            header = decode_header(message[:HEADER_BYTES])
            with contextlib.suppress(FormatError):
                session.receive(header, message[HEADER_BYTES:], descriptors)
        assert session.features is None
        assert session.regions == ()
        assert not any(vring.is_started or vring.call is not None for vring in session.vrings)

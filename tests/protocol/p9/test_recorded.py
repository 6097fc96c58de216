"""What diod, its clients and our own client have said to each other, as `record` wrote it down (I12)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import FormatError
from holdfast.testing import p9_client
from holdfast.wire.p9 import replies
from holdfast.wire.p9.framing import FrameSplitter, decode_header
from holdfast.wire.p9.protocol_constants import NO_TAG, RLERROR, Type
from holdfast.wire.p9.replies import Attributes, Qid
from holdfast.wire.p9.requests import Decoder
from holdfast.wire.p9.session import Limits, Session

from .record import our_client

FILES = sorted((Path(__file__).parent / "recorded").glob("*.txt"))


def exchanges(path: Path) -> Iterator[tuple[bytes, bytes]]:
    for text in path.read_text().split("\n\n"):
        request, reply = (bytes.fromhex(line[2:]) for line in text.splitlines())
        yield request, reply


def encoded(kind: int, tag: int, fields: tuple[Any, ...]) -> bytes:
    """The reply by `replies`, from what another decoder says of it."""
    match kind:
        case Type.VERSION:
            return replies.version(tag, *fields)
        case Type.AUTH | Type.ATTACH | Type.SYMLINK | Type.MKNOD | Type.MKDIR:
            return replies.found(tag, kind, Qid(*fields[0]))
        case Type.WALK:
            return replies.walked(tag, [Qid(*qid) for qid in fields[0]])
        case Type.LOPEN | Type.LCREATE:
            return replies.opened(tag, kind, Qid(*fields[0]), fields[1])
        case Type.READLINK:
            return replies.target(tag, fields[0])
        case Type.GETATTR:
            valid, qid, *numbers = p9_client.decode_stat(fields)
            return replies.attr(tag, Qid(*qid), Attributes(*numbers, valid=valid))
        case Type.XATTRWALK:
            return replies.attribute(tag, fields[0])
        case Type.READ:
            return b"".join(replies.data(tag, kind, fields[0]))
        case Type.READDIR:
            listing = replies.DirectoryListing(len(fields[0]))
            for entry in p9_client.decode_entries(fields[0]):
                assert listing.add(entry.name, Qid(*entry.qid), entry.type << 12, entry.offset)
            return b"".join(replies.data(tag, kind, listing.data))
        case Type.WRITE:
            return replies.written(tag, fields[0])
        case Type.LOCK:
            return replies.locked(tag, fields[0])
        case Type.GETLOCK:
            wire, start, length, process, client = fields
            kinds = {0: replies.F_RDLCK, 1: replies.F_WRLCK, 2: replies.F_UNLCK}
            end = start + length - 1 if length else replies.OFFSET_MAX
            return replies.lock(tag, kinds[wire], start, end, process, client)
        case p9_client.RLERROR:
            return replies.error(tag, fields[0])
        case _:
            return replies.done(tag, kind)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_others_say_is_understood_and_is_said_the_same_way_here(path: Path) -> None:
    decoder = Decoder(1 << 16)
    kinds: set[int] = set()
    for request, reply in exchanges(path):
        header = decode_header(memoryview(request))
        assert decoder.decode(header, memoryview(request))
        fields = p9_client.decode_fields(p9_client.REQUESTS[header.type], request[7:])
        assert p9_client.encode_request(header.type, header.tag, *fields) == request
        decoded = p9_client.decode_reply(reply)
        assert decoded.type in (header.type, RLERROR)
        if header.type != Type.STATFS:  # Its other half takes what the system said.
            assert encoded(decoded.type, decoded.tag, decoded.fields) == reply
        kinds.add(decoded.type)
    assert len(kinds) > 5
    if path.stem == "our_client":
        assert kinds >= {*Type, RLERROR} - {Type.AUTH, Type.RENAMEAT, Type.UNLINKAT}  # which this diod does not have


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_session_takes_what_clients_do_with_their_fids(path: Path) -> None:
    session: Session[object] = Session(Limits())
    for request, reply in exchanges(path):
        (frame,) = FrameSplitter(session.msize).split(request)
        actions = session.receive(frame)
        if decode_header(frame).tag == NO_TAG or request[4] == Type.FLUSH:
            assert b"".join(actions.output) == reply
            continue
        assert actions.request is not None, p9_client.decode_reply(b"".join(actions.output))
        decoded = p9_client.decode_reply(reply)
        makes = {Type.ATTACH, Type.WALK, Type.LOPEN, Type.LCREATE, Type.XATTRWALK, Type.XATTRCREATE}
        partial = decoded.type == Type.WALK and len(decoded.fields[0]) != len(actions.request.body[2])  # pyright: ignore
        kept = object() if decoded.type in makes and not partial else None
        assert b"".join(session.finish(actions.request, reply, kept).output) == reply
    assert session.in_flight == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_part_of_a_request_is_one(path: Path) -> None:
    decoder = Decoder(1 << 16)
    for request, _ in exchanges(path):
        header = decode_header(memoryview(request))
        for length in range(7, len(request)):
            if (header.type, length) != (Type.FSYNC, 11):
                with pytest.raises(FormatError):
                    decoder.decode(header, memoryview(request)[:length])
        with pytest.raises(FormatError):
            decoder.decode(header, memoryview(request + b"\0"))


def test_our_client_says_what_it_said_to_diod_and_understands_the_answers() -> None:
    left = list(exchanges(FILES[0].with_name("our_client.txt")))

    def exchange(message: bytes) -> bytes:
        request, reply = left.pop(0)
        assert message == request
        return reply

    our_client(exchange)
    assert not left

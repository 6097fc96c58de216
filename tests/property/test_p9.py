"""9P: what a client encodes is what the server decodes, and a session against a plain model of it (I12)."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from fcntl import F_RDLCK, F_UNLCK, F_WRLCK
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.model.errors import FormatError
from holdfast.testing import p9_client
from holdfast.testing.p9_client import encode_request
from holdfast.wire.p9 import replies, request_bodies
from holdfast.wire.p9.framing import decode_header
from holdfast.wire.p9.protocol_constants import (
    NO_FID,
    NO_TAG,
    OFFSET_MAX,
    OPEN_FLAGS,
    RLERROR,
    VERSION,
    Type,
)
from holdfast.wire.p9.replies import Attributes, Qid
from holdfast.wire.p9.requests import Decoder
from holdfast.wire.p9.session import Actions, Limits, Request, Session

FID = st.integers(0, NO_FID - 1)
ID = st.integers(0, (1 << 32) - 2)
U32, U64, SIGNED = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
BYTES = st.integers(1, 255).filter(lambda byte: byte != 0x2F)
NAME = st.lists(BYTES, min_size=1, max_size=255).map(bytes).filter(lambda name: name not in (b".", b".."))
TEXT = st.lists(st.integers(1, 255), max_size=255).map(bytes)
PERMISSIONS = st.integers(0, 0o7777)
NANOSECONDS = st.integers(0, 10**9 - 1)
RANGE = st.integers(0, OFFSET_MAX).flatmap(lambda start: st.tuples(st.just(start), st.integers(0, OFFSET_MAX - start)))
FLAGS = st.sets(st.sampled_from(OPEN_FLAGS))


def case(kind: Type, expected: Callable[..., request_bodies.Body], *fields: st.SearchStrategy[Any]) -> Any:
    return st.tuples(st.just(kind), st.just(expected), st.tuples(*fields))


def end(start: int, length: int) -> int:
    return start + length - 1 if length else OFFSET_MAX


REQUEST = st.one_of(
    case(Type.VERSION, request_bodies.Version, U32, st.binary(max_size=50)),
    case(Type.AUTH, request_bodies.Auth, FID, TEXT, TEXT, ID),
    case(Type.ATTACH, request_bodies.Attach, FID, FID, TEXT, TEXT, ID),
    case(Type.FLUSH, request_bodies.Flush, st.integers(0, 0xFFFF)),
    case(Type.WALK, request_bodies.Walk, FID, FID, st.lists(NAME | st.just(b".."), max_size=16).map(tuple)),
    *(
        case(kind, request_bodies.Fid, FID)
        for kind in (Type.STATFS, Type.READLINK, Type.CLUNK, Type.REMOVE)
    ),
    case(
        Type.LCREATE,
        lambda fid, name, flags, mode, gid: request_bodies.Create(
            fid, name, flags, stat.S_IMODE(mode), gid, exclusive=False
        ),
        FID, NAME, st.integers(0, 2), PERMISSIONS | PERMISSIONS.map(lambda mode: mode | stat.S_IFREG), ID,
    ),
    case(Type.SYMLINK, request_bodies.Symlink, FID, NAME, TEXT.filter(bool), ID),
    case(
        Type.MKNOD, request_bodies.MakeNode, FID, NAME,
        PERMISSIONS.map(lambda mode: mode | stat.S_IFBLK), st.integers(0, 4095), st.integers(0, (1 << 20) - 1), ID,
    ),
    case(Type.MKDIR, request_bodies.MakeDirectory, FID, NAME, PERMISSIONS, ID),
    case(Type.LINK, request_bodies.Link, FID, FID, NAME),
    case(Type.RENAME, request_bodies.Rename, FID, FID, NAME),
    case(Type.RENAMEAT, request_bodies.RenameAt, FID, NAME, FID, NAME),
    case(
        Type.UNLINKAT,
        lambda fid, name, flags: request_bodies.UnlinkAt(fid, name, flags == 0x200),
        FID, NAME, st.sampled_from([0, 0x200]),
    ),
    case(Type.GETATTR, lambda fid, mask: request_bodies.GetAttr(fid, mask & 0x3FFF), FID, U64),
    case(
        Type.SETATTR,
        lambda fid, valid, mode, uid, gid, size, *times: request_bodies.SetAttr(
            fid, valid, mode, uid, gid, size, times[0] * 10**9 + times[1], times[2] * 10**9 + times[3]
        ),
        FID, st.just(0x1BF), PERMISSIONS, ID, ID, st.integers(0, OFFSET_MAX), SIGNED, NANOSECONDS, SIGNED, NANOSECONDS,
    ),
    case(Type.XATTRWALK, request_bodies.XattrWalk, FID, FID, TEXT),
    case(
        Type.XATTRCREATE, request_bodies.XattrCreate, FID, TEXT.filter(bool), st.integers(0, 1 << 16),
        st.sampled_from([0, os.XATTR_CREATE, os.XATTR_REPLACE]),
    ),
    case(Type.READ, request_bodies.Read, FID, st.integers(0, OFFSET_MAX - 8181), st.integers(0, 8181)),
    case(Type.READDIR, request_bodies.Read, FID, st.integers(0, OFFSET_MAX), st.integers(279, 8181)),
    case(Type.WRITE, request_bodies.Write, FID, st.integers(0, OFFSET_MAX - 100), st.binary(max_size=100)),
    case(Type.FSYNC, lambda fid, data_only: request_bodies.Sync(fid, bool(data_only)), FID, U32),
    st.tuples(
        st.just(Type.LOCK),
        st.just(
            lambda fid, kind, flags, start, length, process, client: request_bodies.Lock(
                fid, (F_RDLCK, F_WRLCK, F_UNLCK)[kind], start, end(start, length), process, client, bool(flags & 1)
            )
        ),
        st.tuples(FID, st.integers(0, 2), st.integers(0, 3), RANGE, U32, TEXT).map(
            lambda fields: (*fields[:3], *fields[3], *fields[4:])
        ),
    ),
    st.tuples(
        st.just(Type.GETLOCK),
        st.just(
            lambda fid, kind, start, length, process, client: request_bodies.Lock(
                fid, (F_RDLCK, F_WRLCK)[kind], start, end(start, length), process, client, wait=False
            )
        ),
        st.tuples(FID, st.integers(0, 1), RANGE, U32, TEXT).map(
            lambda fields: (*fields[:2], *fields[2], *fields[3:])
        ),
    ),
)  # fmt: skip


@given(REQUEST, st.integers(0, 0xFFFF))
@settings(max_examples=600, deadline=None)
def test_what_a_client_encodes_is_what_is_decoded(request: Any, tag: int) -> None:
    kind, expected, fields = request
    frame = memoryview(encode_request(kind, tag, *fields))
    header = decode_header(frame)
    assert header == (kind, tag)
    assert Decoder(8192).decode(header, frame) == expected(*fields)


@given(FLAGS, st.integers(0, 2))
def test_flags_are_translated_one_by_one(flags: set[tuple[int, int]], mode: int) -> None:
    frame = memoryview(encode_request(Type.LOPEN, 1, 7, sum(wire for wire, _ in flags) | mode))
    own = mode
    for _, flag in flags:
        own |= flag
    assert Decoder(8192).decode(decode_header(frame), frame) == request_bodies.Open(7, own)


QID = st.builds(Qid, st.integers(0, 255), U32, U64)
TIME = st.integers(-(1 << 63) // 10**9, (1 << 63) // 10**9 * 10**9)
ATTRIBUTES = st.builds(Attributes, U32, U32, U32, U64, U64, U64, U64, U64, TIME, TIME, TIME, TIME, U64, U64, U64)


@given(QID, ATTRIBUTES)
def test_attributes_are_decoded_as_they_were_encoded(qid: Qid, attributes: Attributes) -> None:
    reply = p9_client.decode_reply(replies.attr(9, qid, attributes))
    valid, seen, *numbers = p9_client.decode_stat(reply.fields)
    assert (seen, *numbers, valid) == (qid, *attributes)


@given(st.lists(st.tuples(NAME, QID, st.integers(0, 15), st.integers(1, OFFSET_MAX))), st.integers(279, 2000))
def test_a_listing_is_decoded_as_it_was_encoded(entries: list[tuple[bytes, Qid, int, int]], size: int) -> None:
    listing = replies.DirectoryListing(size)
    count = 0
    for name, qid, kind, offset in entries:
        if not listing.add(name, qid, kind << 12, offset):
            assert len(listing.data) + 24 + len(name) > size
            break
        count += 1
    reply = p9_client.decode_reply(b"".join(replies.data(1, Type.READDIR, listing.data)))
    assert p9_client.decode_entries(reply.fields[0]) == [
        (qid, offset, kind, name) for name, qid, kind, offset in entries[:count]
    ]


FIDS, TAGS, MOST_FIDS, MOST_REQUESTS = st.integers(0, 4), st.integers(0, 5), 4, 4
ENTRY = st.tuples(FIDS, FIDS, TAGS)


class Sessions(RuleBasedStateMachine):
    """Each request is answered once, each flush after the request that it flushes, and each kept object is given back
    once, when no request can use it any more; a client may do anything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.session: Session[int] = Session(Limits(msize=4096, fids=MOST_FIDS, requests=MOST_REQUESTS))
        self.made = 0
        self.alive: set[int] = set()
        self.requests: list[Request[int]] = []
        self.holds: dict[int, list[int]] = {}
        self.open_tags: set[int] = set()
        self.waits: dict[int, int] = {}
        self.versions_due = 0
        self.say_version()

    def say_version(self) -> None:
        actions = self.session.receive(memoryview(encode_request(Type.VERSION, NO_TAG, 4096, VERSION)))
        assert {id(request) for request in actions.interrupted} <= {id(request) for request in self.requests}
        self.open_tags, self.waits = set(), {}
        self.versions_due = 1
        self.take(actions)
        assert bool(self.versions_due) == bool(self.requests)

    def take(self, actions: Actions[int]) -> list[tuple[int, int]]:
        for kept in actions.gone:
            self.alive.remove(kept)
            assert all(kept not in held for held in self.holds.values()), "a request uses it"
        data, said = b"".join(actions.output), list[tuple[int, int]]()
        while data:
            size, kind, tag = struct.unpack_from("<IBH", data)
            said.append((kind, tag))
            data = data[size:]
            if kind == Type.VERSION + 1:
                self.versions_due -= 1
                assert not self.requests
                continue
            if tag in self.waits:
                assert self.waits.pop(tag) not in self.open_tags, "what it flushes is not answered"
            self.open_tags.discard(tag)
        return said

    def ask(self, kind: int, tag: int, *fields: Any) -> None:
        frame = memoryview(encode_request(kind, tag, *fields))
        if tag in self.open_tags:
            try:
                self.session.receive(frame)
            except FormatError:
                return
            raise AssertionError("the tag is in flight")
        self.open_tags.add(tag)
        actions = self.session.receive(frame)
        if kind == Type.FLUSH and not self.versions_due and fields[0] in self.open_tags and fields[0] != tag:
            self.waits[tag] = fields[0]
            assert not actions.output
        said = self.take(actions)
        request = actions.request
        if request is None:
            assert said == [] if tag in self.waits else len(said) == 1
        else:
            assert said == []
            self.requests.append(request)
            held = (entry.kept for entry in (request.fid, request.second) if entry is not None)
            self.holds[id(request)] = list(held)
            assert set(self.holds[id(request)]) <= self.alive

    @rule()
    def version(self) -> None:
        self.say_version()

    @rule(entry=ENTRY)
    def attach(self, entry: tuple[int, int, int]) -> None:
        self.ask(Type.ATTACH, entry[2], entry[0], NO_FID, b"", b"", 0)

    @rule(entry=ENTRY, names=st.sampled_from([(), (b"a",)]))
    def walk(self, entry: tuple[int, int, int], names: tuple[bytes, ...]) -> None:
        self.ask(Type.WALK, entry[2], entry[0], entry[1], names)

    @rule(entry=ENTRY, kind=st.sampled_from([Type.CLUNK, Type.REMOVE]))
    def end(self, entry: tuple[int, int, int], kind: Type) -> None:
        self.ask(kind, entry[2], entry[0])

    @rule(entry=ENTRY)
    def open(self, entry: tuple[int, int, int]) -> None:
        self.ask(Type.LOPEN, entry[2], entry[0], 0)

    @rule(entry=ENTRY)
    def read(self, entry: tuple[int, int, int]) -> None:
        self.ask(Type.READ, entry[2], entry[0], 0, 10)

    @rule(entry=ENTRY)
    def link(self, entry: tuple[int, int, int]) -> None:
        self.ask(Type.LINK, entry[2], entry[0], entry[1], b"n")

    @rule(entry=ENTRY)
    def xattr_walk(self, entry: tuple[int, int, int]) -> None:
        self.ask(Type.XATTRWALK, entry[2], entry[0], entry[1], b"")

    @rule(tag=TAGS, flushed=TAGS)
    def flush(self, tag: int, flushed: int) -> None:
        self.ask(Type.FLUSH, tag, flushed)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), how=st.sampled_from(["done", "failed", "same", "given up"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        at = data.draw(st.integers(0, len(self.requests) - 1))
        request = self.requests.pop(at)
        waited_for = not request.interrupted
        held = self.holds.pop(id(request))
        kept = None
        if how != "failed" and request.type in (Type.ATTACH, Type.WALK, Type.LOPEN, Type.XATTRWALK):
            changes = request.type == Type.LOPEN or (
                isinstance(request.body, request_bodies.Walk) and request.body.new_fid == request.body.fid
            )
            if how == "same" and changes:
                kept = held[0]
            else:
                self.made += 1
                kept = self.made
                self.alive.add(kept)
        if how == "given up" and request.interrupted:
            self.alive.discard(self.made) if kept == self.made else None
            self.open_tags.discard(request.tag)
            self.take(self.session.abandon(request))
            return
        said = self.take(self.session.finish(request, replies.error(request.tag, 5), kept))
        if waited_for:
            assert said == [(RLERROR, request.tag)]

    @invariant()
    def counts(self) -> None:
        assert self.session.in_flight == len(self.requests) <= MOST_REQUESTS
        assert self.session.fid_count <= MOST_FIDS
        assert len(self.alive) <= MOST_FIDS + 2 * MOST_REQUESTS
        if not self.requests:
            assert self.session.fid_count == len(self.alive)

    def teardown(self) -> None:
        self.take(self.session.close())
        while self.requests:
            request = self.requests.pop()
            del self.holds[id(request)]
            assert not self.take(self.session.fail(request, 5))
        assert not self.alive
        assert self.session.fid_count == 0


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)

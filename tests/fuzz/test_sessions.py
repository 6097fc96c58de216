"""I12: whatever the bytes, the decoders of session checkpoints and journals raise `IntegrityError` or give back what
was encoded.
"""

from __future__ import annotations

import os
import struct

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import FormatError, IntegrityError, UsageError
from holdfast.model.ids import CheckpointId, hash_bytes
from holdfast.model.session_types import (
    CheckoutEvent,
    CommandEntry,
    CommandEvent,
    CommandResult,
    JournalEntry,
    MergeEvent,
    MetricEvent,
    SessionCheckpoint,
    SessionConfig,
    SessionHash,
    SessionId,
    State,
    TreeEvent,
)
from holdfast.store.codecs.session_format import (
    MAX_CONTENT_BYTES,
    decode_checkpoint,
    decode_journal,
    encode_checkpoint,
    encode_journal,
)

SYSTEM_TEXT = st.binary(max_size=12).filter(lambda raw: b"\0" not in raw).map(os.fsdecode)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
TREE = st.sampled_from([CheckpointId("a" * 24), CheckpointId("b" * 24)])
ENTRY = st.builds(
    CommandEntry,
    id=st.just("0" * 16),
    seq=st.integers(1, 1 << 40),
    input=SYSTEM_TEXT,
    command=SYSTEM_TEXT,
    generated=st.booleans(),
    level=st.sampled_from(["safe", "changes", "unknown", "risky", "dangerous"]),
    reasons=st.lists(TEXT, max_size=2).map(tuple),
    started_at=st.integers(0, 1 << 52),
    duration_ms=st.integers(0, 1 << 40),
    result=st.none() | st.builds(CommandResult, exit_code=st.integers(0, 255), stdout=TEXT, stderr=TEXT),
    before=st.none() | TREE,
    after=st.none() | TREE,
    cwd=SYSTEM_TEXT,
)
ENV = st.dictionaries(SYSTEM_TEXT, SYSTEM_TEXT, max_size=3)
STATE = st.builds(
    State,
    id=st.just(SessionId("one")),
    parent=st.none() | st.just(SessionId("two")),
    created_at=st.integers(0, 1 << 52),
    updated_at=st.integers(0, 1 << 52),
    cwd=SYSTEM_TEXT,
    env=ENV,
    unset=st.lists(SYSTEM_TEXT, max_size=2).map(tuple),
    tree=TREE,
    seq=st.integers(0, 1 << 40),
    config=st.builds(SessionConfig, timeout_seconds=st.floats(0, 1e6)),
)
POINT = st.builds(
    SessionCheckpoint,
    hash=st.just(SessionHash("")),
    session=st.just(SessionId("one")),
    parent=st.none() | st.just(SessionHash("c" * 32)),
    kind=st.sampled_from(["auto", "manual", "fork", "branch"]),
    message=TEXT,
    created_at=st.integers(0, 1 << 52),
    state=STATE,
    history=st.lists(ENTRY, max_size=3).map(tuple),
    metadata=st.dictionaries(TEXT, TEXT, max_size=2),
)
RAN = st.builds(
    CommandEvent,
    entry=ENTRY,
    ended=st.booleans(),
    cwd=SYSTEM_TEXT,
    exported=ENV,
    dropped=st.lists(SYSTEM_TEXT, max_size=2).map(tuple),
    unset=st.none() | st.lists(SYSTEM_TEXT, max_size=2).map(tuple),
)
OTHERS: list[JournalEntry] = [
    TreeEvent(tree=CheckpointId("a" * 24), at=1),
    MetricEvent(what="forks", at=2),
    CheckoutEvent(target=SessionHash("d" * 32), at=3, event=4),
    MergeEvent(target=CheckpointId("a" * 24), message="täglich", at=3, event=4, metadata={"merged": "side"}),
]
JOURNAL = st.lists(RAN | st.sampled_from(OTHERS), max_size=4)
EXAMPLE = SessionCheckpoint(
    hash=SessionHash(""),
    session=SessionId("one"),
    parent=None,
    kind="manual",
    message="a message " * 20,
    created_at=1,
    state=State(
        id=SessionId("one"), parent=None, created_at=1, updated_at=2, cwd=".", env={"A": "b" * 50}, unset=("C",),
        tree=CheckpointId("a" * 24), seq=3,
    ),
    history=(),
)  # fmt: skip
NAME, _, SOUND = encode_checkpoint(EXAMPLE)


@given(POINT)
@settings(max_examples=150, deadline=None)
def test_what_was_encoded_comes_back(point):
    name, size, data = encode_checkpoint(point)
    found = decode_checkpoint(data, name)
    assert found == msgspec.structs.replace(point, hash=name)
    assert encode_checkpoint(found) == (name, size, data), "equal content has equal bytes"
    with pytest.raises(IntegrityError, match="another one"):
        decode_checkpoint(data, SessionHash("0" * 32))


def test_what_version_1_wrote_is_read_and_is_of_no_supervised_session():
    point = msgspec.structs.replace(
        EXAMPLE, state=msgspec.structs.replace(EXAMPLE.state, config=SessionConfig(supervised=False))
    )
    content = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(encode_checkpoint(point)[2][28:]))
    assert content["state"]["config"].pop("supervised") is False
    for demand in ("never", "risky"):
        content["state"]["config"]["demand"] = demand
        old = msgspec.msgpack.encode(content, order="deterministic")
        name = SessionHash(hash_bytes(old).hex())
        assert decode_checkpoint(packed(old, b"HFS", version=1), name) == msgspec.structs.replace(point, hash=name)
        with pytest.raises(FormatError, match="demand"):
            decode_checkpoint(packed(old, b"HFS", version=2), name)
    with pytest.raises(FormatError, match="version 1"):
        decode_checkpoint(SOUND[:3] + b"\1" + SOUND[4:], NAME)


@given(JOURNAL)
@settings(max_examples=150, deadline=None)
def test_a_journal_comes_back(entries):
    assert decode_journal(encode_journal(entries)) == entries


def test_the_order_of_variables_is_of_no_account():
    state = msgspec.structs.replace(EXAMPLE.state, env={"A": "1", "B": "2"})
    other = msgspec.structs.replace(EXAMPLE.state, env={"B": "2", "A": "1"})
    encoded = [encode_checkpoint(msgspec.structs.replace(EXAMPLE, state=one)) for one in (state, other)]
    assert encoded[0] == encoded[1]


@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_any_changed_byte_is_found(at, bits):
    with pytest.raises(IntegrityError):
        decode_checkpoint(SOUND[:at] + bytes((SOUND[at] ^ bits,)) + SOUND[at + 1 :], NAME)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes(data):
    for given_ in (data, SOUND[:28] + data, SOUND[: len(data)]):
        with pytest.raises(IntegrityError):
            decode_checkpoint(given_, NAME)
        with pytest.raises(IntegrityError):
            decode_journal(given_)


def packed(content, magic=b"HFJ", version=1, length=None):
    frame = zstandard.ZstdCompressor().compress(content)
    stated = len(content) if length is None else length
    return struct.pack("<3sBQ16s", magic, version, stated, hash_bytes(frame)) + frame


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@given(JSON_LIKE)
@settings(max_examples=200, deadline=None)
def test_content_of_another_shape_is_of_a_bad_format(value):
    content = msgspec.msgpack.encode(value)
    if value == []:
        assert decode_journal(packed(content)) == []
        return
    with pytest.raises(FormatError):
        decode_journal(packed(content))
    with pytest.raises(FormatError):
        decode_checkpoint(packed(content, b"HFS"), SessionHash(hash_bytes(content).hex()))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (packed(b"\x90", version=3), "version"),
        (packed(b"\x90", magic=b"HFX"), "magic"),
        (packed(b"\x90", length=5), "length"),
        (packed(b"\x90", length=MAX_CONTENT_BYTES + 1), "length"),
        (packed(b"\x90" + b"more"), "journal"),
        (packed(b"\x91" * 100_000), "journal"),
        (packed(msgspec.msgpack.encode([{"type": "found", "tree": "a", "at": 1, "more": 2}])), "more"),
        (packed(msgspec.msgpack.encode([{"type": "found", "tree": "a"}])), "at"),
        (packed(msgspec.msgpack.encode([{"type": "else"}])), "else"),
    ],
)
def test_what_is_wrong_is_named(data, named):
    with pytest.raises(FormatError, match=named):
        decode_journal(data)


def test_an_escape_that_is_none_is_of_a_bad_format():
    ran = CommandEvent(
        entry=CommandEntry(
            id="0" * 16, seq=1, input="a", command="QQ", generated=False, level="safe", reasons=(), started_at=1
        )
    )
    content = zstandard.ZstdDecompressor().decompress(encode_journal([ran])[28:])
    with pytest.raises(FormatError, match="escape"):
        decode_journal(packed(content.replace(b"QQ", b"\\q")))


def test_a_text_that_no_system_gives_is_refused():
    with pytest.raises(UsageError):
        encode_checkpoint(msgspec.structs.replace(EXAMPLE, message="\ud800"))
    with pytest.raises(UsageError):
        encode_checkpoint(
            msgspec.structs.replace(EXAMPLE, state=msgspec.structs.replace(EXAMPLE.state, env={"A": "\ud800"}))
        )

"""I12: whatever bytes are in the undo log, its decoders answer with a value or with a typed error."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Generator
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.files.linux.file_handle import Identity
from holdfast.files.linux.metadata import Metadata
from holdfast.model.clock import SystemClock
from holdfast.model.errors import FormatError, HoldfastError, IntegrityError
from holdfast.model.ids import hash_bytes
from holdfast.undo.journal.records import (
    Begin,
    JournalRestart,
    Keeping,
    KeepMethod,
    Made,
    Make,
    Move,
    ObjectDescription,
    Remove,
    Replaced,
    ReversalPosition,
    Signature,
    Touch,
    decode,
    encode,
)
from holdfast.undo.journal.segments import Journal, read_journal
from holdfast.undo.journal.step_file import Preimage, SealedStep, StepHead, read_head, read_step, write_step
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.interrupted_reversals import sort_records
from holdfast.undo.recovery.keeper_recovery import recover

from ..sampling import examples

ONE = Identity(b"h" + bytes(12))
METADATA = Metadata(0o644, 0, 0, 5, (("user.a", b"1"),))
SIGNATURE = Signature(7, 0o40755, 0, 0, 0, 1, 2, described=ObjectDescription(0, 1000, b"h" * 16))
RECORDS = (
    Touch(2, 1, b"", ONE, 7),
    Make(3, 1, b"a", "f", 8),
    Made(4, 1, 3, ONE),
    Remove(5, 1, b"b", "f", ONE, Keeping(KeepMethod.MOVED, 5), METADATA),
    Move(6, 1, b"c", b"d", "f", ONE, Replaced("f", ONE, Keeping(KeepMethod.INLINE, 0, b"content"), METADATA)),
)
JOURNAL = (Begin(1, 1, "command", "", (b"work",), b"", 1), *RECORDS, ReversalPosition(7, 6, 0, (SIGNATURE,)))
HEAD = StepHead(
    id=1,
    kind="command",
    state="done",
    first=1,
    last=6,
    acted=6,
    run="",
    command=(b"work",),
    directory=b"",
    started_at=1,
    ended_at=2,
    exit_code=0,
    protected="",
    copied=0,
    paths=4,
    left=((b"a", None), (b"d", SIGNATURE)),
    others=(SIGNATURE,),
    preimages=(Preimage(5, 4096, None),),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.binary(max_size=20)
    | st.sampled_from(["f", "d", "command", b"../../etc", b"a\0b", b"/", b""]),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def place() -> Generator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def written_journal(place: Path) -> bytes:
    for old in place.glob("journal-*"):
        old.unlink()
    journal = Journal(os.fsencode(place))
    for record in JOURNAL:
        journal.append(record)
    journal.close()
    return (place / "journal-00000001").read_bytes()


def mutated(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    out = bytearray(data)
    for at, length, new in edits:
        out[at % (len(data) + 1) : at % (len(data) + 1) + length] = new
    return bytes(out)


EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 20), st.binary(max_size=8)), min_size=1, max_size=3)


@given(st.binary(max_size=200) | VALUES.map(msgspec.msgpack.encode))
@settings(max_examples=400, deadline=None)
def test_records(body: bytes) -> None:
    try:
        decode(body)
    except FormatError:
        pass


@given(st.integers(1, 19), st.lists(VALUES, max_size=9))
@settings(max_examples=400, deadline=None)
def test_records_of_each_kind(kind: int, fields: list[object]) -> None:
    try:
        record = decode(msgspec.msgpack.encode([kind, *fields]))
    except FormatError:
        return
    if isinstance(record, JournalRestart):
        return  # (it is the journal's own, and tells nothing)
    try:
        sort_records([record])
    except FormatError:
        pass


@given(EDITS)
@settings(max_examples=200, deadline=None)
def test_a_journal_that_was_changed(place: Path, edits: list[tuple[int, int, bytes]]) -> None:
    data = written_journal(place)
    (place / "journal-00000001").write_bytes(mutated(data, edits))
    try:
        found = read_journal(os.fsencode(place))
    except FormatError:
        return
    assert len(found.records) <= len(JOURNAL)


NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1)
SIGNATURES = st.builds(
    Signature,
    *[NUMBERS] * 7,
    check=st.binary(max_size=16),
    device=NUMBERS,
    described=st.none() | st.builds(ObjectDescription, NUMBERS, NUMBERS, st.binary(max_size=16)),
)


@given(st.lists(SIGNATURES, max_size=3), st.integers(5, 10))
@settings(max_examples=200, deadline=None)
def test_signatures_are_read_as_they_were_written_and_shorter_ones_of_earlier_versions(
    left: list[Signature], fields: int
) -> None:
    record = ReversalPosition(9, 8, 0, tuple(left))
    assert decode(encode(record)) == record
    *head, signatures = msgspec.msgpack.decode(encode(record))
    shorter = decode(msgspec.msgpack.encode([*head, [one[:fields] for one in signatures]]))
    assert isinstance(shorter, ReversalPosition)
    whole, part = (list(map(msgspec.structs.astuple, one)) for one in (left, shorter.left))
    assert [one[:fields] for one in part] == [one[:fields] for one in whole]
    assert all(one.described is None for one in shorter.left if fields < 10)


@given(st.integers(0, 9), VALUES)
@settings(max_examples=300, deadline=None)
def test_a_signature_with_any_value_in_a_field(field: int, value: object) -> None:
    *head, (signature,) = msgspec.msgpack.decode(encode(ReversalPosition(9, 8, 0, (SIGNATURE,))))
    signature[field] = value
    try:
        record = decode(msgspec.msgpack.encode([*head, [signature]]))
    except FormatError:
        return
    assert isinstance(record, ReversalPosition)
    assert isinstance(record.left[0].described, ObjectDescription | None)


def test_a_journal_that_ends_anywhere_is_torn_there(place: Path) -> None:
    """Case 2."""
    data = written_journal(place)
    lengths: list[int] = []
    for end in range(16, len(data) + 1):
        (place / "journal-00000001").write_bytes(data[:end])
        lengths.append(len(read_journal(os.fsencode(place)).records))
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(JOURNAL)


def test_every_flipped_bit_but_in_the_last_record_is_damage(place: Path) -> None:
    data = written_journal(place)
    whole = read_journal(os.fsencode(place)).records
    for at in range(16, len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        (place / "journal-00000001").write_bytes(changed)
        try:
            found = read_journal(os.fsencode(place))
        except FormatError:
            continue
        assert found.torn
        assert found.records == whole[: len(found.records)]
        assert len(found.records) == len(whole) - 1


def test_lengths_that_lie_take_no_memory(place: Path) -> None:
    head = written_journal(place)[:16]
    for size in (0, 1, 1 << 24, (1 << 24) + 1, (1 << 32) - 1):
        (place / "journal-00000001").write_bytes(head + struct.pack("<II", size, 0) + bytes(100))
        assert read_journal(os.fsencode(place)).records == []


def test_a_journal_full_of_lengths_is_read_in_bounded_time(place: Path) -> None:
    head = written_journal(place)[:16]
    # Each position looks like a record of 64 KiB: only so much of them is summed up.
    (place / "journal-00000001").write_bytes(head + b"\0\xff\0\0" * 100_000)
    assert read_journal(os.fsencode(place)).torn


def written_step(place: Path) -> Path:
    write_step(os.fsencode(place), b"step", SealedStep(HEAD, RECORDS))
    return place / "step"


@given(EDITS, st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_step_that_was_changed(place: Path, edits: list[tuple[int, int, bytes]], is_signed: bool) -> None:
    path = written_step(place)
    data = mutated(path.read_bytes(), edits)
    if is_signed:
        data = data[:8] + hash_bytes(data[24:]) + data[24:]
    path.write_bytes(data)
    for read in (read_head, read_step):
        try:
            read(os.fsencode(path))
        except IntegrityError:
            pass


def test_a_step_whose_records_swell_is_refused(place: Path) -> None:
    path = written_step(place)
    head = msgspec.msgpack.encode(HEAD)
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    for claimed in (1000, (1 << 30) + 1, (1 << 64) - 1):
        body = struct.pack("<Q", len(head)) + head + struct.pack("<Q", claimed) + bomb
        path.write_bytes(b"HFUS\0\0\0\1" + hash_bytes(body) + body)
        with pytest.raises(FormatError):
            read_step(os.fsencode(path))


@given(st.lists(st.lists(VALUES, max_size=9).flatmap(lambda more: st.integers(1, 18).map(lambda kind: [kind, *more]))))
@settings(max_examples=examples(100, 30), deadline=None)
def test_a_log_is_opened_and_recovered_or_refused(bodies: list[list[object]]) -> None:
    """I7: whatever paths the records name, nothing beside the tree is touched."""
    with tempfile.TemporaryDirectory() as base:
        tree, log = Path(base) / "tree", Path(base) / "log"
        tree.mkdir()
        log.mkdir()
        frames = b"".join(_frame(msgspec.msgpack.encode(body)) for body in bodies)
        (log / "journal-00000001").write_bytes(b"HFUJ\0\0\0\1" + struct.pack("<Q", 1) + frames)
        root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
        try:
            opened = UndoLog(os.fsencode(log), root, SystemClock())
            try:
                recover(opened)
            finally:
                opened.close()
        except HoldfastError:
            pass
        finally:
            os.close(root)
        assert sorted(os.listdir(base)) == ["log", "tree"]


def _frame(body: bytes) -> bytes:
    return struct.pack("<II", len(body), crc32(body, crc32(struct.pack("<I", len(body))))) + body

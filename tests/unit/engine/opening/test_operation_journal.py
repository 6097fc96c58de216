"""I3: the record of an operation, byte by byte, and the notes of older versions that stand for one."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from holdfast.engine.opening.operation_journal import (
    Operation,
    OperationNotes,
    read_operation,
    refuse_unfinished,
    remove_operation,
    reverses_steps,
    write_operation,
)
from holdfast.model.errors import FormatError, RefusedError
from holdfast.model.ids import CheckpointId, hash_bytes

from ....older_notes import age, write_restore_journal, write_undo_note

if TYPE_CHECKING:
    from pathlib import Path

TARGET, RESCUE = CheckpointId("a" * 32), CheckpointId("b" * 32)
RESTORE = Operation("restore", TARGET, RESCUE, 7, None, (b"d", b"\xff"), "0123", 5, 6, undo_seq=9)
STEPS = Operation("undo", CheckpointId(""), position=7, redo_tip=8, steps=(3, 2, -1), acted=40)

paths = some.lists(some.binary(min_size=1, max_size=9).filter(lambda path: b"\0" not in path), max_size=3).map(tuple)
number = some.none() | some.integers(0, 1 << 62)
checkpoint = some.none() | some.just(RESCUE)
operations = some.builds(
    Operation,
    kind=some.sampled_from(["restore", "undo", "redo", "fork"]),
    target=some.just(TARGET),
    rescue=checkpoint,
    position=number,
    state=number,
    paths=paths,
    nonce=some.text("0123456789abcdef", max_size=8),
    at=some.integers(0, 1 << 62),
    redo_tip=number,
    taken_back=checkpoint,
    in_place=paths,
    opened=paths.map(lambda found: tuple((path, 0o755) for path in found)),
    undo_seq=number,
    steps=some.lists(some.integers(-9, 99), max_size=3).map(tuple),
    acted=some.integers(0, 99),
)


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path)


def names(folder: bytes) -> set[bytes]:
    return set(os.listdir(folder))


@given(operations)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(folder: bytes, operation: Operation) -> None:
    write_operation(folder, operation)
    assert read_operation(folder) == operation
    remove_operation(folder, operation)
    assert read_operation(folder) is None
    assert names(folder) == set()


def test_the_record_is_as_specified(folder: bytes) -> None:
    write_operation(folder, RESTORE)
    with open(os.path.join(folder, b"operation"), "rb") as file:
        head, _, body = file.read().partition(b"\n")
    assert head == b"HFOP 1 " + hash_bytes(body).hex().encode()
    assert os.stat(os.path.join(folder, b"operation")).st_mode & 0o777 == 0o600
    assert json.loads(body) == {
        "kind": "restore",
        "target": TARGET,
        "rescue": RESCUE,
        "position": 7,
        "state": None,
        "paths": ["d", "\\xff"],
        "nonce": "0123",
        "at": 5,
        "redo_tip": 6,
        "taken_back": None,
        "in_place": [],
        "opened": [],
        "undo_seq": 9,
        "steps": [],
        "acted": 0,
    }


@pytest.mark.parametrize("operation", [RESTORE, STEPS])
def test_every_byte_is_looked_at(folder: bytes, operation: Operation) -> None:
    write_operation(folder, operation)
    path = os.path.join(folder, b"operation")
    with open(path, "rb") as file:
        whole = file.read()
    for at in range(len(whole)):
        with open(path, "wb") as file:
            file.write(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        with pytest.raises(FormatError, match="operation"):
            read_operation(folder)
        assert reverses_steps(folder), "what finishes it says what is wrong"


@pytest.mark.parametrize("gone", Operation._fields)
def test_a_field_that_is_missing_or_of_another_kind_is_named(folder: bytes, gone: str) -> None:
    write_operation(folder, RESTORE)
    with open(os.path.join(folder, b"operation"), "rb") as file:
        fields: dict[str, Any] = json.loads(file.read().partition(b"\n")[2])
    del fields[gone]
    body = json.dumps(fields).encode() + b"\n"
    with open(os.path.join(folder, b"operation"), "wb") as file:
        file.write(b"HFOP 1 " + hash_bytes(body).hex().encode() + b"\n" + body)
    with pytest.raises(FormatError, match=gone):
        read_operation(folder)


def test_what_is_opened_and_written_in_place_is_noted_before(folder: bytes) -> None:
    write_operation(folder, RESTORE)
    notes = OperationNotes(folder, RESTORE, [])
    notes.opening({b"d": 0o555})
    notes.in_place(b"m")
    notes.in_place(b"n")
    assert read_operation(folder) == RESTORE._replace(opened=((b"d", 0o555),), in_place=(b"m", b"n"))
    assert notes.opened == {b"d": 0o555}


OLD = {
    "operation": "restore",
    "target": TARGET,
    "rescue": RESCUE,
    "position": 7,
    "state": None,
    "paths": ["d", "\\xff"],
    "nonce": "0123",
    "at": 5,
}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, RESTORE._replace(redo_tip=None, undo_seq=None)),
        ({"redo_tip": 6, "undo_seq": 9}, RESTORE),
        ({"operation": "undo", "state": 4, "taken_back": TARGET}, {"kind": "undo", "state": 4, "taken_back": TARGET}),
        ({"operation": "redo", "state": 4}, {"kind": "redo", "state": 4}),
        ({"operation": "fork", "rescue": None, "position": None}, {"kind": "fork", "rescue": None, "position": None}),
        ({"in_place": ["m"], "opened": [["d", "555"]]}, {"in_place": (b"m",), "opened": ((b"d", 0o555),)}),
    ],
)
def test_a_restore_journal_of_an_older_version_is_read(
    folder: bytes, more: dict[str, Any], expected: Operation | dict[str, Any]
) -> None:
    write_restore_journal(folder, OLD | more)
    if isinstance(expected, dict):
        expected = RESTORE._replace(redo_tip=None, undo_seq=None)._replace(**expected)
    assert read_operation(folder) == expected
    assert not reverses_steps(folder)
    with pytest.raises(RefusedError, match="cut short") as caught:
        refuse_unfinished(folder)
    assert caught.value.code == "unfinished_restore"
    remove_operation(folder, expected)
    assert names(folder) == set()


@pytest.mark.parametrize(
    ("kind", "numbers", "expected"),
    [
        ("undo", (7, 8, 0, 40, 3, 2, -1), STEPS),
        ("redo", (7, 8, 6, 40, 3), STEPS._replace(kind="redo", state=6, steps=(3,))),
        ("redo", (7, 8, 0, 40, 3, 4), STEPS._replace(kind="redo", steps=(3, 4))),
    ],
)
def test_an_undo_note_of_an_older_version_is_read(
    folder: bytes, kind: str, numbers: tuple[int, ...], expected: Operation
) -> None:
    write_undo_note(folder, kind, numbers)
    assert read_operation(folder) == expected
    assert reverses_steps(folder)
    with pytest.raises(RefusedError, match="was cut short") as caught:
        refuse_unfinished(folder)
    assert caught.value.code == "unfinished_undo"
    remove_operation(folder, expected)
    assert names(folder) == set()


@pytest.mark.parametrize(
    ("kind", "numbers"), [("undo", (7, 8, 0, 40)), ("undo", (7,)), ("restore", (7, 8, 0, 40, 3)), ("", ())]
)
def test_an_undo_note_with_another_body_is_refused(folder: bytes, kind: str, numbers: tuple[int, ...]) -> None:
    write_undo_note(folder, kind, numbers)
    with pytest.raises(FormatError, match="undoing"):
        read_operation(folder)


@pytest.mark.parametrize("more", [{"target": None, "operation": None}, {"paths": 3}, {"opened": [["d"]]}, {"at": "x"}])
def test_a_restore_journal_with_a_bad_field_is_refused(folder: bytes, more: dict[str, Any]) -> None:
    write_restore_journal(folder, OLD | more)
    with pytest.raises(FormatError, match="restore"):
        read_operation(folder)


@pytest.mark.parametrize("operation", [RESTORE, STEPS])
def test_a_record_takes_the_place_of_an_old_note_of_the_same(folder: bytes, operation: Operation) -> None:
    write_operation(folder, operation)
    assert age(folder)
    (old,) = names(folder)
    assert old in (b"restore", b"undoing")
    write_operation(folder, operation._replace(in_place=(b"m",)))
    assert names(folder) == {b"operation"}


def test_killed_while_it_takes_the_place_the_record_counts(folder: bytes) -> None:
    write_operation(folder, RESTORE)
    write_restore_journal(folder, OLD | {"operation": "undo"})
    assert read_operation(folder) == RESTORE
    remove_operation(folder, RESTORE)
    assert names(folder) == set()


def test_what_an_older_version_began_after_a_record_is_not_lost(folder: bytes) -> None:
    write_operation(folder, RESTORE)
    write_restore_journal(folder, OLD | {"nonce": "4567"})
    with pytest.raises(RefusedError, match="older version") as caught:
        read_operation(folder)
    assert caught.value.hint
    assert names(folder) == {b"operation", b"restore"}
    os.unlink(os.path.join(folder, b"restore"))
    assert read_operation(folder) == RESTORE


def test_an_undo_note_waits_for_what_is_unfinished_beside_it(folder: bytes) -> None:
    write_undo_note(folder, "undo", (7, 8, 0, 40, 3, 2, -1))
    write_restore_journal(folder, OLD | {"redo_tip": 6, "undo_seq": 9})
    assert read_operation(folder) == RESTORE
    write_operation(folder, RESTORE)
    assert names(folder) == {b"operation", b"undoing"}
    assert read_operation(folder) == RESTORE
    remove_operation(folder, RESTORE)
    assert read_operation(folder) == STEPS

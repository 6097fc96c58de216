"""What older versions left in place of an operation record: ``docs/formats/restore-journal.md``, ``undo-note.md``."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from holdfast.engine.opening.operation_journal import read_operation, remove_operation
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def write_restore_journal(folder: bytes, fields: Mapping[str, Any]) -> None:
    """Leave a restore journal of these fields."""
    _write(folder, b"restore", b"HFRJ 1 ", json.dumps(fields).encode() + b"\n")


def write_undo_note(folder: bytes, kind: str, numbers: Sequence[int]) -> None:
    """Leave an undo note: its first word, and the others."""
    _write(folder, b"undoing", b"HFUN 1 ", " ".join((kind, *map(str, numbers))).encode() + b"\n")


def age(folder: bytes) -> bool:
    """Put the note in the place of the record of an operation that an older version would have left; False if none is
    unfinished.
    """
    found = read_operation(folder)
    if found is None:
        return False
    remove_operation(folder, found)
    if found.steps:
        assert found.position is not None
        assert found.redo_tip is not None
        write_undo_note(
            folder, found.kind, (found.position, found.redo_tip, found.state or 0, found.acted, *found.steps)
        )
        return True
    fields = {
        "operation": found.kind,
        "target": found.target,
        "rescue": found.rescue,
        "position": found.position,
        "state": found.state,
        "paths": [display(path) for path in found.paths],
        "nonce": found.nonce,
        "at": found.at,
        "redo_tip": found.redo_tip,
        "taken_back": found.taken_back,
        "opened": [[display(path), f"{mode:o}"] for path, mode in found.opened],
        "in_place": [display(path) for path in found.in_place],
        "undo_seq": found.undo_seq,
    }
    write_restore_journal(folder, fields)
    return True


def _write(folder: bytes, name: bytes, magic: bytes, body: bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(magic + hash_bytes(body).hex().encode() + b"\n" + body)

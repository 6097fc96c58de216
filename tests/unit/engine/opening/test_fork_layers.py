"""What the note of a mounted fork says, and what is made of one that says something else."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.engine.opening import fork_layers
from holdfast.engine.opening.fork_layers import ForkNote
from holdfast.model.errors import FormatError
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from pathlib import Path

NOTE = ForkNote("c" * 26, "ab" * 16, 7, 1_700_000_000_000_000, 0, 5, 0o2755, 0o755, "trusted")


@pytest.mark.parametrize("note", [NOTE, NOTE._replace(attributes="user", became=(1, 2**63 + 1))])
def test_it_is_read_as_it_was_written(tmp_path: Path, note: ForkNote) -> None:
    fork_layers.write_note(os.fsencode(tmp_path), note)
    assert fork_layers.read_note(os.fsencode(tmp_path)) == note
    fork_layers.remove_note(os.fsencode(tmp_path))
    assert fork_layers.read_note(os.fsencode(tmp_path)) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("checkpoint", None),
        ("root", "xy"),
        ("pin", "7"),
        ("pin", True),
        ("uid", 1.0),
        ("attributes", "security"),
        ("became", [1]),
        ("became", "no"),
    ],
)
def test_a_field_of_another_kind_is_named(tmp_path: Path, field: str, value: object) -> None:
    lay(tmp_path, json.dumps(NOTE._asdict() | {field: value}))
    with pytest.raises(FormatError, match=f"says something else than it should: .*{'' if field == 'root' else field}"):
        fork_layers.read_note(os.fsencode(tmp_path))


@pytest.mark.parametrize("body", ["", "null", "[]", "3", "{}", "[" * 4000, '{"pin": NaN}', "\udcff"])
def test_what_is_no_note_is_an_error_of_format(tmp_path: Path, body: Any) -> None:
    lay(tmp_path, body)
    with pytest.raises(FormatError):
        fork_layers.read_note(os.fsencode(tmp_path))


def lay(folder: Path, body: str) -> None:
    content = body.encode(errors="surrogateescape")
    (folder / "fork").write_bytes(b"HFMF 1 " + hash_bytes(content).hex().encode() + b"\n" + content)

"""A log of another version is not touched, until a person says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.model.errors import LockedError
from holdfast.undo.undoing import undo
from holdfast.undo.version import VersionMismatchError, discard_log

from .conftest import Bench


def snapshot(bench: Bench) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in bench.directory.rglob("*") if path.is_file()}


def test_a_log_of_another_version(bench: Bench) -> None:
    (bench.tree / "file").write_bytes(b"content")
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.unlink(b"file"))
        (bench.tree / "file").write_bytes(b"a stranger's")
        undo(log, [step], force=True)
    (bench.directory / "version").write_bytes(b"HFUNDO 2\n")
    before = snapshot(bench)
    with pytest.raises(VersionMismatchError) as mismatch, bench.keeper():
        pass
    assert mismatch.value.code == "undo_version_mismatch"
    assert snapshot(bench) == before
    discard_log(os.fsencode(bench.directory))
    with bench.keeper() as log:
        assert log.heads == {}
        (aside,) = (bench.directory / "aside").iterdir()
        assert aside.read_bytes() == b"content"


def test_a_log_that_is_kept_is_not_discarded(bench: Bench) -> None:
    with bench.keeper(), pytest.raises(LockedError):
        discard_log(os.fsencode(bench.directory))


def test_a_damaged_step_is_left_out_and_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with bench.keeper() as log:
        steps = [bench.step(log, lambda actor, name=name: actor.write(name, b"x")) for name in (b"a", b"b")]
    path = bench.directory / "steps" / f"{steps[0]:08d}"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with bench.keeper() as log:
        assert list(log.heads) == [steps[1]]
        assert "is damaged" in caplog.text
        undo(log, [steps[1]])
    caplog.clear()

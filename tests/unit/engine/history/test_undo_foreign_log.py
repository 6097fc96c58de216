"""Undo and redo beside a log of another version, and beside one that was lost: no step is taken for another."""

from __future__ import annotations

import logging
import os
import shutil

import pytest

from holdfast.engine.opening.undo_log import log_directory, prepare_log
from holdfast.engine.running.run import begin_run, end_run
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.undo.journal.log_ownership import VersionMismatchError, is_half_done, last_of_others, lock_log


def become_another_version(bench):
    with open(os.path.join(log_directory(bench.context), b"version"), "wb") as file:
        file.write(b"HFUNDO 9\n")


def refused(call, *arguments, **named):
    with pytest.raises(VersionMismatchError) as mismatch:
        call(*arguments, **named)
    assert "holdfast steps --discard" in (mismatch.value.hint or "")


def test_undo_goes_by_checkpoints_to_what_the_other_log_has_recorded_last(bench, caplog):
    bench.step(lambda actor: (actor.write(b"f", b"1"), actor.unlink(b"cache/old")))
    bench.workspace.checkpoint()
    (bench.tree / "g").write_text("by hand")
    bench.workspace.checkpoint()
    bench.seen.append(bench.look())
    become_another_version(bench)
    bench.step(lambda actor: actor.write(b"cache/new", b"2"))
    bench.workspace.undo()
    bench.check(-2)
    bench.workspace.undo()
    assert not (bench.tree / "g").exists()
    for dry_run in (False, True):
        refused(bench.workspace.undo, dry_run=dry_run)
        refused(bench.workspace.undo, 2, dry_run=dry_run)
    bench.check_files(1)
    caplog.clear()
    bench.workspace.undo(force=True)
    assert (bench.tree / "f").read_text() == "0"
    assert not (bench.tree / "cache/old").exists()
    assert "ignored files" in caplog.text


def test_a_run_in_the_other_log_is_refused_whether_its_end_was_noted_or_not(bench, caplog):
    ended = begin_run(bench.context, "do things")
    bench.step(lambda actor: actor.write(b"f", b"1"), run=ended)
    end_run(bench.context, ended, "do things")
    cut_off = begin_run(bench.context, "do more")
    bench.step(lambda actor: actor.unlink(b"cache/old"), run=cut_off)
    become_another_version(bench)
    ours = begin_run(bench.context, "do yet more")
    step = bench.step(lambda actor: actor.write(b"f", b"2"), run=ours)
    end_run(bench.context, ours, "do yet more")
    assert list(bench.workspace.undo(run="").steps) == [step]
    refused(bench.workspace.undo, run=ended)
    refused(bench.workspace.undo, run=cut_off)
    refused(bench.workspace.undo, run="")
    bench.workspace.undo(run=ended, force=True)
    assert (bench.tree / "f").read_text() == "0"
    assert "ignored files" in caplog.text


def test_a_step_of_a_log_that_is_made_anew_is_none_that_the_history_names(bench, caplog):
    first = bench.step(lambda actor: actor.write(b"f", b"1"))
    bench.workspace.undo()
    shutil.rmtree(log_directory(bench.context))
    second = bench.step(lambda actor: actor.write(b"g", b"1"))
    assert second > first
    bench.workspace.undo()
    bench.workspace.discard_steps()
    with pytest.raises(NotFoundError):
        bench.workspace.redo(step=first)
    assert bench.step(lambda actor: actor.write(b"h", b"1")) > second
    assert "undo log" not in caplog.text


def test_after_a_log_of_another_version_was_discarded_no_step_is_taken_for_one_of_it(bench):
    first = bench.step(lambda actor: actor.write(b"f", b"1"))
    bench.workspace.undo()
    become_another_version(bench)
    bench.workspace.discard_steps()
    second = bench.step(lambda actor: actor.write(b"g", b"1"))
    assert second > first
    with pytest.raises(NotFoundError):
        bench.workspace.redo(step=first)
    assert list(bench.workspace.undo().steps) == [second]


def test_what_another_version_has_left_half_done_is_said_and_left(bench, caplog):
    bench.step(lambda actor: actor.write(b"f", b"1"), ends=False)
    become_another_version(bench)
    directory = log_directory(bench.context)
    assert is_half_done(directory)
    caplog.set_level(logging.WARNING)
    bench.workspace.checkpoint()
    assert "recovery is needed" in caplog.text
    assert (bench.tree / "f").read_text() == "1"
    with pytest.raises(HoldfastError) as mismatch:
        bench.step(lambda actor: actor.write(b"g", b"1"))
    assert "that version alone" in mismatch.value.message
    with open(os.path.join(directory, b"version"), "wb") as file:
        file.write(b"HFUNDO 1\n")
    bench.workspace.undo(step=bench.step(lambda actor: actor.write(b"g", b"1")))
    assert (bench.tree / "f").read_text() == "0"


def test_a_log_that_another_version_keeps_is_left_to_it(bench, monkeypatch):
    monkeypatch.setattr("holdfast.engine.opening.undo_log._MOVING_SECONDS", 0.0)
    bench.step(lambda actor: actor.write(b"f", b"1"))
    become_another_version(bench)
    directory = log_directory(bench.context)
    lock = lock_log(directory)
    try:
        refused(prepare_log, bench.context)
        assert last_of_others(directory) is None
    finally:
        os.close(lock)
    prepare_log(bench.context)
    assert last_of_others(directory) is not None

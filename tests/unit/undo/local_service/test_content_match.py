"""What a step left is known again where somebody has put it back, and is not confused with what a later step made."""

from __future__ import annotations

from ..conftest import Bench, redo, undo


def test_a_directory_that_a_later_step_made_again_is_not_the_first_one(bench: Bench) -> None:
    with bench.keeper() as log:
        made = bench.step(log, lambda actor: actor.mkdir(b"d"))
        removed = bench.step(log, lambda actor: actor.rmdir(b"d"))
        again = bench.step(log, lambda actor: actor.mkdir(b"d"))
        assert undo(log, [made, removed, again]).conflicts == ()
    assert not (bench.tree / "d").exists()


def test_a_directory_that_somebody_made_again_stands_for_the_first_one(bench: Bench) -> None:
    with bench.keeper() as log:
        made = bench.step(log, lambda actor: actor.mkdir(b"d", 0o755))
        (bench.tree / "d").rmdir()
        (bench.tree / "d").mkdir(0o755)
        (bench.tree / "d").chmod(0o755)
        assert undo(log, [made]).conflicts == ()
    assert not (bench.tree / "d").exists()


def test_a_directory_that_another_step_of_the_same_undo_gave_back_is_not_taken_for_one_in_between(bench: Bench) -> None:
    (bench.tree / "d").mkdir()
    with bench.keeper() as log:
        removed = bench.step(log, lambda actor: actor.rmdir(b"d"))
        made = bench.step(log, lambda actor: actor.mkdir(b"d"))
        again = bench.step(log, lambda actor: actor.rmdir(b"d"))
        steps = [removed, made, again]
        assert undo(log, steps).conflicts == ()
        assert redo(log, steps).conflicts == ()
        assert not (bench.tree / "d").exists()
        assert undo(log, steps).conflicts == ()
    assert (bench.tree / "d").is_dir()

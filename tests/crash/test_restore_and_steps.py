"""I6, I8: steps between a restore that was killed and what mends it: what they have changed stays, and the mended
restore is the newest change.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast.engine.running.run import begin_run, end_run
from holdfast.testing.crash_points import run_killed, without_syncs
from holdfast.testing.workspace_step import do_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import RestoreResult
    from holdfast.testing.tree_actor import InterceptedActor

FILES = 20
FIRST = {f"f{number:02}": f"first {number}" for number in range(FILES)}
SECOND = {f"f{number:02}": f"second {number}" for number in range(FILES)}

WORK: dict[str, Callable[[InterceptedActor], object]] = {
    "a new file": lambda actor: actor.write(b"new", b"step"),
    "files that were brought back already, and are to be": lambda actor: [
        actor.write(name.encode(), b"step") for name in FIRST
    ],
    "one that is gone": lambda actor: actor.unlink(b"f19"),
    "an ignored file": lambda actor: actor.write(b"cache/new", b"step"),
}

GOING: dict[str, Callable[[Workspace], object]] = {
    "restore": lambda workspace: workspace.restore("first"),
    "undo": lambda workspace: workspace.undo(),
}


class Bench:
    """A workspace with two checkpoints, and what leads to the first, killed half way."""

    def __init__(self, base: Path, go: Callable[[Workspace], object]) -> None:
        self.tree = base / "tree"
        self._home = base / "home"
        (self.tree / "cache").mkdir(parents=True)
        (self.tree / ".gitignore").write_text("cache\n")
        holdfast.init(self.tree, home=self._home).close()
        for label, files in (("first", FIRST), ("second", SECOND)):
            self._lay(files)
            with self.open() as workspace:
                workspace.checkpoint(label)
        for fatal in range(40, 400, 3):
            run_killed(lambda: self.do(go), fatal)
            if len({text.split()[0] for name, text in self.look().items() if name in FIRST}) == 2:
                return
            with self.open() as workspace:
                if workspace.unfinished() is not None:
                    workspace.restore_abort()
        raise AssertionError("it was never half way")

    def _lay(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.tree / name).write_text(text)

    def open(self) -> Workspace:
        return holdfast.open(self.tree, home=self._home)

    def do(self, work: Callable[[Workspace], Any]) -> Any:
        with self.open() as workspace:
            return work(workspace)

    def step(self, work: Callable[[InterceptedActor], object]) -> int:
        with self.open() as workspace:
            context = workspace._context
            run = begin_run(context, "do things")
            step = do_step(context, work, run=run)
            end_run(context, run, "do things")
        return step

    def look(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.tree)): path.read_text()
            for path in sorted(self.tree.rglob("*"))
            if path.is_file() and not path.name.startswith((".gitignore", ".holdfast.tmp-"))
        }


@pytest.fixture(params=["restore"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with without_syncs():
        yield Bench(tmp_path, GOING[request.param])


def mend(workspace: Workspace, way: str) -> RestoreResult:
    return workspace.restore_continue() if way == "continue" else workspace.restore_abort()


@pytest.mark.parametrize("way", ["continue", "abort"])
@pytest.mark.parametrize("kind", WORK)
def test_what_mends_a_restore_after_a_step_is_the_newest_change(bench: Bench, kind: str, way: str) -> None:
    half_way = bench.look()
    step = bench.step(WORK[kind])
    before = bench.look()
    result = bench.do(lambda workspace: mend(workspace, way))
    after = bench.look()
    by_step = {name for name in FIRST if before.get(name) != half_way[name]}
    assert {os.fsdecode(path) for path, _ in result.skipped} == by_step
    there = {**(FIRST if way == "continue" else SECOND), **before}
    there |= {name: text for name, text in (FIRST if way == "continue" else SECOND).items() if name not in by_step}
    assert after == {name: text for name, text in there.items() if name in before or name not in by_step}
    if by_step == set(FIRST):
        assert (after, result.undo_command) == (before, None)
        assert bench.do(lambda workspace: workspace.undo(recorded_only=True)).steps == (step,)
        assert bench.look() == half_way
        return
    assert result.undo_command == "holdfast undo"
    undone = bench.do(lambda workspace: workspace.undo(recorded_only=True))
    assert (bench.look(), undone.steps) == (before, ())
    bench.do(lambda workspace: workspace.redo())
    assert bench.look() == after
    bench.do(lambda workspace: workspace.undo())
    assert bench.do(lambda workspace: workspace.undo(recorded_only=True)).steps == (step,)
    assert bench.look() == half_way


@pytest.mark.parametrize("way", ["continue", "abort"])
@pytest.mark.parametrize("bench", ["undo"], indirect=True)
def test_what_mends_an_undo_by_checkpoints_after_a_step_is_the_newest_change(bench: Bench, way: str) -> None:
    step = bench.step(WORK["a new file"])
    before = bench.look()
    assert bench.do(lambda workspace: mend(workspace, way)).undo_command == "holdfast undo"
    assert bench.look() == {"new": "step", **(FIRST if way == "continue" else SECOND)}
    bench.do(lambda workspace: workspace.undo())
    assert bench.look() == before
    assert bench.do(lambda workspace: workspace.undo()).steps == (step,)


@pytest.mark.parametrize("way", ["continue", "abort"])
def test_what_mends_a_restore_after_a_step_and_is_killed_is_still_the_newest_change(bench: Bench, way: str) -> None:
    bench.step(WORK["one that is gone"])
    bench.step(WORK["a new file"])
    seen = [bench.look()]
    while bench.do(lambda workspace: workspace.unfinished()) is not None:
        run_killed(lambda: bench.do(lambda workspace: mend(workspace, way)), 1 + 7 * len(seen))
        seen.append(bench.look())
    there = {"new": "step", **(FIRST if way == "continue" else SECOND)}
    assert bench.look() == {name: text for name, text in there.items() if name != "f19"}
    bench.do(lambda workspace: workspace.undo())
    assert bench.look() == [each for each in seen if each != seen[-1]][-1]


def test_without_steps_in_between_it_is_one_change_with_what_was_done_before(bench: Bench) -> None:
    bench.do(lambda workspace: workspace.restore_continue())
    assert bench.look() == FIRST
    bench.do(lambda workspace: workspace.undo())
    assert bench.look() == SECOND
    assert os.listdir(bench.tree / "cache") == []

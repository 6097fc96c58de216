"""I3: undo and redo by the undo log, killed anywhere; whatever is asked for next, they are finished or were not begun,
the history knows, and nothing is done twice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening.operation_journal import reverses_steps
from holdfast.engine.running.run import begin_run, end_run
from holdfast.testing.crash_points import MUTATIONS, run_killed, without_syncs
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.testing.workspace_step import do_step

from ..older_notes import age
from ..sampling import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import RestoreResult
    from holdfast.testing.tree_actor import InterceptedActor

CALLS = [call for call in MUTATIONS if call != (os, "mkdir")]
"""(To open a workspace makes hundreds of directories that are there.)"""
EVERY = 3
"""Of so many changes it is killed at one."""
LAST = 7
"""So many of those at the end are always among them."""


def first(actor: InterceptedActor) -> None:
    actor.write(b"n", b"1")
    actor.unlink(b"cache/old")


def second(actor: InterceptedActor) -> None:
    actor.write(b"f", b"2")
    actor.write(b"cache/new", b"2")
    actor.unlink(b"g")


class Bench:
    """A workspace with a run of two steps, done or undone. It is never copied: the undo log knows files by inode."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self._home = base / "home"
        (self.tree / "cache").mkdir(parents=True)
        for name, content in ((".gitignore", "cache\n"), ("cache/old", "old"), ("f", "0"), ("g", "0")):
            (self.tree / name).write_text(content)
        holdfast.init(self.tree, home=self._home).close()
        with self.open() as workspace:
            context = workspace._context
            run = begin_run(context, "do things")
            self.seen = [self.look()]
            for work in (first, second):
                do_step(context, work, run=run)
                self.seen.append(self.look())
            end_run(context, run, "do things")

    def open(self) -> Workspace:
        return holdfast.open(self.tree, home=self._home)

    def do(self, work: Callable[[Workspace], object]) -> None:
        with self.open() as workspace:
            work(workspace)

    def look(self) -> dict[bytes, PathState]:
        return photograph(os.fsencode(self.tree))

    def is_at(self, state: int) -> bool:
        """Whether the tree is as after that many steps."""
        return differences(self.seen[state], self.look()) == []

    def has_note(self) -> bool:
        """Whether something is left to finish, or to tell of."""
        return any(reverses_steps(os.fsencode(folder)) for folder in self._home.glob("workspaces/*"))

    def update(self) -> None:
        """Leave what an older version that was killed has left, and this one finds."""
        for folder in self._home.glob("workspaces/*"):
            age(os.fsencode(folder))

    def last(self) -> str:
        """The newest thing that the history knows of."""
        with self.open() as workspace:
            return next(event.operation for event in workspace.log().events)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with without_syncs():
        yield Bench(tmp_path)


GOING: dict[str, tuple[int, int, Callable[..., RestoreResult]]] = {
    "undo": (2, 1, lambda workspace, **options: workspace.undo(**options)),
    "undo of a run": (2, 0, lambda workspace, **options: workspace.undo(run="", **options)),
    "redo": (1, 2, lambda workspace, **options: workspace.redo(**options)),
    "redo of a step": (1, 2, lambda workspace, **options: workspace.redo(step=2, **options)),
}
"""What is killed, with the number of the steps that are done before it and after it."""


def save_by_itself(workspace: Workspace) -> None:
    workspace.checkpoint(kind="auto")


def checkpoint(workspace: Workspace) -> None:
    workspace.checkpoint("then", full_hash=True)


@pytest.mark.parametrize("then", ["again", "again, updated", "saved by itself", "checkpoint", "checkpoint, killed"])
@pytest.mark.parametrize("operation", GOING)
def test_i3_killed_anywhere_the_history_learns_of_it(
    bench: Bench, operation: str, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    start, end, go = GOING[operation]
    kind = operation[:4]
    if start == 1:
        bench.do(lambda workspace: workspace.undo())

    def bring_back() -> None:
        bench.do(lambda workspace: workspace.redo() if kind == "undo" else workspace.undo())
        assert bench.is_at(start)

    steps = list(range(min(start, end) + 1, max(start, end) + 1))
    untold = 0
    changes = run_killed(lambda: bench.do(go), 0, told=True, calls=CALLS).steps
    assert bench.is_at(end)
    bring_back()
    moments = range(1 + len(then) % EVERY, len(changes) + 1, EVERY)
    # (At the end what is done is entered in the history.)
    for at in sorted({*moments[:: spread(3)], *moments[-LAST:]}):
        before = bench.last()
        if not run_killed(lambda: bench.do(go), at, calls=CALLS).killed:
            bring_back()
            continue
        is_entered = bench.last() == kind != before
        if then == "again, updated" or (then == "checkpoint, killed" and at % 2):
            bench.update()
        if then == "saved by itself":
            half = bench.look()
            bench.do(save_by_itself)
            assert differences(half, bench.look()) == [], at
        elif then == "checkpoint":
            bench.do(checkpoint)
        elif then == "checkpoint, killed":
            run_killed(lambda: bench.do(checkpoint), 1 + at * 7 % len(changes), calls=CALLS)
            bench.do(checkpoint)
        if is_entered:
            if bench.has_note():
                # Nobody was told of it: asked for again, it is not done twice.
                assert not then.startswith("checkpoint"), at
                untold += 1
                with bench.open() as workspace:
                    assert sorted(go(workspace, dry_run=True).steps) == steps, at
                    assert sorted(go(workspace).steps) == steps, at
                assert not bench.has_note()
            assert bench.is_at(end), at
        elif then.startswith("checkpoint"):
            if not bench.is_at(end):
                assert bench.is_at(start), at  # it had not begun
                continue
        else:
            with bench.open() as workspace:
                assert sorted(go(workspace).steps) == steps, at
            assert bench.is_at(end), at
        bring_back()
    assert "that was cut short is finished" in caplog.text
    assert untold or then.startswith("checkpoint")
    with bench.open() as workspace:
        assert workspace.verify(read_data=True).ok

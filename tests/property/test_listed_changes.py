"""What undo and redo list as written and deleted, before and after, against the trees themselves."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.running.run import begin_run, end_run
from holdfast.model.paths import under
from holdfast.testing.tree_state import photograph
from holdfast.testing.workspace_step import do_step

from ..sampling import some

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast import Workspace
    from holdfast.model.command_results import RestoreResult
    from holdfast.testing.tree_actor import InterceptedActor
    from holdfast.testing.tree_state import PathState

NAMES = (b"a", b"b", b"c", b"d/a", b"d/b")
DIRECTORIES = (b"d", b"e", b"d/c")


def look(tree: Path) -> dict[bytes, PathState]:
    """All that is in the tree, without the times: those of directories change with their names."""
    return {path: one._replace(mtime=0) for path, one in photograph(tree).items()}


def _itself(seen: PathState) -> PathState:
    """Without what else it is called: a name that comes or goes is none of the others'."""
    return seen._replace(names=())


def assert_lists(
    foreseen: RestoreResult, done: RestoreResult, before: dict[bytes, PathState], after: dict[bytes, PathState]
) -> None:
    assert (foreseen.written, foreseen.deleted) == (done.written, done.deleted)
    gone = before.keys() - after.keys()
    # (What becomes of a file is told by those of its names that a step has to do with.)
    written = {path for name in done.written for path in (after[name].names or (name,))}
    changed = {path for path, seen in after.items() if path not in before or _itself(before[path]) != _itself(seen)}
    # (What was changed twice may be as it was. A directory that was moved stands for what is in it, whatever that is:
    # something may be there again where something else was deleted.)
    assert all(path in gone or any(under(path, top) for top in done.written) for path in done.deleted)
    assert set(done.written) <= after.keys()
    assert all(any(under(path, top) for top in written) for path in changed)
    assert all(any(under(path, top) for top in (*done.deleted, *done.written)) for path in gone)


def at_random(actor: InterceptedActor, chance: random.Random) -> None:
    path, other = chance.sample(NAMES, 2)
    directory, moved = chance.sample(DIRECTORIES, 2)
    operations: tuple[Callable[[], object], ...] = (
        lambda: actor.write(path, chance.randbytes(9)),
        lambda: actor.write(path, chance.randbytes(9)),
        lambda: actor.unlink(path),
        lambda: actor.rename(path, other),
        lambda: actor.rename(path, other),
        lambda: actor.rename(path, other),
        lambda: actor.exchange(path, other),
        lambda: actor.chmod(path, chance.choice((0o600, 0o640))),
        lambda: actor.link(path, other),
        lambda: (actor.link(path, other), actor.write(other, chance.randbytes(9), at=0)),
        lambda: actor.mkdir(directory),
        lambda: actor.rename(directory, moved),
        lambda: actor.rename(directory, moved),
    )
    with suppress(OSError):
        chance.choice(operations)()


@pytest.mark.parametrize("seed", some(range(30), 25))
def test_what_is_listed_is_what_becomes_of_the_tree(workspace: Workspace, tree: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tree / "d").mkdir()
    for name in NAMES[::2]:
        (tree / os.fsdecode(name)).write_bytes(name)
    workspace.checkpoint()
    run = begin_run(workspace._context, "do")
    before = look(tree)

    def work(actor: InterceptedActor) -> None:
        for _ in range(chance.randrange(1, 5)):
            at_random(actor, chance)

    for _ in range(3):
        do_step(workspace._context, work, run=run)
    end_run(workspace._context, run, "do")
    after = look(tree)
    steps = [step.id for step in workspace.steps() if step.paths]
    for chosen in (steps, steps[-1:]) if steps else ():
        # (By force: whether anything is in the way is not the question here.)
        undo, redo = (partial(act, step=chosen, force=True) for act in (workspace.undo, workspace.redo))
        assert_lists(undo(dry_run=True), undo(), after, now := look(tree))
        assert chosen is not steps or now == before
        assert_lists(redo(dry_run=True), redo(), now, look(tree))
        assert look(tree) == after

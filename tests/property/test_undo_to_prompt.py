"""Whatever has happened: an undo to a prompt leaves what was there when that came in, or nothing is changed; and redo
brings back what was there before the undo.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from holdfast.engine.opening.opener import Opener
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import HoldfastError
from holdfast.testing.crash_points import without_syncs
from holdfast.testing.workspace_step import do_step

from ..sampling import examples

if TYPE_CHECKING:
    from holdfast.testing.tree_actor import InterceptedActor

FILES = ["a", "b", "cache/a", "cache/b"]
EDITED = ["a", "c"]
"""By hand: what is ignored no checkpoint would bring back."""

action = some.one_of(
    some.tuples(some.just("step"), some.sampled_from(FILES)),
    some.tuples(some.just("step"), some.sampled_from(FILES)),
    some.tuples(some.just("edit"), some.sampled_from(EDITED)),
    some.tuples(some.just("save")),
    some.tuples(some.just("prompt")),
    some.tuples(some.just("prompt")),
    some.tuples(some.just("restore"), some.integers(0, 5)),
    some.tuples(some.just("undo"), some.integers(1, 2)),
    some.tuples(some.just("redo"), some.integers(1, 2)),
    some.tuples(some.just("back"), some.integers(0, 3)),
)


class Life:
    """A workspace, and what was there when each prompt came in."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        (self.tree / "cache").mkdir(parents=True)
        (self.tree / ".gitignore").write_text("cache\n")
        (self.tree / "a").write_text("0")
        opener = Opener(home=os.fsencode(base / "home"))
        self.workspace = Workspace(opener, opener.init(os.fsencode(self.tree))[0])
        self.workspace.checkpoint("first")
        self.prompts: list[tuple[int, dict[str, str]]] = []
        self._number = 0

    def look(self) -> dict[str, str]:
        return {str(one.relative_to(self.tree)): one.read_text() for one in self.tree.rglob("*") if one.is_file()}

    def do(self, what: str, *more: Any) -> None:
        if what == "back":
            return self.back(*more)
        try:
            getattr(self, f"_{what}")(*more)
        except HoldfastError:
            pass  # there was nothing to undo, or it was refused
        return None

    def _step(self, path: str) -> None:
        self._number += 1

        def write(actor: InterceptedActor) -> None:
            if (self.tree / path).exists() and self._number % 3 == 0:
                actor.unlink(path.encode())
            else:
                actor.write(path.encode(), b"%d" % self._number)

        do_step(self.workspace._context, write)

    def _edit(self, path: str) -> None:
        self._number += 1
        (self.tree / path).write_text(f"by hand {self._number}")

    def _save(self) -> None:
        self.workspace.checkpoint()

    def _prompt(self) -> None:
        number = self.workspace.prompt("do it").prompt
        assert number is not None
        self.prompts.append((number, self.look()))

    def _restore(self, which: int) -> None:
        saved = self.workspace.log().checkpoints
        self.workspace.restore(saved[which % len(saved)].id)

    def _undo(self, count: int) -> None:
        self.workspace.undo(count)

    def _redo(self, count: int) -> None:
        self.workspace.redo(count)

    def back(self, which: int) -> None:
        """Go back to before a prompt, and forward again."""
        if not self.prompts:
            return
        number, asked = self.prompts[which % len(self.prompts)]
        before = self.look()
        try:
            preview = self.workspace.undo(to=number, dry_run=True)
        except HoldfastError as refused:
            preview = refused
        assert self.look() == before
        try:
            done = self.workspace.undo(to=number)
        except HoldfastError as error:
            assert self.look() == before
            assert error.code != "nothing_to_undo" or before == asked
            assert not isinstance(preview, HoldfastError) or preview.code == error.code
            return
        assert self.look() == asked
        assert not isinstance(preview, HoldfastError)
        assert sorted(preview.steps) == sorted(done.steps)
        again = "" if done.undo_command is None else done.undo_command
        if again.startswith("holdfast redo"):
            self.workspace.redo(int(again.removeprefix("holdfast redo").strip() or 1))
            assert self.look() == before


@given(some.lists(action, min_size=4, max_size=16), some.integers(0, 3))
@settings(max_examples=examples(150, 20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_prompt_is_gone_back_to(actions: list[tuple[Any, ...]], which: int) -> None:
    with TemporaryDirectory() as base, without_syncs():
        life = Life(Path(base))
        with closing(life.workspace):
            for did in actions:
                life.do(*did)
            life.back(which)

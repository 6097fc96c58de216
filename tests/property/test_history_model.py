"""One history against a plain model: steps, edits by hand, checkpoints, restores, undo and redo in any order."""

from __future__ import annotations

import os
import random
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from holdfast.engine.opening.opener import Opener
from holdfast.engine.running.run import begin_run, end_run
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.testing.clocks import ManualClock
from holdfast.testing.workspace_step import do_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.tree_actor import InterceptedActor

State = dict[bytes, tuple[int, bytes]]
"""path -> (type and permissions, content or target), of every file and link."""

IGNORED = b"cache/"
NAMES = (b"a", b"b", b"cache/a", b"cache/b", b"d/a", b"d/b")


def snapshot(root: bytes) -> State:
    """Every file and link below ``root``."""
    found: State = {}
    for folder, folders, files in os.walk(root):
        for name in [*files, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            full = os.path.join(folder, name)
            mode = os.lstat(full).st_mode
            path = os.path.relpath(full, root)
            if stat.S_ISLNK(mode):
                found[path] = (mode, os.readlink(full))
            else:
                with open(full, "rb") as file:
                    found[path] = (mode, file.read())
    return found


def captured(state: State) -> State:
    """What a checkpoint of it holds."""
    return {path: value for path, value in state.items() if not path.startswith(IGNORED)}


class Model(RuleBasedStateMachine):
    """Changes are a stack: undo takes the newest away, redo brings it back, a new change forgets what was undone.

    A step's change is of everything; any other is of what is captured, and leaves ignored files as they are.
    """

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.base = Path(tempfile.mkdtemp(prefix="holdfast-history-"))
        self.root = os.fsencode(self.base / "tree")
        os.mkdir(self.root)
        for name in (b"cache", b"d"):
            os.mkdir(os.path.join(self.root, name))
        with open(os.path.join(self.root, b".gitignore"), "wb") as file:
            file.write(b"cache\n")
        self.clock = ManualClock()
        opener = Opener(home=os.fsencode(self.base / "home"), clock=self.clock)
        self.workspace = Workspace(opener, opener.init(self.root)[0])
        self.workspace.checkpoint()
        self.saved = snapshot(self.root)
        self.kept = {self.workspace.resolve("@"): captured(self.saved)}
        self.done: list[tuple[bool, State, State]] = []
        self.undone: list[tuple[bool, State, State]] = []

    def teardown(self) -> None:
        if hasattr(self, "workspace"):
            found = self.workspace.verify(read_data=True)
            self.workspace.close()
            shutil.rmtree(self.base)
            assert found.ok, found.problems

    def _push(self, by_step: bool, before: State, after: State) -> None:
        self.done.append((by_step, before, after))
        self.undone.clear()

    def _save(self) -> None:
        """What was edited by hand since is a change of its own once something is saved."""
        now = snapshot(self.root)
        if captured(now) != captured(self.saved):
            self._push(False, self.saved, now)
        self.saved = now

    @rule(seconds=st.sampled_from((-86400, -3600, -1, 1, 3600)))
    def go_wrong(self, seconds: int) -> None:
        """The clock is set; otherwise it stands still. Order never depends on it."""
        self.clock.advance(seconds)

    @rule()
    def checkpoint(self) -> None:
        self._save()
        made = self.workspace.checkpoint().checkpoint
        self.kept[made.id] = captured(self.saved)

    @rule(count=st.integers(1, 3))
    def run(self, count: int) -> None:
        self._save()
        context = self.workspace._context
        run = begin_run(context, "do")
        for _ in range(count):
            before = snapshot(self.root)
            known = {step.id for step in self.workspace.steps() if step.paths}
            do_step(context, self._work, run=run)
            if {step.id for step in self.workspace.steps() if step.paths} - known:
                self._push(True, before, snapshot(self.root))
        end_run(context, run, "do")
        self.saved = snapshot(self.root)

    def _work(self, actor: InterceptedActor) -> None:
        chance = self.chance
        for _ in range(chance.randint(1, 4)):
            path, other = chance.choice(NAMES), chance.choice(NAMES)
            operations: tuple[Callable[[], object], ...] = (
                lambda path=path: actor.write(path, chance.randbytes(chance.choice((0, 3, 200)))),
                lambda path=path: actor.write(path, chance.randbytes(chance.choice((0, 3, 200)))),
                lambda path=path: actor.unlink(path),
                lambda path=path, other=other: actor.rename(path, other),
                lambda path=path: actor.chmod(path, chance.choice((0o600, 0o644, 0o755))),
                lambda path=path: actor.symlink(b"target%d" % chance.randrange(3), path),
            )
            with suppress(OSError):
                chance.choice(operations)()

    @rule(path=st.sampled_from([name for name in NAMES if not name.startswith(IGNORED)]), content=st.binary(max_size=4))
    def edit(self, path: bytes, content: bytes) -> None:
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if os.path.lexists(full) and (os.path.islink(full) or self.chance.random() < 0.5):
            os.unlink(full)
        with open(full, "wb") as file:
            file.write(content)

    @rule(path=st.sampled_from([name for name in NAMES if not name.startswith(IGNORED)]))
    def remove(self, path: bytes) -> None:
        full = os.path.join(self.root, path)
        if os.path.lexists(full):
            os.unlink(full)

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(sorted(self.kept)))
        self._save()
        self.workspace.restore(target)
        now = snapshot(self.root)
        assert captured(now) == self.kept[target]
        if captured(now) != captured(self.saved):
            self._push(False, self.saved, now)
        self.saved = now

    @rule()
    def undo(self) -> None:
        self._save()
        os.makedirs(os.path.join(self.root, b"d"), exist_ok=True)
        if not self.done:
            with pytest.raises(NotFoundError):
                self.workspace.undo()
            return
        by_step, before, _ = self.done[-1]
        result = self.workspace.undo()
        assert bool(result.steps) == by_step
        assert not result.skipped
        self._check(by_step, before)
        self.undone.append(self.done.pop())

    @rule()
    def redo(self) -> None:
        now = snapshot(self.root)
        if captured(now) != captured(self.saved):
            with pytest.raises((RefusedError, NotFoundError)):
                self.workspace.redo()
            return
        if not self.undone:
            with pytest.raises(NotFoundError):
                self.workspace.redo()
            return
        by_step, _, after = self.undone[-1]
        result = self.workspace.redo()
        assert bool(result.steps) == by_step
        assert not result.skipped
        self._check(by_step, after)
        self.done.append(self.undone.pop())

    def _check(self, by_step: bool, expected: State) -> None:
        now = snapshot(self.root)
        if by_step:
            assert now == expected
        else:
            assert captured(now) == captured(expected)
            assert now.keys() - captured(now).keys() == self.saved.keys() - captured(self.saved).keys()
        self.saved = now


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=12, stateful_step_count=16, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

"""I1, I2, I8, I10: random mutations through the interceptor, undone and done again; whole trees are compared."""

from __future__ import annotations

import os
import random
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from holdfast.model.clock import SystemClock
from holdfast.model.errors import RefusedError
from holdfast.testing.tree_actor import act_at_random
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.completion.step_sealer import StepEnd, seal_step
from holdfast.undo.journal.records import StepId
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..feeders import BOTH, Feeder, over_fuse, straight
from ..fuse import ONLY_WITH_FUSE
from ..sampling import examples, some
from ..waiting import wait_until_settled

Photo: TypeAlias = dict[bytes, PathState]


@pytest.fixture(params=BOTH)
def feeder(request: pytest.FixtureRequest) -> Feeder:
    return request.param


@contextmanager
def keeper(base: Path) -> Generator[UndoLog]:
    """The undo log of the tree in ``base``, recovered."""
    root = os.open(base / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(base / "log"), root, SystemClock())
    try:
        recovered = recover(log)
        assert recovered.rolled_back is None
        yield log
        wait_until_settled(log)
    finally:
        log.close()
        os.close(root)


def finish(log: UndoLog, step: StepId) -> None:
    log.beat()
    seal_step(log, log.recorder.end(step, 0), StepEnd("done", 0, 0))
    log.journal.restart()


def do(base: Path, seed: int, count: int, feeder: Feeder) -> StepId:
    """One finished step of random operations."""
    with keeper(base) as log:
        step = log.new_id()
        log.recorder.begin(step, "api")
        chance = random.Random(seed)
        with feeder(log, os.fsencode(base / "tree"), step, b"") as actor:
            for _ in range(count):
                act_at_random(actor, chance)
        finish(log, step)
        return step


@pytest.fixture(params=[True, False], ids=["", "nothing can be renamed into the log"])
def base(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    (tmp_path / "tree").mkdir()
    if request.param:
        (tmp_path / "log").mkdir()
    else:
        (tmp_path / "log").symlink_to(request.getfixturevalue("elsewhere"))
    return tmp_path


@pytest.mark.parametrize("seed", some(range(25), 7))
def test_steps_are_undone_and_brought_forward_exactly(base: Path, feeder: Feeder, seed: int) -> None:
    photos = [photograph(base / "tree")]
    steps: list[StepId] = []
    for at in range(3):
        steps.append(do(base, seed * 10 + at, 30, feeder))
        photos.append(photograph(base / "tree"))
    for direction, order in (("undo", (2, 1, 0)), ("redo", (0, 1, 2)), ("undo", (2, 1, 0))):
        for at in order:
            with keeper(base) as log:
                done = getattr(LocalUndoService(log), direction)([steps[at]])
            assert done.conflicts == ()
            expected = photos[at if direction == "undo" else at + 1]
            assert differences(expected, photograph(base / "tree")) == []


@pytest.mark.parametrize("seed", some(range(10), 7))
def test_several_steps_are_undone_together(base: Path, feeder: Feeder, seed: int) -> None:
    before = photograph(base / "tree")
    steps = [do(base, seed * 10 + at, 20, feeder) for at in range(3)]
    after = photograph(base / "tree")
    with keeper(base) as log:
        assert LocalUndoService(log).undo(steps).conflicts == ()
        assert differences(before, photograph(base / "tree")) == []
        assert LocalUndoService(log).redo(steps).conflicts == ()
        assert differences(after, photograph(base / "tree")) == []


def test_an_earlier_step_is_refused_while_a_later_one_stands_on_it(base: Path, feeder: Feeder) -> None:
    path = base / "tree" / "file"
    steps: list[StepId] = []
    for content in (b"one", b"two"):
        with keeper(base) as log:
            steps.append(step := log.new_id())
            log.recorder.begin(step, "api")
            with feeder(log, os.fsencode(base / "tree"), step, b"") as actor:
                actor.write(b"file", content)
            finish(log, step)
    with keeper(base) as log:
        with pytest.raises(RefusedError, match=f"step {steps[1]} has to do with file too"):
            LocalUndoService(log).undo(steps[:1])
        assert path.read_bytes() == b"two"
        LocalUndoService(log).undo(steps[1:])
        assert path.read_bytes() == b"one"
        LocalUndoService(log).undo(steps[:1])
        assert not path.exists()


def test_an_edit_by_somebody_else_is_not_overwritten(base: Path, feeder: Feeder) -> None:
    """I8."""
    path = base / "tree" / "file"
    path.write_bytes(b"before")
    with keeper(base) as log:
        step = log.new_id()
        log.recorder.begin(step, "api")
        with feeder(log, os.fsencode(base / "tree"), step, b"") as actor:
            actor.write(b"file", b"the step's")
        finish(log, step)
        wait_until_settled(log)
        path.write_bytes(b"somebody else's")
        with pytest.raises(RefusedError, match="another process has changed"):
            LocalUndoService(log).undo([step])
        assert path.read_bytes() == b"somebody else's"
        LocalUndoService(log).undo([step], force=True)
        assert path.read_bytes() == b"before"
        LocalUndoService(log).redo([step], force=True)
        assert path.read_bytes() == b"somebody else's"


class Undoing(RuleBasedStateMachine):
    """Steps, undo, redo, rollbacks, kills and edits by others, in any order; the model is what the tree looked like."""

    feed = staticmethod(straight)

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        base = Path(self.directory.name)
        self.tree = base / "tree"
        self.tree.mkdir()
        self.root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        self.where = os.fsencode(base / "log")
        self.done: list[tuple[StepId, Photo]] = []
        """Each step, and the tree before it."""
        self.undone: list[tuple[StepId, Photo]] = []
        """Each step, and the tree after it."""
        self.keep()

    def keep(self) -> None:
        self.log = UndoLog(self.where, self.root, SystemClock())
        recovered = recover(self.log)
        for one in (*recovered.finished, *([recovered.rolled_back] if recovered.rolled_back else [])):
            assert one.conflicts == ()
        self.service = LocalUndoService(self.log, intercepts=True)

    def teardown(self) -> None:
        self.log.close()
        os.close(self.root)
        self.directory.cleanup()

    def look(self) -> Photo:
        return photograph(self.tree)

    def act(self, step: StepId, seed: int) -> None:
        chance = random.Random(seed)
        with self.feed(self.log, os.fsencode(self.tree), step) as actor:
            for _ in range(chance.randrange(1, 15)):
                act_at_random(actor, chance)

    @rule(seed=st.integers(0, 1 << 30))
    def step(self, seed: int) -> None:
        before = self.look()
        step = self.service.open("command")
        self.act(step, seed)
        if self.service.close(step, 0) is None:
            assert differences(before, self.look()) == []
        else:
            self.done.append((step, before))
            self.undone.clear()

    @precondition(lambda self: self.done)
    @rule()
    def undo_the_newest(self) -> None:
        step, before = self.done.pop()
        self.undone.append((step, self.look()))
        assert self.service.undo([step]).conflicts == ()
        assert differences(before, self.look()) == []

    @precondition(lambda self: self.undone)
    @rule()
    def redo_the_oldest(self) -> None:
        step, after = self.undone.pop()
        self.done.append((step, self.look()))
        assert self.service.redo([step]).conflicts == ()
        assert differences(after, self.look()) == []

    @precondition(lambda self: len(self.done) > 1)
    @rule()
    def undo_all_together_and_redo_them(self) -> None:
        after = self.look()
        steps = [step for step, _ in self.done]
        self.service.undo(steps)
        assert differences(self.done[0][1], self.look()) == []
        self.service.redo(steps)
        assert differences(after, self.look()) == []

    @rule(seed=st.integers(0, 1 << 30))
    def roll_back_an_explicit_step(self, seed: int) -> None:
        before = self.look()
        step = self.service.begin("")
        self.act(step, seed)
        self.service.rollback(step)
        assert differences(before, self.look()) == []
        self.undone.clear()

    @rule(seed=st.integers(0, 1 << 30), is_in_a_step=st.booleans())
    def kill_the_keeper(self, seed: int, is_in_a_step: bool) -> None:
        before = self.look()
        if is_in_a_step:
            self.act(self.service.open("command"), seed)
            self.log.beat()
            self.undone.clear()
        self.log.close()
        self.keep()
        assert differences(before, self.look()) == []

    @precondition(lambda self: self.done)
    @rule(seed=st.integers(0, 1 << 30))
    def somebody_else_edits(self, seed: int) -> None:
        """I8: refused; forced, their version can be had back by redo."""
        step, before = self.done[-1]
        paths = [
            change.path
            for change in self.service.changes(step)
            if (found := self.look().get(change.path)) is not None and stat.S_ISREG(found.mode)
        ]
        if not paths:
            return
        path = os.path.join(os.fsencode(self.tree), random.Random(seed).choice(paths))
        saved = self.look()
        with open(path, "ab") as file:
            file.write(b"somebody else's")
        edited = self.look()
        with pytest.raises(RefusedError):
            self.service.undo([step])
        assert differences(edited, self.look()) == []
        self.service.undo([step], force=True)
        self.service.redo([step], force=True)
        assert differences(edited, self.look()) == []
        del saved, before
        # Nobody can say any more what the steps before it should lead to.
        self.done.clear()
        self.undone.clear()


Undoing.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=15, deadline=None)
test_undoing = Undoing.TestCase


class UndoingOverFuse(Undoing):
    feed = staticmethod(over_fuse)


UndoingOverFuse.TestCase.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
test_undoing_over_fuse = ONLY_WITH_FUSE(UndoingOverFuse.TestCase)


@pytest.mark.parametrize("seed", range(8))
def test_two_runs_undo_only_their_own(base: Path, feeder: Feeder, seed: int) -> None:
    """I10."""
    for name in ("one", "two"):
        (base / "tree" / name).mkdir()
    tree = os.fsencode(base / "tree")
    before = photograph(base / "tree")
    with keeper(base) as log:
        service = LocalUndoService(log)
        steps = [service.open("command", run=run) for run in ("one", "two")]
        chance = random.Random(seed)
        actors = [feeder(log, tree, step, name) for step, name in zip(steps, (b"one", b"two"), strict=True)]
        for _ in range(60):
            act_at_random(chance.choice(actors), chance)
        for actor in actors:
            actor.__exit__(None, None, None)
        for step in reversed(steps):
            service.close(step, 0)
        after = photograph(base / "tree")
        service.undo(steps[:1])
        now = photograph(base / "tree")
        for path in now.keys() | before.keys() | after.keys():
            expected = before if path == b"one" or path.startswith(b"one/") else after
            assert now.get(path) == expected.get(path)

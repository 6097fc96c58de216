"""Runs that go on at the same time, with hard links and renames, in one history: it can be walked to its begin and
back to its end, whatever was undone, redone, edited and saved before (I10).
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import holdfast
from holdfast.engine.history.checkpoint import create_checkpoint_locked
from holdfast.engine.opening.undo_log import log_limits, make_log
from holdfast.engine.running.run import begin_run, end_run
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

IGNORED = "cache"
NAMES = (b"a", b"b", b"c", b"cache/a", b"cache/b", b"d/a", b"d/b")
"""What the runs change. (An edit by hand of one that has several names breaks them apart, and is never undone exactly.)
"""
BY_HAND = ("mine", "d/mine")


class Model(RuleBasedStateMachine):
    """The model is the first state and the last one; and that no walk is longer than what was done."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.base = Path(tempfile.mkdtemp(prefix="holdfast-interleaved-"))
        self.tree = self.base / "tree"
        for name in (IGNORED, "d"):
            (self.tree / name).mkdir(parents=True)
        (self.tree / ".gitignore").write_text(IGNORED)
        # (Emptied by hand, it would be in no checkpoint: what steps do in there later is refused on the way forward.)
        (self.tree / "d/kept").touch()
        (self.tree / "a").write_bytes(b"a")
        os.link(self.tree / "a", self.tree / "b")
        self.workspace = holdfast.init(self.tree, home=self.base / "home")
        self.workspace.checkpoint()
        self.first = self.look()
        self.changes = 0

    def look(self) -> dict[str, tuple[int, bytes]]:
        """What a checkpoint of the tree would hold."""
        files = [path for path in self.tree.rglob("*") if path.is_file() and path.parent.name != IGNORED]
        return {str(path.relative_to(self.tree)): (path.stat().st_mode, path.read_bytes()) for path in files}

    @rule(operations=st.integers(2, 14))
    def two_runs(self, operations: int) -> None:
        context, chance = self.workspace._context, self.chance
        runs = [begin_run(context, "do") for _ in range(2)]
        root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        log = UndoLog(make_log(context), root, context.clock, limits=log_limits(context))
        recover(log)
        service = LocalUndoService(log)
        open_: list[InterceptedActor] = []

        def close(actor: InterceptedActor) -> None:
            with actor:
                open_.remove(actor)
            service.close(actor.step, 0)

        for _ in range(operations):
            way = chance.random()
            if not open_ or (len(open_) < 3 and way < 0.25):
                step = service.open("command", run=chance.choice(runs))
                open_.append(InterceptedActor(log.recorder, os.fsencode(self.tree), step))
                self.changes += 1
            elif way < 0.35:
                close(chance.choice(open_))
            elif way < 0.4:
                with context.lock():
                    create_checkpoint_locked(context, CheckpointRequest(kind="auto"))
                self.changes += 1
            else:
                self._act(chance.choice(open_))
        while open_:
            close(open_[0])
        log.close()
        os.close(root)
        for run in runs:
            end_run(context, run, "do")
        self.changes += 2

    def _act(self, actor: InterceptedActor) -> None:
        chance = self.chance
        path, other = chance.choice(NAMES), chance.choice(NAMES)
        with suppress(OSError):
            match chance.choice(("write", "write", "unlink", "rename", "link", "link", "chmod")):
                case "write":
                    actor.write(path, chance.randbytes(3))
                case "unlink":
                    actor.unlink(path)
                case "rename":
                    actor.rename(path, other)
                case "link":
                    actor.link(path, other)
                case _:
                    actor.chmod(path, chance.choice((0o600, 0o644)))

    @rule(name=st.sampled_from(BY_HAND), removes=st.booleans())
    def edit(self, name: str, removes: bool) -> None:
        path = self.tree / name
        path.parent.mkdir(exist_ok=True)
        if removes:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(self.chance.randbytes(4))
        self.changes += 1

    @rule()
    def checkpoint(self) -> None:
        self.workspace.checkpoint()

    @rule()
    def undo(self) -> None:
        with suppress(NotFoundError):
            assert not self.workspace.undo().skipped
            self.changes += 1

    @rule()
    def redo(self) -> None:
        try:
            assert not self.workspace.redo().skipped
            self.changes += 1
        except NotFoundError:
            pass
        except RefusedError as refused:
            assert refused.code == "changed_since_undo"

    def teardown(self) -> None:
        if not hasattr(self, "workspace"):
            return
        try:
            self.workspace.checkpoint()
            last, back = self.look(), 0
            with suppress(NotFoundError):
                while not self.workspace.undo().skipped:
                    back += 1
                    assert back <= self.changes
                raise AssertionError("something was left alone")
            assert self.look() == self.first
            for _ in range(back):
                assert not self.workspace.redo().skipped
            assert self.look() == last
            found = self.workspace.verify()
            assert found.ok, found.problems
        finally:
            self.workspace.close()
            shutil.rmtree(self.base)


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=12, stateful_step_count=10, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

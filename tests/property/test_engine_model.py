"""The engine against a plain model: a dictionary of trees, and the rules of undo and redo written down once more."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import holdfast
from holdfast.model.errors import NotFoundError, RefusedError

from ..sampling import examples

State = dict[bytes, tuple[str, bytes, int]]
"""path -> (``file`` or ``link``, content or target, permissions)."""

NAMES = [b"a", b"b", b"c", b"\xff\xfe", b"sp ace", "ü".encode()]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
CONTENTS = st.one_of(
    st.sampled_from([b"", b"same", b"other\n", b"\0binary"]), st.binary(max_size=40), st.just(b"long line\n" * 400)
)
PERMISSIONS = st.sampled_from([0o644, 0o600, 0o755, 0o444])


def snapshot(root: bytes) -> State:
    """Every file and link below ``root``."""
    found: State = {}
    for folder, folders, files in os.walk(root):
        for name in [*files, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            full = os.path.join(folder, name)
            path = os.path.relpath(full, root)
            if os.path.islink(full):
                found[path] = ("link", os.readlink(full), 0o777)
            else:
                with open(full, "rb") as file:
                    found[path] = ("file", file.read(), stat.S_IMODE(os.stat(full).st_mode))
    return found


def directories(root: bytes) -> set[bytes]:
    """Every directory below ``root`` that holds no file at any depth."""
    return {os.path.join(folder, name) for folder, folders, _ in os.walk(root) for name in folders}


class Model(RuleBasedStateMachine):
    """Edits, checkpoints, restores, undo and redo, forgetting and collection in any order."""

    checkpoints = Bundle("checkpoints")

    @initialize()
    def begin(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="holdfast-model-"))
        self.root = os.fsencode(self.base / "tree")
        os.mkdir(self.root)
        self.workspace = holdfast.init(self.root, home=self.base / "home")
        self.kept: dict[str, State] = {}
        self.head: str | None = None
        # Every state the tree was saved in, with the one before it: what undo and redo walk along.
        self.states: list[tuple[str, int | None]] = []
        self.position: int | None = None
        self.tip: int | None = None

    def teardown(self) -> None:
        if hasattr(self, "workspace"):
            found = self.workspace.verify(read_data=True)
            self.workspace.close()
            shutil.rmtree(self.base)
            assert found.ok, found.problems

    def _now(self) -> State:
        return snapshot(self.root)

    def _push(self, checkpoint: str) -> None:
        self.states.append((checkpoint, self.position))
        self.position = self.tip = len(self.states) - 1
        self.head = checkpoint

    def _saved_first(self) -> str | None:
        """What a command that saves first leaves in the history; the id of the new checkpoint if there is one."""
        newest = self.workspace.log(limit=1).checkpoints[0]
        if newest.id in self.kept:
            return None
        self.kept[newest.id] = self._before
        self._push(newest.id)
        return newest.id

    # -- edits

    def _place(self, path: bytes) -> bytes | None:
        """The full path, its directories made; None if a file or a link is on the way."""
        at = self.root
        for part in path.split(b"/")[:-1]:
            at = os.path.join(at, part)
            if os.path.islink(at) or os.path.isfile(at):
                return None
            if not os.path.isdir(at):
                os.mkdir(at)
        return os.path.join(self.root, path)

    @rule(path=PATHS, content=CONTENTS, permissions=PERMISSIONS)
    def write(self, path: bytes, content: bytes, permissions: int) -> None:
        full = self._place(path)
        if full is None or os.path.isdir(full):
            return
        if os.path.islink(full):
            os.unlink(full)
        with open(full, "wb") as file:
            file.write(content)
        os.chmod(full, permissions)

    @rule(path=PATHS, goal=st.sampled_from([b"a", b"../b", b"/etc/passwd", b"\xff"]))
    def link(self, path: bytes, goal: bytes) -> None:
        full = self._place(path)
        if full is not None and not os.path.lexists(full):
            os.symlink(goal, full)

    @rule(path=PATHS)
    def remove(self, path: bytes) -> None:
        full = self._place(path)
        if full is None:
            return
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        elif os.path.lexists(full):
            os.unlink(full)

    @rule(one=PATHS, other=PATHS)
    def rename(self, one: bytes, other: bytes) -> None:
        source, target = self._place(one), self._place(other)
        if source is None or target is None:
            return
        try:
            os.rename(source, target)
        except OSError:
            return

    # -- the engine

    @rule(target=checkpoints)
    def checkpoint(self) -> object:
        now = self._now()
        result = self.workspace.checkpoint()
        assert result.created == (self.head is None or self.kept[self.head] != now)
        assert not result.not_captured
        if not result.created:
            return multiple()
        assert result.checkpoint.total_files == len(now)
        assert result.checkpoint.total_bytes == sum(len(content) for _, content, _ in now.values())
        self.kept[result.checkpoint.id] = now
        self._push(result.checkpoint.id)
        return result.checkpoint.id

    @rule()
    def status_tells_the_difference(self) -> None:
        now = self._now()
        saved = self.kept[self.head] if self.head is not None else {}
        status = self.workspace.status()
        expected = {path for path in now.keys() | saved.keys() if now.get(path) != saved.get(path)}
        assert {change.path for change in status.changes} == expected

    @rule(target=checkpoints, checkpoint=checkpoints)
    def restore(self, checkpoint: str) -> object:
        self._before = self._now()
        if checkpoint not in self.kept:
            with pytest.raises(NotFoundError):
                self.workspace.restore(checkpoint)
            return multiple()
        result = self.workspace.restore(checkpoint)
        assert not result.skipped
        rescue = self._saved_first()
        assert self.kept[result.rescue or ""] == self._before
        if checkpoint != self.head:  # to stand where it stands already is no event
            self._push(checkpoint)
        assert self._now() == self.kept[checkpoint]
        return multiple() if rescue is None else rescue

    @rule(target=checkpoints, checkpoint=checkpoints, path=PATHS)
    def restore_a_path(self, checkpoint: str, path: bytes) -> object:
        self._before = self._now()
        if checkpoint not in self.kept:
            return multiple()
        under = lambda state: {p: v for p, v in state.items() if p == path or p.startswith(path + b"/")}  # noqa: E731
        wanted = under(self.kept[checkpoint])
        saved = under(self.kept[self.head]) if self.head is not None else {}
        if not wanted and not saved:
            with pytest.raises(NotFoundError):
                self.workspace.restore(checkpoint, [path])
            return multiple()
        result = self.workspace.restore(checkpoint, [path])
        rescue = self._saved_first()
        expected = {p: v for p, v in self._before.items() if p not in under(self._before)} | wanted
        if not result.skipped:
            assert self._now() == expected
        else:  # a file where the path needs a directory, or the other way round, is left alone
            assert {p: v for p, v in self._now().items() if p not in under(self._now())} == {
                p: v for p, v in self._before.items() if p not in under(self._before)
            }
        return multiple() if rescue is None else rescue

    @rule(target=checkpoints)
    def undo(self) -> object:
        self._before = self._now()
        if self.head is None and not self._before:
            return multiple()
        dirty = self.head is None or self.kept[self.head] != self._before
        try:
            result = self.workspace.undo()
        except NotFoundError as error:
            assert error.code == "nothing_to_undo"
            saved = self._saved_first()
            assert self._now() == self._before
            assert self._earlier() is None
            return multiple() if saved is None else saved
        saved = self._saved_first()
        assert dirty == (saved is not None)
        position = self._earlier()
        assert position is not None
        self.position = position
        self.head = self.states[position][0]
        assert result.checkpoint == self.head
        assert self._now() == self.kept[self.head]
        return multiple() if saved is None else saved

    def _earlier(self) -> int | None:
        """The nearest state before the present one that is kept and differs."""
        at = self.position
        present = self.kept[self.states[at][0]] if at is not None else None
        while at is not None:
            at = self.states[at][1]
            if at is not None and self.states[at][0] in self.kept and self.kept[self.states[at][0]] != present:
                return at
        return None

    @rule()
    def redo(self) -> None:
        now = self._now()
        ahead: list[int] = []
        at = self.tip
        while at is not None and at != self.position:
            ahead.insert(0, at)
            at = self.states[at][1]
        ahead = [state for state in ahead if self.states[state][0] in self.kept]
        if at is None or not ahead:
            with pytest.raises(NotFoundError):
                self.workspace.redo()
        elif self.head is not None and self.kept[self.head] != now:
            with pytest.raises(RefusedError):
                self.workspace.redo()
            assert self._now() == now
        else:
            self.workspace.redo()
            self.position = ahead[0]
            self.head = self.states[ahead[0]][0]
            assert self._now() == self.kept[self.head]

    @rule(checkpoint=consumes(checkpoints))
    def forget(self, checkpoint: str) -> None:
        if checkpoint not in self.kept:
            return
        if checkpoint == self.head:
            with pytest.raises(RefusedError):
                self.workspace.forget([checkpoint])
        else:
            self.workspace.forget([checkpoint])
            del self.kept[checkpoint]

    @rule()
    def collect(self) -> None:
        planned = self.workspace.gc(grace=0, dry_run=True)
        assert self.workspace.gc(grace=0) == planned._replace(dry_run=False)
        assert self.workspace.gc(grace=0, dry_run=True)[:2] == (0, 0)

    @rule(checkpoint=checkpoints)
    def fork(self, checkpoint: str) -> None:
        if checkpoint not in self.kept:
            return
        target = self.base / "fork"
        result = self.workspace.fork(checkpoint, target)
        assert snapshot(os.fsencode(target)) == self.kept[checkpoint]
        with holdfast.open(target, home=self.base / "home") as forked:
            assert forked.status().clean
            assert not forked.checkpoint().created
            with pytest.raises(RefusedError):
                self.workspace.forget([checkpoint])
            forked.let_go()
        shutil.rmtree(target)
        assert result.written == len(self.kept[checkpoint])

    @rule(one=checkpoints, other=checkpoints)
    def diff(self, one: str, other: str) -> None:
        if one not in self.kept or other not in self.kept:
            return
        before, after = self.kept[one], self.kept[other]
        found = self.workspace.diff(one, other, renames=False)
        assert {change.path for change in found.changes} == {
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        }
        assert found.unchanged == sum(1 for path in after if before.get(path) == after[path])

    @invariant()
    def every_kept_state_is_there(self) -> None:
        if not hasattr(self, "workspace"):
            return
        log = self.workspace.log()
        mine = {checkpoint.id for checkpoint in log.checkpoints if checkpoint.kind != "fork"}
        assert mine == set(self.kept)
        assert log.head == self.head


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=examples(40), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

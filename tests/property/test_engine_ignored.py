"""The engine on trees whose ignore rules come, change and go: nothing is lost that no checkpoint holds (I5, I6).

What is captured is not modelled here (`test_ignore_against_git` does that) but read from the checkpoints. Whatever the
rules were, are and become: a path that a command changed or removed held, before, exactly what a checkpoint holds.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import holdfast
from holdfast.model.entries import SYMLINK_MODE, Entry
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.ids import hash_bytes
from holdfast.store.manifests import manifest

from ..sampling import examples

State = dict[bytes, Entry]

NAMES = st.sampled_from([b"a", b"b", b"x.log", b"build"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
CONTENTS = st.sampled_from([b"", b"one", b"two\n", b"long\n" * 300])
PERMISSIONS = st.sampled_from([0o644, 0o600, 0o755])
RULE_FILES = st.sampled_from([b".gitignore", b".checkpointignore", b"a/.gitignore", b"a/b/.checkpointignore"])
LINES = st.sampled_from(
    [
        b"*",
        b"*.log",
        b"!x.log",
        b"build/",
        b"/a",
        b"b",
        b"a/b",
        b"!a/b",
        b"!*/",
        b"/build",
        b"a/*",
        b".gitignore",
        b"**/b/",
    ]
)


def snapshot(root: bytes) -> State:
    """Every file and link below ``root``, as the entries that it has where it is captured."""
    found: State = {}
    for folder, folders, files in os.walk(root):
        for name in [*files, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            full = os.path.join(folder, name)
            path = os.path.relpath(full, root)
            if os.path.islink(full):
                target = os.readlink(full)
                found[path] = Entry(hash_bytes(target), len(target), SYMLINK_MODE)
            else:
                data = Path(os.fsdecode(full)).read_bytes()
                mode = stat.S_IFREG | stat.S_IMODE(os.stat(full).st_mode)
                found[path] = Entry(hash_bytes(data), len(data), mode)
    return found


class Ignoring(RuleBasedStateMachine):
    """Edits of files and of rules, checkpoints, restores, undo and redo in any order."""

    @initialize()
    def begin(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="holdfast-ignoring-"))
        self.root = os.fsencode(self.base / "tree")
        os.mkdir(self.root)
        self.workspace = holdfast.init(self.root, home=self.base / "home")

    def teardown(self) -> None:
        if hasattr(self, "workspace"):
            found = self.workspace.verify(read_data=True)
            self.workspace.close()
            shutil.rmtree(self.base)
            assert found.ok, found.problems

    def _held(self, name: str) -> State:
        context = self.workspace._context
        checkpoint = context.catalog.checkpoint(self.workspace.resolve(name))
        return dict(manifest.iterate(context.store.pages, checkpoint.root))

    def _ids(self) -> list[str]:
        return [checkpoint.id for checkpoint in self.workspace.log().checkpoints]

    # -- edits

    @rule(path=PATHS, content=CONTENTS, permissions=PERMISSIONS)
    def write(self, path: bytes, content: bytes, permissions: int) -> None:
        full = os.path.join(self.root, path)
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as file:
                file.write(content)
        except OSError:  # a link or a file is on the way, or a directory there
            return
        os.chmod(full, permissions)

    @rule(path=PATHS)
    def link(self, path: bytes) -> None:
        full = os.path.join(self.root, path)
        if os.path.isdir(os.path.dirname(full)) and not os.path.lexists(full):
            os.symlink(b"nowhere", full)

    @rule(path=RULE_FILES, lines=st.lists(LINES, max_size=3))
    def write_rules(self, path: bytes, lines: list[bytes]) -> None:
        self.write(path, b"".join(line + b"\n" for line in lines), 0o644)

    @rule(path=st.one_of(PATHS, RULE_FILES))
    def remove(self, path: bytes) -> None:
        full = os.path.join(self.root, path)
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        elif os.path.lexists(full):
            os.unlink(full)

    # -- the engine

    @rule()
    def checkpoint(self) -> None:
        now = snapshot(self.root)
        made = self.workspace.checkpoint()
        assert not made.not_captured
        held = self._held("@")
        assert held.items() <= now.items(), "what is captured is what is there"
        assert self.workspace.status().clean
        assert not self.workspace.checkpoint().created

    @rule()
    def status(self) -> None:
        now = snapshot(self.root)
        changes = self.workspace.status().changes
        assert all(change.after is None or now[change.path] == change.after for change in changes)
        assert snapshot(self.root) == now

    @precondition(lambda self: self._ids())
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(self._ids()))
        before = snapshot(self.root)
        result = self.workspace.restore(target)
        after = snapshot(self.root)
        assert result.rescue is not None
        saved, wanted = self._held(result.rescue), self._held(target)
        skipped = {item.path for item in result.skipped}
        self._nothing_lost(before, after, saved)
        for path, entry in wanted.items():
            assert after.get(path) == entry or path in skipped
        left = {path: entry for path, entry in before.items() if path not in saved}
        assert after.keys() <= wanted.keys() | left.keys() | skipped, "all that was saved and is not wanted is gone"
        if result.undo_command is not None and not skipped:
            self._undone(before, after)

    def _undone(self, before: State, after: State) -> None:
        """I6: what a restore did can be undone; only what the rules from before leave out may stay (it was ignored)."""
        self.workspace.undo()
        again = snapshot(self.root)
        assert before.items() <= again.items()
        assert again.items() - before.items() <= after.items()

    @rule(forward=st.booleans())
    def undo(self, forward: bool) -> None:
        before = snapshot(self.root)
        known = self._ids()
        held = self._held("@") if known else {}
        try:
            result = self.workspace.redo() if forward else self.workspace.undo()
        except (NotFoundError, RefusedError):
            assert snapshot(self.root) == before
            return
        after = snapshot(self.root)
        newest = self._ids()[0]
        self._nothing_lost(before, after, held if newest in known else self._held(newest))
        skipped = {item.path for item in result.skipped}
        for path, entry in self._held(result.checkpoint).items():
            assert after.get(path) == entry or path in skipped

    @staticmethod
    def _nothing_lost(before: State, after: State, saved: State) -> None:
        for path, entry in before.items():
            assert after.get(path) == entry or saved.get(path) == entry, path


TestIgnoring = Ignoring.TestCase
TestIgnoring.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

"""What tests of several modules share: bundles, sessions, the watcher, and a workspace whose steps are recorded."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.watching._schedule import Pace
from holdfast.engine.watching.service import WatchSetup
from holdfast.testing.tree_state import differences, photograph
from holdfast.testing.workspace_step import do_step
from holdfast.undo.reversal._record_reversal import Reversal

from .upkeep.bundle_home import Home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.engine.sessions.session import Session


@pytest.fixture
def make_home(tmp_path: Path) -> Iterator[Callable[[str], Home]]:
    homes: list[Home] = []

    def make(name: str) -> Home:
        homes.append(Home(tmp_path / name))
        return homes[-1]

    yield make
    for one in homes:
        one.assert_sound()
        one.store.close()


@pytest.fixture
def make(home: Path) -> Callable[[], Sessions]:
    return lambda: Sessions(home=os.fsencode(home), agent="me")


@pytest.fixture
def session(make: Callable[[], Sessions], home: Path, tree: Path) -> Iterator[Session]:
    """In a directory with the files a, b and c; afterwards the store is verified."""
    for name in "abc":
        (tree / name).write_text(f"{name}\n")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
    with make() as sessions, sessions.start(os.fsencode(tree), "main") as found:
        yield found
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify(read_data=True).ok


@pytest.fixture
def setup(tmp_path: Path) -> WatchSetup:
    root, folder = tmp_path / "root", tmp_path / "folder"
    root.mkdir()
    (root / "sub").mkdir()
    folder.mkdir(mode=0o700)
    # Nothing is saved by itself unless a test wants it.
    slow = Pace(debounce=1000, latest=1000)
    return WatchSetup(os.fsencode(root), os.fsencode(folder), "inotify", slow, rest=0.0)


class Bench:
    """A workspace with an ignored directory, and photographs of what it was."""

    def __init__(self, workspace, tree):
        self.workspace, self.tree = workspace, tree
        self.context = workspace._context
        (tree / ".gitignore").write_text("cache\n")
        (tree / "cache").mkdir()
        (tree / "cache" / "old").write_text("old")
        (tree / "f").write_text("0")
        self.workspace.checkpoint()
        self.seen = [self.look()]

    def look(self):
        return photograph(self.tree)

    def step(self, work, **options):
        step = do_step(self.context, work, **options)
        self.seen.append(self.look())
        return step

    def check(self, at):
        assert differences(self.seen[at], self.look()) == []

    def check_files(self, at):
        """All but the times of directories in which others than steps, or steps out of order, changed names."""
        timeless = [
            {path: one._replace(mtime=0) if stat.S_ISDIR(one.mode) else one for path, one in photo.items()}
            for photo in (self.seen[at], self.look())
        ]
        assert differences(*timeless) == []

    def check_content(self, at):
        """What files hold, as checkpoints bring it back."""
        held = [{path: one.content for path, one in photo.items()} for photo in (self.seen[at], self.look())]
        assert held[0] == held[1]


@pytest.fixture
def bench(workspace, tree):
    return Bench(workspace, tree)


class _Killed(BaseException):
    pass


@pytest.fixture
def cut_short(monkeypatch):
    """Kill an undo before the second record that it reverses."""

    def cut(undo):
        reverse, seen = Reversal._reverse, []

        def once(self, record):
            if seen:
                raise _Killed
            seen.append(record)
            reverse(self, record)

        with monkeypatch.context() as patched:
            patched.setattr(Reversal, "_reverse", once)
            with pytest.raises(_Killed):
                undo()

    return cut

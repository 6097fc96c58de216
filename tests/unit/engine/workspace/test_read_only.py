"""Directories that are read-only to their owner: a restore opens them for the moment."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import holdfast
from holdfast.files.write import _writable_directories as writable_directories
from holdfast.testing.crash_points import MUTATIONS, count_steps, run_killed
from holdfast.testing.permissions import permissions_hold

from ....e2e import as_user
from ....sampling import moments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.workspace.workspace import Workspace


_KILLED = "test_i3_killed_they_get_them_back_when_it_is_finished_or_taken_back"


class Ground(NamedTuple):
    """A workspace of a user whom permissions bind."""

    tree: Path

    def open(self) -> Workspace:
        return holdfast.open(self.tree, home=self.tree.parent / "home")

    def state(self) -> dict[str, tuple[int, bytes | None]]:
        """Everything in the tree, with its permissions."""
        found: dict[str, tuple[int, bytes | None]] = {}
        for path in [self.tree, *self.tree.rglob("*")]:
            content = None if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(self.tree))] = stat.S_IMODE(path.stat().st_mode), content
        return found

    def make_writable(self) -> None:
        for at, names, _ in os.walk(self.tree):
            for name in (".", *names):
                os.chmod(os.path.join(at, name), 0o755)

    def lay(self, content: str, *, more: bool) -> None:
        """A tree that is all read-only, with a file of this content, and ``more`` or another directory."""
        for path in (self.tree / "pkg/changes", self.tree / "pkg/inner/changes"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        comes, goes = ("more", "other") if more else ("other", "more")
        for path in (self.tree / f"pkg/{comes}/deep/file", self.tree / f"{comes}/file"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        for path in (self.tree / f"pkg/{goes}/deep/file", self.tree / f"{goes}/file"):
            if path.exists():
                path.unlink()
                while path.parent != self.tree and not os.listdir(path.parent):
                    path.parent.rmdir()
                    path = path.parent
        for at, names, _ in os.walk(self.tree, topdown=False):
            for name in names:
                os.chmod(os.path.join(at, name), {"more": 0o511, "deep": 0o500}.get(name, 0o555))
        self.tree.chmod(0o555)

    def forget_removed(self) -> None:
        """What is remembered of directories that were removed, by an earlier restore, is lost."""
        for remembered in self.tree.parent.glob("home/workspaces/*/directories"):
            remembered.unlink()


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path / "tree")
    ground.tree.mkdir()
    with permissions_hold():
        with holdfast.init(ground.tree, home=tmp_path / "home") as workspace:
            ground.lay("first", more=False)
            workspace.checkpoint("first")
            ground.make_writable()
            ground.lay("second", more=True)
        yield ground
        ground.make_writable()
        with ground.open() as workspace:
            assert workspace.verify(read_data=True).ok


def test_they_are_opened_and_get_their_permissions_back(ground: Ground) -> None:
    before = ground.state()
    with ground.open() as workspace:
        assert workspace.restore("first").skipped == []
        first = ground.state()
        assert first["pkg/changes"] == (0o644, b"first")
        assert "more" not in first
        there = {mode for path, (mode, content) in first.items() if content is None and "other" not in path}
        assert there == {0o555}
        assert workspace.undo().skipped == []
        assert ground.state() == before, "what it had removed is read-only again, too"
        assert workspace.redo().skipped == []
        assert ground.state()["pkg/inner"] == (0o555, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; here all of it is an ordinary user's")
def test_i3_the_same_of_an_ordinary_user() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        own, empty = Path(directory, "own"), Path(directory, "empty")
        own.mkdir()
        empty.mkdir()
        os.chown(own, as_user.USER, as_user.USER)
        words = [
            sys.executable,
            as_user.__file__,
            empty,
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        words += ["-p", "no:xdist", f"--basetemp={own}/tests", f"{__file__}::{_KILLED}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_i3_killed_after_it_has_removed_directories_it_keeps_their_permissions(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    ground = Ground(tree)
    tree.mkdir()
    with holdfast.init(tree, home=tmp_path / "home") as workspace:
        workspace.checkpoint("first")
        for path in (tree / "private/deep/file", tree / "hollow/deep/file"):
            path.parent.mkdir(parents=True)
            path.write_text("content")
        (tree / "private").chmod(0o700)
        (tree / "private/deep").chmod(0o2750)
        (tree / "hollow").chmod(0o711)
        workspace.checkpoint("second")
    before = ground.state()
    names = count_steps(lambda: restore(ground), calls=MUTATIONS)
    with ground.open() as workspace:
        workspace.undo()
    first = names.index("rmdir")
    for fatal in range(first + 1, len(names) - names[::-1].index("rmdir") + 2):
        ground.forget_removed()
        assert run_killed(lambda: restore(ground), fatal, calls=MUTATIONS).killed
        with ground.open() as workspace:
            assert workspace.restore_abort().skipped == []
        assert ground.state() == before, fatal


def test_i3_killed_they_get_them_back_when_it_is_finished_or_taken_back(ground: Ground) -> None:
    before = ground.state()
    names = count_steps(lambda: restore(ground), calls=MUTATIONS)
    with ground.open() as workspace:
        after = without_other(ground.state())
        workspace.undo()
    assert ground.state() == before
    cut = 0
    fatal_ones = [number for number, name in enumerate(names, 1) if name in ("chmod", "fchmod", "rmdir")]
    for fatal in moments(fatal_ones, 4):
        for way in ("continue", "abort"):
            ground.forget_removed()
            run_killed(lambda: restore(ground), fatal, calls=MUTATIONS)
            with ground.open() as workspace:
                if workspace.unfinished() is not None:
                    cut += 1
                    done = workspace.restore_continue() if way == "continue" else workspace.restore_abort()
                    assert done.skipped == []
                    if way == "abort":
                        assert ground.state() == before, fatal
                    else:
                        assert without_other(ground.state()) == after, fatal
                if ground.state() != before:
                    assert without_other(ground.state()) == after, (fatal, way)
                    assert workspace.undo().skipped == []
                assert ground.state() == before, (fatal, way)
    assert cut


def without_other(state: dict[str, tuple[int, bytes | None]]) -> dict[str, tuple[int, bytes | None]]:
    """``state`` without the directories that a restore makes whose permissions it cannot know."""
    return {path: found for path, found in state.items() if "other" not in path}


def restore(ground: Ground) -> None:
    with ground.open() as workspace:
        workspace.restore("first")


def test_what_may_not_be_looked_into_stays_closed(ground: Ground) -> None:
    with ground.open() as workspace:
        workspace.checkpoint("second")
        (ground.tree / "pkg").chmod(0)
        workspace.restore("first")
        assert stat.S_IMODE((ground.tree / "pkg").stat().st_mode) == 0
        (ground.tree / "pkg").chmod(0o555)
        assert (ground.tree / "pkg/changes").read_text() == "second"


def test_what_another_process_gives_others_meanwhile_stays(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with ground.open() as workspace:
        close = writable_directories.OpenedDirectories.close

        def change(self: writable_directories.OpenedDirectories, durability: object) -> None:
            (ground.tree / "pkg").chmod(0o775)
            close(self, durability)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(writable_directories.OpenedDirectories, "close", change)
        workspace.restore("first")
    assert stat.S_IMODE((ground.tree / "pkg").stat().st_mode) == 0o775
    assert stat.S_IMODE((ground.tree / "pkg/inner").stat().st_mode) == 0o555

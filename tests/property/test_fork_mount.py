"""A fork by mount is saved as a fork that was written out would be, whatever is done in the two."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse, to mount an overlay"
)
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)

Edit = tuple[
    Literal["write", "remove", "rename", "mkdir", "chmod", "link", "symlink", "ignore", "save", "look", "mount"],
    str,
    str,
]
_NAMES = st.sampled_from(["a", "b", "c", "d"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)
_KINDS = (
    ["write"] * 3 + ["remove"] * 2 + ["rename"] * 5 + ["mkdir", "chmod", "link", "symlink", "ignore"] + ["save"] * 3
)
_EDITS = st.lists(st.tuples(st.sampled_from([*_KINDS, "look", "mount"]), _PATHS, _PATHS), min_size=1, max_size=25)
_TREE = {
    "a/a/a": "1", "a/a/b": "2", "a/b/a/c": "3", "a/c": "4", "b/a/a": "5", "b/b/b/b": "6", "b/d": "7", "c/a/b/c": "8",
    "c/d/a": "9", "d": "10", "c/.gitignore": "b\n",
}  # fmt: skip


def _do(root: Path, edit: Edit) -> None:
    """Make an edit, if it can be made; the same in both trees."""
    kind, first, second = edit
    path, other = root / first, root / second
    try:
        match kind:
            case "write":
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a") as file:
                    file.write(second)
            case "remove":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            case "rename":
                path.rename(other)
            case "mkdir":
                path.mkdir()
            case "chmod":
                path.chmod(0o700 if path.is_dir() else 0o755, follow_symlinks=True)
            case "link":
                other.hardlink_to(path)
            case "symlink":
                path.symlink_to(second)
            case "ignore":
                (path / ".gitignore").write_text(second.replace("/", "\n"))
            case _:
                raise AssertionError(kind)
    except OSError:
        return


class _Pair:
    """A fork by mount, and one of the same checkpoint that was written out."""

    def __init__(self, place: Path) -> None:
        self.home = place / "home"
        tree = place / "tree"
        for path, content in _TREE.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(content)
        self.plain, self.mounted = place / "plain", place / "mounted"
        with holdfast.init(tree, home=self.home) as workspace:
            workspace.checkpoint()
            workspace.fork("@", self.plain)
            workspace.fork("@", self.mounted, mount=True)

    def edit(self, edit: Edit) -> None:
        """Do to both what an edit says, and compare where they can be compared."""
        if edit[0] == "mount":
            with holdfast.open_home(self.home) as home:
                home.unmount(self.mounted)
                home.mount_fork(self.mounted)
        elif edit[0] == "save":
            self.save()
        elif edit[0] == "look":
            with self._open(self.plain) as plain, self._open(self.mounted) as mounted:
                assert mounted.status().changes == plain.status().changes
        else:
            _do(self.plain, edit)
            _do(self.mounted, edit)

    def save(self) -> None:
        """Save both."""
        with self._open(self.plain) as plain, self._open(self.mounted) as mounted:
            ours, theirs = mounted.checkpoint(), plain.checkpoint()
            assert ours.checkpoint.root == theirs.checkpoint.root
            assert ours.not_captured == theirs.not_captured

    def _open(self, path: Path) -> holdfast.Workspace:
        return holdfast.open(path, home=self.home)

    def close(self) -> None:
        """Unmount it, whatever has happened."""
        with holdfast.open_home(self.home) as home:
            home.unmount(self.mounted)


def _compare(edits: Sequence[Edit]) -> None:
    with ExitStack() as after:
        place = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-")))
        after.callback(_libc.umount2, bytes(place / "mounted"), _MNT_DETACH)
        pair = _Pair(place)
        for edit in edits:
            pair.edit(edit)
        pair.save()
        pair.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_EDITS)
def test_a_fork_by_mount_is_saved_as_one_that_was_written_out(edits: list[Edit]) -> None:
    _compare(edits)


@pytest.mark.parametrize(
    "edits",
    [
        # One directory takes another's place, and what was known of it is known no more.
        [("look", "", ""), ("rename", "a", "x"), ("rename", "b", "a"), ("save", "", "")],
        [("rename", "a", "x"), ("rename", "b", "a"), ("save", "", ""), ("rename", "a", "b"), ("rename", "x", "a")],
        [("rename", "a/a", "c/x"), ("save", "", ""), ("rename", "c", "a/a"), ("look", "", ""), ("mount", "", "")],
        # Made anew, it hides what was there.
        [("save", "", ""), ("remove", "a", ""), ("write", "a/b/a/d", "x"), ("save", "", ""), ("mount", "", "")],
        # What was not left out is, and the other way round.
        [("save", "", ""), ("ignore", "a", "a"), ("save", "", ""), ("remove", "a/.gitignore", "")],
        [("rename", "c/.gitignore", "c/x"), ("save", "", ""), ("rename", "c/a", "b/x"), ("mount", "", "")],
    ],
)
def test_directories_that_take_the_place_of_others(edits: list[Edit]) -> None:
    _compare(edits)

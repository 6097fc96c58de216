"""What is mounted over a workspace is not taken for it (I5), and a workspace that is a mount of its own is."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening import Opener
from holdfast.engine.sessions.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.root


class Place:
    """A workspace with two saved states, and a directory that is none."""

    def __init__(self, base: Path) -> None:
        self.home, self.tree, self.other = base / "home", base / "it's mine", base / "other"
        self.mounts = 0

    def mount(self, *how: str | Path) -> None:
        """Mount something over the workspace."""
        done = subprocess.run(["mount", *how, self.tree], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        self.mounts += 1

    def unmount(self) -> None:
        """Take away what was mounted last."""
        subprocess.run(["umount", self.tree], check=True)
        self.mounts -= 1

    def noted(self) -> list[tuple[bytes, int, int]]:
        opener = Opener(home=bytes(self.home))
        try:
            return [(one.path, one.device, one.inode) for one in opener.store().catalog.workspaces()]
        finally:
            opener.close()

    def begin(self) -> None:
        """Save two states."""
        with holdfast.init(self.tree, home=self.home) as workspace:
            for text in ("1", "2"):
                (self.tree / "file").write_text(text)
                workspace.checkpoint()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    found = Place(tmp_path)
    found.tree.mkdir()
    found.other.mkdir()
    (found.other / "file").write_text("theirs")
    (found.other / "kept").write_text("kept")
    yield found
    while found.mounts:
        found.unmount()


@pytest.mark.parametrize("how", [["--bind"], ["-t", "tmpfs", "none"]])
def test_what_is_mounted_over_a_workspace_is_not_taken_for_it(place: Place, how: list[str]) -> None:
    """Nor by who has had it open before."""
    place.begin()
    before = place.noted()
    with Sessions(home=place.home) as sessions, sessions.start(place.tree, "one") as session:
        place.mount(*how, *([place.other] if how == ["--bind"] else []))
        (place.tree / "more").write_text("more")
        there = sorted(os.listdir(place.tree))
        for no in (
            lambda: holdfast.open(place.tree, home=place.home),
            lambda: holdfast.init(place.tree, home=place.home),
            lambda: session.checkpoint("no"),
            lambda: session.fork("side"),
            lambda: session.workspace.restore("@-"),
            session.workspace.undo,
        ):
            with pytest.raises(holdfast.RefusedError) as caught:
                no()
            assert (caught.value.code, caught.value.message) == (
                "mounted_over",
                f"something is mounted over the workspace {place.tree}",
            )
            assert caught.value.hint is not None
            assert "umount '" in caught.value.hint
        assert place.noted() == before
        assert sorted(os.listdir(place.tree)) == there
        place.unmount()
        assert session.checkpoint("yes").message == "yes"
    with holdfast.open(place.tree, home=place.home) as workspace:
        assert workspace.status().clean
        workspace.undo()
        assert (place.tree / "file").read_text() == "1"
    assert (place.other / "file").read_text() == "theirs"


def test_what_is_mounted_over_a_workspace_is_the_workspace_if_somebody_says_so(place: Place) -> None:
    place.begin()
    place.mount("--bind", place.other)
    with holdfast.init(place.tree, home=place.home, force=True) as workspace:
        assert workspace.checkpoint().created
    with holdfast.open(place.tree, home=place.home) as workspace:
        workspace.undo()
    assert (place.other / "file").read_text() == "2"


def test_a_workspace_that_is_mounted_over_itself_is_the_same(place: Place) -> None:
    place.begin()
    place.mount("--bind", place.tree)
    with holdfast.open(place.tree, home=place.home) as workspace:
        workspace.undo()
    assert (place.tree / "file").read_text() == "1"


@pytest.mark.parametrize("instead", ["another disk", "another volume", "nothing"])
def test_a_workspace_that_is_a_mount_of_its_own_is_known_whatever_is_mounted_there(place: Place, instead: str) -> None:
    """A disk that was exchanged, or made anew; the volume of a container; and the directory below."""
    place.mount("-t", "tmpfs", "none")
    place.begin()
    shutil.copy(place.tree / "file", place.other)
    place.unmount()
    if instead == "another disk":
        place.mount("-t", "tmpfs", "none")
    elif instead == "another volume":
        place.mount("--bind", place.other)
    (place.tree / "file").write_text("3")
    with holdfast.open(place.tree, home=place.home) as workspace:
        workspace.undo()
        assert (place.tree / "file").read_text() == "2"
        workspace.undo()
    assert (place.tree / "file").read_text() == "1"

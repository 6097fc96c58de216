"""What is mounted over a workspace is not taken for it (I5), and a workspace that is a mount of its own is."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.sessions.registry import Sessions

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


@pytest.mark.parametrize("begun", ["there", "by force"])
def test_a_workspace_that_was_ever_a_mount_is_known_again_after_a_visit_before_it_was_mounted(
    place: Place, begun: str
) -> None:
    """As by a command that comes before the disk after a restart; also if another directory is mounted then."""
    if begun == "by force":
        place.begin()
        place.mount("--bind", place.other)
        holdfast.init(place.tree, home=place.home, force=True).close()
    else:
        place.mount("--bind", place.other)
        place.begin()
    with holdfast.open(place.tree, home=place.home) as workspace:
        kept = workspace.checkpoint().checkpoint.id
    place.unmount()
    (place.tree / "file").write_text("below")
    with holdfast.open(place.tree, home=place.home) as workspace:
        assert not workspace.status().clean
    place.mount("--bind", place.other)
    with holdfast.open(place.tree, home=place.home) as workspace:
        assert workspace.status().clean
    place.unmount()
    exchanged = place.other.with_name("exchanged")
    exchanged.mkdir()
    place.mount("--bind", exchanged)
    with holdfast.open(place.tree, home=place.home) as workspace:
        workspace.restore(kept)
    assert (exchanged / "file").read_bytes() == (place.other / "file").read_bytes()


def test_an_empty_mount_point_is_not_the_workspace_that_is_mounted_there(place: Place) -> None:
    """Nor for who has had it open before; and it is if somebody says so, with what is mounted over it then refused."""
    place.mount("--bind", place.other)
    place.begin()
    before = place.noted()
    with holdfast.open(place.tree, home=place.home) as workspace:
        place.unmount()
        for no in (
            workspace.checkpoint,
            lambda: holdfast.open(place.tree, home=place.home),
            lambda: holdfast.init(place.tree, home=place.home),
            lambda: Sessions(home=place.home).start(place.tree, "one"),
        ):
            with pytest.raises(holdfast.RefusedError) as caught:
                no()
            assert (caught.value.code, caught.value.message) == (
                "not_mounted",
                f"the workspace {place.tree} is a mount of its own, and nothing is mounted there now",
            )
        assert place.noted() == before
        place.mount("--bind", place.other)
        assert workspace.status().clean
    place.unmount()
    with holdfast.init(place.tree, home=place.home, force=True) as workspace:
        assert workspace.checkpoint().created
    place.mount("--bind", place.other)
    with pytest.raises(holdfast.RefusedError) as caught:
        holdfast.open(place.tree, home=place.home)
    assert caught.value.code == "mounted_over"


def test_a_workspace_that_was_seen_through_an_overlay_stays_a_directory_of_its_file_system(place: Place) -> None:
    """So that what is mounted there next is still told from it."""
    place.begin()
    scratch = place.other.with_name("scratch")
    scratch.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", scratch], check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        for name in ("upper", "work"):
            (scratch / name).mkdir()
        place.mount(
            *("-t", "overlay", "none", "-o"),
            f"lowerdir={place.tree},upperdir={scratch / 'upper'},workdir={scratch / 'work'}",
        )
        with holdfast.open(place.tree, home=place.home) as workspace:
            assert workspace.status().clean
        place.unmount()
    finally:
        while place.mounts:
            place.unmount()
        subprocess.run(["umount", scratch], check=True)
    for how in (["-t", "tmpfs", "none"], ["--bind", place.other]):
        place.mount(*how)
        with pytest.raises(holdfast.RefusedError) as caught:
            holdfast.open(place.tree, home=place.home)
        assert caught.value.code == "mounted_over"
        place.unmount()
    with holdfast.open(place.tree, home=place.home) as workspace:
        assert workspace.status().clean

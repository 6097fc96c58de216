"""What keeps a fork from being deleted is told with what to do about it, and once that is done the fork goes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.sessions.registry import Sessions
from holdfast.files.directories.removal_obstacles import mounted_at
from holdfast.model.errors import RefusedError, StorageError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

PROVIDERS = ["copy", "git", "holdfast", "overlay"]


class House:
    """A session with a fork of it, whose directory has to be removed."""

    def __init__(self, place: Path, sessions: Sessions, provider: str) -> None:
        self.mine, self.tree, self.sessions = place / "it's mine", place / "tree", sessions
        self.mine.mkdir()
        (self.mine / "kept").write_text("kept")
        self.session = sessions.start(self.tree, "one")
        self.fork = Path(os.fsdecode(self.session.fork("side", provider=provider).root))

    def mounts(self) -> int:
        """How many are right at the fork."""
        return len(mounted_at(bytes(self.fork)))

    def is_there(self) -> bool:
        return "side" in [one.id for one in self.sessions.list()]


@pytest.fixture(params=PROVIDERS)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount and for chattr +i")
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/file").write_text("1")
    git = ["git", "-C", tree, "-c", "user.name=U", "-c", "user.email=u@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    holdfast.init(tree, home=tmp_path / "home").close()
    with Sessions(home=tmp_path / "home", agent="me") as sessions:
        try:
            house = House(tmp_path, sessions, request.param)
        except UnsupportedError as error:
            pytest.skip(f"the provider {request.param} cannot be used here: {error.message}")
        yield house
        house.session.close()


def advised(error: holdfast.HoldfastError) -> str:
    """The command that the hint names."""
    assert error.hint, error.message
    (command,) = re.findall(r"`(.*)`", error.hint)
    return command


@pytest.mark.parametrize("how", [["--bind"], ["-t", "tmpfs"]])
def test_what_is_mounted_over_it(house: House, how: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """It stays, with all that is in it, and so does the fork; which is also said beforehand."""
    own = house.mounts()
    for _ in range(2):
        subprocess.run(["mount", *how, house.mine, house.fork], check=True)
    try:
        (house.fork / "precious").write_text("precious")
        for looking in (True, False):
            with pytest.raises(RefusedError) as caught:
                house.sessions.delete("side", dry_run=looking)
            assert caught.value.code == "mounted_over"
            assert advised(caught.value) == f"umount {house.fork} && umount {house.fork}"
            assert (house.fork / "precious").read_text() == "precious"
        assert not house.sessions.sweep().removed
        assert not caplog.records, "nothing of it is deleted yet"
        assert house.is_there()
        assert (house.mine / "kept").read_text() == "kept"
        subprocess.run(advised(caught.value), shell=True, check=True)
    finally:
        while house.mounts() > own:
            subprocess.run(["umount", house.fork], check=True)
    with house.sessions.open("side") as fork:
        assert Path(os.fsdecode(fork.root), "sub/file").read_text() == "1"
    house.sessions.delete("side")
    assert not house.fork.exists()
    assert not house.is_there()
    assert (house.mine / "kept").read_text() == "kept"


def test_what_is_mounted_over_it_is_not_taken_for_it(house: House) -> None:
    def noted() -> list[tuple[bytes, int, int]]:
        opener = Opener(home=bytes(house.mine.parent / "home"))
        try:
            return [(one.path, one.device, one.inode) for one in opener.store().catalog.workspaces()]
        finally:
            opener.close()

    before = noted()
    subprocess.run(["mount", "--bind", house.mine, house.fork], check=True)
    try:
        with pytest.raises(RefusedError) as caught:
            house.sessions.open("side")
        assert advised(caught.value) == f"umount {house.fork}"
        with pytest.raises(RefusedError):
            holdfast.open(house.fork, home=house.mine.parent / "home")
        assert noted() == before
    finally:
        subprocess.run(["umount", house.fork], check=True)
    assert sorted(os.listdir(house.mine)) == ["kept"]
    with house.sessions.open("side") as fork:
        assert Path(os.fsdecode(fork.root), "sub/file").read_text() == "1"
    house.sessions.delete("side")
    assert not house.fork.exists()


@pytest.mark.parametrize("what", ["sub/file", "sub", "."])
@pytest.mark.parametrize("attribute", ["i", "a"])
def test_what_chattr_protects(house: House, what: str, attribute: str, caplog: pytest.LogCaptureFixture) -> None:
    path = house.fork / what
    try:
        subprocess.run(["chattr", f"+{attribute}", path], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        house.sessions.delete("side")
        pytest.skip(f"chattr can protect nothing there: {error}")
    protected = True
    try:
        house.sessions.delete("side")
        protected = False  # overlayfs keeps this in an attribute of its own
    except StorageError as error:
        assert advised(error) == f"chattr -{attribute} {path.resolve()}"
        assert house.is_there()
        house.sessions.sweep()
        (warned,) = caplog.records
        assert f"`chattr -{attribute} {path.resolve()}` first" in warned.getMessage()
        caplog.clear()
        subprocess.run(advised(error), shell=True, check=True)
        protected = False
        house.sessions.delete("side")
    finally:
        if protected:
            subprocess.run(["chattr", f"-{attribute}", path], check=True)
    assert not house.fork.exists()
    assert not house.is_there()

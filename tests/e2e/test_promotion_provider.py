"""What makes the copy that a promotion is built in: the best provider that there is, or the one that was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.files.directories.btrfs_subvolume import is_subvolume

from ..disks import mounted
from ..promoted import Ground, content, make_app

KILLER = Path(__file__).parents[1] / "promotion_killer.py"


@pytest.fixture(scope="module", params=["btrfs", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounted(request.param, tmp_path_factory.mktemp("disk")) as place:
        yield place


@pytest.fixture(scope="module")
def btrfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounted("btrfs", tmp_path_factory.mktemp("disk")) as place:
        yield place


def begun(base: Path, *, subvolume: bool = False, **settings: object) -> tuple[Ground, Path]:
    """Production that builds something which is ignored, and a fork of it."""
    base.mkdir(exist_ok=True)
    ground = Ground(base, isolation="none", **settings)
    if subvolume:
        subprocess.run(["btrfs", "subvolume", "create", ground.root], check=True, capture_output=True)
    make_app(ground.root, sys.executable)
    (ground.root / "holdfast.toml").write_text('[promote]\nbuild = ["sh", "-c", "cat src/other.py > deps/out"]\n')
    ground.begin()
    (ground.home / "config.toml").write_text('[promote]\nisolation = "none"\n')
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    return ground, fork


def check(ground: Ground, value: int) -> None:
    assert (ground.root / "src/other.py").read_text() == f"VALUE = {value}\n"
    assert (ground.root / "deps/warm").read_text() == "cached\n"
    assert ground.leftovers() == []
    ground.sound()


@pytest.mark.root
def test_a_snapshot_of_a_subvolume_takes_its_place(btrfs: Path) -> None:
    ground, fork = begun(btrfs / "snapshot", subvolume=True)
    done = ground.promote(fork)
    assert (done.facts.provider, done.answer.atomic) == ("btrfs", True)
    assert is_subvolume(os.fsencode(ground.root))
    check(ground, 2)
    with ground.opened() as workspace:
        workspace.undo()
    check(ground, 1)
    (fork / "src/other.py").write_text("VALUE = 3\n")
    ground.promote(fork)
    check(ground, 3)
    left = subprocess.run(["btrfs", "subvolume", "list", btrfs], check=True, capture_output=True, text=True).stdout
    assert [line.rpartition(" ")[2] for line in left.splitlines()] == ["snapshot/app"]


@pytest.mark.root
@pytest.mark.parametrize("by", ["resume", "sweep"])
@pytest.mark.parametrize("point", ["after:build", "exchanged:"])
def test_i3_killed_with_a_snapshot_it_goes_on_or_is_taken_back(btrfs: Path, point: str, by: str) -> None:
    """Both roots have one inode number, and were born at one time: they are told apart all the same."""
    ground, fork = begun(btrfs / f"{point.partition(':')[2] or 'ex'}-{by}", subvolume=True)
    killed = subprocess.run([sys.executable, KILLER, ground.home, fork, point], capture_output=True, check=False)
    assert killed.returncode == -9, killed
    if by == "resume":
        assert ground.promotions.resume().answer.result == "promoted"
    else:
        ground.promotions.sweep()
    check(ground, 1 if (point, by) == ("after:build", "sweep") else 2)


@pytest.mark.root
def test_what_is_no_subvolume_shares_its_blocks(disk: Path) -> None:
    ground, fork = begun(disk / "shared")
    done = ground.promote(fork)
    assert (done.facts.provider, done.answer.atomic) == ("reflink", True)
    check(ground, 2)


@pytest.mark.root
def test_another_subvolume_in_production_stays_what_is_in_it(btrfs: Path) -> None:
    ground, fork = begun(btrfs / "inner", subvolume=True)
    subprocess.run(["btrfs", "subvolume", "create", ground.root / "deps/inner"], check=True, capture_output=True)
    (ground.root / "deps/inner/held").write_text("held\n")
    assert ground.promote(fork).facts.provider == "reflink"
    assert (ground.root / "deps/inner/held").read_text() == "held\n"
    check(ground, 2)


def test_one_that_is_asked_for_is_used_and_seen(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    ground, fork = begun(tmp_path, provider="copy")
    (ground.home / "config.toml").write_text('[promote]\nisolation = "none"\nprovider = "copy"\n')
    capsysbinary.readouterr()
    assert main(["--home", str(ground.home), "--json", "promote", str(fork)]) == 0
    said = json.loads(capsysbinary.readouterr().out)
    assert said["provider"] == "copy"
    assert said["provider_reason"].startswith("promote.provider names it; a copy takes the time and the room")
    check(ground, 2)
    (fork / "src/other.py").write_text("VALUE = 3\n")
    assert main(["--home", str(ground.home), "promote", str(fork)]) == 0
    assert b"Built in a copy that copy has made: promote.provider names it; " in capsysbinary.readouterr().out


def test_one_that_cannot_make_it_changes_nothing(tmp_path: Path) -> None:
    ground, fork = begun(tmp_path, provider="btrfs")
    before = content(ground.root)
    done = ground.promote(fork, "failed")
    assert done.answer.code == "no_provider"
    assert "the provider btrfs (promote.provider) cannot be used here: btrfs: the workspace is not on btrfs" in (
        done.answer.message
    )
    assert content(ground.root) == before
    check(ground, 1)

"""A workspace is gone only if the very disk that it was on is there without it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.opening import identity
from holdfast.engine.workspace.workspace import Workspace


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    path = tmp_path / "folder"
    path.mkdir()
    return bytes(path)


def test_the_disk_that_was_noted_is_known_again(folder: bytes, tmp_path: Path) -> None:
    assert not identity.is_disk_remembered(folder)
    assert not identity.is_disk_there(folder, bytes(tmp_path)), "nothing is known"
    identity.remember_disk(folder, bytes(tmp_path))
    assert identity.is_disk_remembered(folder)
    assert identity.is_disk_there(folder, bytes(tmp_path))
    assert identity.is_disk_there(folder, bytes(tmp_path.parent))


def test_in_doubt_it_is_another(folder: bytes, tmp_path: Path) -> None:
    # As docs/formats/disk.md has it.
    identity.remember_disk(folder, bytes(tmp_path))
    noted = Path(os.fsdecode(folder)) / "disk"
    uuid, fsid, born = noted.read_text(encoding="ascii").split()
    for text in (
        f"{uuid} {fsid} 1\n",
        f"{uuid} 1 {born}\n",
        f"- {fsid} -\n",
        f"{uuid} {fsid}\n",
        "",
        "\xff - 1\n",
        "- - -\n",
    ):
        noted.write_bytes(text.encode("latin-1"))
        assert not identity.is_disk_there(folder, bytes(tmp_path)), text
    noted.write_text(f"- - {born}\n", encoding="ascii")
    assert identity.is_disk_there(folder, bytes(tmp_path))


class Slot:
    """A place where now one disk is mounted, now another."""

    def __init__(self, place: Path, kind: str) -> None:
        self.place = place
        self._kind = kind
        place.mkdir()

    def plug_in(self, name: str) -> None:
        """Mount the disk of that name, made on first use (one in memory is another each time)."""
        image = self.place.with_name(name)
        if self._kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", name, str(self.place)]
        else:
            if not image.exists():
                with image.open("wb") as file:
                    file.truncate(16 << 20)
                subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
            command = ["mount", "-o", "loop", str(image), str(self.place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")

    def unplug(self) -> None:
        """Unmount what is mounted."""
        subprocess.run(["umount", str(self.place)], check=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def slot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Slot]:
    """See `Slot`."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    if request.param == "ext4" and shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    found = Slot(tmp_path / "slot", request.param)
    yield found
    if found.place.is_mount():
        found.unplug()


def test_a_workspace_is_not_gone_because_another_disk_is_in_its_place(
    workspace: Workspace, tree: Path, home: Path, slot: Slot
) -> None:
    (tree / "file").write_text("here\n")
    workspace.checkpoint()
    slot.plug_in("one")
    device = slot.place.stat().st_dev
    (slot.place / "w").mkdir()
    with holdfast.init(slot.place / "w", home=home) as other:
        (slot.place / "w/file").write_text("there\n")
        kept = other.checkpoint().checkpoint.id
    slot.unplug()
    assert not workspace.forget_gone().removed, "nothing is mounted"
    slot.plug_in("two")
    if slot.place.stat().st_dev != device:
        pytest.skip("this disk has got another number")
    assert not workspace.forget_gone().removed
    assert kept in {checkpoint.id for checkpoint in workspace.log(everything=True).checkpoints}


def test_one_of_a_disk_that_is_there_is_gone_when_it_was_deleted(
    workspace: Workspace, tree: Path, home: Path, slot: Slot
) -> None:
    slot.plug_in("one")
    (slot.place / "deep/w").mkdir(parents=True)
    with holdfast.init(slot.place / "deep/w", home=home) as other:
        (slot.place / "deep/w/file").write_text("there\n")
        gone = other.checkpoint().checkpoint.id
        (Path(os.fsdecode(other.folder)) / "disk").unlink()
    assert not workspace.forget_gone().removed
    with holdfast.open(slot.place / "deep/w", home=home):
        pass  # what an older version did not note is noted
    shutil.rmtree(slot.place / "deep")
    assert [checkpoint.id for checkpoint in workspace.forget_gone().removed] == [gone]

"""What there is of a workspace's virtual machines, without any."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.running.machine_state import RunningMachine, _running, noted, provide_disk
from holdfast.model.clock import SystemClock
from holdfast.model.errors import FormatError, RefusedError
from holdfast.sandbox.images.manifest import Image

if TYPE_CHECKING:
    from pathlib import Path


def running(run: str) -> RunningMachine:
    return RunningMachine(
        run=run,
        pid=os.getpid(),
        image="default",
        accelerator="tcg",
        filesystem="virtiofs",
        persistent=True,
        started_at=1.0,
    )


def image(id_: str) -> Image:
    return Image("default", id_, b"", b"", b"", None)  # type: ignore[arg-type]


def test_a_machine_is_noted_for_as_long_as_its_process_has_it(tmp_path: Path) -> None:
    directory = bytes(tmp_path / "machine")
    with noted(directory, running("a")), noted(directory, running("b")):
        assert [one.run for one in _running(directory)] == ["a", "b"]
        assert next(_running(directory)).memory_bytes > 1 << 20
    assert list(_running(directory)) == []


def test_the_note_of_a_killed_process_is_none(tmp_path: Path) -> None:
    directory = tmp_path / "machine"
    code = (
        "import os, sys; from holdfast.engine.running.machine_state import RunningMachine, noted\n"
        "with noted(os.fsencode(sys.argv[1]), RunningMachine(run='a', pid=1, image='', accelerator='', filesystem='',"
        " persistent=True, started_at=0)):\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, directory], check=False)
    assert os.listdir(directory) == ["run-a"]
    assert list(_running(bytes(directory))) == []
    assert os.listdir(directory) == []


def test_a_disk_stands_on_the_image_that_it_was_made_for(tmp_path: Path) -> None:
    directory = bytes(tmp_path / "machine")
    disk = provide_disk(directory, 64 << 20, image("one"), SystemClock())
    assert provide_disk(directory, 64 << 20, image("one"), SystemClock()) == disk
    with pytest.raises(RefusedError, match="another image") as caught:
        provide_disk(directory, 64 << 20, image("two"), SystemClock())
    assert caught.value.code == "image_changed"
    note = tmp_path / "machine" / "disk-image"
    note.write_bytes(note.read_bytes().replace(b"one", b"two"))
    with pytest.raises(FormatError, match="checksum"):
        provide_disk(directory, 64 << 20, image("two"), SystemClock())
    os.unlink(disk)
    assert provide_disk(directory, 64 << 20, image("two"), SystemClock()) == disk

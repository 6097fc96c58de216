"""What there is of a workspace's virtual machines, without any."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast.engine.running.machine_state import _running, machine_directory, machine_of_run, noted, provide_disk
from holdfast.model.clock import SystemClock
from holdfast.model.errors import FormatError, RefusedError
from holdfast.model.machine import RunningMachine
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
    directory = machine_directory(bytes(tmp_path))
    with noted(directory, running("a")), noted(directory, running("b")):
        assert [one.run for one in _running(directory)] == ["a", "b"]
        assert next(_running(directory)).memory_bytes > 1 << 20
        found = machine_of_run(bytes(tmp_path), "b")
        assert found == msgspec.structs.replace(running("b"), memory_bytes=found.memory_bytes if found else 0)
        assert b"memory" not in (tmp_path / "machine" / "run-b").read_bytes()
    assert list(_running(directory)) == []
    assert machine_of_run(bytes(tmp_path), "b") is None


def test_the_note_of_a_killed_process_is_none(tmp_path: Path) -> None:
    directory = tmp_path / "machine"
    code = (
        "import os, sys; from holdfast.engine.running.machine_state import noted\n"
        "from holdfast.model.machine import RunningMachine\n"
        "with noted(os.fsencode(sys.argv[1]), RunningMachine(run='a', pid=1, image='', accelerator='', filesystem='',"
        " persistent=True, started_at=0)):\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, directory], check=False)
    assert os.listdir(directory) == ["run-a"]
    assert list(_running(bytes(directory))) == []
    assert os.listdir(directory) == []


def test_a_disk_keeps_the_size_that_it_was_made_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = bytes(tmp_path / "machine")
    size = (64 << 20) + 1
    disk = provide_disk(directory, size, image("one"), SystemClock())
    assert provide_disk(directory, size, image("one"), SystemClock()) == disk
    assert caplog.text == ""
    assert provide_disk(directory, 100_000_000, image("one"), SystemClock()) == disk
    assert "was made with 67.1 MB, and vm.disk (100 MB) is for a new one: `holdfast vm reset`" in caplog.text
    caplog.clear()


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

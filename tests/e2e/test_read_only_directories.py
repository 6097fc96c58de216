"""What a command may read and must not change: directories beside its workspace, whatever way it takes to them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.supervisor.confinement.landlock import version
from holdfast.testing.tree_state import differences, photograph

from . import hostile
from .afterwards import undo_each
from .test_supervisor_calls import ATTACK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor is for Linux")


def supervised(base: Path, read_only: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the tree ``base``/tree."""
    words = [sys.executable, "-P", "-m", "holdfast.supervisor.launch.supervised_run", "--read-only", str(read_only)]
    words += ["--log", str(base / "log"), "--root", str(base / "tree"), "--", *command]
    return subprocess.run(words, check=False, cwd=base / "tree", timeout=60, capture_output=True, text=True)


@pytest.fixture(name="base")
def _base(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path


def test_no_way_of_writing_changes_anything(base: Path) -> None:
    kept = hostile.furnish(base / "around" / "kept")
    before = photograph(base / "around")
    done = supervised(base, kept, "sh", "-c", hostile.command(kept))
    assert done.returncode == 0, done.stderr
    hostile.judge(done.stdout)
    assert differences(before, photograph(base / "around")) == []


@pytest.mark.parametrize("kind", ["open", "unlink", "rename"])
def test_a_thread_that_flips_the_path_changes_nothing(base: Path, kind: str) -> None:
    inside, outside = base / "tree" / "file", base / "kept" / "file"
    outside.parent.mkdir()
    for path in (inside, outside):
        path.write_bytes(b"1")
    before = photograph(base / "kept")
    inner = photograph(base / "tree")
    assert (
        supervised(base, base / "kept", sys.executable, "-c", ATTACK, kind, str(inside), str(outside)).returncode == 0
    )
    assert differences(before, photograph(base / "kept")) == []
    if kind == "open":
        assert b"x" in inside.read_bytes(), "the attack did not take place"
    undo_each(base / "log", base / "tree")
    assert differences(inner, photograph(base / "tree")) == []


@pytest.fixture(name="shared_memory")
def _shared_memory() -> Generator[Path]:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm to write to")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.skipif(not version(), reason="this kernel has no Landlock, so nothing is left to it that writes")
def test_what_is_left_to_the_kernel_does_not_lead_there(base: Path, shared_memory: Path) -> None:
    """Devices are opened by the kernel, with a path that it reads again."""
    kept = shared_memory / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"1")
    before = photograph(kept)
    done = supervised(base, kept, sys.executable, "-c", ATTACK, "open", "/dev/null", str(kept / "file"))
    assert done.returncode == 0, done.stderr
    assert differences(before, photograph(kept)) == []


def test_what_comes_to_lie_at_its_path_is_read_only_too(base: Path) -> None:
    kept, moved = base / "kept", base / "moved"
    kept.mkdir()
    (kept / "file").write_bytes(b"1")
    script = f"echo begun; read go; echo 2 > {kept}/file; echo 2 > {moved}/file; echo 2 > own"
    words = [sys.executable, "-P", "-m", "holdfast.supervisor.launch.supervised_run", "--read-only", str(kept)]
    words += ["--log", str(base / "log"), "--root", str(base / "tree"), "--", "sh", "-c", script]
    with subprocess.Popen(words, cwd=base / "tree", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stdout.readline() == b"begun\n"
        kept.rename(moved)
        kept.mkdir()
        (kept / "file").write_bytes(b"1")
        run.stdin.write(b"go\n")
    assert [(path / "file").read_bytes() for path in (kept, moved)] == [b"1", b"1"]
    assert (base / "tree" / "own").read_bytes() == b"2\n"


def test_what_holds_the_workspace_or_lies_in_it_is_refused(base: Path) -> None:
    (base / "tree" / "sub").mkdir()
    for path in (base / "tree" / "sub", base / "tree", base, Path("/")):
        done = supervised(base, path, "touch", "made")
        assert done.returncode == 4
        assert "lie in each other" in done.stderr
    assert os.listdir(base / "tree") == ["sub"]

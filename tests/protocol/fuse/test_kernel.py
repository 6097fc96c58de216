"""The codec against the kernel of this machine: it says everything it can, and takes every answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_CAP_SYS_ADMIN = 21


def may_mount() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = int(next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1], 16)
    return bool(effective >> _CAP_SYS_ADMIN & 1) and os.access("/dev/fuse", os.R_OK | os.W_OK)


pytestmark = pytest.mark.skipif(not may_mount(), reason="needs CAP_SYS_ADMIN and /dev/fuse: it mounts")


def test_a_session_of_every_kind(tmp_path: Path) -> None:
    """In a process of its own, for a mount namespace cannot be left."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.protocol.fuse.record", tmp_path / "recorded"],
        check=False,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "recorded" / "all" / "lookup.txt").read_text().startswith("> ")
    assert [path.name for path in tmp_path.iterdir()] == ["recorded"]

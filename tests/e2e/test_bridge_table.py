"""The same system calls in a directory and on a mount that serves its twin: results, errors and trees are the same.

Then undo gives the first tree back, as after a supervised run.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.tree_state import differences, photograph

from ..fuse import ONLY_WITH_FUSE
from .afterwards import undo_each
from .bridge import bridged
from .call_table import SCRIPTS, numbers_here, plant, program, without_times

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.root,
    ONLY_WITH_FUSE,
    pytest.mark.skipif(os.geteuid() != 0, reason="other users' files are part of it"),
]

OTHERWISE = {
    # Beside a mount is another file system.
    "openat2": {
        "openat2[-100, \"b'../out/x'\", '', 24] EXDEV": 2,
        "openat2[-100, \"b'outside/x'\", '', 24] EXDEV": 2,
    },
    # No flags of inodes, and no handles.
    "special": {
        "ioctl[3, 2148034049, ''] ENOTTY": 1,
        "ioctl[4, 2148034049, ''] ENOTTY": 1,
        "open_by_handle_at[4, '', 0] ESTALE": 1,
        "open_by_handle_at[4, '', 1] ESTALE": 1,
    },
}
"""What comes out otherwise than natively, and how often; docs/internals/bridge.md says why."""

OTHER_CONTENT = {
    # What could not be opened was not written to.
    ("special", False): {b"file"},
    ("special", True): {b"file"},
    # The kernel has opened it for appending, and goes on so.
    ("append", True): {b"log"},
}


WAYS = [(name, True) for name in SCRIPTS] + [
    # (What comes out otherwise when served is always among them.)
    way if way in OTHER_CONTENT or number % 2 else pytest.param(*way, marks=pytest.mark.thorough)
    for number, way in enumerate((name, False) for name in SCRIPTS)
]


@pytest.mark.parametrize(("name", "passthrough"), WAYS)
def test_calls_come_out_as_natively(tmp_path: Path, name: str, passthrough: bool) -> None:
    """I1."""
    native, twin = tmp_path / "native", tmp_path / "mirror"
    for top in (native, twin):
        plant(top)
    before = photograph(twin / "ws")
    command = [sys.executable, "-c", program(name), json.dumps(numbers_here())]
    expected = subprocess.run(command, cwd=native / "ws", timeout=100, text=True, capture_output=True, check=False)
    with bridged(twin / "ws", tmp_path / "log", passthrough=passthrough):
        got = subprocess.run(command, cwd=twin / "ws", timeout=100, text=True, capture_output=True, check=False)
    lines = difflib.ndiff(expected.stdout.splitlines(), got.stdout.replace("mirror", "native").splitlines())
    new = [line[2:] for line in lines if line.startswith("+ ")]
    assert {line: new.count(line) for line in new} == OTHERWISE.get(name, {}), got.stderr
    assert got.stderr == expected.stderr
    assert got.returncode == expected.returncode
    for part in ("ws", "out"):
        here, there = (without_times(photograph(top / part)) for top in (twin, native))
        other = OTHER_CONTENT.get((name, passthrough), set()) if part == "ws" else set[bytes]()
        for path in other:
            assert here.pop(path) != there.pop(path)
        assert differences(there, here) == []
    undo_each(tmp_path / "log", twin / "ws")
    assert differences(before, photograph(twin / "ws")) == []

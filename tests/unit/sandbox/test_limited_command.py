"""A contained command in a box. (What it can do without one: ``tests/unit/processes/test_child.py``.)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.processes.child import Ended, FileLimits
from holdfast.sandbox.limited_command import run_contained

from ...promoted import needs_isolation


@needs_isolation
def test_in_a_box_another_directory_is_seen_at_the_workspaces_path(tmp_path: Path) -> None:
    from holdfast.model.errors import UnsupportedError
    from holdfast.sandbox.isolation_probe import require_isolation
    from holdfast.sandbox.namespace import Namespace
    from holdfast.sandbox.policy import FileAccess, OpenNetwork, SandboxPolicy

    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "name").write_text("here")
    (there / "name").write_text("there")
    policy = SandboxPolicy(FileAccess(os.fsencode(here), origin=os.fsencode(there)), OpenNetwork())
    try:
        require_isolation(policy)
    except UnsupportedError as error:
        pytest.skip(error.message)
    output = os.fsencode(tmp_path / "output")
    done = run_contained(
        [b"sh", b"-c", b"pwd; cat name; echo new > new; echo x > ../outside; sleep 1000 & exit 4"],
        box=Namespace(policy),
        directory=os.fsencode(here),
        environment=dict(os.environb),
        limits=FileLimits(seconds=30, memory=0, output=10_000, grace=0.3),
        output=output,
    )
    assert done == Ended(4)
    assert Path(os.fsdecode(output)).read_text().startswith(f"{here}\nthere")
    assert sorted(path.name for path in there.iterdir()) == ["name", "new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "output", "there"]

"""Forks that hold ignored files, for an ordinary user on a plain file system."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .ordinary import ME, as_user, give_away

pytestmark = pytest.mark.root


@pytest.fixture(name="base")
def _base(tmp_path: Path) -> Path:
    """A directory of an ordinary user's, with a workspace in it that has its dependencies installed."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    tree = tmp_path / "user/work"
    (tree / "node_modules/dep").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tree / ".gitignore").write_text("node_modules\n")
    (tree / "main").write_text("1\n")
    (tree / "node_modules/dep/index").write_text("dependency\n")
    os.link(tree / "node_modules/dep/index", tree / "node_modules/dep/same")
    give_away(tmp_path)
    return tmp_path


def test_a_fork_holds_what_is_installed(base: Path) -> None:
    script = f"""
        {ME} init -q; {ME} checkpoint -q; {ME} session start one -q >/dev/null
        {ME} session fork -s one side --with-ignored --json
    """
    done = as_user(base, script)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    if made["provider"] != "copy":
        pytest.skip(f"here is something better: {made['provider']}")
    root = Path(made["root"])
    assert (root / "node_modules/dep/index").read_text() == "dependency\n"
    assert (root / "node_modules/dep/index").samefile(root / "node_modules/dep/same")
    assert not (root / "node_modules/dep/index").samefile(base / "user/work/node_modules/dep/index")
    worked = as_user(base, f"{ME} session exec -s side -q -- 'echo mine > main; rm -r node_modules'; cat main; ls -A")
    assert worked.returncode == 0, worked.stderr
    assert worked.stdout == "1\n.gitignore\nmain\nnode_modules\n"
    told = as_user(base, f"{ME} doctor")
    (line,) = [line for line in told.stdout.splitlines() if "copy: score" in line]
    assert "that is 3 files of" in line
    gone = as_user(base, f"{ME} session delete side --yes -q; {ME} session list --json")
    assert gone.returncode == 0, gone.stderr
    assert "side" not in gone.stdout
    assert not root.exists()
    assert list((base / "user/home").rglob("copies")) == []


def test_what_is_larger_than_allowed_is_refused(base: Path) -> None:
    made = as_user(base, f"{ME} init -q; {ME} checkpoint -q; {ME} session start one -q >/dev/null")
    assert made.returncode == 0, made.stderr
    fork = f"{ME} session fork -s one side --with-ignored --provider copy"
    refused = as_user(base, fork, HOLDFAST_SNAPSHOT_MAX_COPY_BYTES="4096")
    assert refused.returncode == 4
    assert "more than the 4.1 kB of snapshot.max_copy_bytes" in refused.stderr
    assert as_user(base, fork).returncode == 0, "nothing is left that stands in the way"

"""Owner and attributes that were set by hand after a run: no undo overwrites them unasked, and redo has them back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.tree_state import differences, photograph

if TYPE_CHECKING:
    from e2e.conftest import Cli


def by_hand(path: Path) -> None:
    os.setxattr(path, "user.a", b"by hand")
    os.setxattr(path, "user.note", b"by hand")
    if os.geteuid() == 0:
        os.chown(path, 1000, 1000)


@pytest.mark.parametrize(
    ("name", "script"), [("d", "chmod 700 d"), ("h", "echo two > h")], ids=["a directory", "a file with several names"]
)
def test_an_edit_after_a_run(cli: Cli, name: str, script: str) -> None:
    path = cli.root / name
    (cli.root / "d").mkdir()
    os.link(cli.write("h", "one\n"), cli.root / "h2")
    os.setxattr(path, "user.a", b"before")
    cli("checkpoint")
    before = photograph(cli.root)
    cli.process("run", "--", "sh", "-c", script, stdin=subprocess.DEVNULL)
    by_hand(path)
    edited = photograph(cli.root)

    for words in (("undo", "--dry-run"), ("undo",), ("undo", "--run")):
        refused = cli(*words, "--json", code=4)
        assert refused.error["code"] == "barrier"
        assert name in refused.error["message"]
    assert differences(edited, photograph(cli.root)) == []

    cli("undo", "--force", "--dry-run")
    assert differences(edited, photograph(cli.root)) == []
    cli("undo", "--force")
    assert differences(before, photograph(cli.root)) == []
    cli("redo", "--dry-run")
    assert differences(before, photograph(cli.root)) == []
    cli("redo")
    assert differences(edited, photograph(cli.root)) == []
    # It is theirs again.
    assert cli("undo", "--json", code=4).error["code"] == "barrier"


def test_without_an_edit_the_undo_gives_owner_and_attributes_back(cli: Cli) -> None:
    (cli.root / "d").mkdir()
    os.link(cli.write("h", "one\n"), cli.root / "h2")
    for name in ("d", "h"):
        os.setxattr(cli.root / name, "user.a", b"before")
    cli("checkpoint")
    before = photograph(cli.root)
    script = "import os\nfor name in ('d', 'h'): os.setxattr(name, 'user.a', b'run'); os.chmod(name, 0o711)"
    cli.process("run", "--", "python3", "-c", script, stdin=subprocess.DEVNULL)
    cli.process("run", "--", "sh", "-c", "touch d/new; rm h2; echo two > h", stdin=subprocess.DEVNULL)
    after = photograph(cli.root)
    count = str(len(cli.json("steps")["steps"]))
    for _ in range(2):
        cli("undo", count)
        assert differences(before, photograph(cli.root)) == []
        cli("redo", count)
        assert differences(after, photograph(cli.root)) == []

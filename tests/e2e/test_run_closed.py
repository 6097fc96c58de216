"""`run` by somebody whom permissions hold for, of commands that take their own user's access away, and its undo."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.permissions import permissions_hold
from holdfast.testing.tree_state import differences, photograph

from .conftest import INSTALLED

if TYPE_CHECKING:
    from .conftest import Cli

_OVERRIDING = "-dac_override,-dac_read_search"
ORDINARY = ["setpriv", f"--bounding-set={_OVERRIDING}", f"--inh-caps={_OVERRIDING}"]
"""Without the capabilities that override permissions."""

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can look at what is closed"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv"),
]


def ordinary(cli: Cli, *words: str, code: int = 0) -> str:
    """`holdfast` by somebody whom permissions hold for; what it says on standard error."""
    command = [*ORDINARY, *INSTALLED, "-w", str(cli.root), *words]
    done = subprocess.run(
        command, cwd="/" if words[0] != "run" else cli.root, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == code, done
    return done.stderr


@pytest.fixture
def closing(cli: Cli) -> Cli:
    """A workspace with files of every access, saved."""
    cli.write("plain", "plain")
    cli.write("read only", "old").chmod(0o444)
    cli.write("write only", "secret").chmod(0o200)
    cli.write("large and write only", "secret" * 5000).chmod(0o200)
    cli.write("directory/inner/file", "content")
    cli.write("directory/other", "content")
    (cli.root / "directory").chmod(0o555)
    with permissions_hold():
        cli("checkpoint")
    return cli


@pytest.mark.parametrize(
    "script",
    [
        "chmod u+w 'read only' && echo new >> 'read only' && chmod 444 'read only'",
        "chmod 700 directory && rm directory/other directory/inner/file && chmod 0 directory/inner directory",
        "chmod 700 directory && mv directory/inner/file directory/moved && touch directory/x && chmod 0 directory",
        "chmod 700 directory && mv directory away && chmod 0 away",
        "echo more >> 'write only'",
        "echo more >> 'large and write only'; : > 'write only'",
        "chmod 0 plain; chmod 700 'write only'; echo >> 'write only'; chmod 0 'write only'",
    ],
)
def test_what_the_user_itself_may_not_touch_any_more_is_undone_and_brought_forward(closing: Cli, script: str) -> None:
    """I1."""
    before = photograph(closing.root)
    ordinary(closing, "run", "--one-step", "--", "sh", "-c", script)
    after = photograph(closing.root)
    assert differences(before, after) != []
    for verb, expected in (("undo", before), ("redo", after), ("undo", before)):
        ordinary(closing, verb)
        assert differences(expected, photograph(closing.root)) == []


@pytest.mark.parametrize("mode", ["000", "100", "400"])
def test_a_command_that_closes_the_workspace_itself_ends_as_it_says_and_is_undone(closing: Cli, mode: str) -> None:
    """I1."""
    before = photograph(closing.root)
    said = ordinary(closing, "run", "--one-step", "--", "sh", "-c", f"echo >> plain; chmod {mode} .; exit 7", code=7)
    assert "the workspace's directory cannot be read" in said
    after = photograph(closing.root)
    for verb, expected in (("undo", before), ("redo", after), ("undo", before)):
        ordinary(closing, verb)
        assert differences(expected, photograph(closing.root)) == []


def test_what_cannot_be_kept_for_want_of_access_is_changed_unprotected(closing: Cli) -> None:
    secret = closing.root / "write only"
    os.chown(secret, -1, 77)  # which no namespace of the user's own knows
    closing.write("plain", "plain")
    said = ordinary(closing, "run", "--one-step", "--", "sh", "-c", "echo more >> 'write only'; echo >> plain")
    assert "step 1 cannot be undone whole: write only may be written to, but not read, by who runs it" in said
    assert secret.read_bytes() == b"secretmore\n"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o200
    assert "--force" in ordinary(closing, "undo", code=4)
    ordinary(closing, "undo", "--force", code=4)  # and names what it could not bring back
    assert (closing.root / "plain").read_bytes() == b"plain"
    assert secret.read_bytes() == b"secretmore\n"

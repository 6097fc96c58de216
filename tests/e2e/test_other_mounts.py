"""Parts of a workspace on other mounts: nothing there can be renamed into the log, and inode numbers are shared."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from .conftest import INSTALLED

if TYPE_CHECKING:
    from .conftest import Cli

MOUNTS = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]

pytestmark = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*MOUNTS, "true"], check=False).returncode != 0,
    reason="nothing can be mounted",
)


def mounted(cli: Cli, script: str) -> str:
    """What a shell says in the workspace, with two file systems of the same inode numbers in ``one`` and ``two``."""
    for name in ("one", "two"):
        (cli.root / name).mkdir()
    mount = "mount -t tmpfs one one && mount -t tmpfs two two && echo a > one/a && echo b > two/b"
    hold = f'hf() {{ {shlex.join(INSTALLED)} "$@"; }}'
    done = subprocess.run(
        [*MOUNTS, "sh", "-ec", f"{hold}; {mount}; {script}"],
        cwd=cli.root,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


def test_files_of_two_mounts_with_the_same_inode_number_are_not_mixed_up(cli: Cli) -> None:
    said = mounted(
        cli,
        """
        set_to() { printf 'sh -c "echo %s > %s"; ' "$1" "$2"; }
        hf run -- sh -c "$(set_to a1 one/a; set_to b1 two/b; set_to a2 one/a; set_to b2 two/b)" >&2
        stat -c %i one/a two/b | uniq | wc -l
        for each in 1 2 3 4; do hf undo >&2; cat one/a two/b; done
        """,
    )
    assert said.split() == ["1", "a2", "b1", "a1", "b1", "a1", "b", "a", "b"]


def test_a_hard_link_on_another_mount_is_brought_back_as_one(cli: Cli) -> None:
    said = mounted(
        cli,
        """
        ln one/a one/c
        hf run -- sh -c 'sh -c "echo new > one/c; rm one/c"' >&2
        hf undo >&2
        cat one/a one/c
        stat -c %h one/a
        """,
    )
    assert said.split() == ["a", "a", "2"]


def test_a_mounted_file_is_restored_and_undone_in_place(cli: Cli) -> None:
    """As a container's runtime mounts single files."""
    said = mounted(
        cli,
        """
        mkdir d && touch config d/inner && echo 1 > ../outside && echo 1 > ../other
        mount --bind ../outside config && mount --bind ../other d/inner
        hf -q init && hf -q checkpoint -m first >&2
        echo 2 > config && echo 2 > d/inner && chmod 600 config
        hf undo >&2 && cat config d/inner && stat -c %a config
        echo 2 > d/inner && hf restore first d/inner 2> ../told >&2 && cat d/inner ../other
        grep -c "d/inner is a mount point" ../told
        hf run -- sh -c 'echo 3 > config' >&2 && hf undo >&2 && cat config ../outside
        """,
    )
    assert said.split() == ["1", "1", "644", "1", "1", "1", "1", "1"]

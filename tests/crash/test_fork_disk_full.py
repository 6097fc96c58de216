"""Case 4 for forks by Git: whatever is full as one is made, the error says so and where, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError, StorageError
from holdfast.snapshot.git.provider import git_provider
from holdfast.snapshot.provider_context import ProviderContext

from ..disks import mounted

_FILES, _SIZE = 20, 1 << 20


def git(root: Path, *words: str) -> bytes:
    """What a command of the user's says."""
    words = ("-c", "user.name=U", "-c", "user.email=u@example.org", *words)
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True).stdout


@pytest.mark.root
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """Of what is committed a copy is kept, of what is changed another is taken in, and all of it is checked out."""
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "--quiet")
    for number in range(_FILES):
        (tree / str(number)).write_bytes(os.urandom(_SIZE))
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "-m", "m")
    git(tree, "repack", "-a", "-d", "--quiet")
    for number in range(_FILES // 2):
        (tree / str(number)).write_bytes(os.urandom(_SIZE))
    (tmp_path / "disk").mkdir()
    with mounted("tmpfs", tmp_path / "disk") as disk:
        provider = git_provider(ProviderContext(bytes(tree), bytes(disk / "state"), "s"))
        for room, failing in (
            (2, "a fork needs"),
            (22, "the provider"),
            (32, "git update-index"),
            (44, "git read-tree"),
        ):
            about = os.statvfs(disk)
            with (disk / "filler").open("wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, about.f_bavail * about.f_frsize - (room << 20))
            with pytest.raises((RefusedError, StorageError)) as caught:
                provider.prepare("worktree")
            (disk / "filler").unlink()
            assert caught.value.message.startswith(failing), room
            assert os.fspath(disk) in caught.value.message
            assert "free some space" in (caught.value.hint or "")
            assert list(provider.tokens()) == []
            assert not [path for path in disk.rglob("*") if path.is_file() and path.suffix != ".lock"]
            assert git(tree, "for-each-ref", "refs/holdfast") == b""
        provider.cleanup(provider.prepare("worktree").token)

"""Views of one session come and go while another makes its own."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from holdfast.snapshot.git.provider import git_provider
from holdfast.snapshot.provider_context import ProviderContext

from .conftest import Beside, User

Make = Callable[..., Beside]

_SLOW_GIT = """#!/bin/sh
if [ "$1 $2" = "worktree add" ]; then
    : >'{place}/begun'
    while [ ! -e '{place}/go' ]; do sleep 0.01; done
    ls "$GIT_DIR/worktrees" >'{place}/seen'
fi
exec '{git}' "$@"
"""


def test_none_goes_while_git_adds_one(
    user: User, beside: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`git worktree add` looks at all of them, and fails if one that it has listed is gone."""
    one = beside(user)
    provider, other = one.provider, git_provider(ProviderContext(bytes(user.root), bytes(one.state), "t"))
    first = provider.mount(one.take())
    snapshot = other.snapshot(other.prepare("in-place"), "other")
    programs = tmp_path / "programs"
    programs.mkdir()
    slow = programs / "git"
    slow.write_text(_SLOW_GIT.format(place=tmp_path, git=shutil.which("git")))
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with ThreadPoolExecutor(2) as threads:
        added = threads.submit(other.mount, snapshot)
        while not (tmp_path / "begun").exists() and not added.done():
            time.sleep(0.01)
        removed = threads.submit(provider.cleanup, first.token)
        wait([removed], 0.3)  # (Were it not to wait, it would be done by then.)
        (tmp_path / "go").touch()
        second = added.result()
        removed.result()
    assert first.token in (tmp_path / "seen").read_text().split()
    assert os.path.isdir(second.path)
    for allocation in other.tokens():
        other.cleanup(allocation.token)

"""Whole copies of a workspace hold nothing of Holdfast's own, wherever that lies (I14)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.snapshot.btrfs import btrfs_provider
from holdfast.snapshot.full_copy import reflink_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.testing.provider_contract import content, lay

from ...disks import mounted

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.snapshot.port import Provider


@pytest.mark.root
@pytest.mark.parametrize("make", [btrfs_provider, reflink_provider])
def test_a_home_in_the_workspace_is_in_no_copy(tmp_path: Path, make: Callable[[ProviderContext], Provider]) -> None:
    with mounted("btrfs", tmp_path) as disk:
        root = disk / "tree"
        subprocess.run(["btrfs", "subvolume", "create", root], check=True, capture_output=True)
        lay(root)
        expected = content(root)
        home = root / ".local/share/holdfast"
        home.mkdir(parents=True)
        (home / "catalog.db").write_text("what Holdfast knows\n")
        state = home / f"workspaces/w/snapshots/{make.__name__}"
        provider = make(ProviderContext(bytes(root), bytes(state), "one", own=(bytes(home),)))
        line = provider.prepare("in-place")
        view = provider.mount(provider.snapshot(line, "s"))
        branch = provider.prepare("worktree")
        for path in (view.path, branch.path):
            assert content(path) == expected
            assert os.listdir(os.path.join(path, b".local/share")) == []
        for allocation in provider.tokens():
            provider.cleanup(allocation.token)
        assert not (state / "copies").exists()

"""I1: random changes by real runs, of either kind, are taken back and brought forward again exactly."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.tree_state import differences, photograph

from ..fuse import ONLY_WITH_FUSE
from ..sampling import some

if TYPE_CHECKING:
    from e2e.conftest import Cli

AT_RANDOM = """
import random, sys
from holdfast.testing.tree_actor import SystemActor, act_at_random
actor, chance = SystemActor(b"."), random.Random(sys.argv[1])
for _ in range(60):
    act_at_random(actor, chance)
"""
SHARING = Path(__file__).with_name("sharing.py")
KINDS = [
    pytest.param((), id="supervised"),
    pytest.param(
        ("--bridge", "fuse"),
        id="fuse",
        marks=[ONLY_WITH_FUSE, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may mount")],
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", some(range(2), 1))
def test_what_runs_did_is_taken_back_one_by_one_and_brought_forward(cli: Cli, kind: tuple[str, ...], seed: int) -> None:
    for name in ("a/b", "c"):
        cli.write(name, name * 1000)
    os.link(cli.root / "c", cli.root / "d")
    photos = [photograph(cli.root)]
    for at in range(3):
        # (Two processes, one after the other: each is a step.)
        act = f"'{sys.executable}' -c '{AT_RANDOM}' {seed}-{at}-"
        cli.process("run", *kind, "--", "sh", "-c", f"{act}0; {act}1")
        photos.append(photograph(cli.root))
    assert differences(photos[0], photos[-1]) != []
    for photo in reversed(photos[:-1]):
        cli("undo", "--run")
        assert differences(photo, photograph(cli.root)) == []
    for photo in photos[1:]:
        cli("redo")
        assert differences(photo, photograph(cli.root)) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", some(range(20), 1))
def test_processes_that_share_files_are_no_outsiders(cli: Cli, kind: tuple[str, ...], chunk: int) -> None:
    """I8: ten histories each, in which several open, remove and make anew what others still write to."""
    seeds = [str(seed) for seed in range(chunk * 10, chunk * 10 + 10)]
    for seed in seeds:
        for name in ("f", "d/f"):
            cli.write(f"{seed}/{name}", name)
        os.link(cli.root / seed / "f", cli.root / seed / "x")
    before = photograph(cli.root)
    cli.process("run", *kind, "--", sys.executable, str(SHARING), str(cli.root), *seeds)
    after = photograph(cli.root)
    cli("undo", "--run")
    assert differences(before, photograph(cli.root)) == []
    cli("redo")
    assert differences(after, photograph(cli.root)) == []

"""I1: random changes by real runs, of either kind, are taken back and brought forward again exactly."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.photograph import differences, photograph

from ..fuse import ONLY_WITH_FUSE
from ..sampling import some

if TYPE_CHECKING:
    from e2e.conftest import Cli

AT_RANDOM = """
import random, sys
from holdfast.testing.acting import SystemActor, act_at_random
actor, chance = SystemActor(b"."), random.Random(sys.argv[1])
for _ in range(60):
    act_at_random(actor, chance)
"""
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

"""Two forks and production, edited and promoted in any order: no change of any side is lost silently."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast

from ..promoted import Ground, content
from ..sampling import some

pytest.importorskip("dbos", reason="dbos is not installed")

FILES = [f"f{number}" for number in range(6)]


@pytest.mark.parametrize("seed", some(range(12), 2))
def test_no_change_is_lost_silently(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    ground = Ground(tmp_path, isolation="none")
    ground.root.mkdir()
    for name in FILES:
        (ground.root / name).write_text(name)
    ground.begin()
    forks = [ground.fork(name) for name in ("one", "two")]
    bases = [content(fork) for fork in forks]
    for _ in range(8):
        edit(choose.choice([*forks, ground.root]), choose)
        which = choose.randrange(2)
        fork, base = forks[which], bases[which]
        before, theirs = content(ground.root), content(fork)
        clash, expected = merged(base, before, theirs)
        done = ground.promotions.promote(fork).answer
        if clash:
            assert done.result == "needs_reapply"
            assert {one.path for one in done.overlapping_files} >= clash
            assert content(ground.root) == before
            for name in clash:  # a person settles it in favour of production
                put(fork / name, before.get(name))
        else:
            assert done.result == ("unchanged" if expected == before else "promoted")
            assert content(ground.root) == expected
            # (If there is nothing to do, production holds all of the fork as well: what it does to that later counts.)
            bases[which] = theirs
    with holdfast.open(ground.root, home=ground.home) as workspace:
        assert workspace.status().clean
        assert workspace.verify(read_data=True).problems == []
    assert ground.leftovers() == []


def edit(tree: Path, choose: random.Random) -> None:
    """Write, delete or make a file: each content is another one, so that nothing looks like a rename."""
    name = choose.choice([*FILES, "new-1", "new-2"])
    if choose.random() < 0.25:
        (tree / name).unlink(missing_ok=True)
    else:
        (tree / name).write_text("".join(choose.choices("abcdefgh\n", k=60)))


def put(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)


def merged(
    base: dict[str, bytes], ours: dict[str, bytes], theirs: dict[str, bytes]
) -> tuple[set[str], dict[str, bytes]]:
    """What is in conflict, and what a person would expect if nothing is."""
    clash: set[str] = set()
    found = dict(ours)
    for name in base.keys() | ours.keys() | theirs.keys():
        was, here, there = base.get(name), ours.get(name), theirs.get(name)
        if there in (was, here):
            continue
        if here != was:
            clash.add(name)
        elif there is None:
            found.pop(name, None)
        else:
            found[name] = there
    return clash, found

"""Two forks and production, edited and promoted in any order: no change of any side is lost silently."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast
from holdfast.model.paths import display

from ..promoted import Ground, content
from ..sampling import some

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


class Kept:
    """What a line of work holds of ``d0/f`` … as a person sees it: which are there, and which it ignores by now."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def there(self) -> dict[int, bytes]:
        return {n: path.read_bytes() for n in range(6) if (path := self.root / f"d{n}/f").exists()}

    @property
    def ignored(self) -> set[int]:
        return {n for n in range(6) if (self.root / f"d{n}/.gitignore").exists()}

    @property
    def captured(self) -> dict[int, bytes]:
        return {n: data for n, data in self.there.items() if n not in self.ignored}

    def edit(self, choose: random.Random) -> None:
        """Write, delete or begin to ignore one; what is deleted stays so, and what is ignored, too."""
        n, what = choose.randrange(6), choose.choice(["write", "write", "delete", "ignore", "ignore"])
        path = self.root / f"d{n}/f"
        if what == "ignore":
            (self.root / f"d{n}/.gitignore").write_text("/f\n")
        elif path.exists() and what == "write":
            path.write_text("".join(choose.choices("abcdefgh\n", k=60)))
        elif path.exists():
            path.unlink()


@pytest.mark.parametrize("by", ["merge", "promote"])
@pytest.mark.parametrize("seed", some(range(12), 2))
def test_what_a_line_begins_to_ignore_is_deleted_nowhere(tmp_path: Path, seed: int, by: str) -> None:
    choose = random.Random(seed)
    ground = Ground(tmp_path, isolation="none")
    ground.flags["merge.ladder"] = ["text"]
    for n in range(6):
        (ground.root / f"d{n}").mkdir(parents=True)
        (ground.root / f"d{n}/f").write_text(f"f{n}")
    (ground.root / "stays").touch()
    ground.begin()
    production = Kept(ground.root)
    forks = [Kept(ground.fork(name)) for name in ("one", "two")]
    bases = [fork.captured for fork in forks]
    for _ in range(10):
        for _ in range(2):
            choose.choice([*forks, production]).edit(choose)
        which = choose.randrange(2)
        fork, base = forks[which], bases[which]
        before, expected, clash = production.there, production.there, set[int]()
        for n in base:
            was, here = base[n], production.captured.get(n)
            ceased = n in fork.ignored and n in fork.there
            there = was if ceased else fork.captured.get(n)
            if there in (was, here):
                continue
            if here != was:
                clash.add(n)
            elif there is None:
                del expected[n]
            else:
                expected[n] = there
        overlapping = bring(ground, fork.root, by)
        if clash:
            assert overlapping == {f"d{n}/f" for n in clash}
            assert production.there == before
            for n in clash:  # a person settles it in favour of production
                put(fork.root / f"d{n}/f", production.captured.get(n))
            continue
        assert overlapping == set()
        assert production.there == expected
        assert production.ignored >= fork.ignored
        bases[which] = fork.captured
        with holdfast.open(ground.root, home=ground.home) as workspace:
            assert workspace.status().clean
            assert workspace.verify(read_data=True).problems == []
    assert ground.leftovers() == []


def bring(ground: Ground, fork: Path, by: str) -> set[str]:
    """What overlaps; if nothing does, all that the fork has done is in production then."""
    if by == "promote":
        return {one.path for one in ground.promotions.promote(fork).answer.overlapping_files}
    with holdfast.open(ground.root, home=ground.home, flags=ground.flags) as workspace:
        return {display(one.path) for one in workspace.merge(str(fork)).plan.overlapping}

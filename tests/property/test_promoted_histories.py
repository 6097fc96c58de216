"""Generated histories of two forks and production, saved as they go on and promoted, against what a person expects.

A file is known by what it is, not by its name: it has a name, permissions, and places in its text that are far enough
from each other to be edited apart; or it has become a link. A person puts two of its histories together place by place,
and cannot tell where both have changed one; then nothing may happen before that is settled.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import holdfast

from ..promoted import Ground
from ..sampling import some

PLACES = 4
Tree = dict[str, "File"]
"""By what a file is called first, which it stays for a person whatever it is called later."""


@dataclass(frozen=True)
class File:
    name: str
    said: tuple[str, ...]
    mode: int = 0o644
    link: str = ""

    def text(self, known: str) -> str:
        """Every line but the places is there for good, and in no other file."""
        return "".join(
            f"{known} begins {number}\n{known} goes on {number}\n{said}\n{known} ends {number}\n"
            for number, said in enumerate(self.said)
        )


@dataclass
class Line:
    """A line of work: its directory, what is in it, and for a fork, what it was when it was promoted last."""

    root: Path
    files: Tree
    base: Tree = field(default_factory=dict)


def lay(root: Path, was: Tree, now: Tree) -> None:
    """Bring a directory from one state to another by as little as a person would do."""
    for known in was.keys() - now.keys():
        (root / was[known].name).unlink()
    for known, file in now.items():
        before = was.get(known)
        if before == file:
            continue
        path = root / file.name
        path.parent.mkdir(exist_ok=True)
        if before is not None and before.name != file.name:
            (root / before.name).rename(path)
        if file.link:
            path.unlink(missing_ok=True)
            path.symlink_to(file.link)
            continue
        if path.is_symlink():
            path.unlink()
        path.write_text(file.text(known))
        path.chmod(file.mode)


def seen(root: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(root)): (0, os.readlink(path))
        if path.is_symlink()
        else (path.stat().st_mode & 0o777, path.read_text())
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def told(tree: Tree) -> dict[str, tuple[int, str]]:
    return {file.name: (0, file.link) if file.link else (file.mode, file.text(known)) for known, file in tree.items()}


def change(tree: Tree, choose: random.Random, count: int) -> Tree:
    """One thing that somebody does; ``count`` makes what they write another thing each time."""
    known = choose.choice(sorted(tree)) if tree else ""
    what = choose.choices(["edit", "rename", "mode", "delete", "add", "link"], [10, 3, 2, 2, 2, 1])[0]
    file = tree.get(known)
    if what == "add" or file is None or (file.link and what in ("edit", "mode")):
        known = f"new{count}"
        return {**tree, known: File(known, tuple(f"{known} says {place}" for place in range(PLACES)))}
    if what == "delete":
        return {name: one for name, one in tree.items() if name != known}
    if what == "edit":
        place = choose.randrange(PLACES)
        said = tuple(f"edit {count}" if number == place else one for number, one in enumerate(file.said))
        return {**tree, known: replace(file, said=said)}
    if what == "rename":
        return {**tree, known: replace(file, name=f"{choose.choice(['', 'lib/', 'etc/'])}{known}-{count}")}
    if what == "mode":
        return {**tree, known: replace(file, mode=choose.choice([0o600, 0o755]))}
    return {**tree, known: replace(file, link=f"target-{count}")}


def put_together(base: Tree, ours: Tree, theirs: Tree) -> tuple[Tree, set[str]]:
    """What a person makes of it, and what they cannot tell."""
    found: Tree = {}
    open_: set[str] = set()
    for known in base.keys() | ours.keys() | theirs.keys():
        was, here, there = base.get(known), ours.get(known), theirs.get(known)
        one = here if there == was else there if here in (was, there) else both(was, here, there)
        if one == "open":
            open_.add(known)
        elif isinstance(one, File):
            found[known] = one
    return found, open_


def both(was: File | None, here: File | None, there: File | None) -> File | str:
    if was is None or here is None or there is None:
        return "open"
    parts: list[object] = []
    for before, one, other in (
        (was.name, here.name, there.name),
        (was.mode, here.mode, there.mode),
        (was.link, here.link, there.link),
        *zip(was.said, here.said, there.said, strict=True),
    ):
        if one != before and other not in (before, one):
            return "open"
        parts.append(other if one == before else one)
    for one, other in ((here, there), (there, here)):
        # (A link has neither text nor permissions: what the other has done to them would be gone.)
        if one.link != was.link and (other.said, other.mode) != (was.said, was.mode):
            return "open"
    name, mode, link, *said = parts
    assert isinstance(name, str)
    assert isinstance(mode, int)
    return File(name, tuple(map(str, said)), mode, str(link))


@pytest.mark.parametrize("seed", some(range(24), 3))
def test_what_comes_of_two_histories_is_what_a_person_expects(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    ground = Ground(tmp_path, isolation="none")
    ground.flags["merge.ladder"] = ["structure", "text"]
    ground.root.mkdir()
    first = {f"f{n}": File(f"f{n}", tuple(f"f{n} says {place}" for place in range(PLACES))) for n in range(6)}
    lay(ground.root, {}, first)
    ground.begin()
    production = Line(ground.root, first)
    forks = [Line(ground.fork(name), first, first) for name in ("one", "two")]
    count = promoted = 0
    for _ in range(5):
        for line in (production, *forks):
            for _ in range(choose.randrange(1, 4)):
                count += 1
                now = change(line.files, choose, count)
                lay(line.root, line.files, now)
                line.files = now
                if choose.random() < 0.7:
                    with holdfast.open(line.root, home=ground.home) as workspace:
                        workspace.checkpoint()
        fork = choose.choice(forks)
        expected, open_ = put_together(fork.base, production.files, fork.files)
        if open_:
            before = seen(ground.root)
            answer = ground.promote(fork.root, "needs_reapply").answer
            names = {tree[known].name for known in open_ for tree in (production.files, fork.files) if known in tree}
            assert {one.path for one in answer.overlapping_files} <= names
            assert len(answer.overlapping_files) == len(open_)
            assert seen(ground.root) == before, "nothing is changed as long as something is open"
            settle(fork, production, open_)
            expected, open_ = put_together(fork.base, production.files, fork.files)
            assert not open_
        was, base = production.files, fork.base
        ground.promote(fork.root, "unchanged" if expected == was else "promoted")
        production.files, fork.base = expected, fork.files
        assert seen(ground.root) == told(expected)
        if expected != was:
            promoted += 1
            turn(ground, choose, production, fork, was, base)
    assert promoted
    ground.sound()
    assert ground.leftovers() == []


def settle(fork: Line, production: Line, known: set[str]) -> None:
    """A person lets production's version of what cannot be told stand, in the fork."""
    now = {name: file for name, file in fork.files.items() if name not in known}
    now |= {name: production.files[name] for name in known & production.files.keys()}
    lay(fork.root, fork.files, now)
    fork.files = now


def turn(ground: Ground, choose: random.Random, production: Line, fork: Line, was: Tree, base: Tree) -> None:
    """After a promotion: it is taken back, and may be made again; or what is old is forgotten."""
    what = choose.choice(["undo", "undo and promote", "forget", "nothing"])
    if what == "forget":
        for line in (production, fork):
            with holdfast.open(line.root, home=ground.home) as workspace:
                for back in (3, 2, 1):
                    try:
                        workspace.forget([f"@-{back}"])
                    except (holdfast.NotFoundError, holdfast.RefusedError):
                        continue  # (another stands on it, or there is none)
    if what.startswith("undo"):
        with ground.opened() as workspace:
            workspace.undo()
        assert seen(ground.root) == told(was)
        if what == "undo":
            production.files, fork.base = was, base
        else:
            ground.promote(fork.root)
            assert seen(ground.root) == told(production.files)

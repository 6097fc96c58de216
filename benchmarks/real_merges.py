"""Merges that people have made, made again: what a stacked merge makes of both parents, and what was committed.

    python benchmarks/real_merges.py CLONE [--most 100] [--any] [--show] [--promote]

CLONE is a Git repository, bare or not; it is only read. Taken are the newest merge commits with two parents whose sides
have both changed something and, unless --any is given, some file in common. The first parent is the production; the
second is a fork, whose every commit is a checkpoint of its own. No agent is asked: the ladder is `structure`, `text`.
Of each merge it says whether the result is the very tree that was committed, another one, or left to a person; of each
file that overlaps the same, beside what `git merge-file` makes of it. --show names the files that came out otherwise.
With --promote, the fork is promoted instead, and nothing built; where that is left to a person, production has to be as
it was.
Files called .gitignore are left out, as what they ignore would not be captured, and so are submodules.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import holdfast
from holdfast.engine.merging.stacked_plan import Resolution

Tree = dict[bytes, tuple[bytes, str]]
"""Path → mode and object id, as Git has them."""
MOST_COMMITS = 400
_LEFT_OUT = (b".gitignore", b".checkpointignore", b"holdfast.toml", b".git")


class Missing(Exception):
    """The clone lacks an object, as one without its largest files does."""


class Clone:
    """A Git repository, read by one process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._objects = subprocess.Popen(
            ["git", "-C", path, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", self.path, *words], capture_output=True, text=True, check=True).stdout

    def tree(self, commit: str) -> Tree:
        listed = subprocess.run(
            ["git", "-C", self.path, "ls-tree", "-r", "-z", commit], capture_output=True, check=True
        ).stdout
        found: Tree = {}
        for line in listed.split(b"\0")[:-1]:
            about, path = line.split(b"\t", 1)
            mode, kind, name = about.split()
            if kind == b"blob" and not any(part in _LEFT_OUT for part in path.split(b"/")):
                found[path] = (mode, name.decode())
        return found

    def blob(self, name: str) -> bytes:
        assert self._objects.stdin is not None
        assert self._objects.stdout is not None
        self._objects.stdin.write(name.encode() + b"\n")
        self._objects.stdin.flush()
        about = self._objects.stdout.readline().split()
        if len(about) != 3:
            raise Missing(name)
        size = int(about[2])
        return self._objects.stdout.read(size + 1)[:-1]

    def merges(self, shared: bool, most: int):
        """The newest merges that are worth a look: (commit, base, production, fork)."""
        taken = 0
        for line in self.git("rev-list", "--all", "--min-parents=2", "--max-parents=2", "--parents").splitlines():
            commit, ours, theirs = line.split()
            bases = subprocess.run(
                ["git", "-C", self.path, "merge-base", "--all", ours, theirs],
                capture_output=True,
                text=True,
                check=False,
            ).stdout.split()
            if len(bases) != 1 or bases[0] in (ours, theirs):
                continue
            names = [
                set(self.git("diff-tree", "-r", "--name-only", bases[0], side).splitlines()) for side in (ours, theirs)
            ]
            if all(names) and (not shared or names[0] & names[1]):
                yield commit, bases[0], ours, theirs
                taken += 1
                if taken == most:
                    return


class Place:
    """A directory that is made what a tree of Git is, by what differs."""

    def __init__(self, clone: Clone, root: Path, tree: Tree) -> None:
        self._clone, self.root, self.tree = clone, root, tree

    def become(self, tree: Tree) -> None:
        for path in self.tree.keys() - tree.keys():
            target = self._at(path)
            os.unlink(target)
            parent = os.path.dirname(target)
            while parent != os.fsencode(self.root) and not os.listdir(parent):
                os.rmdir(parent)
                parent = os.path.dirname(parent)
        for path, (mode, name) in tree.items():
            if self.tree.get(path) == (mode, name):
                continue
            target, content = self._at(path), self._clone.blob(name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.lexists(target):
                os.unlink(target)
            if mode == b"120000":
                os.symlink(content, target)
                continue
            with open(target, "wb") as file:
                file.write(content)
            os.chmod(target, 0o755 if mode == b"100755" else 0o644)
        self.tree = dict(tree)

    def _at(self, path: bytes) -> bytes:
        return os.path.join(os.fsencode(self.root), path)

    def found(self) -> Tree:
        """What is there now."""
        tree: Tree = {}
        root = os.fsencode(self.root)
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    mode, content = b"120000", os.readlink(path)
                else:
                    mode = b"100755" if os.stat(path).st_mode & 0o100 else b"100644"
                    content = Path(os.fsdecode(path)).read_bytes()
                digest = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
                tree[os.path.relpath(path, root)] = (mode, digest)
        # (Links to directories are among the directories.)
        for folder, names, _ in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    content = os.readlink(path)
                    digest = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
                    tree[os.path.relpath(path, root)] = (b"120000", digest)
        return tree


class Result(NamedTuple):
    merge: str
    """same, different, person."""
    files: list[tuple[bytes, str, str]]
    """Of each file that overlaps: what became of it by us, and by `git merge-file`."""
    otherwise: list[bytes]
    """Files that came out otherwise than they were committed; what was left to a person is as it was committed."""


FLAGS = {"merge.ladder": ["structure", "text"], "retention.keep_all": "30d", "promote.isolation": "none"}


def promoted(clone: Clone, work: Path, commit: str, base: str, ours: str, theirs: str) -> Result:
    """One merge, made again as a promotion."""
    from holdfast.engine.promotion.manager import Promotions

    production, fork = work / "production", work / "fork"
    production.mkdir()
    place = Place(clone, production, {})
    place.become(clone.tree(base))
    with holdfast.init(production, home=work / "home", flags=FLAGS) as workspace:
        workspace.checkpoint()
        workspace.fork("@", fork)
    there = Place(clone, fork, dict(place.tree))
    with holdfast.open(fork, home=work / "home", flags=FLAGS) as other:
        for step in steps(clone, base, theirs):
            there.become(clone.tree(step))
            other.checkpoint()
    place.become(clone.tree(ours))
    answer = Promotions(home=work / "home", flags=FLAGS).promote(fork).answer
    now, wanted = place.found(), clone.tree(commit)
    if answer.result == "needs_reapply":
        assert now == clone.tree(ours), "nothing is changed as long as something is open"
        return Result("person", [], [])
    assert answer.result in ("promoted", "unchanged"), answer
    otherwise = sorted(path for path in now.keys() | wanted.keys() if now.get(path) != wanted.get(path))
    return Result("different" if otherwise else "same", [], otherwise)


def merged(clone: Clone, work: Path, commit: str, base: str, ours: str, theirs: str) -> Result:
    """One merge, made again."""
    production, fork = work / "production", work / "fork"
    production.mkdir()
    began = clone.tree(base)
    place = Place(clone, production, {})
    place.become(began)
    with holdfast.init(production, home=work / "home", flags=FLAGS) as workspace:
        workspace.checkpoint()
        workspace.fork("@", fork)
        there = Place(clone, fork, dict(began))
        with holdfast.open(fork, home=work / "home", flags=FLAGS) as other:
            for step in steps(clone, base, theirs):
                there.become(clone.tree(step))
                other.checkpoint()
        place.become(clone.tree(ours))
        workspace.checkpoint()
        found = workspace.merge(str(fork))
        wanted = clone.tree(commit)
        if found.plan.overlapping:
            # (What is left to a person is decided as it was committed, so that the rest can be compared.)
            decided = {one.path: decision(clone, wanted.get(one.path)) for one in found.plan.overlapping}
            workspace.merge(str(fork), resolutions=dict(decided))
    now = place.found()
    files: list[tuple[bytes, str, str]] = []
    for record, overlap in zip(found.prepared.records, found.plan.stacked.overlaps, strict=True):
        by_us = (
            "person"
            if record.outcome == "open"
            else "same"
            if now.get(record.path) == wanted.get(record.path)
            else "different"
        )
        trees = [began, clone.tree(ours), clone.tree(theirs)]
        names = [overlap.base_path, overlap.conflict.path, overlap.conflict.there]
        entries = [tree.get(name) for tree, name in zip(trees, names, strict=True)]
        files.append((record.path, by_us, by_git(clone, work, entries, wanted.get(record.path))))
    otherwise = sorted(path for path in now.keys() | wanted.keys() if now.get(path) != wanted.get(path))
    outcome = "person" if found.plan.overlapping else "different" if otherwise else "same"
    return Result(outcome, files, otherwise)


def decision(clone: Clone, wanted: tuple[bytes, str] | None) -> Resolution:
    """What was committed of a file."""
    if wanted is not None and wanted[0] == b"120000":
        return Resolution(prefer="ours")
    return Resolution(content=None if wanted is None else clone.blob(wanted[1]))


def steps(clone: Clone, base: str, tip: str) -> list[str]:
    """The commits of the fork, the oldest first; the tip alone where they do not lead there one by one."""
    listed = clone.git("rev-list", "--first-parent", "--reverse", f"{base}..{tip}").split()
    return listed if 0 < len(listed) <= MOST_COMMITS else [tip]


def by_git(clone: Clone, work: Path, entries: list, wanted) -> str:
    """What `git merge-file` makes of a file."""
    if None in entries or any(mode == b"120000" for mode, _ in entries):
        return "person"
    names = ("base", "ours", "theirs")
    for name, (_, blob) in zip(names, entries, strict=True):
        (work / name).write_bytes(clone.blob(blob))
    done = subprocess.run(
        ["git", "merge-file", "-p", "ours", "base", "theirs"], cwd=work, capture_output=True, check=False
    )
    if done.returncode:
        return "person"
    return "same" if wanted is not None and clone.blob(wanted[1]) == done.stdout else "different"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clone", metavar="CLONE", help="a Git repository")
    parser.add_argument("--most", type=int, default=100, help="so many merges at most (default: 100)")
    parser.add_argument("--any", action="store_true", help="also those whose sides have no file in common")
    parser.add_argument("--show", action="store_true", help="name the files that came out otherwise")
    parser.add_argument("--promote", action="store_true", help="promote the fork instead of merging it")
    arguments = parser.parse_args()
    make = promoted if arguments.promote else merged
    clone = Clone(arguments.clone)
    merges: Counter[str] = Counter()
    ours: Counter[str] = Counter()
    git: Counter[str] = Counter()
    both: Counter[tuple[str, str]] = Counter()
    for commit, base, one, other in clone.merges(not arguments.any, arguments.most):
        with tempfile.TemporaryDirectory(prefix="holdfast-real-merges-") as directory:
            try:
                found = make(clone, Path(directory), commit, base, one, other)
            except Missing:
                print(f"{commit[:10]} is not in the clone as a whole", file=sys.stderr)
                continue
        merges[found.merge] += 1
        for path, by_us, by_git_ in found.files:
            ours[by_us] += 1
            git[by_git_] += 1
            both[by_us, by_git_] += 1
            if arguments.show and by_us != by_git_:
                print(f"{commit[:10]} {os.fsdecode(path)}: {by_us} here, {by_git_} by git", file=sys.stderr)
        if arguments.show and found.otherwise:
            print(f"{commit[:10]} otherwise: {', '.join(map(os.fsdecode, found.otherwise[:8]))}", file=sys.stderr)
    print("| | same | different | left to a person |\n| --- | --- | --- | --- |")
    for name, counts in (("merges", merges), ("files that overlap", ours), ("the same by `git merge-file`", git)):
        if arguments.promote and counts is not merges:
            continue
        print(f"| {name}: {sum(counts.values())} | {counts['same']} | {counts['different']} | {counts['person']} |")


if __name__ == "__main__":
    main()

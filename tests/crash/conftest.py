"""A place that a test can put back as it was: a home and a tree, with a history that every kind of change is in."""

from __future__ import annotations

import os
import random
import shutil
import stat
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import holdfast
from holdfast.model.paths import TEMPORARY_PREFIX
from holdfast.store.manifests import manifest
from holdfast.testing.crash_points import count_steps, run_killed, without_syncs

from ..sampling import is_thorough

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.ids import CheckpointId


class Item(NamedTuple):
    """What is at one path: a file, a link (mode 0), or a directory with nothing in it (mode -1)."""

    mode: int
    content: bytes


State = dict[bytes, Item]

LARGE = random.Random(1).randbytes(1_200_000)


def file(content: bytes, mode: int = 0o644) -> Item:
    return Item(mode, content)


def link(target: bytes) -> Item:
    return Item(0, target)


FIRST: State = {
    b".gitignore": file(b"*.log\n"),
    b"a": file(b"first\n" * 50),
    b"b": file(b"second file\n" * 30),
    b"run.sh": file(b"#!/bin/sh\n", 0o755),
    b"link": link(b"a"),
    b"d/x": file(b"x"),
    b"d/deep/y": file(b"y" * 3000),
    b"gone/all/of/it": file(b"it"),
    b"n\xe9": file(b"not UTF-8"),
    b"to-dir": file(b"a file"),
    b"to-link/f": file(b"in a directory"),
    b"big": file(LARGE),
    b"empty": file(b""),
    b"same": file(b"same"),
}
SECOND: State = {
    b".gitignore": file(b"*.log\nbuild/\n"),
    b"a": file(b"first\n" * 50 + b"and more"),
    b"b": file(b"second file\n" * 30),
    b"run.sh": file(b"#!/bin/sh\n", 0o700),
    b"link": link(b"d/x"),
    b"d/x": file(b"not x"),
    b"new/n/m": file(b"m"),
    b"new/copy": file(b"x"),
    b"n\xe9": file(b"still not"),
    b"to-dir/inner": file(b"inner"),
    b"to-link": link(b"nowhere"),
    b"big": file(LARGE[:700_000] + b"edited" + LARGE[700_000:]),
    b"empty": file(b""),
    b"same": file(b"same"),
}
UNSAVED: State = {**SECOND, b"a": file(b"not saved yet"), b"d/more": file(b"more")}
del UNSAVED[b"new/copy"]
IGNORED: State = {
    b"noise.log": file(b"noise"),
    b"build/out": file(b"ignored by the rules of the second state only"),
    b"d/keep.log": file(b"k"),
    b"new/n/keep.log": file(b"in a directory that the first state lacks"),
}


class Place:
    """The directory `root`, which holds the home and the tree; its copies are kept beside it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "w"
        self.home = self.root / "home"
        self.tree = self.root / "tree"
        self.tree.mkdir(parents=True)
        self.known: dict[CheckpointId, State] = {}
        """What each checkpoint must hold for ever."""

    def init(self, path: Path | None = None) -> Workspace:
        return holdfast.init(path or self.tree, home=self.home)

    def open(self, path: Path | None = None) -> Workspace:
        return holdfast.open(path or self.tree, home=self.home)

    def keep(self, name: str) -> None:
        """Keep a copy of everything as ``name``."""
        shutil.rmtree(self.base / name, ignore_errors=True)
        shutil.copytree(self.root, self.base / name, symlinks=True)

    def put_back(self, name: str) -> None:
        """Make everything as it was when ``name`` was kept."""
        shutil.rmtree(self.root)
        shutil.copytree(self.base / name, self.root, symlinks=True)

    def lay(self, state: Mapping[bytes, Item], before: Mapping[bytes, Item] | None = None) -> None:
        """Make of the state ``before``, which the tree holds, the state ``state``; nothing else is touched."""
        before = before or {}
        for path in before:
            if state.get(path) != before[path]:
                target = self.path(path)
                target.unlink()
                for parent in target.parents:
                    if parent == self.tree or any(parent.iterdir()):
                        break
                    parent.rmdir()
        for path, item in state.items():
            if before.get(path) == item:
                continue
            target = self.path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if item.mode:
                target.write_bytes(item.content)
                target.chmod(item.mode)
            else:
                target.symlink_to(os.fsdecode(item.content))

    def path(self, path: bytes) -> Path:
        return self.tree / os.fsdecode(path)

    def look(self, tree: Path | None = None) -> State:
        """All that is in a tree, captured or not, and every empty directory."""
        return look(tree or self.tree)

    def history(self) -> None:
        """Checkpoints of `FIRST` and `SECOND`, unsaved changes on top, and files that are ignored."""
        with self.init() as workspace:
            self.lay(FIRST)
            self.known[workspace.checkpoint("first").checkpoint.id] = FIRST
            self.lay(SECOND, FIRST)
            self.lay(IGNORED)
            self.known[workspace.checkpoint("second").checkpoint.id] = SECOND
            self.lay(UNSAVED, SECOND)

    def history_tree(self) -> None:
        """Only the tree of `history`."""
        self.lay(UNSAVED)
        self.lay(IGNORED)

    def state(self, name: str) -> State:
        """The states that `history` goes through."""
        return {"first": FIRST, "second": SECOND, "unsaved": UNSAVED}[name]

    def saved(self, state: Mapping[bytes, Item]) -> State:
        """What of a tree a checkpoint holds."""
        return {path: item for path, item in state.items() if path not in IGNORED and item.mode >= 0}

    def ignored(self, state: Mapping[bytes, Item]) -> State:
        """What of a tree no checkpoint holds."""
        return {path: item for path, item in state.items() if path in IGNORED}

    large = LARGE

    def item(self, mode: int, content: bytes) -> Item:
        return Item(mode, content)

    def nothing_torn(self, at: State, before: State, after: State, death: object) -> None:
        """Each path holds what it held or what it is to hold; only temporaries are there beside that."""
        for path, item in at.items():
            if TEMPORARY_PREFIX in path or item.mode < 0:
                continue
            assert item in (before.get(path), after.get(path)), (death, path)

    def sound(self, *, collect: bool = True, path: Path | None = None) -> None:
        """Every command works, all that must be there is there, byte for byte, also after a collection (I3, I11)."""
        with self.open(path) as workspace:
            self._sound(workspace)
            if collect:
                workspace.gc(grace=0)
                self._sound(workspace)

    def _sound(self, workspace: Workspace) -> None:
        found = workspace.verify(read_data=True)
        assert found.ok, found.problems
        workspace.stats()
        workspace.status()
        for checkpoint in workspace.log(everything=True).checkpoints:
            workspace.show(checkpoint.id)
        for checkpoint, state in self.known.items():
            assert content_of(workspace, checkpoint) == state

    def steps(self, work: Callable[[], object]) -> list[str]:
        """The changes that ``work`` makes to the place as it was kept as ``start``."""
        self.put_back("start")
        return count_steps(work)

    def deaths(self, work: Callable[[], object], *, most: int = 12) -> Iterator[Death]:
        """Kill ``work`` at its changes, each time from the place as it is now; yields after each death.

        At most ``most`` of the changes are tried, the first and the last among them; in a thorough run every one is.
        """
        self.keep("start")
        names = self.steps(work)
        for step in chosen(len(names), most):
            death = Death(self, work, step, names[step - 1])
            if death.die():
                yield death


class Death:
    """One step at which some work is killed; `die` makes it happen once more, from the same beginning."""

    def __init__(self, place: Place, work: Callable[[], object], step: int, name: str) -> None:
        self._place = place
        self._work = work
        self._step = step
        self._name = name

    def die(self) -> bool:
        """Put the place back and kill the work; False if it came to its end before (threads: one step less)."""
        self._place.put_back("start")
        return run_killed(self._work, self._step).killed

    def __repr__(self) -> str:
        return f"death at step {self._step}, {self._name}"


def look(tree: Path) -> State:
    state: State = {}

    def walk(directory: bytes, prefix: bytes) -> None:
        with os.scandir(directory) as entries:
            inside = list(entries)
        if not inside and prefix:
            state[prefix[:-1]] = Item(-1, b"")
        for entry in inside:
            path = prefix + entry.name
            if entry.is_symlink():
                state[path] = Item(0, os.readlink(entry.path))
            elif entry.is_dir():
                walk(entry.path, path + b"/")
            else:
                info = entry.stat(follow_symlinks=False)
                state[path] = Item(stat.S_IMODE(info.st_mode), Path(os.fsdecode(entry.path)).read_bytes())

    walk(os.fsencode(tree), b"")
    return state


def content_of(workspace: Workspace, checkpoint: CheckpointId) -> State:
    """The whole state that a checkpoint holds."""
    store = workspace._context.store
    entries = list(manifest.iterate(store.pages, store.catalog.checkpoint(checkpoint).root))
    contents = store.reader.fetch([entry for _, entry in entries])
    state: State = {}
    for (path, entry), content in zip(entries, contents, strict=True):
        data = content if isinstance(content, bytes) else b"".join(content)
        state[path] = Item(0 if entry.is_symlink else entry.permissions, data)
    return state


def chosen(total: int, most: int) -> list[int]:
    """Which of the steps 1 to ``total`` are tried."""
    if total <= most or is_thorough():
        return list(range(1, total + 1))
    # One of each part of equal length, so that no long stretch is left out.
    source, parts = random.Random(total), most - 2
    ends = [2 + (total - 2) * part // parts for part in range(parts + 1)]
    return [1, *(source.randrange(begin, end) for begin, end in pairwise(ends)), total]


def no_temporaries(state: Mapping[bytes, object]) -> bool:
    return not any(TEMPORARY_PREFIX in path for path in state)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An empty tree; nothing in this process waits for a disk."""
    os.umask(0o022)
    with without_syncs():
        yield Place(tmp_path)


@pytest.fixture
def lived(place: Place) -> Place:
    """A place with a history; see `Place.history`."""
    place.history()
    return place

"""Whatever happens to a tree, a scan that looks only at what changed finds what a walk from scratch finds."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.files.local_tree import LocalTree
from holdfast.files.scan import parallel_scan
from holdfast.files.tree import DirtyPaths
from holdfast.model.content import HashSink
from holdfast.model.errors import StorageError
from holdfast.model.ids import Hash, hash_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.files.tree import ScanResult
    from holdfast.model.entries import Entry

NAMES = [b"a", b"b", b"c", b"sub", b"x.log", b"\xff\n"]
RULES = [b"", b"a\n", b"/sub/\n", b"*.log\n!x.log\n", b"b\n", b"sub/c\n", b"*\n!a\n"]


class StoringSink:
    """Keeps the hashes of all that it was given, and fails when it is told to."""

    def __init__(self) -> None:
        self.stored: set[Hash] = set()
        self.fail_after = -1

    def add(self, data: bytes, previous: Hash | None = None) -> Hash:
        if self.fail_after == 0:
            raise StorageError("told to fail")
        self.fail_after -= 1
        value = hash_bytes(data)
        self.stored.add(value)
        return value

    def add_stream(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
        data = b"".join(pieces)
        return self.add(data), len(data)


class Recorder:
    """A dirty source that knows what was changed because it did it."""

    def __init__(self, rng: random.Random) -> None:
        self.paths: set[bytes] = set()
        self._rng = rng

    def drain(self) -> DirtyPaths:
        found = frozenset(self.paths)
        self.paths.clear()
        return DirtyPaths(self._rng.random() < 0.03, found)


class Model:
    def __init__(self, rng: random.Random, base: Path, *, watched: bool) -> None:
        self.rng = rng
        self.root = bytes(base / "tree")
        os.mkdir(self.root)
        self.index = bytes(base / "index")
        self.watched = watched
        self.recorder = Recorder(rng)
        self.sink = StoringSink()
        self.manifests: dict[Hash, dict[bytes, Entry]] = {}
        self.label: Hash | None = None
        self.open()

    def open(self) -> None:
        self.tree = LocalTree(self.root, index=self.index)
        self.tree.dirty = self.recorder if self.watched else None

    def start_early(self) -> None:
        """As a command does before it loads the index; the early scan is at its end then, or anywhere."""
        self.tree.save_index()
        self.open()
        parallel_scan.start_early(self.root, self.index)
        if parallel_scan._early is not None and self.rng.random() < 0.7:
            os.waitid(os.P_PID, parallel_scan._early.process, os.WEXITED | os.WNOWAIT)

    def path(self) -> bytes:
        return b"/".join(self.rng.choices(NAMES, k=self.rng.choice([1, 1, 2, 2, 3])))

    def change(self) -> None:
        path = self.path()
        full = self.root + b"/" + path
        what = self.rng.random()
        try:
            if what < 0.45:
                os.makedirs(os.path.dirname(full), exist_ok=True)
                fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
                os.write(fd, b"%d" % self.rng.randint(0, 9))
                os.close(fd)
            elif what < 0.6:
                shutil.rmtree(full) if os.path.isdir(full) and not os.path.islink(full) else os.unlink(full)
            elif what < 0.7:
                other = self.path()
                os.rename(full, self.root + b"/" + other)
                self.touched(other)
            elif what < 0.78:
                os.symlink(self.rng.choice([b"a", b"/etc", b".."]), full)
            elif what < 0.82:
                os.mkfifo(full)
            elif what < 0.87:
                os.chmod(full, self.rng.choice([0o600, 0o755]), follow_symlinks=True) if not os.path.islink(
                    full
                ) else None
            else:
                directory = self.root + b"/" + os.path.dirname(path)
                name = self.rng.choice([b".gitignore", b".checkpointignore"])
                path = os.path.relpath(directory, self.root) + b"/" + name
                path = path.removeprefix(b"./")
                with open(self.root + b"/" + path, "wb") as file:
                    file.write(self.rng.choice(RULES))
        except OSError:
            pass  # a file in the way, nothing there: then nothing was changed, or only directories were made
        self.touched(path)

    def touched(self, path: bytes) -> None:
        self.recorder.paths.add(path)
        # A watcher reports every directory that it sees made.
        at = path.rpartition(b"/")[0]
        while at:
            if self.rng.random() < 0.2:
                self.recorder.paths.add(at)
            at = at.rpartition(b"/")[0]

    def check(self) -> None:
        base = self.rng.choice([None, self.label, self.label, *self.manifests])
        storing = self.rng.random() < 0.6
        self.sink.fail_after = self.rng.choice([-1, -1, -1, 0, 1]) if storing else -1
        known = self.manifests.get(base or Hash(b""), {})
        lookup = (lambda path: known.get(path)) if known and self.rng.random() < 0.5 else None  # noqa: PLW0108 - its type
        try:
            scan = self.tree.scan(
                self.sink if storing else HashSink(), base=base, lookup=lookup, full_hash=self.rng.random() < 0.1
            )
        except StorageError:
            return
        expected = LocalTree(self.root).scan(HashSink())
        found = self.whole(scan)
        assert found == expected.changes
        assert scan.not_captured == expected.not_captured
        if storing:
            missing = {path for path, entry in found.items() if entry.hash not in self.sink.stored}
            assert not missing, f"content that no sink was given: {missing}"
            if self.rng.random() < 0.7:
                self.label = hash_bytes(repr(sorted(found.items())).encode())
                self.manifests[self.label] = found
                self.tree.settle(self.label)

    def whole(self, scan: ScanResult) -> dict[bytes, Entry]:
        found = {} if scan.base is None else dict(self.manifests[scan.base])
        for path, entry in scan.changes.items():
            if entry is None:
                del found[path]
            else:
                assert found.get(path) != entry, "listed, though it is as it was"
                found[path] = entry
        return found


SEEDS = range(int(os.environ.get("SCAN_SEEDS", "10")))


def histories(seed: int, base: Path, *, watched: bool, early: bool = False) -> None:
    rng = random.Random(seed)
    model = Model(rng, base, watched=watched)
    for _ in range(40):
        for _ in range(rng.choice([0, 1, 1, 3, 10])):
            model.change()
        if early and rng.random() < 0.8:
            model.start_early()
        model.check()
        parallel_scan.end_early()
        if rng.random() < 0.15:
            model.tree.save_index()
            model.open()


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories(seed: int, watched: bool, tmp_path: Path) -> None:
    histories(seed, tmp_path, watched=watched)


@pytest.mark.parametrize("early", ["", "early"])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories_with_a_second_process(seed: int, early: str, tmp_path: Path) -> None:
    # In a process of its own: one that has threads, as that of the tests may, starts no second process.
    subprocess.run([sys.executable, __file__, str(seed), str(tmp_path), early], check=True)


if __name__ == "__main__":
    parallel_scan.MIN_FILES = 1
    histories(int(sys.argv[1]), Path(sys.argv[2]), watched=False, early=bool(sys.argv[3]))

"""What `holdfast run` costs: the same work natively, under `holdfast run`, and on what others intercept with, in turns.

    python benchmarks/run.py [--files 14000] [--rounds 3] [--directory DIR] [--json FILE]

Each row is done by a process that times its own work, so that neither the start of a run (a row of its own) nor mounting is
in it; the capture of preimages is. The others are overlayfs, for root, and bindfs and fuse-overlayfs, where installed.
Every round works in directories of its own, which are made, and synced, before anything of the row is timed, and removed at
the very end: to create files just after others were deleted takes ext4 ten times as long. The rows that delete come last, for
the same reason. What was just written and not synced, ext4 deletes many times faster than what is on the disk: two rows tell.
A round of 14,000 files makes about 500,000: give it a file system of its own (`--directory`), new, with room and inodes enough.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from compare import machine, make_tree, program, timed
from run_subjects import BY_PYTHON, HOLDFAST, NATIVE, PEERS, Failed, Subject, available, call
from run_work import CHANGING, INTERCEPTION, MEGABYTE, PART, READING, ROWS

SOURCE = Path(__file__).parents[1] / "src"
WORK = Path(__file__).with_name("run_work.py")
PACKAGES = 100
UNDONE, UNDO, START = "rm -rf", "undo of rm -rf", "start"
State = dict[str, tuple[int, ...]]


class Spot(NamedTuple):
    """Where one round of one row is done by one subject."""

    work: Path
    aside: Path
    """Beside it, on the same file system."""


class Bench:
    """The material, the subjects and what was measured."""

    def __init__(self, base: Path, options: argparse.Namespace, own: Subject) -> None:
        self.base, self.files, self.rounds = base, options.files, options.rounds
        self.megabytes, self.passes = options.megabytes, options.passes
        self.material = base / "material"
        peers, self.absent = available(base / "probe", (BY_PYTHON, *PEERS) if own is HOLDFAST else PEERS)
        self.subjects = [NATIVE, own, *peers]
        self.must = (NATIVE, own)
        """What the measurement makes no sense without: where they fail, it is given up."""
        self.rows: dict[str, dict[str, list[float]]] = {}
        self.failed: dict[str, dict[str, str]] = {}
        self.spots = 0

    def prepare(self) -> None:
        """Make what the rows begin with."""
        material = self.material
        for name in ("nothing", "tree", "reading", "project", "packages"):
            (material / name).mkdir(parents=True)
        tree = material / "tree" / "tree"
        make_tree(tree, self.files)
        call(["tar", "cf", material / "tree.tar", "-C", material / "tree", "tree"], material)
        reading = material / "reading"
        call(["cp", "-a", tree, reading], material)
        block = os.urandom(MEGABYTE)
        with (reading / "big").open("wb") as file:
            for _ in range(self.megabytes):
                file.write(block)
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"], ["repack", "-q", "-a", "-d"]):
            call([*git, *words], reading / "tree")
        call(["git", "clone", "-q", "--bare", "--no-local", reading / "tree", material / "repository"], material)
        self._packages()

    def _packages(self) -> None:
        """A project that needs packages which lie beside it as archives, and no network."""
        files = [path for path in (self.material / "tree" / "tree").rglob("*") if path.is_file()]
        needs: dict[str, str] = {}
        for number in range(PACKAGES):
            name = f"package{number}"
            package = self.material / "packages" / name / "package"
            package.mkdir(parents=True)
            (package / "package.json").write_text(json.dumps({"name": name, "version": "1.0.0"}))
            for path in files[number::PACKAGES]:
                directory = package / path.parent.name
                directory.mkdir(exist_ok=True)
                shutil.copy(path, directory / f"{path.parent.parent.name}-{path.name}")
            archive = self.material / "packages" / f"{name}.tgz"
            call(["tar", "czf", archive, "-C", package.parent, "package"], self.material)
            needs[name] = f"file:{archive}"
        project = {"name": "project", "version": "1.0.0", "private": True, "dependencies": needs}
        (self.material / "project" / "package.json").write_text(json.dumps(project))

    def spot(self, stack: ExitStack, subject: Subject, start: str) -> Spot:
        self.spots += 1
        base = self.base / "spots" / f"{self.spots:04d}-{subject.name}"
        aside = base / "aside"
        aside.mkdir(parents=True)
        return Spot(stack.enter_context(subject.place(base, self.material / start)), aside)

    def do(self, row: str, subject: Subject, spot: Spot) -> dict[str, list[float]]:
        sizes = {"--files": self.files, "--passes": self.passes, "--megabytes": self.megabytes}
        words = [sys.executable, "-P", str(WORK), row, str(self.material), str(spot.aside)]
        words += [str(word) for pair in sizes.items() for word in pair]
        return json.loads(call([*subject.prefix, *words], spot.work).splitlines()[-1])

    def note(self, row: str, kind: str, seconds: list[float]) -> None:
        self.rows.setdefault(row, {}).setdefault(kind, []).extend(seconds)

    def in_turns(self, row: str, spot_of: Callable[[Subject, int], Spot]) -> None:
        """Every round of ``row``, each begun by another subject, and done where ``spot_of`` says."""
        for turn in range(self.rounds):
            first = turn % len(self.subjects)
            for subject in self.subjects[first:] + self.subjects[:first]:
                if subject.name in self.failed.get(row, {}):
                    continue
                spot = spot_of(subject, turn)
                try:
                    before = state(spot.work) if row == UNDONE and subject is HOLDFAST else None
                    self.note(row, subject.name, self.do(row, subject, spot)["seconds"])
                except Failed as error:
                    if subject in self.must:
                        raise
                    self.failed.setdefault(row, {})[subject.name] = str(error).replace(str(self.base), "…")
                else:
                    if before is not None:
                        self.undo(spot, before)
        self.show(row)
        if row == UNDONE and UNDO in self.rows:
            self.show(UNDO)

    def undo(self, spot: Spot, before: State) -> None:
        """Undo what was just done, as a whole process, and see that it is undone."""
        seconds = timed(partial(call, [program(), "undo", "-q"], spot.work))
        if state(spot.work) != before:
            raise Failed(f"holdfast undo has left {spot.work} other than it was")
        self.note(UNDO, HOLDFAST.name, [seconds])

    def reading(self, rows: list[str]) -> None:
        """Rows that change nothing share their directories."""
        with ExitStack() as stack:
            spots = {subject: self.spot(stack, subject, "reading") for subject in self.subjects}
            for row in rows:
                self.in_turns(row, lambda subject, _: spots[subject])

    def changing(self, rows: list[str]) -> None:
        """``rows`` with new directories for every round of each, all made before the first row."""
        with ExitStack() as stack:
            spots = {
                (row, subject, turn): self.spot(stack, subject, ROWS[row].start)
                for row in rows
                for turn in range(self.rounds)
                for subject in self.subjects
            }
            for row in rows:
                self.in_turns(row, lambda subject, turn, row=row: spots[row, subject, turn])

    def fresh(self, row: str) -> None:
        """``row`` with new directories for every round, each made just before it."""
        with ExitStack() as stack:
            self.in_turns(row, lambda subject, _: self.spot(stack, subject, ROWS[row].start))

    def interception(self, row: str) -> None:
        with ExitStack() as stack:
            for _ in range(self.rounds):
                spot = self.spot(stack, HOLDFAST, INTERCEPTION[row])
                call(["cp", "-a", f"{self.material / INTERCEPTION[row]}/.", spot.aside], self.base)
                for kind, seconds in self.do(row, HOLDFAST, spot).items():
                    self.note(row, kind, seconds)
        self.show(row)

    def start(self) -> None:
        """Whole processes: what a run costs whatever runs in it, both checkpoints included."""
        with ExitStack() as stack:
            for name in ("nothing", "tree"):
                work = self.spot(stack, HOLDFAST, name).work
                row = f"{START}, {self.files if name == 'tree' else 0:,} files"
                commands = {"native": ["true"], "holdfast": [*HOLDFAST.prefix, "true"]}
                for words in commands.values():
                    call(words, work)
                for _ in range(self.rounds * self.passes):
                    for kind, words in commands.items():
                        self.note(row, kind, [timed(partial(call, words, work))])
                self.show(row)

    def show(self, row: str) -> None:
        """Print a row: each median, with the lowest and the highest, and its ratio to the first."""
        base = None
        print(row)
        for name, found in self.rows.get(row, {}).items():
            middle = statistics.median(found)
            base = base or middle
            spread = f"({min(found) * 1000:.1f} to {max(found) * 1000:.1f})"
            print(f"    {name:14} {middle * 1000:9.1f} ms {spread:22} {middle / base:7.2f} ×", flush=True)
        for name, reason in self.failed.get(row, {}).items():
            print(f"    {name} failed: {reason}", flush=True)


def state(top: Path) -> State:
    """What is below ``top``: path -> mode, size, time of modification, links, owner."""
    found: State = {}
    for directory, _, names in os.walk(top):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            status = os.lstat(path)
            size = 0 if path == directory else status.st_size
            found[path] = (status.st_mode, size, status.st_mtime_ns, status.st_nlink, status.st_uid)
    return found


def file_system(directory: Path) -> str:
    return call(["df", "--output=fstype", directory], directory).split()[-1]


def stand_apart(home: Path) -> None:
    """Let what is started from here on see no configuration of the user's, and run the Holdfast that lies beside this."""
    home.mkdir()
    os.environ |= {
        "PYTHONPATH": str(SOURCE),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "HOLDFAST_HOME": str(home / "holdfast"),
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def measure(benchmark: str, own: Subject, base: Path, options: argparse.Namespace) -> dict[str, Any]:
    stand_apart(base / "home")
    bench = Bench(base, options, own)
    rows: list[str] = options.rows
    absent = bench.absent
    if shutil.which("npm") is None and "npm install" in rows:
        absent = absent | {"npm install": "npm is not installed"}
        rows = [row for row in rows if row != "npm install"]
    header = {
        "benchmark": benchmark,
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "file_system": file_system(base),
        "files": bench.files,
        "part": bench.files // PART,
        "megabytes": bench.megabytes,
        "rounds": bench.rounds,
        "absent": absent,
    }
    print(f"{header['date']}, {header['machine']}, {header['file_system']}, {bench.files:,} files")
    for name, reason in absent.items():
        print(f"left out: {name}: {reason}")
    load = [os.getloadavg()[0]]
    bench.prepare()
    bench.reading([row for row in rows if row in READING])
    for row in rows:
        if row in CHANGING and not CHANGING[row].deletes:
            bench.changing([row])
        elif row in INTERCEPTION:
            bench.interception(row)
        elif row == START:
            bench.start()
    deleting = [row for row in rows if row in CHANGING and CHANGING[row].deletes]
    bench.changing([row for row in deleting if not CHANGING[row].fresh])
    for row in deleting:
        if CHANGING[row].fresh:
            bench.fresh(row)
    load.append(os.getloadavg()[0])
    return header | {"load": load, "rows": bench.rows, "failed": bench.failed}


def perform(benchmark: str, text: str, own: Subject, every: Sequence[str]) -> None:
    """The program of a benchmark: the rows ``every``, or those it is asked for, by ``own`` beside the others."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=14_000, help="files in the tree (default: 14000)")
    parser.add_argument("--megabytes", type=int, default=128, help="of sequential reads and writes (default: 128)")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each row and subject (default: 3)")
    parser.add_argument("--passes", type=int, default=5, help="times that a process does what can be repeated")
    parser.add_argument("--rows", nargs="+", choices=every, default=every, metavar="ROW", help=", ".join(every))
    parser.add_argument("--directory", type=Path, help="on the file system to measure (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="where the results go, for report.py")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that nothing stays mounted
    base = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=options.directory)).resolve()
    try:
        results = measure(benchmark, own, base, options)
    except Failed as error:
        raise SystemExit(f"given up: {error}") from error
    finally:
        # (Not into what could not be unmounted.)
        subprocess.run(["rm", "-rf", "--one-file-system", base], check=False)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    perform("run", __doc__, HOLDFAST, [*ROWS, *INTERCEPTION, START])

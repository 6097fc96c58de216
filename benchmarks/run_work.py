"""The work that ``run.py`` measures, done in the current directory by a process that times itself.

    python run_work.py ROW MATERIAL ASIDE [--files N] [--passes N] [--megabytes N]

Prints one JSON object: what was measured -> the seconds of each pass. What starts before this process (a keeper, a mount) is
not in them; the programs that a row starts are. It needs nothing but the standard library, so that its own start is short.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MEGABYTE = 1 << 20
PART = 4
"""Rows that change files one by one do so to every fourth: it is enough to measure, and leaves the tree a tree."""


class Work:
    """The rows, in a directory that holds what they begin with."""

    def __init__(self, material: Path, aside: Path, files: int, megabytes: int) -> None:
        self.material, self.aside, self.files, self.megabytes = material, aside, files, megabytes
        self.names = listed("tree") if os.path.isdir("tree") else []
        self.content = os.urandom(6700)
        self.block = os.urandom(MEGABYTE)
        self.done = 0
        """How many passes there have been: for names that no pass before has used."""

    def run(self, *words: str | Path, accepted: tuple[int, ...] = (0,), cwd: str = ".") -> None:
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=cwd, check=False)
        if done.returncode not in accepted:
            raise SystemExit(f"{words[0]} failed ({done.returncode}): {done.stderr.decode(errors='replace')[-2000:]}")

    def part(self) -> list[str]:
        return self.names[: len(self.names) // PART]

    def walk(self) -> None:
        listed("tree")

    def open_read_close(self) -> None:
        read(self.names)

    def git_status(self) -> None:
        self.run("git", "status", "--porcelain", cwd="tree")

    def grep(self) -> None:
        self.run("grep", "-rF", "words that are in no file", "tree", accepted=(1,))

    def sequential_read(self) -> None:
        block = bytearray(MEGABYTE)
        with open("big", "rb", buffering=0) as file:
            while file.readinto(block):
                pass

    def sequential_write(self) -> None:
        with open(f"big{self.done}", "wb", buffering=0) as file:
            file.writelines(self.block for _ in range(self.megabytes))

    def create(self) -> None:
        for number in range(self.files // PART):
            os.close(os.open(f"new{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))

    def rename(self) -> None:
        for name in self.part():
            os.rename(name, name + ".x")

    def overwrite(self) -> None:
        for name in self.part():
            fd = os.open(name, os.O_WRONLY | os.O_TRUNC)
            os.write(fd, self.content)
            os.close(fd)

    def unlink(self) -> None:
        for name in self.part():
            os.unlink(name)

    def clone(self) -> None:
        # As from elsewhere, by a pack: between file systems Git could not link the objects, within one it would.
        self.run("git", "clone", "-q", "--no-local", self.material / "repository", "clone")

    def untar(self) -> None:
        self.run("tar", "xf", self.material / "tree.tar")

    def npm_install(self) -> None:
        quiet = ("--offline", "--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier")
        self.run("npm", "install", "--cache", self.aside / "npm", *quiet)

    def remove(self) -> None:
        self.run("rm", "-rf", "tree")


def listed(directory: str) -> list[str]:
    """The regular files below ``directory``, each looked at, without those of Git."""
    found: list[str] = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if not entry.is_dir(follow_symlinks=False):
            entry.stat(follow_symlinks=False)
            found.append(entry.path)
        elif entry.name != ".git":
            found += listed(entry.path)
    return found


def read(names: list[str]) -> None:
    for name in names:
        fd = os.open(name, os.O_RDONLY)
        os.read(fd, 65536)
        os.close(fd)


def write(names: list[str], content: bytes) -> None:
    for name in names:
        fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(fd, content)
        os.close(fd)


class Row(NamedTuple):
    """One row of the table."""

    work: Callable[[Work], None]
    start: str
    """What the directory holds at the start: a directory of the material."""
    repeats: bool = False
    """Whether a process may do it more than once, the first time unmeasured where it only reads."""
    deletes: bool = False
    fresh: bool = False
    """Whether what is there was written just now, and not synced: then it takes ext4 a fraction of the time to delete."""


READING = {
    "walk": Row(Work.walk, "reading", repeats=True),
    "open, read, close": Row(Work.open_read_close, "reading", repeats=True),
    "git status": Row(Work.git_status, "reading", repeats=True),
    "grep": Row(Work.grep, "reading", repeats=True),
    "sequential read": Row(Work.sequential_read, "reading", repeats=True),
}
CHANGING = {
    "sequential write": Row(Work.sequential_write, "nothing", repeats=True),
    "create": Row(Work.create, "nothing"),
    "untar": Row(Work.untar, "nothing"),
    "git clone": Row(Work.clone, "nothing"),
    "npm install": Row(Work.npm_install, "project"),
    "rename": Row(Work.rename, "tree"),
    "overwrite": Row(Work.overwrite, "tree"),
    "unlink": Row(Work.unlink, "tree", deletes=True),
    "rm -rf": Row(Work.remove, "tree", deletes=True),
    "unlink, just written": Row(Work.unlink, "tree", deletes=True, fresh=True),
    "rm -rf, just written": Row(Work.remove, "tree", deletes=True, fresh=True),
}
ROWS = READING | CHANGING

INTERCEPTION = {"interception, reading": "reading", "interception, writing": "nothing"}
"""What the interceptor adds to work that is supervised in any case, and what the directory holds at the start."""


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(row: Row, work: Work, passes: int) -> dict[str, list[float]]:
    if row.start == "reading":
        row.work(work)
    elif not row.fresh:
        os.sync()
    seconds: list[float] = []
    for _ in range(passes if row.repeats else 1):
        seconds.append(timed(lambda: row.work(work)))
        work.done += 1
    return {"seconds": seconds}


def intercepted(row: str, work: Work, passes: int) -> dict[str, list[float]]:
    """The same in the workspace, where it is recorded, and aside of it, where it is only carried out, in turns."""
    places = {"passed on": work.aside, "recorded": Path.cwd()}
    seconds: dict[str, list[float]] = {where: [] for where in places}
    os.sync()
    for number in range(-1, passes):
        for where, place in places.items() if number % 2 else reversed(places.items()):
            if row == "interception, reading":
                names = [str(place / name) for name in work.names]
                took = timed(lambda names=names: read(names))
            else:
                directory = place / f"pass{number}"
                directory.mkdir()
                names = [str(directory / f"new{at}") for at in range(work.files // PART)]
                took = timed(lambda names=names: write(names, work.content))
            if number >= 0:
                seconds[where].append(took)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=[*ROWS, *INTERCEPTION])
    parser.add_argument("material", type=Path)
    parser.add_argument("aside", type=Path, help="a directory on the same file system, outside of what is supervised")
    parser.add_argument("--files", type=int, default=14_000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=128)
    given = parser.parse_args()
    work = Work(given.material, given.aside, given.files, given.megabytes)
    if given.row in ROWS:
        print(json.dumps(measure(ROWS[given.row], work, given.passes)))
    else:
        print(json.dumps(intercepted(given.row, work, given.passes)))


if __name__ == "__main__":
    main()

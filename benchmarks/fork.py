"""How long a fork takes: by mount, written out, and by what others have, in one run over the same trees.

    python benchmarks/fork.py [--sizes 1000,10000,100000] [--directory DIR]

Needs root, and for the rows of btrfs and XFS their tools: they work on images in DIR. Each row is the median of several
turns, in milliseconds, as a whole process where it is one; the last column is its ratio to the fork by mount.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOLDFAST = [sys.executable, "-P", "-m", "holdfast"]
TURNS = 5
MOST_TURNS_OF_LARGE = 2
IMAGE = "6G"
_NUMBERS = count()


def run(*words: object, cwd: Path | None = None) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr}")


def make_tree(root: Path, files: int) -> None:
    """So many small files, 50 in a directory."""
    for number in range(files):
        path = root / f"d{number // 1000}" / f"e{number // 50 % 20}"
        if not number % 50:
            path.mkdir(parents=True, exist_ok=True)
        (path / f"f{number}.txt").write_text(f"{number}\n" * (number % 60))


def timed(make: Callable[[Path], object], away: Callable[[Path], object], place: Path, turns: int) -> float:
    """The median of the milliseconds that ``make`` takes; ``away`` takes away what it made."""
    took: list[float] = []
    for _ in range(turns):
        target = place / f"fork-{next(_NUMBERS)}"  # what was one once is known as that
        start = time.perf_counter()
        make(target)
        took.append((time.perf_counter() - start) * 1000)
        away(target)
    return statistics.median(took)


def image(after: ExitStack, place: Path, kind: str) -> Path | None:
    """A new file system of a kind; None where that cannot be made."""
    if shutil.which(f"mkfs.{kind}") is None:
        return None
    file, path = place / f"{kind}.img", place / kind
    run("truncate", "-s", IMAGE, file)
    try:
        run(f"mkfs.{kind}", "-q", file)
        path.mkdir()
        run("mount", "-o", "loop", file, path)
    except RuntimeError:
        return None
    after.callback(run, "umount", "-l", path)
    return path


def rows(after: ExitStack, place: Path, files: int) -> Iterator[tuple[str, float]]:
    """Each way to fork a tree of so many files, and its time."""
    tree, home = place / "tree", place / "home"
    make_tree(tree, files)
    few = TURNS if files < 50_000 else MOST_TURNS_OF_LARGE
    command = [*HOLDFAST, "--home", home, "-w", tree]
    run(*HOLDFAST, "--home", home, "init", tree)
    run(*command, "checkpoint", "-q")

    def unmount(path: Path) -> None:
        run(*HOLDFAST, "--home", home, "unmount", path)

    yield "holdfast fork --mount", timed(lambda path: run(*command, "fork", path, "--mount"), unmount, place, TURNS)
    yield "holdfast fork", timed(lambda path: run(*command, "fork", path), shutil.rmtree, place, few)
    run("git", "init", "-q", tree)
    git = ["git", "-C", tree, "-c", "user.name=x", "-c", "user.email=x"]
    run(*git, "add", "-A")
    run(*git, "commit", "-qm", "x")
    yield (
        "git worktree add",
        timed(
            lambda path: run(*git, "worktree", "add", "--detach", path),
            lambda path: run(*git, "worktree", "remove", "--force", path),
            place,
            few,
        ),
    )
    shutil.rmtree(tree / ".git")
    yield "cp -a, ext4 or as it is", timed(lambda path: run("cp", "-a", tree, path), shutil.rmtree, place, few)
    for kind in ("btrfs", "xfs"):
        root = image(after, place, kind)
        if root is None:
            continue
        if kind == "btrfs":
            run("btrfs", "subvolume", "create", root / "tree")
        run("cp", "-a", f"{tree}/.", root / "tree") if kind == "btrfs" else run("cp", "-a", tree, root / "tree")
        copy = ["cp", "-a", "--reflink=always", root / "tree"]
        yield f"cp --reflink, {kind}", timed(lambda path, copy=copy: run(*copy, path), shutil.rmtree, root, few)
        if kind == "btrfs":
            source = root / "tree"
            yield (
                "btrfs subvolume snapshot",
                timed(
                    lambda path, source=source: run("btrfs", "subvolume", "snapshot", source, path),
                    lambda path: run("btrfs", "subvolume", "delete", path),
                    root,
                    TURNS,
                ),
            )

    def overlay(path: Path) -> None:
        for name in ("upper", "work", "merged"):
            (path / name).mkdir(parents=True)
        layers = f"lowerdir={tree},upperdir={path}/upper,workdir={path}/work"
        run("mount", "-t", "overlay", "overlay", "-o", layers, path / "merged")

    yield "overlayfs over the tree", timed(overlay, lambda path: run("umount", path / "merged"), place, TURNS)


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--directory", type=Path, help="where to work (default: the one for temporary files)")
    arguments = parser.parse_args()
    for files in map(int, arguments.sizes.split(",")):
        print(f"\n{files:,} files\n\n| way | ms | ratio |\n| --- | ---: | ---: |")
        with ExitStack() as after:
            place = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="fork-", dir=arguments.directory)))
            first = 0.0
            for name, took in rows(after, place, files):
                first = first or took
                print(f"| {name} | {took:,.0f} | {took / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()

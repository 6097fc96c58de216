"""How long it takes to plan a stacked merge, beside `git merge-tree` on the same two lines of work.

    python benchmarks/merge.py [--sizes 10000,100000] [--changesets 400] [--turns 15] [--directory DIR]

A production in which 200 files have changed, and a fork with so many changesets of three files each, one file in twenty
changed on both sides. Rows are medians, in milliseconds: the plan in a process that has planned nothing yet
but has everything imported, the same again (production's delta is remembered), and `git merge-tree --write-tree`, a
whole process that merges lines as well, on a repository packed by `git gc`. The three take turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.engine.history.derived_state import create_derived_checkpoint
from holdfast.engine.merging import deltas, stacked_plan
from holdfast.engine.merging.fork_merge import store_contents
from holdfast.model.checkpoint import Provenance
from holdfast.model.entries import Change, file_entry
from holdfast.model.ids import hash_bytes
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Callable

PRODUCTION_FILES = 200
FILES_EACH = 3
Edits = list[dict[str, bytes]]


def name(number: int) -> str:
    return f"d{number // 1000}/e{number // 50 % 20}/f{number}.txt"


def content(number: int) -> bytes:
    return b"".join(b"%d of %d\n" % (line, number) for line in range(20))


def lines_of_work(files: int, changesets: int) -> tuple[Edits, Edits]:
    """What production, and what the fork does, changeset by changeset."""
    chosen = random.Random(7)
    theirs = [chosen.randrange(files) for _ in range(changesets * FILES_EACH)]
    shared = theirs[:: max(1, len(theirs) * 20 // PRODUCTION_FILES // 20)][: PRODUCTION_FILES // 20]
    ours = {*shared, *(chosen.randrange(files) for _ in range(PRODUCTION_FILES))}
    production = [{name(number): b"first\n" + content(number) for number in sorted(ours)}]
    fork = [
        {name(number): content(number) + b"%d\n" % at for number in theirs[at * FILES_EACH : (at + 1) * FILES_EACH]}
        for at in range(changesets)
    ]
    return production, fork


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def measure(root: Path, files: int, production: Edits, fork: Edits, turns: int) -> tuple[dict[str, float], int]:
    """Medians by row, in milliseconds, and how many files overlap."""
    merge_tree = made_for_git(root, files, production, fork)
    tree = root / "tree"
    for number in range(files):
        path = tree / name(number)
        if not number % 50:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    with holdfast.init(tree, home=root / "home") as workspace:
        context = workspace._context  # noqa: SLF001 - a measurement of the engine
        base = workspace.checkpoint().checkpoint.id

        def line(edits: Edits):
            at = base
            for edit in edits:
                held = manifest.get_many(
                    context.store.pages, context.catalog.checkpoint(at).root, sorted(map(str.encode, edit))
                )
                new = {hash_bytes(text): text for text in edit.values()}
                changes = [
                    Change(path.encode(), held.get(path.encode()), file_entry(hash_bytes(text), len(text), 0o644))
                    for path, text in sorted(edit.items())
                ]
                with context.lock():
                    real = [one for one in changes if one.before != one.after]
                    at = create_derived_checkpoint(
                        context, at, real, Provenance(), content=store_contents(context, new)
                    )
            return at

        ours, theirs = line(production), line(fork)
        found = stacked_plan.plan(context, theirs, ours)
        overlapping = found.counts.overlapping

        def plan() -> None:
            assert stacked_plan.plan(context, theirs, ours).counts.overlapping == overlapping

        took: dict[str, list[float]] = {"plan": [], "again": [], "git": []}
        for _ in range(turns):
            deltas.clear_caches()
            took["plan"].append(timed(plan))
            took["again"].append(timed(plan))
            took["git"].append(timed(lambda: subprocess.run(merge_tree, capture_output=True, check=False)))
        return {name: statistics.median(times) for name, times in took.items()}, overlapping


def made_for_git(root: Path, files: int, production: Edits, fork: Edits) -> list[str]:
    """A repository with the same two lines of work; what merges them."""
    repository = root / "git"
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    out: list[bytes] = []

    def commit(branch: str, parent: str | None, texts: dict[str, bytes]) -> None:
        out.append(b"commit refs/heads/%s\ncommitter a <a@b> 1 +0000\ndata 0\n" % branch.encode())
        if parent is not None:
            out.append(b"from refs/heads/%s\n" % parent.encode())
        out.extend(
            b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(text), text) for path, text in texts.items()
        )

    commit("base", None, {name(number): content(number) for number in range(files)})
    for branch, edits in (("production", production), ("fork", fork)):
        for at, edit in enumerate(edits):
            commit(branch, None if at else "base", edit)  # (A branch goes on from itself.)
    subprocess.run(["git", "-C", repository, "fast-import", "--quiet"], input=b"".join(out), check=True)
    subprocess.run(["git", "-C", repository, "gc", "-q"], check=True)
    return ["git", "-C", str(repository), "merge-tree", "--write-tree", "production", "fork"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="10000,100000", help="numbers of files")
    parser.add_argument("--changesets", type=int, default=400, help="of the fork")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--directory", help="where to work")
    arguments = parser.parse_args()
    print(
        "| files | changesets | overlapping | plan, ms | again, ms | git merge-tree, ms |\n| --- | --- | --- | --- | --- | --- |"
    )
    for size in map(int, arguments.sizes.split(",")):
        production, fork = lines_of_work(size, arguments.changesets)
        with tempfile.TemporaryDirectory(prefix="holdfast-merge-", dir=arguments.directory) as directory:
            found, overlapping = measure(Path(directory), size, production, fork, arguments.turns)
        first, again, git = found["plan"], found["again"], found["git"]
        print(
            f"| {size:,} | {arguments.changesets} | {overlapping} | {first:.1f} ({first / git:.2f} x) "
            f"| {again:.1f} ({again / git:.2f} x) | {git:.1f} |"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()

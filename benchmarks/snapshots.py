"""What each snapshot provider takes to fork a tree and to capture it, beside ``git worktree add``, ``cp -a
--reflink=auto`` and ``git stash create``, in one run over the same trees.

    python benchmarks/snapshots.py [--files 1000 10000 100000] [--rounds 5] [--on ext4 btrfs xfs] [--providers NAME…]
                                   [--modes worktree overlay] [--directory DIR] [--json FILE]

Needs root, and the tools of the file systems, which are made in files in DIR; the home is on the same one. Every provider
that can be used there takes part, in each of its modes; of the others it is said why not. All take turns, and what was
written before is on the disk when one begins; what a provider has made is removed before the next one's turn.
Providers are called in this process, Git and cp are processes of their own.

The fork of a session is made by the provider in question, and then a command is run in it that reads every file: what
one pays for a fork, and for working in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import machine, make_tree
from holdfast.engine.forks.workspace_providers import providers_of
from holdfast.engine.opening.opener import Opener
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.shell.execution import execute
from snapshots_report import (
    CAPTURED,
    CAPTURED_FORK,
    COPY,
    FORKED,
    FORKED_AGAIN,
    SESSION,
    STASH,
    WORK_TREE,
    WORKED,
    tables,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.model.session_types import SessionId
    from holdfast.snapshot.port import Capabilities, Mode, Prepared, Provider

NAME = "benchmark"
CHANGED = 100
IMAGE_BYTES = 12 << 30
READ = "find . -name .git -prune -o -type f -print0 | xargs -0 cat > /dev/null"
UNMOUNT_SECONDS = 30
CHANGE = """
import sys
names, text = sys.argv[1:-1], sys.argv[-1]
for name in names:
    with open(name, "w") as file:
        file.write(text)
"""


def run(*words: object, cwd: Path | None = None) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr}")


@contextmanager
def file_system(kind: str, place: Path) -> Generator[Path]:
    """A new one, mounted."""
    image, path = place / f"{kind}.img", place / kind
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    run(f"mkfs.{kind}", "-q", image)
    path.mkdir()
    run("mount", "-o", "loop", image, path)
    try:
        yield path
    finally:
        # What was mounted in it, and detached, keeps it for a moment.
        until = time.monotonic() + UNMOUNT_SECONDS
        while subprocess.run(["umount", path], capture_output=True, check=False).returncode:
            if time.monotonic() > until:
                raise RuntimeError(f"{path} cannot be unmounted")
            time.sleep(0.1)
        image.unlink()


class Bench:
    """One tree on one file system."""

    def __init__(self, place: Path, kind: str, files: int) -> None:
        self.rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.failed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        """Providers that cannot be used there, each with why."""
        self._place = place
        self._root = place / "tree"
        if kind == "btrfs":
            run("btrfs", "subvolume", "create", self._root)
        else:
            self._root.mkdir()
        make_tree(self._root, files)
        git = ["git", "-C", self._root, "-c", "user.name=x", "-c", "user.email=x"]
        run(*git, "init", "-q")
        run(*git, "config", "gc.auto", "0")  # it would go on in the background
        run(*git, "add", "-A")
        run(*git, "commit", "-qm", "x")
        paths = [path for path in sorted(self._root.rglob("*")) if path.is_file() and ".git" not in path.parts]
        self._changed = [
            str(path.relative_to(self._root)) for path in paths[:: max(1, len(paths) // CHANGED)][:CHANGED]
        ]
        opener = Opener(home=bytes(place / "home"), environ={"PATH": os.environ["PATH"], "HOME": str(place)})
        self._context, _ = opener.init(bytes(self._root))
        self._sessions = Sessions(agent=NAME, opener=opener)
        self._session = self._sessions.start(self._root)
        self._opener = opener
        self._texts = 0

    def close(self) -> None:
        """Let go of everything in the file system."""
        self._session.close()
        self._opener.close()

    def round(self, wanted: Sequence[str], modes: Sequence[str]) -> None:
        """Everybody in turn, once."""
        self._git()
        for provider in providers_of(self._context, NAME):
            found = provider.detect()
            if wanted and provider.name not in wanted:
                continue
            if not found.score:
                self.left_out[provider.name] = "; ".join(found.notes)
                continue
            for mode in found.modes:
                if mode in modes:
                    self._provider(provider, found, mode)
            if "worktree" in found.modes:
                self._fork(provider.name)

    def _git(self) -> None:
        target = self._place / "copy"
        for name, words, remove in (
            (
                WORK_TREE,
                ["git", "-C", self._root, "worktree", "add", "--detach"],
                ["git", "-C", self._root, "worktree", "remove", "--force"],
            ),
            (COPY, ["cp", "-a", "--reflink=auto", self._root], ["rm", "-rf"]),
        ):
            self._time(FORKED, name, partial(run, *words, target))
            self._time(WORKED, name, partial(run, "bash", "-c", READ, cwd=target))
            run(*remove, target)
        self._change(None)
        stash = ["git", "-C", self._root, "-c", "user.name=x", "-c", "user.email=x", "stash", "create"]
        self._time(CAPTURED, STASH, lambda: run(*stash))

    def _provider(self, provider: Provider, found: Capabilities, mode: Mode) -> None:
        others = [one for one in found.modes if one != "in-place"]
        name = provider.name if len(others) == 1 else f"{provider.name} ({mode})"
        try:
            line = provider.prepare("in-place")
            self._change(None)
            origin = self._time(CAPTURED, name, lambda: provider.snapshot(line, "of the workspace"))
            fork = self._time(FORKED, name, lambda: provider.prepare(mode))
            self._change(fork)
            captured = self._time(CAPTURED_FORK, name, lambda: provider.snapshot(fork, "of the fork"))
            self._time(FORKED_AGAIN, name, lambda: provider.branch(captured, "again", mode))
            provider.discard(origin)
        except Exception as error:
            self.failed[name] = str(error)
        finally:
            for allocation in provider.tokens():
                provider.cleanup(allocation.token)

    def _fork(self, name: str) -> None:
        """A fork of the session by that provider, worked in."""
        try:
            fork = self._time(SESSION, name, lambda: self._session.fork(provider=name))
        except Exception as error:
            self.failed[f"a fork of a session by {name}"] = str(error)
            return
        try:
            self._time(WORKED, name, lambda: self._work(fork.id))
        except Exception as error:
            self.failed[f"work in a fork by {name}"] = str(error)
        finally:
            self._sessions.delete(fork.id)

    def _work(self, name: SessionId) -> None:
        with self._sessions.open(name) as session:
            ended = execute(session, READ)
        if ended.result is None or ended.result.exit_code:
            raise RuntimeError(f"{READ}: {ended.result}")

    def _time(self, row: str, subject: str, work: Any) -> Any:
        run("sync", "-f", self._place)
        start = time.perf_counter()
        result = work()
        self.rows[row][subject].append(time.perf_counter() - start)
        return result

    def _change(self, where: Prepared | None) -> None:
        """Give some files another content."""
        self._texts += 1
        enter, path = ((), bytes(self._root)) if where is None else (where.enter, where.path)
        words = [*enter, sys.executable, "-c", CHANGE, *self._changed, f"text {self._texts}\n"]
        subprocess.run(words, cwd=path, check=True)


def main() -> None:
    """Measure, print the tables, and write what ``report.py`` makes the page of."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--files", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--on", nargs="+", default=["ext4", "btrfs", "xfs"])
    parser.add_argument("--providers", nargs="+", default=[], help="the providers that take part (default: all)")
    parser.add_argument(
        "--modes", nargs="+", default=["worktree", "overlay"], help="how they are tried (default: both)"
    )
    parser.add_argument("--directory", type=Path, help="where to work (default: the one for temporary files)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "benchmark": "snapshots",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "rounds": arguments.rounds,
        "changed": CHANGED,
        "load": [os.getloadavg()[0]],
        "runs": [],
    }
    for files in arguments.files:
        for kind in arguments.on:
            with ExitStack() as after:
                place = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="snap-", dir=arguments.directory)))
                bench = Bench(after.enter_context(file_system(kind, place)), kind, files)
                after.callback(bench.close)
                for _ in range(arguments.rounds):
                    bench.round(arguments.providers, arguments.modes)
            found = {"file_system": kind, "files": files, "rows": bench.rows, "failed": bench.failed}
            found["left_out"] = bench.left_out
            results["runs"].append(found)
            results["load"][1:] = [os.getloadavg()[0]]
            print("\n".join(tables({**results, "runs": [found]})), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

"""Compare Holdfast with the shadow repositories that agent tools drive Git with, and with restic and borg where installed.

    python benchmarks/compare.py [--files 1000 10000 100000] [--runs 5] [--json FILE]

Every row is a whole process with a warm cache on the same generated tree; the tools take turns, so that a change of the machine's
speed hits all of them alike; medians are printed with their ratio to Git's. Nothing is deleted between timed runs.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = [
    "index",
    "parse",
    "render",
    "buffer",
    "token",
    "value",
    "return",
    "import",
    "request",
    "handler",
    "config",
    "engine",
    "session",
    "window",
    "result",
    "object",
    "string",
    "number",
    "stream",
    "socket",
    "thread",
    "module",
    "class",
    "def",
]
EDITS = 100


def make_tree(root: Path, files: int, seed: int = 7) -> None:
    """``files`` source-like files of 6.7 KB on average, about ten to a directory, the same for the same seed."""
    rng = random.Random(seed)
    vocabulary = WORDS + [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz_", k=rng.randint(3, 12))) for _ in range(3000)
    ]
    blocks = []
    for _ in range(400):
        lines = (
            " " * (4 * rng.randint(0, 4)) + " ".join(rng.choices(vocabulary, k=rng.randint(2, 9)))
            for _ in range(rng.randint(8, 24))
        )
        blocks.append("\n".join(lines) + "\n")
    for number in range(files):
        folder = root / f"package{number // 400:03d}" / f"module{number // 10 % 40:02d}"
        if number % 10 == 0:
            folder.mkdir(parents=True, exist_ok=True)
        target, parts, size = rng.lognormvariate(8.3, 1.0), [f"# file {number}\n"], 0
        while size < target:
            block = rng.choice(blocks)
            parts.append(block + f"x_{rng.getrandbits(40):x} = {rng.getrandbits(60)}\n")
            size += len(parts[-1])
        (folder / f"source{number % 10}_{rng.choice(WORDS)}.py").write_text("".join(parts))


class Tree:
    """One generated tree and what can be done to it."""

    def __init__(self, root: Path, files: int) -> None:
        self.root = root
        make_tree(root, files)
        self.paths = sorted(path for path in root.rglob("*") if path.is_file())
        self._rng = random.Random(11)
        self._edit = 0

    def edit(self, count: int = EDITS) -> list[Path]:
        """Change one line in each of ``count`` files that are spread over the tree."""
        chosen = self._rng.sample(self.paths, min(count, len(self.paths)))
        for path in chosen:
            self._edit += 1
            text = path.read_text().splitlines(keepends=True)
            text[self._rng.randrange(len(text))] = f"edited = {self._edit} * {self._rng.getrandbits(40)}\n"
            path.write_text("".join(text))
        return chosen


class Tool:
    """One program under test, with its store in a directory of its own."""

    name = ""

    def __init__(self, work: Path, tree: Path) -> None:
        self.work, self.tree = work, tree
        work.mkdir(parents=True, exist_ok=True)
        self.env = {
            **os.environ,
            "HOME": str(work),
            "XDG_CONFIG_HOME": str(work / "config"),
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def run(self, *command: str | Path, cwd: Path | None = None) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd or self.tree,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{self.name}: {command} failed: {done.stderr.decode()[-2000:]}")

    def prepare(self) -> None: ...
    def save(self) -> None: ...
    def restore_previous(self) -> None: ...
    def names(self) -> None: ...
    def write_out(self, target: Path) -> None: ...

    def stored(self) -> int:
        return sum(path.lstat().st_size for path in self.work.rglob("*") if path.is_file())


def program() -> str:
    """The installed command: the one beside this interpreter, else the first on the PATH.

    Its modules are compiled first, as pip does when it installs them: a checkout would be compiled by each process anew
    where ``PYTHONDONTWRITEBYTECODE`` is set.
    """
    if (found := importlib.util.find_spec("holdfast")) is not None and found.origin is not None:
        compileall.compile_dir(os.path.dirname(found.origin), quiet=1)
    beside = Path(sys.executable).with_name("holdfast")
    found = str(beside) if beside.exists() else shutil.which("holdfast")
    if found is None:
        raise SystemExit(f"holdfast is not installed for {sys.executable}: pip install -e . in the project's directory")
    return found


class Holdfast(Tool):
    name = "holdfast"

    def __init__(self, work: Path, tree: Path) -> None:
        super().__init__(work, tree)
        self.program = program()
        self.env["HOLDFAST_HOME"] = str(work / "home")

    def prepare(self) -> None:
        self.run(self.program, "init")

    def save(self) -> None:
        self.run(self.program, "checkpoint")

    def restore_previous(self) -> None:
        self.run(self.program, "restore", "@-")

    def names(self) -> None:
        self.run(self.program, "diff", "--name-status", "@-", "@")

    def write_out(self, target: Path) -> None:
        self.run(self.program, "fork", "@", target)

    def stored(self) -> int:
        return sum(path.lstat().st_size for path in (self.work / "home" / "objects").rglob("*") if path.is_file())

    def asked(self, *command: str) -> dict[str, Any]:
        done = subprocess.run(
            [self.program, *command, "--json"], cwd=self.tree, env=self.env, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)


class Git(Tool):
    """A shadow repository as agent tools keep it: ``git add -A && git commit``."""

    name = "git"

    def git(self, *arguments: str | Path) -> None:
        self.run("git", f"--git-dir={self.work / 'shadow'}", f"--work-tree={self.tree}", *arguments)

    def prepare(self) -> None:
        self.run("git", "init", "-q", "--bare", self.work / "shadow")
        for key, value in (
            ("user.name", "x"),
            ("user.email", "x@y"),
            ("core.bare", "false"),
            ("gc.auto", "0"),
            ("commit.gpgsign", "false"),
        ):
            self.run("git", f"--git-dir={self.work / 'shadow'}", "config", key, value)

    def save(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")

    def restore_previous(self) -> None:
        # Holdfast saves what is there before it restores; Git is not asked to, which is in its favour.
        self.git("reset", "-q", "--hard", "HEAD~1")

    def names(self) -> None:
        self.git("diff", "--name-status", "HEAD~1", "HEAD")

    def write_out(self, target: Path) -> None:
        target.mkdir()
        self.run(
            "git",
            f"--git-dir={self.work / 'shadow'}",
            f"--work-tree={target}",
            "checkout",
            "-q",
            "-f",
            "HEAD",
            "--",
            ".",
            cwd=target,
        )


class Restic(Tool):
    name = "restic"

    def prepare(self) -> None:
        self.env |= {
            "RESTIC_REPOSITORY": str(self.work / "repo"),
            "RESTIC_PASSWORD": "x",
            "RESTIC_CACHE_DIR": str(self.work / "cache"),
        }
        self.run("restic", "init")

    def save(self) -> None:
        self.run("restic", "backup", "-q", ".")


class Borg(Tool):
    name = "borg"
    count = 0

    def prepare(self) -> None:
        self.env |= {
            "BORG_REPO": str(self.work / "repo"),
            "BORG_BASE_DIR": str(self.work / "base"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        self.run("borg", "init", "-e", "none")

    def save(self) -> None:
        self.count += 1
        self.run("borg", "create", f"::a{self.count}", ".")


def machine() -> str:
    """What was measured on, in a few words."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(tree: Tree, runs: int, where: Path) -> dict[str, dict[str, list[float]]]:
    """Every row at one size: tool -> seconds (or bytes) of each run."""
    rows: dict[str, dict[str, list[float]]] = {}

    def note(row: str, tool: str, value: float) -> None:
        rows.setdefault(row, {}).setdefault(tool, []).append(value)

    kinds: list[type[Tool]] = [Holdfast, Git]
    kinds += [Restic] if shutil.which("restic") else []
    kinds += [Borg] if shutil.which("borg") else []
    os.sync()
    for run in range(max(1, runs // 2 + 1)):
        for kind in kinds:
            tool = kind(where / f"first{run}-{kind.name}", tree.root)
            tool.prepare()
            note("first checkpoint", tool.name, timed(tool.save))
    tools = [kind(where / kind.name, tree.root) for kind in kinds]
    for tool in tools:
        tool.prepare()
        tool.save()
        tool.save()
    for _ in range(runs):
        for tool in tools:
            note("nothing changed", tool.name, timed(tool.save))
    for _ in range(runs):
        tree.edit()
        for tool in tools:
            before = tool.stored()
            note(f"{EDITS} files changed", tool.name, timed(tool.save))
            note(f"bytes added by {EDITS} small edits", tool.name, tool.stored() - before)
    both = [tool for tool in tools if isinstance(tool, Holdfast | Git)]
    for _ in range(runs):
        for tool in both:
            note(f"names of a diff of {EDITS}", tool.name, timed(tool.names))
    for _ in range(runs):
        for tool in both:
            tree.edit()
            tool.save()
            note(f"restore {EDITS} files", tool.name, timed(tool.restore_previous))
            tool.save()
        for tool in both:
            tool.save()
    for run in range(max(1, runs // 2 + 1)):
        for tool in both:
            note(
                "fork: whole tree into an empty directory",
                tool.name,
                timed(lambda tool=tool, run=run: tool.write_out(where / f"out-{tool.name}-{run}")),
            )
    return rows


NAMES = """
import sys, time, holdfast
with holdfast.open(".") as workspace:
    workspace.diff("@-", "@", renames=False)
with holdfast.open(".") as workspace:
    ids = [workspace.resolve(name) for name in ("@-", "@")]
    start = time.perf_counter()
    found = workspace.diff(*ids, renames=False)
    print(time.perf_counter() - start, len(found.changes))
"""
"""Times the diff alone, with cold caches of its own, in a process that has loaded what it needs."""


def engine(where: Path, tree: Tree, runs: int) -> dict[str, list[float]]:
    """The engine's own part, in seconds: with a watcher beside it, and the names of a diff."""
    tool = Holdfast(where / "engine", tree.root)
    tool.env |= {"HOLDFAST_WATCH_DEBOUNCE": "1h", "HOLDFAST_WATCH_MAX_INTERVAL": "1d"}
    tool.prepare()
    tool.save()
    out: dict[str, list[float]] = {
        "nothing changed, watch": [],
        f"{EDITS} files changed, watch": [],
        f"names of a diff of {EDITS}": [],
    }
    tool.run(tool.program, "watch", "--detach", "--yes")
    try:
        tool.save()
        for _ in range(runs):
            out["nothing changed, watch"].append(tool.asked("checkpoint")["elapsed_ms"] / 1000)
        for _ in range(runs):
            tree.edit()
            result = tool.asked("checkpoint")
            assert result["changes"]["modified"] == EDITS, result
            out[f"{EDITS} files changed, watch"].append(result["elapsed_ms"] / 1000)
    finally:
        tool.run(tool.program, "watch", "--stop")
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-c", NAMES], cwd=tool.tree, env=tool.env, capture_output=True, text=True, check=True
        )
        seconds, changes = done.stdout.split()
        assert int(changes) == EDITS, done.stdout
        out[f"names of a diff of {EDITS}"].append(float(seconds))
    return out


def start_up(runs: int) -> dict[str, list[float]]:
    command, python = program(), sys.executable
    out: dict[str, list[float]] = {"holdfast --version": [], "python -c pass": []}
    for _ in range(runs * 5):
        out["holdfast --version"].append(
            timed(lambda: subprocess.run([command, "--version"], stdout=subprocess.DEVNULL, check=True))
        )
        out["python -c pass"].append(timed(lambda: subprocess.run([python, "-c", "pass"], check=True)))
    return out


def memory(where: Path, files: int) -> float:
    """Peak resident memory of a first checkpoint, in MB."""
    tool = Holdfast(where / f"memory-{files}", where / "tree")
    tool.prepare()
    probe = "import resource,subprocess,sys; subprocess.run(sys.argv[1:],check=True,stdout=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", probe, tool.program, "checkpoint"],
        cwd=tool.tree,
        env=tool.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout) / 1024


def show(files: int, rows: dict[str, dict[str, list[float]]]) -> None:
    print(f"\n{files:,} files")
    for row, tools in rows.items():
        middle = {name: statistics.median(values) for name, values in tools.items()}
        unit = "KB" if row.startswith("bytes") else "ms"
        text = "   ".join(
            f"{name} {value / 1000 if unit == 'KB' else value * 1000:9.1f} {unit}" for name, value in middle.items()
        )
        print(f"  {row:38s} {text}   ratio to git {middle['holdfast'] / middle['git']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", type=Path, help="where the trees are made (default: the temporary directory)")
    options = parser.parse_args()
    results: dict[str, object] = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(results["machine"], results["date"])
    for files in options.files:
        with tempfile.TemporaryDirectory(dir=options.dir, prefix="holdfast-bench-") as name:
            where = Path(name)
            tree = Tree(where / "tree", files)
            rows = measure(tree, options.runs, where)
            show(files, rows)
            own = engine(where, tree, options.runs)
            for row, values in own.items():
                print(f"  {row + ' (engine)':38s} {statistics.median(values) * 1000:.2f} ms")
            peak = memory(where, files)
            print(f"  {'peak memory of a first checkpoint':38s} {peak:.0f} MB")
            results[str(files)] = {"rows": rows, "engine": own, "peak_memory_mb": peak}
    starts = start_up(options.runs)
    results["start"] = starts
    print(
        "\nstart-up: "
        + "   ".join(f"{name} {statistics.median(values) * 1000:.1f} ms" for name, values in starts.items())
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

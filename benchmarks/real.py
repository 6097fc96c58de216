"""Try Holdfast on real trees: an agent edits a copy of one under ``watch``, and everything is compared byte for byte.

    python benchmarks/real.py TREE... [--edits 300] [--checkouts 10] [--seed 1] [--everything] [--dir DIR]

A TREE is a directory, which is copied, or a Git repository, which is cloned; then whole branches are checked out between
the edits. What is checked at the end: the newest checkpoint against the tree, the first one against what was there at
the beginning, the store (`verify --read-data`), and `undo` of an ``rm -rf`` of everything. The first difference ends
the run with exit code 1. ``--everything`` turns the default exclusions off, by an empty ``.checkpointignore``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from compare import program

Files = dict[str, tuple[str, int, str]]
"""Path -> kind, permissions, and the hash of the content or the target."""


class Trial:
    """One tree, its store, and the agent that works in it."""

    def __init__(self, source: Path, where: Path, seed: int, everything: bool) -> None:
        self.root, self.home = where / "tree", where / "home"
        self.random = random.Random(seed)
        self.edits = 0
        self.revisions: list[str] = []
        self.git = is_repository(source)
        if self.git:
            run("git", "clone", "-q", "--shared", source, self.root)
            self.revisions = run("git", "-C", self.root, "rev-list", "--max-count=2000", "HEAD").decode().split()
        else:
            shutil.copytree(source, self.root, symlinks=True)
        if everything:
            (self.root / ".checkpointignore").touch()
        self.environ = {
            **os.environ,
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_WATCH_DEBOUNCE": "300ms",
            "HOLDFAST_WATCH_MAX_PER_HOUR": "3600",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    def ask(self, *words: str | Path) -> dict[str, Any]:
        """What a command says with ``--json``."""
        return json.loads(run(program(), *words, "--json", cwd=self.root, env=self.environ))

    def files(self, root: Path | None = None) -> Files:
        """Every file and link, but those of Git."""
        top = self.root if root is None else root
        found: Files = {}
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != ".git"]
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in [*names, *links]:
                path = os.path.join(folder, name)
                about = os.lstat(path)
                if name == ".git" or not (stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)):
                    continue
                link = stat.S_ISLNK(about.st_mode)
                content = os.readlink(os.fsencode(path)) if link else Path(path).read_bytes()
                key = os.path.relpath(path, top)
                mode = 0 if link else about.st_mode & 0o777
                found[key] = ("link" if link else "file", mode, hashlib.sha256(content).hexdigest())
        return found

    def captured(self) -> Files:
        """`files`, without what the ignore rules leave out."""
        ignored = self.ask("status", "--ignored")["ignored"]
        exact, below = set(ignored), tuple(path for path in ignored if path.endswith("/"))
        return {path: file for path, file in self.files().items() if path not in exact and not path.startswith(below)}

    def edit(self) -> None:
        """One thing of those that an agent does to a few files."""
        self.edits += 1
        files = [path for path in self.root.rglob("*") if ".git" not in path.parts and is_file(path)]
        chosen = self.random.choice(files)
        what = self.random.randrange(7)
        text = f"# edit {self.edits}: {self.random.getrandbits(64):x}\n"
        if what <= 2:  # rewrite a line, as most edits do; as an editor does it, or in place
            lines = chosen.read_bytes().splitlines(keepends=True) or [b""]
            lines[self.random.randrange(len(lines))] = text.encode()
            target = chosen.with_name(f"{chosen.name}.tmp") if what else chosen
            target.write_bytes(b"".join(lines))
            target.replace(chosen)
        elif what == 3:
            folder = chosen.parent / f"agent{self.random.randrange(20)}"
            folder.mkdir(exist_ok=True)
            for number in range(self.random.randrange(1, 6)):
                (folder / f"new{self.edits}_{number}.py").write_text(text * 20)
        elif what == 4:
            chosen.rename(chosen.with_name(f"renamed{self.edits}_{chosen.name}"))
        elif what == 5:
            chosen.unlink()
        else:
            chosen.chmod(0o755 if chosen.stat().st_mode & 0o111 == 0 else 0o644)

    def checkout(self) -> None:
        """Go to another commit by force, as an agent that gives up does."""
        run("git", "-C", self.root, "checkout", "-q", "--force", self.random.choice(self.revisions))

    def stored(self) -> int:
        """Bytes of all objects."""
        return sum(path.stat().st_size for path in (self.home / "objects").rglob("*") if path.is_file())


def is_repository(source: Path) -> bool:
    return (source / ".git").exists() or (source / "HEAD").is_file()


def is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> bytes:
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return done.stdout


def same(what: str, wanted: Files, found: Files) -> None:
    wrong = sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    if wrong:
        shown = "\n".join(f"  {path}: {wanted.get(path)} -> {found.get(path)}" for path in wrong[:20])
        raise SystemExit(f"{what}: {len(wrong)} of {len(wanted)} files differ\n{shown}")


def wait_until_saved(trial: Trial) -> None:
    """Until the watcher has saved what there is; a minute is too long."""
    end = time.monotonic() + 60
    while not trial.ask("status")["clean"]:
        if time.monotonic() > end:
            raise SystemExit("the watcher did not save the last changes within a minute")
        time.sleep(0.2)


def try_out(trial: Trial, where: Path, edits: int, checkouts: int) -> None:
    trial.ask("init")
    first_files = trial.captured()
    size = sum((trial.root / path).lstat().st_size for path in first_files)
    first = trial.ask("checkpoint", "-m", "first", "--yes")
    stored = trial.stored()
    print(f"  {len(first_files):,} files, {size / 1e6:,.1f} MB; not captured: {len(first['not_captured'])}")
    print(f"  first checkpoint: {first['elapsed_ms']:,.0f} ms, stored {stored / 1e6:,.1f} MB ({stored / size:.2f})")
    backend = trial.ask("watch", "--detach", "--yes")["backend"]
    begun = time.monotonic()
    jumps = {round((number + 1) * edits / (checkouts + 1)) for number in range(checkouts)} if trial.git else set[int]()
    for number in range(edits):
        trial.edit()
        if number in jumps:
            trial.checkout()
        if not trial.random.randrange(8):  # an agent thinks now and then, and the watcher saves
            time.sleep(trial.random.uniform(0.2, 1.0))
    wait_until_saved(trial)
    seconds = time.monotonic() - begun
    unsaved = trial.ask("watch", "--stop")["unsaved"]
    if unsaved is not None:
        raise SystemExit(f"the watcher left something unsaved: {unsaved}")
    saved = trial.ask("log")["checkpoints"]
    grown = trial.stored() - stored
    print(
        f"  {edits} edits{f' and {len(jumps)} checkouts' if jumps else ''} under watch ({backend}) in {seconds:,.0f} s: "
        f"{len(saved) - 1} checkpoints, {grown / 1e6:,.2f} MB more in the store"
    )
    now = trial.captured()
    trial.ask("fork", "@", where / "newest")
    same("the newest checkpoint against the tree", now, trial.files(where / "newest"))
    trial.ask("fork", first["id"], where / "first")
    same("the first checkpoint against what was there", first_files, trial.files(where / "first"))
    run("find", trial.root, "-mindepth", "1", "-maxdepth", "1", "!", "-name", ".git", "-exec", "rm", "-rf", "{}", "+")
    begun = time.monotonic()
    back = trial.ask("undo")
    print(f"  undo of rm -rf: {len(back['written']):,} files in {time.monotonic() - begun:,.1f} s")
    same("the tree after undo of rm -rf", now, trial.files())
    trial.ask("restore", first["id"])
    same("the tree after a restore of the first checkpoint", first_files, trial.captured())
    proof = trial.ask("verify", "--read-data")
    print(f"  all the same, byte for byte; verified: {proof['checkpoints']} checkpoints, {proof['blobs']:,} blobs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", metavar="TREE", type=Path, nargs="+")
    parser.add_argument("--edits", type=int, default=300)
    parser.add_argument("--checkouts", type=int, default=10, help="of a Git repository's commits, between the edits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--everything", action="store_true", help="capture what is excluded by default, too")
    parser.add_argument("--dir", type=Path, help="where copies are made (default: the temporary directory)")
    options = parser.parse_args()
    for source in options.trees:
        print(f"{source.resolve().name} (seed {options.seed})", flush=True)
        with tempfile.TemporaryDirectory(dir=options.dir, prefix="holdfast-real-") as name:
            where = Path(name)
            trial = Trial(source.resolve(), where, options.seed, options.everything)
            try_out(trial, where, options.edits, options.checkouts)


if __name__ == "__main__":
    main()

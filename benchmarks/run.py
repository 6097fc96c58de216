"""What supervision costs: the same work natively and under `holdfast run`'s supervisor, in turns, on the same disk.

    python benchmarks/run.py [--files 14000] [--rounds 3] [--directory DIR] [--json FILE]

Every row is one program as a whole process that times its own work, so that the start of the keeper is not in it; the
capture of preimages is. Trees are made anew for every round before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

TIMED = """
import os, subprocess, sys, time
N = {files}
def names(): return ["t/d%d/f%d" % (n % 100, n) for n in range(N)]
def walk(): return sum(len(files) for _, _, files in os.walk("t"))
def read():
    for name in names():
        fd = os.open(name, os.O_RDONLY); os.read(fd, 4096); os.close(fd)
def create():
    for n in range(N // 4): os.close(os.open("c%d" % n, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
def rename():
    for name in names()[: N // 4]: os.rename(name, name + "x")
def overwrite():
    for name in names()[: N // 4]:
        fd = os.open(name, os.O_WRONLY | os.O_TRUNC); os.write(fd, b"new"); os.close(fd)
def unlink():
    for name in names()[: N // 4]: os.unlink(name)
def run(*words): subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
def untar(): run("tar", "xf", "../t.tar")
def remove(): run("rm", "-rf", "t")
def clone(): run("git", "clone", "-q", "../repo", "clone")
def status(): run("git", "-C", "../repo", "status")
def write():
    with open("big", "wb", buffering=0) as file:
        for _ in range(256): file.write(bytes(1 << 20))
began = time.perf_counter()
{row}()
print(time.perf_counter() - began)
"""

ROWS = {
    "walk": True, "read": True, "status": False, "write": False, "create": False, "rename": True, "overwrite": True,
    "unlink": True, "untar": False, "clone": False, "remove": True,
}  # fmt: skip
"""Whether the row needs the tree to be there."""


def make_tree(base: Path, files: int) -> None:
    for n in range(files):
        path = base / "t" / f"d{n % 100}" / f"f{n}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d\n" % n * 100)


def timed(row: str, base: Path, files: int, *, supervised: bool) -> float:
    work = base / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(base / "log", ignore_errors=True)
    work.mkdir()
    if ROWS[row]:
        subprocess.run(["tar", "xf", "../t.tar"], cwd=work, check=True)
    command = [sys.executable, "-c", TIMED.format(files=files, row=row)]
    if supervised:
        launch = [sys.executable, "-P", "-m", "holdfast.supervisor.launch"]
        command = [*launch, "--one-step", "--log", str(base / "log"), "--root", str(work), "--", *command]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, cwd=work, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=14_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where to work; a temporary directory if it is not given")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        base = Path(name)
        make_tree(base, given.files)
        subprocess.run(["tar", "cf", "t.tar", "t"], cwd=base, check=True)
        (base / "repo").mkdir()
        shutil.copytree(base / "t", base / "repo" / "t")
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(base / "repo")]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
            subprocess.run([*git, *words], check=True)
        results: dict[str, dict[str, list[float]]] = {}
        for row in given.rows:
            found = results[row] = {"native": [], "supervised": []}
            for _ in range(given.rounds):
                found["native"].append(timed(row, base, given.files, supervised=False))
                found["supervised"].append(timed(row, base, given.files, supervised=True))
            native, supervised = (statistics.median(found[kind]) for kind in ("native", "supervised"))
            print(
                f"{row:10} {native * 1000:9.1f} ms {supervised * 1000:9.1f} ms   {supervised / native:5.2f} ×",
                flush=True,
            )
        if given.json:
            given.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()

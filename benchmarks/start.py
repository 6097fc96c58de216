"""What `holdfast run -- true` takes beside `python3 -c pass`: whole processes with warm caches, both checkpoints included.

    python benchmarks/start.py [--rounds 30] [--against DIRECTORY]

In turns: the interpreter that executes this with ``-c pass``, and with it the modules of this checkout, and of another one
(``--against``, a checkout; its own ``.venv`` if it has one). Modules are compiled before; nothing else should run.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parents[1]


class _Subject:
    """Something that is started again and again."""

    def __init__(self, name: str, words: list[str], directory: str, environment: dict[str, str]) -> None:
        self.name = name
        self._words = words
        self._directory = directory
        self._environment = environment
        self.seconds: list[float] = []

    def start(self) -> None:
        """Time it once."""
        begun = time.perf_counter()
        subprocess.run(
            self._words,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        self.seconds.append(time.perf_counter() - begun)


def _runs(checkout: Path, top: Path) -> _Subject:
    """`holdfast run -- true` of a checkout, in a workspace of its own."""
    compileall.compile_dir(checkout / "src", quiet=2)
    python = checkout / ".venv/bin/python"
    words = [str(python if python.exists() else sys.executable), "-m", "holdfast"]
    place = top / checkout.name
    (place / "tree").mkdir(parents=True)
    (place / "tree/file").write_text("content")
    environment = _environment() | {"HOLDFAST_HOME": str(place / "home"), "PYTHONPATH": str(checkout / "src")}
    for first in (["--quiet", "init"], ["--quiet", "run", "--", "true"], ["--quiet", "run", "--", "true"]):
        subprocess.run([*words, *first], cwd=place / "tree", env=environment, check=True)
    return _Subject(str(checkout.name), [*words, "--quiet", "run", "--", "true"], str(place / "tree"), environment)


def _environment() -> dict[str, str]:
    """Ours, without what would keep compiled modules from being used."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    checkouts = [_HERE, *([] if arguments.against is None else [arguments.against.resolve()])]
    with tempfile.TemporaryDirectory() as top:
        base = _Subject("python3 -c pass", [sys.executable, "-c", "pass"], top, _environment())
        subjects = [base, *(_runs(checkout, Path(top)) for checkout in checkouts)]
        loads = [os.getloadavg()[0]]
        for _ in range(arguments.rounds):
            for subject in subjects:
                subject.start()
        loads.append(os.getloadavg()[0])
    print(f"{arguments.rounds} rounds, load {loads[0]:.1f} before and {loads[1]:.1f} after")
    lowest, median = min(base.seconds), statistics.median(base.seconds)
    for subject in subjects:
        low, middle = min(subject.seconds), statistics.median(subject.seconds)
        print(
            f"{subject.name:20} lowest {low * 1000:6.1f} ms, {low / lowest:5.1f} ×"
            f"   median {middle * 1000:6.1f} ms, {middle / median:5.1f} ×"
        )


if __name__ == "__main__":
    main()

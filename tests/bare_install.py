"""Installs a wheel into a new environment, without extras, and has it do what the README begins with; for `make dist`.

``python tests/bare_install.py WHEEL``. Ends non-zero, with what was said, if anything is not as it should be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path


def main(wheel: str) -> int:
    """Do it in a directory that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bare-") as folder:
        place = Path(folder)
        venv.create(place / "environment", with_pip=True)
        programs = place / "environment/bin"
        install = [programs / "pip", "install", "--quiet", "--disable-pip-version-check", Path(wheel).resolve()]
        subprocess.run(install, check=True, cwd=place)
        if not (place / "environment/share/man/man1/holdfast.1").is_file():
            sys.exit("the wheel has installed no man page")
        uses(programs / "holdfast", place)
    return 0


def uses(program: Path, place: Path) -> None:
    """A project is saved, loses its source in two ways, and has it back."""
    project = place / "shop"
    (project / "src").mkdir(parents=True)
    (project / "src/cart.py").write_text("price\n")
    (project / ".gitignore").write_text("*.log\n")
    (project / "debug.log").write_text("ignored\n")
    environment = {"HOME": str(place), "PATH": os.environ["PATH"]}

    def run(*words: str, says: str) -> None:
        done = subprocess.run(
            [program, *words], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        print(f"$ holdfast {' '.join(words)}\n{said}", end="")
        if done.returncode or says not in said:
            sys.exit(f"holdfast {words[0]} has ended with {done.returncode}, and was to say {says!r}")

    def holds() -> dict[str, str]:
        return {str(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file()}

    def is_as(expected: dict[str, str]) -> None:
        if holds() != expected:
            sys.exit(f"the project holds {holds()}, not {expected}")

    begun = holds()
    run("--version", says="holdfast ")
    run("init", says="Remembering")
    run("checkpoint", "-m", "it works", says='"it works": 2 added')
    subprocess.run(["rm", "-rf", "src"], cwd=project, check=True)
    run("undo", says="Went back")
    is_as(begun)
    run("run", "--", "sh", "-c", "rm -rf src debug.log; true", says="paths changed")
    is_as({".gitignore": "*.log\n"})
    run("undo", "--run", says="Went back")
    is_as(begun)
    run("log", says="it works")
    run("verify", "--read-data", says="")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The Python that the reference shows runs as it stands: the examples of a page are one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .console import PROJECT


def _examples(page: str) -> list[str]:
    text = (PROJECT / "docs/reference" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _run(folder: Path, *parts: str) -> str:
    """What the program prints, in a directory with a project that make has nothing to do for."""
    (folder / "project").mkdir()
    (folder / "project/Makefile").write_text("all:\n")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "PYTHONPATH": str(PROJECT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_of_the_python_page(tmp_path: Path) -> None:
    opening, session, promotion = _examples("api.md")
    fork = 'holdfast.open("project", home="memory").fork("@", "attempt-2")'
    _run(tmp_path, "import subprocess", opening, session, fork, promotion, "assert done.answer.result == 'unchanged'")


def test_the_example_of_an_experiment(tmp_path: Path) -> None:
    (example,) = _examples("experiment.md")
    begin = 'import os\nos.chdir("project")\nSessions().start(".", "main").close()'
    assert _run(tmp_path, "from holdfast import *", begin, example).strip() in ("gcc", "clang")

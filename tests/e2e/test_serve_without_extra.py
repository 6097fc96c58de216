"""`holdfast serve` where the libraries of its extra are not installed: refused at once, with what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.model.extras import install_command

WITHOUT = """\
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from holdfast.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("names", [["uvicorn", "litestar", "psycopg"], ["uvicorn"], ["litestar"]], ids=len)
def test_it_says_how_to_install_them(tmp_path: Path, names: list[str]) -> None:
    home = tmp_path / "home"
    words = ["--home", str(home), "--json", "serve", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=names), *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, done.stdout) == (1, "")
    wanted = ", ".join(name for name in names if name != "psycopg")
    assert error["message"] == f"serving needs libraries of the extra server that are not installed: {wanted}"
    assert error["hint"] == install_command("server")
    assert not home.exists(), "nothing was begun"


def test_the_rest_works_without_them(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    code = WITHOUT.format(names=["uvicorn", "litestar", "psycopg"])
    for words in (["init"], ["checkpoint"], ["serve", "token", "create"]):
        line = [sys.executable, "-c", code, "--home", str(tmp_path / "home"), "-w", str(tmp_path / "tree"), *words]
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=120, cwd=tmp_path / "tree")
        assert done.returncode == 0, done.stderr

"""An extract of ``benchmarks/conformance.py``: programs from elsewhere find under `run` what they find natively, and
what they did is taken back and brought forward exactly (I1).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "conformance.py"
MODULES = """
    test_dbm_dumb test_fcntl test_file test_filecmp test_fileio test_glob test_largefile test_mmap test_os test_pathlib
    test_posix test_shelve test_shutil test_tempfile
""".split()  # noqa: SIM905 - as in the script
AFTERWARDS = ("undo --run, exactly", "redo, exactly", "verify, exactly", "nothing is left")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("test") is None or importlib.util.find_spec(f"test.{MODULES[0]}") is None,
    reason="needs a Python that has its own tests (the package `test`): a distribution may leave them out",
)
def test_what_cpython_asks_of_files_is_answered_as_natively_and_undone(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    words = [SCRIPT, "--cpython", sys.executable, "--only", *MODULES, "--subjects", "run", "--jobs", "2"]
    done = subprocess.run(
        [sys.executable, *words, "--directory", tmp_path, "--json", found], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(found.read_text())
    cases, against = results["cases"]["cpython"], results["against"]["cpython"]
    assert [f"{module} to its end" for module in MODULES if f"{module} to its end" not in cases["native"]] == []
    assert against["run"] == {}
    assert [cases["run"][case] for case in AFTERWARDS] == ["passed"] * len(AFTERWARDS)
    assert sum(words == "passed" for words in cases["run"].values()) > 300

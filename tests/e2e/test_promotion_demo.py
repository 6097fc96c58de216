"""The example of two agents and one production is what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples/promotion/demo.py"


def test_two_agents_arrive_and_a_broken_build_does_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("production serves: Welcome! 42") == 2
    assert "SyntaxError" in done.stdout
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".holdfast")]

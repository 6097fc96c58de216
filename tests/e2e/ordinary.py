"""A directory of an ordinary user's, and what a shell of theirs says in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .as_user import USER

ME = f"{sys.executable} -m holdfast"


def give_away(base: Path) -> None:
    """Let ``user`` in ``base`` be the ordinary user's, with all that is in it, and let them get there."""
    for path in (base / "user", *(base / "user").rglob("*")):
        os.chown(path, USER, USER)
    for path in (base, *base.parents):
        if path.stat().st_mode & 0o001 == 0 and path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o011)


def as_user(base: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the user's in ``user/work``, with a home in ``user/home``. ``dev`` is an empty directory."""
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("as_user.py")), str(base / "dev"), "/bin/sh", "-ec", script],
        cwd=base / "user/work",
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(base / "user"),
            "HOLDFAST_HOME": str(base / "user/home"),
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            **more,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

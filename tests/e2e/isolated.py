"""What tests of isolation need: namespaces, and a copy of the program that users without any privilege may run."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.sandbox.isolation_probe import require_isolation
from holdfast.sandbox.policy import FileAccess, SandboxPolicy

NOBODY = 65534
USERS = [0, NOBODY] if os.geteuid() == 0 else [os.geteuid()]


def need_namespaces() -> None:
    """Skip what cannot be tried on this machine."""
    try:
        require_isolation(SandboxPolicy(FileAccess(b"/nowhere")))
    except HoldfastError as error:
        pytest.skip(f"{error.message} ({error.hint})")


@contextmanager
def copied(*packages: str) -> Generator[Path]:
    """A directory that every user may enter, with copies of ``packages`` below ``src``."""
    folder = Path(tempfile.mkdtemp(prefix="isolated-"))
    try:
        folder.chmod(0o755)
        for name in packages:
            found = Path(importlib.import_module(name).__file__ or "").parent
            shutil.copytree(found, folder / "src" / name)
        yield folder
    finally:
        shutil.rmtree(folder)


def switch_to(user: int) -> dict[str, Any]:
    """What `subprocess` is to be told so that ``user`` runs something."""
    return {} if user == os.geteuid() else {"user": user, "group": user, "extra_groups": []}


def python_for(user: int, *, compiled: bool = False) -> str:
    """A Python that ``user`` may execute; ``compiled``: with packages that were compiled for this one."""
    wrong = f"sys.version_info[:2] != {tuple(sys.version_info[:2])}" if compiled else "sys.version_info < (3, 11)"
    # (Not by the name that it has in an environment, which may lie where a box has a directory of its own.)
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        check = [python, "-I", "-S", "-c", f"import sys; sys.exit({wrong})"]
        try:
            if subprocess.run(check, check=False, **switch_to(user)).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("no Python of a version that will do, which users other than root may execute")

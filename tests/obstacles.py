"""What the system lets nobody change, for the length of a block; the test is skipped where it cannot be made so."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def protected(path: Path, attribute: str = "i") -> Generator[None]:
    """With an attribute of chattr(1)."""
    if (
        shutil.which("chattr") is None
        or subprocess.run(["chattr", f"+{attribute}", path], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs chattr, the right to use it and a file system that has it")
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{attribute}", path], check=True)


@contextmanager
def mounted_read_only(path: Path) -> Generator[None]:
    """A directory, mounted over itself."""
    if os.geteuid() or subprocess.run(["mount", "--bind", path, path], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)  # (a keeper has it open, until it looks again)

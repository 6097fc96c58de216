"""File systems of their own for tests: a loop device in a file, or memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from .waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_MAKE = {
    "xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"],
    "btrfs": ["mkfs.btrfs", "-q"],
    "ext4": ["mkfs.ext4", "-q"],
}


@contextmanager
def bound(source: Path, target: Path, *, read_only: bool = False) -> Generator[None]:
    """``source`` is mounted at ``target`` too, as containers have single files; skips the test where it may not be."""
    done = subprocess.run(["mount", "--bind", str(source), str(target)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        if read_only:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(target)], check=True)


@contextmanager
def mounted(kind: str, folder: Path, options: str = "") -> Generator[Path]:
    """A fresh file system of the kind, mounted in the directory ``folder``; skips the test where that cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a loop device")
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", kind, "-o", "size=400m", "holdfast", str(folder)], check=True)
        try:
            yield folder
        finally:
            _unmount(folder)
        return
    make = _MAKE[kind]
    if shutil.which(make[0]) is None:
        pytest.skip(f"needs {make[0]}")
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run([*make, str(image)], check=True, capture_output=True)
    words = ["mount", "-o", ",".join(filter(None, ("loop", options))), str(image), str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a loop device here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        _unmount(place)


def _unmount(place: Path) -> None:
    unmount = ["umount", str(place)]
    # (What looked after a tree on it, such as a keeper, may still be about to end.)
    wait_until(lambda: subprocess.run(unmount, capture_output=True, check=False).returncode == 0)

"""What the tests of images share: a store, and images in it that are made of next to nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.sandbox.images.store import ImageStore


@pytest.fixture
def home(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path / "home")


@pytest.fixture
def store(home: bytes) -> ImageStore:
    return ImageStore(home)


@pytest.fixture
def needs_mksquashfs() -> None:
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs (squashfs-tools) is not installed")

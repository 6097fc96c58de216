"""The image that the machines of the tests are made from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.sandbox.images.image import Image


@pytest.fixture(scope="session")
def built_image() -> Image:
    """The image in the directory that ``HOLDFAST_TEST_IMAGE`` names."""
    folder = os.environ.get("HOLDFAST_TEST_IMAGE")
    if not folder:
        pytest.skip("HOLDFAST_TEST_IMAGE names no image")
    kernel, initrd, root = (bytes(Path(folder) / name) for name in ("kernel", "initrd", "root.sqfs"))
    return Image("default", "test", kernel, initrd, root)

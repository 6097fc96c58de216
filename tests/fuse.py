"""Whether a file system can be mounted here."""

from __future__ import annotations

import os
import shutil

import pytest


def _why_not() -> str | None:
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    if os.geteuid() and not (shutil.which("fusermount3") and os.access("/dev/fuse", os.R_OK | os.W_OK)):
        return "needs root, or fusermount3 (the package fuse3) and access to /dev/fuse"
    return None


ONLY_WITH_FUSE = pytest.mark.skipif(_why_not() is not None, reason=str(_why_not()))

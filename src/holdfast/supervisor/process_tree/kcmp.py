"""The resources that two threads share, according to the kernel: kcmp(2)."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Final

OPEN_FILES: Final = 2
"""One table of descriptors (``CLONE_FILES`` of clone(2))."""
FILE_SYSTEMS: Final = 3
"""Working directory, root and umask (``CLONE_FS``)."""

_SYSTEM_CALL: Final = {"x86_64": 312, "aarch64": 272}

_libc = ctypes.CDLL(None)


def is_shared(thread: int, other: int, what: int) -> bool | None:
    """Whether both share the resource ``what``. None if the kernel does not tell: a thread is gone, or may not be
    inspected.
    """
    found = _libc.syscall(_number(), thread, other, what, ctypes.c_ulong(0), ctypes.c_ulong(0))
    return None if found < 0 else found == 0


@cache
def _number() -> int:
    return _SYSTEM_CALL[os.uname().machine]

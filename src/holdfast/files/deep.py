"""Directories at any depth: also where the path is longer than the kernel takes one (``PATH_MAX``, 4096 bytes)."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.files import kernel

if TYPE_CHECKING:
    from collections.abc import Generator

MOST: Final = 4095
"""Bytes of the longest path that the kernel takes."""
_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RULES: Final = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS


def open_below(top: int, path: bytes, flags: int, rules: int) -> int:
    """`kernel.openat2` of ``path``, relative to ``top`` and without ``..``, however long it is; empty is ``top``."""
    if len(path) <= MOST:
        return kernel.openat2(top, path or b".", flags, rules)
    at = -1
    try:
        while len(path) > MOST:
            cut = path.rindex(b"/", 0, MOST + 1)
            inner = kernel.openat2(top if at < 0 else at, path[:cut], _STEP, rules)
            if at >= 0:
                os.close(at)
            at, path = inner, path[cut + 1 :]
        return kernel.openat2(at, path, flags, rules)
    finally:
        if at >= 0:
            os.close(at)


@contextmanager
def opened_below(top: int, path: bytes) -> Generator[int]:
    """The directory ``path`` below ``top``, to be read; through no link. Raises as `open_below`."""
    fd = open_below(top, path, _DIRECTORY, _RULES)
    try:
        yield fd
    finally:
        os.close(fd)

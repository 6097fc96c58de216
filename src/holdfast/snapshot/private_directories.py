"""Directories that are the user's alone."""

from __future__ import annotations

import errno
import os

_TRIES = 100


def make_private(path: bytes) -> None:
    """Make the directory ``path``, and missing parents, each with mode 0700; an existing one is not changed.

    Raises `OSError`, and `NotADirectoryError` for a link or a file in its place.
    """
    for left in reversed(range(_TRIES)):
        try:
            _make(path)
            break
        except FileNotFoundError:  # another session's cleanup has removed its parent
            if not left:
                raise
    if os.path.islink(path) or not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def _make(path: bytes) -> None:
    missing: list[bytes] = []
    at = path
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            continue  # another process was faster

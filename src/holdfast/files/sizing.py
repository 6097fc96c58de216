"""How much room a whole directory takes, with everything in it: for a word before it is copied."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from holdfast.files.own import Own

_BLOCK = 512
"""The unit of ``st_blocks``, whatever the file system's is."""


class Size(NamedTuple):
    """What `replicate` would copy."""

    files: int
    """All that is no directory; one with several names once."""
    bytes: int
    """The room that it takes where it lies: holes take none."""


def size_of(directory: bytes, *, without: Own) -> Size:
    """Count what is in the directory and below, but for sockets, and the directories ``without``. Follows no link.

    What is gone, or cannot be looked into, is left out. Raises `OSError` if that is the directory itself.
    """
    files = taken = 0
    linked: set[tuple[int, int]] = set()
    left = [directory]
    while left:
        at = left.pop()
        try:
            with os.scandir(at) as found:
                entries = list(found)
        except OSError:
            if at == directory:
                raise
            continue
        for entry in entries:
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            identity = (about.st_dev, about.st_ino)
            if stat.S_ISDIR(about.st_mode):
                if not without.is_one(about):
                    left.append(entry.path)
            elif not stat.S_ISSOCK(about.st_mode) and identity not in linked:
                files += 1
                taken += about.st_blocks * _BLOCK
                if about.st_nlink > 1:
                    linked.add(identity)
    return Size(files, taken)

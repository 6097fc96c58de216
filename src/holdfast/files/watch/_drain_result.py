"""The findings of one drain of a watcher so far, and the rules by which one means everything."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.tree import DirtyPaths
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PATHS = 200_000
"""Beyond this many changed paths a walk costs less than the list."""

RULE_FILES = frozenset((b".gitignore", b".checkpointignore"))
"""Files with ignore rules: a change of one can include or exclude any path."""

_log = Log(__name__)


class DrainResult:
    """Collects changed paths; any doubt makes it everything."""

    __slots__ = ("_paths", "everything", "rules_changed")

    def __init__(self) -> None:
        self._paths: set[bytes] = set()
        self.everything = False
        self.rules_changed = False
        """True once a file with ignore rules may have changed."""

    def mark_uncertain(self, reason: str) -> None:
        """Nothing is known for certain any more, because of ``reason``."""
        if not self.everything:
            _log.debug("the whole tree counts as changed: %s", reason)
        self.everything = True
        self._paths.clear()

    def overflow(self, limit: str = "") -> None:
        """The kernel has dropped events, because of its ``limit``."""
        _log.warning("the kernel's queue of events ran over%s: it has not told of every change", limit)
        self.mark_uncertain("the kernel's queue ran over")

    def add(self, path: bytes) -> None:
        """``path``, or anything below it, may have changed."""
        name = path.rpartition(b"/")[2]
        if name in RULE_FILES or path in (b"", b".git"):
            self.rules_changed = True
            self.mark_uncertain("the root or what says which files are ignored has changed")
        elif not self.everything:
            self._paths.add(path)
            if len(self._paths) > MAX_PATHS:
                self.mark_uncertain(f"more than {MAX_PATHS} paths have changed")

    def dirty(self) -> DirtyPaths:
        """The answer to the drain."""
        return DirtyPaths(self.everything, frozenset() if self.everything else frozenset(self._paths))


def vanished_or_shared(root_fd: int, paths: Iterable[bytes], findings: DrainResult) -> list[bytes]:
    """Check whether written files have further names, whose content then changed as well; returns the missing ones.

    The other names are unknown, so one such file makes everything dirty.
    """
    gone: list[bytes] = []
    for path in paths:
        if findings.everything:
            break
        try:
            about = os.stat(path, dir_fd=root_fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            gone.append(path)
        except OSError as error:
            findings.mark_uncertain(f"cannot look at a changed path: {error.strerror}")
        else:
            if about.st_nlink > 1 and not stat.S_ISDIR(about.st_mode):
                findings.mark_uncertain("a file with several names was written")
    return gone

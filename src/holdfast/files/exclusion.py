"""Which directories hold nothing that is captured: what a watcher may leave unwatched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.files.ignore import CHECKPOINTIGNORE, GITIGNORE, DirectoryRules, read_rule_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.files.ignore import IgnoreSources

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ExcludedDirectories:
    """Answers for single directories; rule files are read once, until `refresh`.

    ``never`` are absolute paths that are ours. An answer errs on the side of "not excluded" where a directory cannot
    be read.
    """

    def __init__(self, root: bytes, sources: IgnoreSources, never: Iterable[bytes]) -> None:
        inside = root.rstrip(b"/") + b"/"
        self._root = root
        self._sources = sources
        self._never = frozenset(path[len(inside) :].rstrip(b"/") for path in never if path.startswith(inside))
        self._rules: dict[bytes, DirectoryRules] = {}
        self._outside = b""

    def outside_changed(self) -> bool:
        """True once after the rules have changed that lie where no watcher looks: outside of the root, and in ``.git``.

        Reads a few small files.
        """
        before, self._outside = self._outside, self._sources.outer().fingerprint
        return before != self._outside

    def refresh(self) -> None:
        """Read the rule files again when next asked."""
        self._rules.clear()

    def __call__(self, path: bytes) -> bool:
        """True if the directory ``path``, below the root, is excluded; those above it are taken not to be."""
        parent, _, name = path.rpartition(b"/")
        return path in self._never or self._in(parent).excluded(path, name, True)

    def _in(self, directory: bytes) -> DirectoryRules:
        """The rules in force in ``directory``."""
        known = self._rules.get(directory)
        if known is not None:
            return known
        gitignore = checkpointignore = None
        try:
            # Only names of rule files are looked for, and what they say decides nothing but what is watched.
            fd = os.open(os.path.join(self._root, directory), _DIRECTORY)
        except OSError:
            pass
        else:
            try:
                gitignore, checkpointignore = read_rule_file(fd, GITIGNORE), read_rule_file(fd, CHECKPOINTIGNORE)
            finally:
                os.close(fd)
        if directory:
            rules = self._in(directory.rpartition(b"/")[0]).below(directory, gitignore, checkpointignore)
        else:
            rules = self._sources.outer().at_root(gitignore, checkpointignore)
        self._rules[directory] = rules
        return rules

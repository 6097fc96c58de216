"""Going down a tree by descriptors, and the ignore rules that are met on the way."""

from __future__ import annotations

import os

from holdfast.files.ignore.rules import CHECKPOINTIGNORE, GITIGNORE, read_rule_file
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.ignore.rules import DirectoryRules

    Unreadable = Callable[[bytes, OSError], bytes | None]
    """What stands for a rule file that cannot be read, given its path and why; may raise."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory is opened."""


def open_directory(root_fd: int, path: bytes) -> int:
    """Open the directory ``path`` below ``root_fd``, part by part and through no link; raises `OSError`."""
    fd = os.open(b".", DIRECTORY, dir_fd=root_fd)
    for part in path.split(b"/") if path else ():
        try:
            inner = os.open(part, DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def rules_above(root_fd: int, path: bytes, outer: DirectoryRules) -> DirectoryRules:
    """The rules in force in the directory that ``path``, below ``root_fd``, lies in. Raises `OSError`."""
    rules, at = outer, b""
    for name in (b"", *path.split(b"/")[:-1]):
        at = at + b"/" + name if at else name
        fd = open_directory(root_fd, at)
        try:
            rules = rules_in(fd, at, rules)
        finally:
            os.close(fd)
    return rules


def rules_in(
    fd: int,
    path: bytes,
    above: DirectoryRules,
    *,
    git: bool = True,
    own: bool = True,
    unreadable: Unreadable | None = None,
) -> DirectoryRules:
    """The rules in force in a directory, open as ``fd``, with its own rule files. ``git`` or ``own`` is False if the
    directory is known to lack that file. Raises `OSError` for an unreadable one, unless ``unreadable`` gives its
    content.
    """

    def read(name: bytes) -> bytes | None:
        try:
            return read_rule_file(fd, name)
        except OSError as error:
            if unreadable is None:
                raise
            return unreadable(path + b"/" + name if path else name, error)

    gitignore = read(GITIGNORE) if git else None
    checkpointignore = read(CHECKPOINTIGNORE) if own else None
    return above.below(path, gitignore, checkpointignore) if path else above.at_root(gitignore, checkpointignore)

"""Paths that an index marks as not to be checked (``skip-worktree``, ``assume-unchanged``), but that exist in the work
tree.

These marks are the user's promises to Git, and save it a check. Our own index drops them, so that changes are seen in
spite of them; except ``skip-worktree`` for missing files, as in a sparse checkout: those are not deleted. Source:
git-update-index(1).
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.snapshot.git._command import Git

_NOTHING, _DIRECTORY, _FILE = b"-", b"d", b"f"
_LISTED = b"H"
"""The mark of ``git ls-files -v`` for an entry that is checked; in lower case if it is assumed unchanged."""
_AS_THE_INDEX_SAYS = ("-c", "sparse.expectFilesOutsideOfPatterns=true")
"""Git itself takes ``skip-worktree`` for off where a file is there, in a sparse checkout, and would not list it."""


def clear_flags(git: Git, work_tree: bytes) -> bytes:
    """Clear the marks of ``git``'s index, which is ours, for files in ``work_tree``. Returns their basis, for
    `is_unchanged`: its length depends on the places where the tree ends, not on the number of files below. Raises
    `StorageError`.
    """
    assumed: list[bytes] = []
    skipped: list[bytes] = []
    for item in git.fields(*_AS_THE_INDEX_SAYS, "ls-files", "-v", "-z"):
        mark = item[:1]
        if mark == _LISTED:
            continue
        if mark.islower():
            assumed.append(item[2:])
        if mark.upper() == b"S":
            skipped.append(item[2:])
    there, found = _looked_up(work_tree, skipped)
    # With both options at once, Git applies only one.
    for option, paths in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", there)):
        if paths:
            git("update-index", option, "-z", "--stdin", stdin=b"".join(path + b"\0" for path in paths))
    return b"".join(kind + path + b"\0" for path, kind in sorted(found.items()))


def is_unchanged(work_tree: bytes, found: bytes) -> bool:
    """Whether the paths that `clear_flags` found still exist, and the others are still missing."""
    return all(_kind(os.path.join(work_tree, each[1:])) == each[:1] for each in found.split(b"\0")[:-1])


def _looked_up(work_tree: bytes, paths: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Those of ``paths`` that exist; and the basis of each: the object at it, or at the nearest parent that is no
    directory, below which nothing can exist.
    """
    there: list[bytes] = []
    found: dict[bytes, bytes] = {}
    directories: dict[bytes, bool] = {b"": True}
    for path in paths:
        at = 0
        while (at := path.find(b"/", at) + 1) > 0:
            above = path[: at - 1]
            if above not in directories:
                kind = _kind(os.path.join(work_tree, above))
                directories[above] = kind == _DIRECTORY
                if kind != _DIRECTORY:
                    found[above] = kind
            if not directories[above]:
                break
        else:
            found[path] = kind = _kind(os.path.join(work_tree, path))
            if kind != _NOTHING:
                there.append(path)
    return there, found


def _kind(path: bytes) -> bytes:
    try:
        return _DIRECTORY if stat.S_ISDIR(os.lstat(path).st_mode) else _FILE
    except (FileNotFoundError, NotADirectoryError):
        return _NOTHING

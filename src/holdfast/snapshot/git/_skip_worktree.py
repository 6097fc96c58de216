"""What an index says not to look at (``skip-worktree``, ``assume-unchanged``), and is in the work tree all the same.

Those marks are promises of the user's to Git, and spare it a look. They are taken away in an index of our own, so that
a change is seen whatever was promised; but for files with ``skip-worktree`` that are not there, as in a sparse
checkout: those are not gone. Source: git-update-index(1).
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
"""How ``git ls-files -v`` marks what is in the index and looked at; in lower case where it is assumed unchanged."""
_AS_THE_INDEX_SAYS = ("-c", "sparse.expectFilesOutsideOfPatterns=true")
"""Git itself takes ``skip-worktree`` for off where a file is there, in a sparse checkout, and would not list it."""


def clear_flags(git: Git, work_tree: bytes) -> bytes:
    """Have ``git``'s index, which is ours, say of nothing in ``work_tree`` that it need not be looked at. Returns what
    that stands on, for `is_unchanged`: its length goes with the places where the tree ends, and not with the files
    behind. Raises `StorageError`.
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
    # (Asked for both at once, Git does the one and not the other.)
    for option, paths in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", there)):
        if paths:
            git("update-index", option, "-z", "--stdin", stdin=b"".join(path + b"\0" for path in paths))
    return b"".join(kind + path + b"\0" for path, kind in sorted(found.items()))


def is_unchanged(work_tree: bytes, found: bytes) -> bool:
    """Whether all that `clear_flags` found is there, and all that it did not is not."""
    return all(_kind(os.path.join(work_tree, each[1:])) == each[:1] for each in found.split(b"\0")[:-1])


def _looked_up(work_tree: bytes, paths: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Those of ``paths`` that are there; and what each stands on: what is at it, or at the directory above which is
    none, where nothing can be below.
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

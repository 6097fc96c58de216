"""Starts to scan a tree before the catalog is open: see `holdfast.files.scan.parallel_scan`.

The catalog knows which workspace a directory is, but to open it takes most of the time that an early scan can use. So
the home keeps links as well (``docs/formats/places.md``): ``places/{hash of the root's path}``, each to a workspace's
id. A link may be wrong: the command that adopts the early scan has asked the catalog by then.
"""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.engine.opening.current_run import RUN_VARIABLE
from holdfast.engine.opening.home import FORK_NOTE, INDEX, WATCH_SOCKET, default_home
from holdfast.files.scan import parallel_scan
from holdfast.model.errors import HoldfastError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.opening.context import Context

_PLACES = b"places"
_ID_LETTERS = frozenset(b"0123456789abcdef")


def start(directory: str, home: str | None, environ: Mapping[str, str]) -> None:
    """Start to scan the workspace that ``directory`` seems to be in. Never raises; the caller calls `end_early` in the
    end.

    Starts nothing where a watcher knows what has changed, where the workspace is a mounted fork, and inside of a run.
    """
    if os.fsdecode(RUN_VARIABLE) in environ:
        return
    try:
        where = default_home(environ) if home is None else os.path.abspath(os.fsencode(home))
        root: bytes = os.path.realpath(os.fsencode(directory))
    except (HoldfastError, OSError, ValueError):  # the command reports it when it opens the workspace
        return
    while (folder := _noted(where, root)) is None:
        if root == b"/":
            return
        root = os.path.dirname(root)
    if not any(os.path.lexists(os.path.join(folder, name)) for name in (WATCH_SOCKET, FORK_NOTE)):
        parallel_scan.start_early(root, os.path.join(folder, INDEX))


def note_place(context: Context, files: int) -> None:
    """Note where the workspace is, for `start`, if its tree has enough ``files`` for an early scan. Best effort."""
    if files < parallel_scan.MIN_FILES:
        return
    root, name = context.workspace.path, context.workspace.id
    link = _link(context.home, root)
    try:
        if _read(link) == name.encode():
            return
        os.makedirs(os.path.dirname(link), 0o700, exist_ok=True)
        new = link + b".new-" + name.encode()
        with suppress(FileNotFoundError):
            os.unlink(new)  # a process was killed here
        os.symlink(name.encode(), new)
        os.rename(new, link)
    except OSError:
        return


def _noted(home: bytes, root: bytes) -> bytes | None:
    """The folder of the workspace that is noted to be at ``root``."""
    name = _read(_link(home, root))
    return os.path.join(home, b"workspaces", name) if name and _ID_LETTERS.issuperset(name) else None


def _link(home: bytes, root: bytes) -> bytes:
    return os.path.join(home, _PLACES, hash_bytes(root).hex().encode())


def _read(link: bytes) -> bytes | None:
    try:
        return os.readlink(link)
    except OSError:
        return None

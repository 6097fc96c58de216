"""Looking at a tree before anything about it is known for certain: see `holdfast.files.scan.parallel_scan`.

Which workspace a directory is, the catalog says; opening that takes most of the time that is to be used. So the home
notes it in links as well, ``places/{hash of the root's path}``, each to a workspace's id: ``docs/formats/places.md``.
A note may be wrong: whoever takes the scout over has asked the catalog.
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


def send(directory: str, home: str | None, environ: Mapping[str, str]) -> None:
    """Send a scout through the workspace that ``directory`` seems to be in; not where there is a watcher, who knows
    what has changed, or what is looked at is a mount or a run's. For `recall` in the end. Never raises.
    """
    if os.fsdecode(RUN_VARIABLE) in environ:
        return
    try:
        where = default_home(environ) if home is None else os.path.abspath(os.fsencode(home))
        root: bytes = os.path.realpath(os.fsencode(directory))
    except (HoldfastError, OSError, ValueError):  # whoever opens the workspace says what is wrong
        return
    while (folder := _noted(where, root)) is None:
        if root == b"/":
            return
        root = os.path.dirname(root)
    if not any(os.path.lexists(os.path.join(folder, name)) for name in (WATCH_SOCKET, FORK_NOTE)):
        parallel_scan.send_ahead(root, os.path.join(folder, INDEX))


def recall() -> None:
    """End the scout, unless a scan has taken it over: before this process itself changes the tree, and in the end.
    Harmless where there is none.
    """
    parallel_scan.recall_ahead()


def note(context: Context, files: int) -> None:
    """Note where the workspace is, whose tree has so many ``files``: for `send`, where that would. Best effort."""
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
            os.unlink(new)  # somebody was killed here
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

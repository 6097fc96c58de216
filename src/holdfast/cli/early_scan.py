"""Starts to scan a tree before the catalog is open: see `holdfast.files.scan.parallel_scan`.

The catalog knows which workspace a directory is, but to open it takes most of the time that an early scan can use. So
it goes by a link of the home's (`holdfast.engine.opening.home.remembered_folder`), which may be wrong: the command that
adopts the early scan has asked the catalog by then.
"""

from __future__ import annotations

import os

from holdfast.engine.opening.current_run import RUN_VARIABLE
from holdfast.engine.opening.home import FORK_NOTE, INDEX, WATCH_SOCKET, default_home, remembered_folder
from holdfast.files.scan import parallel_scan
from holdfast.model.errors import HoldfastError
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def start(directory: str, home: str | None, environ: Mapping[str, str]) -> None:
    """Start to scan the workspace that seems to contain ``directory``. Never raises; the caller must call `end_early`.

    Does nothing if a watcher knows the changes, for a mounted fork, and inside a run.
    """
    if os.fsdecode(RUN_VARIABLE) in environ:
        return
    try:
        where = default_home(environ) if home is None else os.path.abspath(os.fsencode(home))
        root: bytes = os.path.realpath(os.fsencode(directory))
    except (HoldfastError, OSError, ValueError):  # the command reports it when it opens the workspace
        return
    while (folder := remembered_folder(where, root)) is None:
        if root == b"/":
            return
        root = os.path.dirname(root)
    if not any(os.path.lexists(os.path.join(folder, name)) for name in (WATCH_SOCKET, FORK_NOTE)):
        parallel_scan.start_early(root, os.path.join(folder, INDEX))

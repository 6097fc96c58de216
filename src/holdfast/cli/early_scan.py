"""Looking at a tree while the command loads its modules and opens the catalog: see `holdfast.files.scan.parallel_scan`.

Which workspace a directory is, only the catalog says for certain; what the home has noted of that is enough to begin.
Opening the workspace shows whether it was right.
"""

from __future__ import annotations

import os

from holdfast.engine.opening.current_run import RUN_VARIABLE
from holdfast.engine.opening.home import FORK_NOTE, INDEX, WATCH_SOCKET, default_home, folder_noted
from holdfast.files.scan.parallel_scan import send_ahead
from holdfast.model.errors import HoldfastError
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    while (folder := folder_noted(where, root)) is None:
        if root == b"/":
            return
        root = os.path.dirname(root)
    if not any(os.path.lexists(os.path.join(folder, name)) for name in (WATCH_SOCKET, FORK_NOTE)):
        send_ahead(root, os.path.join(folder, INDEX))

"""Files of the workspace that a run's command inherits as standard input or output: an unsupervised shell has opened
them. Their content is recorded before the command begins.

Files that are standard error as well are left out: the run's launcher reports its end there, and keeps writing.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.linux.file_handle import identity
from holdfast.files.linux.metadata import proc_path
from holdfast.model.errors import HeldError, HoldfastError
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.supervisor.resolution.procfs import is_below
from holdfast.supervisor.resolution.territory import absolute, is_deleted
from holdfast.undo.tree.rooted_directories import Directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.supervisor.keeper._keeper_context import ServedWorkspace
    from holdfast.undo.journal.records import StepId

_log = Log(__name__)

MOST_BYTES = 32 << 20
"""A larger file is not recorded: every call waits while it is copied."""


def record_inherited(pid: int, workspace: ServedWorkspace, step: Callable[[], StepId]) -> frozenset[int]:
    """Record the files in the workspace that the process has open for writing; ``step`` opens their step, if there are
    any. Returns their inode numbers. Failures are logged.
    """
    recorded: set[int] = set()
    root = absolute(workspace.root_fd)
    own = tuple(absolute(fd).rstrip(b"/") for fd in workspace.forbidden)
    directories = Directories(workspace.root_fd)
    try:
        for fd in _written(pid):
            try:
                path = absolute(fd)
                if is_deleted(fd, path) or not is_below(path, (root.rstrip(b"/"),)) or is_below(path, own):
                    continue
                inner = path[len(root.rstrip(b"/")) + 1 :]
                place = directories.place(inner)
                if identity(place.dir_fd, place.name) != identity(fd, b""):
                    continue
                found = os.fstat(fd)
                if found.st_size > MOST_BYTES:
                    _log.warning("writes to %s are not recorded: it is too large to copy", display(inner))
                    continue
                workspace.interceptor.before_open(step(), place, fd)
                recorded.add(found.st_ino)
            except (OSError, HoldfastError, HeldError) as error:
                _log.warning("files that the run has open from the start are not recorded: %s", error)
            finally:
                os.close(fd)
    finally:
        directories.close()
    return frozenset(recorded)


def _written(pid: int) -> Iterator[int]:
    """Regular files that the process may write to by standard input or output, and not by standard error as well."""
    spared: set[tuple[int, int]] = set()
    try:
        about = os.stat(f"/proc/{pid}/fd/2")
        spared.add((about.st_dev, about.st_ino))
    except OSError:
        pass  # it has no such descriptor
    for number in (0, 1):
        try:
            with open(f"/proc/{pid}/fdinfo/{number}") as file:
                flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
            if flags & os.O_ACCMODE == os.O_RDONLY or flags & os.O_PATH:
                continue
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
        except (OSError, StopIteration, ValueError):
            continue
        about = os.stat(proc_path(fd))
        if stat.S_ISREG(about.st_mode) and (about.st_dev, about.st_ino) not in spared:
            spared.add((about.st_dev, about.st_ino))
            yield fd
        else:
            os.close(fd)

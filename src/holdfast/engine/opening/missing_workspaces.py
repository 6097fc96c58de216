"""Workspaces whose directory is not where it was: which are gone, and where those are that were moved."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engine.opening.fork_layers import is_served
from holdfast.engine.opening.identity import could_be, is_disk_there
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.store.catalog_records import WorkspaceRow

MOST_LOOKED_AT = 500_000
"""Limit of directory entries searched for moved workspaces, the nearest first: a second or two."""
NEARBY = 2000
"""Where a person waits for an answer: some milliseconds."""


def is_missing(workspace: WorkspaceRow, folder: bytes) -> bool:
    """True if the directory is not where it was seen last, while its file system is surely present.

    ``folder`` is the workspace's own in the home, with the record of the file system. A workspace whose place another
    one has taken (see `catalog_records.aside`) is missing, too.
    """
    path = last_seen_path(workspace.path)
    if is_served(folder):
        return False  # it is mounted, where this process cannot see it
    if path == workspace.path and os.path.lexists(path):
        return False
    nearest = _nearest(path)
    return os.stat(nearest).st_dev == workspace.device and is_disk_there(folder, nearest)


def find_moved(
    missing: Iterable[WorkspaceRow],
    folder_of: Callable[[WorkspaceRow], bytes],
    *,
    most: int | None = None,
) -> Mapping[str, bytes]:
    """New paths of those ``missing`` workspaces that were moved within their file system, by id.

    The search goes by inode number and birth time, from the last path outwards, without following links or leaving the
    file system. It ends after ``most`` entries (`MOST_LOOKED_AT` of them), so a directory that was moved far away is
    not found.
    """
    left = MOST_LOOKED_AT if most is None else most
    wanted: dict[tuple[int, int], list[WorkspaceRow]] = {}
    todo: deque[bytes] = deque()
    queued: set[bytes] = set()
    for workspace in missing:
        wanted.setdefault((workspace.device, workspace.inode), []).append(workspace)
        at = _nearest(last_seen_path(workspace.path))
        while at not in queued:
            queued.add(at)
            todo.append(at)
            at = os.path.dirname(at)
    devices = {device for device, _ in wanted}
    inodes = {inode for _, inode in wanted}
    found: dict[str, bytes] = {}
    while todo and left > 0 and wanted:
        at = todo.popleft()
        with suppress(OSError):
            if os.lstat(at).st_dev not in devices:
                continue
            with os.scandir(at) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    if not entry.is_dir(follow_symlinks=False):
                        continue
                    if entry.inode() in inodes:
                        about = os.lstat(entry.path)
                        for workspace in wanted.get((about.st_dev, about.st_ino), ()):
                            if could_be(folder_of(workspace), entry.path):
                                found[workspace.id] = entry.path
                        if all(one.id in found for one in wanted.get((about.st_dev, about.st_ino), ())):
                            wanted.pop((about.st_dev, about.st_ino), None)
                    if entry.path not in queued:
                        todo.append(entry.path)
    return found


def _nearest(path: bytes) -> bytes:
    """The nearest directory above ``path``."""
    path = os.path.dirname(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path

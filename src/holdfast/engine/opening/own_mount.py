"""Whether a workspace is a mount of its own, a disk or a container's volume: then whatever is mounted there is it.

It is noted where somebody says what the workspace is, and not by a visit: one that comes before the disk is mounted,
as after a restart, must not make a stranger of that disk.
"""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.engine.opening.folder import OWN_MOUNT


def remember(folder: bytes, root: bytes) -> None:
    """Note in the workspace's ``folder`` whether something is mounted right at the real path ``root``. Best effort:
    where nothing is noted the workspace is taken for a directory of the file system around it.
    """
    from holdfast.files.staying import mounted_at

    path = os.path.join(folder, OWN_MOUNT)
    with suppress(OSError):
        if mounted_at(root):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        elif os.path.lexists(path):
            os.unlink(path)


def is_remembered(folder: bytes) -> bool:
    """True if the workspace with this ``folder`` was noted to be a mount of its own."""
    return os.path.lexists(os.path.join(folder, OWN_MOUNT))


def is_overlaid(folder: bytes, root: bytes) -> bool:
    """True if an overlay is mounted right at the real path ``root``, over a workspace that is no mount of its own."""
    from holdfast.bridge.overlay import FILE_SYSTEM
    from holdfast.files.staying import type_mounted_at

    try:
        return type_mounted_at(root) == FILE_SYSTEM and not is_remembered(folder)
    except OSError:
        return False

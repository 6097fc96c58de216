"""How a root that was moved is known again: inode numbers are used anew at once, the moment of birth is not."""

from __future__ import annotations

import os

from holdfast.engine.folder import ROOT_BIRTH


def remember(folder: bytes, root: bytes) -> None:
    """Note in the workspace's ``folder`` when the directory ``root`` was born. Best effort: see `may_be`."""
    born = _birth_time(root)
    path = os.path.join(folder, ROOT_BIRTH)
    try:
        if born is None:
            if os.path.lexists(path):
                os.unlink(path)
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(b"%d\n" % born)
    except OSError:
        return


def may_be(folder: bytes, root: bytes) -> bool:
    """False if the directory ``root`` is surely not the one that was noted, though its inode number is the same.

    True where nothing was noted or the file system does not keep such times: then the number alone must do.
    """
    try:
        with open(os.path.join(folder, ROOT_BIRTH), "rb") as file:
            noted = int(file.read(32))
    except (OSError, ValueError):
        return True
    return _birth_time(root) in (None, noted)


def _birth_time(path: bytes) -> int | None:
    from holdfast.files import kernel

    try:
        return kernel.birth_time(path)
    except OSError:
        return None

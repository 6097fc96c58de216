"""Whether the file system that a workspace was on is there: a device number alone is soon another's.

Disks that are plugged in later get the numbers of those that are gone, and overlays, tmpfs and btrfs take theirs from a
common pool. The identity that is noted beside it is the UUID of the file system, its ``f_fsid``, and the moment of
birth of its topmost directory that can be seen. Sources: statvfs(3), statx(2), ioctl FS_IOC_GETFSUUID (Linux 6.9).
"""

from __future__ import annotations

import fcntl
import os

from holdfast.engine.opening.folder import DISK
from holdfast.files.gitconfig import read_regular
from holdfast.model.named import NamedTuple

_GETFSUUID = 0x80111500
_MAX_BYTES = 128
_UNKNOWN = "-"


class Disk(NamedTuple):
    """What tells one file system from another, as text; ``-`` for what this system or file system does not tell."""

    uuid: str
    fsid: str
    """Of some file systems just the device number again: it never proves that two are one."""
    born: str


def remember(folder: bytes, root: bytes) -> None:
    """Note in the workspace's ``folder`` which file system the directory ``root`` is on. Best effort: where nothing is
    noted the file system is taken not to be there.
    """
    try:
        text = " ".join(_look_at(root)) + "\n"
        fd = os.open(
            os.path.join(folder, DISK), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with open(fd, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        return


def is_remembered(folder: bytes) -> bool:
    """True if something is noted in the workspace's ``folder``."""
    return os.path.lexists(os.path.join(folder, DISK))


def is_there(folder: bytes, directory: bytes) -> bool:
    """True if ``directory`` is on the file system that was noted in the workspace's ``folder``; False in any doubt."""
    try:
        text = read_regular(os.path.join(folder, DISK), _MAX_BYTES)
        noted = Disk(*(text or b"").decode("ascii").removesuffix("\n").split(" "))
        now = _look_at(directory)
    except (OSError, ValueError, TypeError):
        return False
    alike = [one == other for one, other in zip(noted, now, strict=True) if _UNKNOWN not in (one, other)]
    proven = _UNKNOWN not in (noted.uuid, now.uuid) or _UNKNOWN not in (noted.born, now.born)
    return proven and all(alike)


def _look_at(directory: bytes) -> Disk:
    from holdfast.files import kernel

    fsid = os.statvfs(directory).f_fsid
    born = kernel.birth_time(_topmost(directory))
    return Disk(_uuid(directory), f"{fsid:x}" if fsid else _UNKNOWN, _UNKNOWN if born is None else str(born))


def _topmost(directory: bytes) -> bytes:
    """The highest directory above ``directory`` that is on the same file system."""
    device = os.stat(directory).st_dev
    while (above := os.path.dirname(directory)) != directory and os.stat(above).st_dev == device:
        directory = above
    return directory


def _uuid(directory: bytes) -> str:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = fcntl.ioctl(fd, _GETFSUUID, bytes(17))
    except OSError:
        return _UNKNOWN
    finally:
        os.close(fd)
    uuid = found[1 : 1 + min(found[0], 16)]
    return uuid.hex() if any(uuid) else _UNKNOWN

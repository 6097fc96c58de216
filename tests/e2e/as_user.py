"""Executes a command as an ordinary user who may open ``/dev/fuse``: ``python as_user.py DIRECTORY COMMAND…``, as root.

All that takes is done in a mount namespace of its own; nothing else sees it. ``DIRECTORY`` is an empty one.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from pathlib import Path

USER = 65534
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 1 << 12, 1 << 14, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def main(directory: str, command: list[str]) -> None:
    assert _libc.unshare(_CLONE_NEWNS) == 0
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", directory, "tmpfs", 0, "mode=755")
    device = f"{directory}/fuse"
    os.mknod(device, stat.S_IFCHR, os.makedev(10, 229))
    os.chmod(device, 0o666)
    _mount(device, "/dev/fuse", "", _MS_BIND)
    _open_way(Path(sys.base_prefix))
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.execv(command[0], command)


def _open_way(prefix: Path) -> None:
    """Let everybody reach the interpreter's own files, should they lie in somebody's home."""
    closed = next((path for path in reversed(prefix.parents) if not path.stat().st_mode & stat.S_IXOTH), None)
    if closed is None:
        return
    kept = os.open(prefix, os.O_PATH)
    _mount("tmpfs", str(closed), "tmpfs", 0, "mode=755")
    prefix.mkdir(parents=True)
    _mount(f"/proc/self/fd/{kept}", str(prefix), "", _MS_BIND | _MS_REC)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

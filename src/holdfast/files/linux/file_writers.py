"""Who has files open for writing, where the file system's leases do not tell: looked up in ``/proc``.

Only the processes that this one may look into are seen. Source: proc(5), ``fd``, ``fdinfo`` and ``maps``.
"""

from __future__ import annotations

import os

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def files_being_written() -> set[tuple[int, int]]:
    """Device and inode of every file that some process has open or mapped for writing now."""
    found: set[tuple[int, int]] = set()
    for process in os.listdir(b"/proc"):
        if process.isdigit():
            base = b"/proc/" + process
            found.update(_opened(base))
            found.update(_mapped(base))
    return found


def _opened(base: bytes) -> Iterator[tuple[int, int]]:
    try:
        descriptors = os.listdir(base + b"/fd")
    except OSError:
        return  # ended, or not ours to look into
    for descriptor in descriptors:
        try:
            info = os.stat(base + b"/fd/" + descriptor)
            with open(base + b"/fdinfo/" + descriptor, "rb") as file:
                flags = next((int(line[6:], 8) for line in file if line.startswith(b"flags:")), os.O_RDONLY)
        except OSError:
            continue  # closed meanwhile
        if flags & os.O_ACCMODE != os.O_RDONLY:
            yield info.st_dev, info.st_ino


def _mapped(base: bytes) -> Iterator[tuple[int, int]]:
    try:
        with open(base + b"/maps", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, permissions, _, device, inode, *named = line.split(None, 5)
        if permissions[1:2] == b"w" and permissions[3:4] == b"s":
            major, _, minor = device.partition(b":")
            yield os.makedev(int(major, 16), int(minor, 16)), int(inode)
            # Of an overlay these may be the numbers of the file in a layer; the name is that of the one on top.
            if named and named[0].startswith(b"/"):
                try:
                    info = os.stat(named[0].replace(b"\\012", b"\n"), follow_symlinks=False)
                except OSError:
                    continue
                yield info.st_dev, info.st_ino

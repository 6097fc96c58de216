"""``/dev/tty`` where it cannot be left to the caller: its terminal, opened by the name that it has for everybody."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.supervisor.operations.arguments import failure
from holdfast.supervisor.territory import reopen

if TYPE_CHECKING:
    from holdfast.supervisor.resolve import PathResolver

_TTY_NUMBER = 4
"""The place of the terminal in ``stat``, counted from behind the name (proc_pid_stat(5), field 7)."""
_PSEUDO = range(136, 144)
_PSEUDO_EACH = 256


def open_terminal(sight: PathResolver, flags: int) -> int:
    """The terminal that controls the caller's session, opened as ``flags`` say.

    Raises `OSError`: ENXIO if it has none, as in the kernel; EACCES if it is no pseudo-terminal, and for a caller that
    sees other file systems than the keeper: there, another terminal may go by the same number.
    """
    file = sight.held(os.open(b"stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=sight.caller.fd))
    number = int(os.read(file, 4096).rpartition(b") ")[2].split(b" ")[_TTY_NUMBER])
    if not number:
        raise failure(errno.ENXIO)
    # (The kernel has the upper bits of the minor number above the major one.)
    device = os.makedev(number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00)
    if os.major(device) not in _PSEUDO or sight.caller.foreign:
        raise failure(errno.EACCES)
    index = (os.major(device) - _PSEUDO.start) * _PSEUDO_EACH + os.minor(device)
    found = sight.held(os.open(b"/dev/pts/%d" % index, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
    about = os.fstat(found)
    if not stat.S_ISCHR(about.st_mode) or about.st_rdev != device:
        raise failure(errno.EACCES)
    with sight.acting():
        return reopen(found, flags & (os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK) | os.O_NOCTTY | os.O_CLOEXEC)

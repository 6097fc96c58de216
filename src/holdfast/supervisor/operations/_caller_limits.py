"""The caller's own limits (setrlimit(2)), where a call would meet them: the keeper, in its place, has others."""

from __future__ import annotations

import errno
import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.supervisor.operations.registers import os_error

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.caller_identity import Caller

_SHOWN = {resource.RLIMIT_FSIZE: b"Max file size", resource.RLIMIT_NOFILE: b"Max open files"}


def check_room(caller: Caller) -> None:
    """Raise `OSError` (EMFILE) if the caller can get no further descriptor: ``open`` checks that first, and so neither
    makes nor truncates a file that it cannot return.
    """
    most = _limit(caller, resource.RLIMIT_NOFILE)
    opened = f"/proc/self/fd/{caller.fd}/fd"
    # The last number is free, unless all are in use or a descriptor was moved there.
    is_last_free = most and not os.path.lexists(f"{opened}/{most - 1}")
    if not is_last_free and sum(int(number) < most for number in os.listdir(opened)) >= most:
        raise os_error(errno.EMFILE)


def check_size(caller: Caller, size: int) -> None:
    """Raise `OSError` (EFBIG) if the caller may make no file so large, and send it SIGXFSZ, as the kernel does."""
    most = _limit(caller, resource.RLIMIT_FSIZE)
    if most != resource.RLIM_INFINITY and size > most:
        with suppress(OSError):
            os.kill(caller.tgid, signal.SIGXFSZ)
        raise os_error(errno.EFBIG)


def _limit(caller: Caller, kind: int) -> int:
    try:
        return resource.prlimit(caller.tid, kind)[0]
    except OSError:
        return _shown_limit(caller, kind)


def _shown_limit(caller: Caller, kind: int) -> int:
    """The limit as ``/proc`` shows it to every process. (prlimit(2) tells it only to a process with the same user
    numbers, or with CAP_SYS_RESOURCE, which root in a container often lacks.)
    """
    with suppress(OSError), open(f"/proc/self/fd/{caller.fd}/limits", "rb") as lines:
        for line in lines:
            if line.startswith(_SHOWN[kind]):
                soft = line[len(_SHOWN[kind]) :].split()[0]
                return resource.RLIM_INFINITY if soft == b"unlimited" else int(soft)
    return resource.RLIM_INFINITY

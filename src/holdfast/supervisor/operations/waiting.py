"""Opening what may keep the caller waiting, so that nobody else waits."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

from holdfast.supervisor.call import SlowError
from holdfast.supervisor.operations.arguments import failure
from holdfast.supervisor.territory import reopen

if TYPE_CHECKING:
    from holdfast.supervisor.call import Call, Supervision
    from holdfast.supervisor.resolve import Sight

LEASED = errno.EAGAIN
"""A file cannot be opened at once, as somebody has a lease on it (fcntl(2)), and has now been asked to let go."""
NOBODY_READS = errno.ENXIO
"""A named pipe cannot be opened at once, as it has no reader."""
NOTHING = 0
"""It is opened at once or not at all: nobody waits for what a device waits for, such as a modem."""

_POLL_SECONDS = 0.005


def reopen_in_time(sight: Sight, call: Call, world: Supervision, fd: int, flags: int, waits: int) -> int:
    """Open what ``fd`` refers to again, with the caller's credentials, once that does not fail with ``waits`` any more.

    Whoever asks for ``O_NONBLOCK`` does not wait. Nobody can be made to wait in the kernel: that would go on for as
    long as somebody else likes, whether the caller is still there or not. Raises `OSError`, and `SlowError` where it
    has to wait and others would too.
    """
    while True:
        try:
            with sight.acting():
                opened = reopen(fd, flags | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != waits or flags & os.O_NONBLOCK:
                raise
        else:
            if not flags & os.O_NONBLOCK:
                os.set_blocking(opened, True)
            return opened
        if not call.patient:
            raise SlowError
        if not world.is_valid(call):
            raise failure(errno.EINTR)
        time.sleep(_POLL_SECONDS)

"""How whoever asks a keeper shows that it is not supervised: with a descriptor of the log's lock, open for writing.

Ancestors, process groups and sessions can be shed, and who was below what cannot be found out when that has ended. But
no process that was ever in a tree can open a file of the log for writing: while its keeper lives that is refused, and
afterwards its filter and its domain let it open nothing for writing at all. So a descriptor says what its bearer is. It
is shown with each request, on the connection, and not kept.

Source: unix(7), ``SCM_RIGHTS``; fcntl(2), ``F_GETFL``.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from fcntl import F_GETFL, fcntl
from typing import TYPE_CHECKING

from holdfast.undo.version import LOCK

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def shown(log: bytes) -> Generator[list[int]]:
    """What to send first with a request to the keeper of the log in ``log``; empty for who cannot write there."""
    try:
        # (Nothing is locked by it: that the keeper has done.)
        fd = os.open(os.path.join(log, LOCK), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield []
        return
    try:
        yield [fd]
    finally:
        os.close(fd)


def is_proof(fd: int, log: bytes) -> bool:
    """Whether a descriptor is what `shown` gives for the log; for its keeper."""
    flags = fcntl(fd, F_GETFL)
    return (
        flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
        and not flags & os.O_PATH
        and os.path.samestat(os.fstat(fd), os.lstat(os.path.join(log, LOCK)))
    )

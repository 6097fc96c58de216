"""For tests as root: permissions apply as for all other users."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def permissions_hold() -> Generator[None]:
    """Permissions apply to root as to all others, in the block and this thread: capset(2)."""
    _obey(True)
    try:
        yield
    finally:
        _obey(False)


def _obey(yes: bool) -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.capget(header, sets)
    overriding = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    sets[0] = sets[0] & ~overriding if yes else sets[0] | sets[1] & overriding
    assert not libc.capset(header, sets)

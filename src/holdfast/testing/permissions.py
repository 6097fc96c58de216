"""For tests as root: permissions hold as they do for everybody."""

from __future__ import annotations

import ctypes


def obey_permissions(yes: bool) -> None:
    """Let permissions hold for root as for everybody (this thread), or take that back: capset(2)."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.capget(header, sets)
    overriding = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    sets[0] = sets[0] & ~overriding if yes else sets[0] | sets[1] & overriding
    assert not libc.capset(header, sets)

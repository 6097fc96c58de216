"""A virtual machine that runs: what `vm status` and `session info` say of it."""

from __future__ import annotations

import msgspec


class RunningMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A virtual machine that runs. Without its memory it is the body of a note (docs/formats/machine.md)."""

    run: str
    pid: int
    """Of its monitor."""
    image: str
    accelerator: str
    """``kvm``, or ``tcg``: it is emulated."""
    filesystem: str
    """``virtiofs`` or ``9p``."""
    persistent: bool
    started_at: float
    """Seconds since the epoch."""
    memory_bytes: int = 0
    """The memory of the host that it uses now; 0 if it has just ended."""

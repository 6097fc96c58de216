"""How a test waits for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], object], what: str = "the condition", limit: float = 30) -> None:
    """Wait on a condition, with a limit in seconds, by asking again and again."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{what} has not come"
        time.sleep(0.005)


def has_ended(process: int) -> bool:
    """Whether a process is there no more, or waits only for its parent to hear that it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True

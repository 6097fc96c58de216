"""How a test waits for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str = "the condition", limit: float = 30) -> None:
    """Wait on a condition, with a limit in seconds, by asking again and again."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{what} has not come"
        time.sleep(0.005)

"""Requests that have to wait, or take long: not on a thread by which others are served."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_patience = threading.local()


class LaterError(Exception):
    """Nothing has happened yet. Retried on a thread of its own, the request proceeds, or waits a little longer."""


def is_patient() -> bool:
    """Whether this thread may take its time: it may copy a large file."""
    return getattr(_patience, "is_patient", False)


@contextmanager
def patient() -> Generator[None]:
    """For the length of the block, this thread may take its time."""
    before = is_patient()
    _patience.is_patient = True
    try:
        yield
    finally:
        _patience.is_patient = before

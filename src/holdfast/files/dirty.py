"""The port through which a tree is told what may have changed since it was last asked."""

from __future__ import annotations

from typing import Protocol

from holdfast.model.named import NamedTuple


class Dirty(NamedTuple):
    """What may have changed: everything, or just some paths.

    Each of ``paths`` is relative to the root and names a file, or a directory that stands for all below it; what was
    there may be gone by now. With ``everything`` the paths say nothing more. A path too many costs time; none may be
    missing.
    """

    everything: bool
    paths: frozenset[bytes]
    news: bool = True
    """False if nothing was found to have changed since the last answer: ``everything`` says only that it may have."""


class DirtySource(Protocol):
    """Knows what has changed, usually by watching. Each change is told at least once, never before it has happened."""

    def drain(self) -> Dirty:
        """What may have changed since the last call; all that had happened when this call began is in the answer.

        The caller now owns the answer: what it does not make use of (a scan that fails) it must remember itself.
        """
        ...

"""Safeguards: rules that hold an operation before it happens until a person allows or denies it."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.safeguards.open_step import OpenStep


class Danger(Enum):
    """What is about to happen."""

    DELETE = "delete"
    """A name is removed."""
    OVERWRITE = "overwrite"
    """A file's content is cut short, or may be written over."""
    RENAME_OVER = "rename_over"
    """A rename replaces an existing file."""
    LIMIT = "limit"
    """The step's preimages would exceed their limit: it would go on unprotected."""


class Risk(NamedTuple):
    """What becomes of the content of a file that is opened, or changed by its path."""

    cut: int | None = None
    """It is cut to this size at once."""
    writes: bool = False
    """It may be written over from then on, and not only appended to."""
    reads: bool = False
    """By who reads it, too."""


NO_RISK = Risk()


def risk_of(flags: int) -> Risk:
    """That of an opening with these flags, of open(2). Who may read what is appended to may also map it, to write."""
    access = flags & os.O_ACCMODE
    writes = access == os.O_RDWR or (access == os.O_WRONLY and not flags & os.O_APPEND)
    return Risk(0 if flags & os.O_TRUNC else None, writes, access == os.O_RDWR)


LOSING_MODES: Final = 0x02 | 0x08 | 0x10 | 0x80
"""Of ``fallocate``, by each of these content is lost: PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE and WRITE_ZEROES."""


class Loss(NamedTuple):
    """What a call takes from a file, or may take from now on."""

    danger: Danger
    path: bytes
    object: Identity
    size: int
    """What the file holds, in bytes."""
    lost: int
    """So many of them."""
    opens: bool = False
    """The file is opened: what is written to it passes by."""
    reads: bool = False
    """It is opened for reading as well."""
    fd: int = -1
    """It, if it is opened; ``O_PATH`` is enough."""


class Guard(Protocol):
    """Decides whether an operation may go on."""

    @property
    def is_on(self) -> bool:
        """Whether anything is asked at all: if not, nothing else need be called."""
        ...

    def ask(self, step: OpenStep, loss: Loss) -> Callable[[], None]:
        """Return if the operation may happen now. Raises `HeldError` if a person has to decide first.

        What is returned is to be called if it happens.
        """
        ...

    def ask_limit(self, step: OpenStep, path: bytes) -> None:
        """The same of a step that is about to go on without protection."""
        ...

    def note_made(self, step: OpenStep, path: bytes, object_: Identity) -> None:
        """The step has made something."""
        ...

    def note_touch(self, path: bytes) -> None:
        """A name is about to come, to go, or to be written to."""
        ...

    def note_moved(self, source: bytes, target: bytes, *, is_directory: bool, is_exchanged: bool) -> None:
        """Something was moved; or two things have taken each other's places."""
        ...


def count_nothing() -> None:
    """What there is to count where nothing is lost."""

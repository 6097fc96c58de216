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
    """A dangerous operation."""

    DELETE = "delete"
    """A name is removed."""
    OVERWRITE = "overwrite"
    """A file's content is cut short, or may be written over."""
    RENAME_OVER = "rename_over"
    """A rename replaces an existing file."""
    LIMIT = "limit"
    """The step's preimages would exceed their limit: it would go on unprotected."""


class Risk(NamedTuple):
    """The effect of an operation on the content of a file that is opened, or changed by its path."""

    cut: int | None = None
    """It is truncated to this size at once."""
    writes: bool = False
    """It may be overwritten from then on, beyond appending."""
    reads: bool = False
    """By who reads it, too."""


NO_RISK = Risk()


def risk_of(flags: int) -> Risk:
    """The risk of opening with these flags of open(2). Appending with the right to read permits mapping and writing."""
    access = flags & os.O_ACCMODE
    writes = access == os.O_RDWR or (access == os.O_WRONLY and not flags & os.O_APPEND)
    return Risk(0 if flags & os.O_TRUNC else None, writes, access == os.O_RDWR)


LOSING_MODES: Final = 0x02 | 0x08 | 0x10 | 0x80
"""Of ``fallocate``, by each of these content is lost: PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE and WRITE_ZEROES."""


class Loss(NamedTuple):
    """The loss of a file by a call, now or later."""

    danger: Danger
    path: bytes
    object: Identity
    size: int
    """The size of the file in bytes."""
    lost: int
    """The number of lost bytes."""
    opens: bool = False
    """The file is opened: later writes are not asked about."""
    reads: bool = False
    """It is opened for reading as well."""
    fd: int = -1
    """A descriptor of it, if it is opened; ``O_PATH`` is enough."""


class Guard(Protocol):
    """Decides whether an operation may go on."""

    @property
    def is_on(self) -> bool:
        """Whether a person is ever asked: if not, nothing else need be called."""
        ...

    def ask(self, step: OpenStep, loss: Loss) -> Callable[[], None]:
        """Return if the operation may happen now. Raises `HeldError` if a person must decide first.

        Call the result if the operation happens.
        """
        ...

    def ask_limit(self, step: OpenStep, path: bytes) -> None:
        """The same of a step that is about to go on without protection."""
        ...

    def note_made(self, step: OpenStep, path: bytes, object_: Identity) -> None:
        """The step has made an object."""
        ...

    def note_touch(self, path: bytes) -> None:
        """A name is about to come, to go, or to be written to."""
        ...

    def note_moved(self, source: bytes, target: bytes, *, is_directory: bool, is_exchanged: bool) -> None:
        """An object was moved, or two were exchanged."""
        ...


def count_nothing() -> None:
    """Does nothing, for operations without a loss."""

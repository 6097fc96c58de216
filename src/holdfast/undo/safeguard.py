"""Safeguards: rules that hold an operation before it happens until a person allows or denies it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.undo.steps import OpenStep


class Danger(Enum):
    """What is about to happen."""

    DELETE = "delete"
    """A name is removed."""
    OVERWRITE = "overwrite"
    """A file's content is truncated or written over."""
    RENAME_OVER = "rename_over"
    """A rename replaces an existing file."""
    LIMIT = "limit"
    """The step's preimages would exceed their limit: it would go on unprotected."""


class Guard(Protocol):
    """Decides whether an operation may go on."""

    def ask(self, step: OpenStep, danger: Danger, path: bytes, size: int) -> None:
        """Return if the operation may happen now. Raises `HeldError` if a person has to decide first, and
        `PermissionError` if they denied it.
        """
        ...

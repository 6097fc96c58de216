"""Paths and steps as clients name them: the same for every face."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.errors import EscapeError, RefusedError, UsageError
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Sequence


def file_in(root: bytes, given: str) -> bytes:
    """`path_in` for a file to write. Raises `RefusedError` for the form of a directory (``d/``), and `EscapeError` for
    a path in a ``.git``: commands of Git change that, not clients.
    """
    if given.endswith(("/", "/.")):
        raise RefusedError(f"{given} names a directory", hint="name a file", code="not_a_file")
    path = path_in(root, given)
    if b".git" in path.split(b"/"):
        raise EscapeError(f"{given} is Git's own: nothing is written there as a file", hint="a command may change it")
    return path


def path_in(root: bytes, given: str) -> bytes:
    """``given`` as a path relative to ``root``; ``root`` itself is empty.

    ``given`` is relative, absolute below the root, or in the quoted form of results. Links are not resolved here.
    Raises `EscapeError` for a path outside.
    """
    path = parse_display(given)
    if b"\0" in path:
        raise EscapeError(f"refused path {display(path)!r}: it holds a NUL")
    if path.startswith(b"/"):
        path = os.path.relpath(os.path.normpath(path), root)
    path = os.path.normpath(path) if path else b"."
    if path == b".." or path.startswith((b"../", b"/")):
        raise EscapeError(f"{given} is outside of the working directory", hint="paths are relative to it")
    return b"" if path == b"." else path


# How both faces let steps be named: one, or several that go together.


def named_steps(
    step: int | None, steps: Sequence[int] | None, *, names: tuple[str, str] = ("step", "steps")
) -> Sequence[int] | None:
    """All the steps that a request names, in one of the fields with these ``names``; None if it names none.

    Raises `UsageError` for a request with both.
    """
    if step is not None and steps is not None:
        raise UsageError(f"{names[0]} and {names[1]} cannot stand beside each other", hint=f"name all in {names[1]}")
    return (step,) if step is not None else steps

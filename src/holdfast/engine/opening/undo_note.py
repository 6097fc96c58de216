"""The note that an undo or a redo by the log leaves in the workspace's folder: after a kill the history learns of it
(I3).

The undo log finishes by itself what was cut short; where in the history that belongs only the note knows. The format is
specified in ``docs/formats/undo-note.md``.
"""

from __future__ import annotations

from holdfast.engine.opening.folder import UNDO_NOTE
from holdfast.files.notes import NoteFile
from holdfast.model.named import NamedTuple
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

_FILE = NoteFile(
    name=UNDO_NOTE,
    magic=b"HFUN 1 ",
    what="an undo note",
    max_bytes=16 << 20,
    advice="an undo or a redo was cut short: look at `holdfast steps` and `holdfast log`",
)


class Note(NamedTuple):
    """What an undo or a redo was about to do."""

    operation: Literal["undo", "redo"]
    position: int
    """The event whose state the tree was in."""
    redo_tip: int
    """The event that `redo` led to."""
    target: int | None
    """For a redo along the history: the event whose state it leads to."""
    acted: int
    """The latest change that any of the steps had made; once they are reversed, that of each is later."""
    steps: tuple[int, ...]


def write(folder: bytes, note: Note) -> None:
    """Put the note in place, atomic and durable; replaces an earlier one. Raises `StorageError`."""
    numbers = (note.position, note.redo_tip, note.target or 0, note.acted, *note.steps)
    _FILE.write(folder, b" ".join((note.operation.encode(), *(b"%d" % number for number in numbers))) + b"\n")


def read(folder: bytes) -> Note | None:
    """The note, or None if there is none. Raises `FormatError` if it is damaged or of a newer version."""
    body = _FILE.read(folder)
    if body is None:
        return None
    operation, *words = body.split()
    try:
        position, redo_tip, target, acted, first, *others = map(int, words)
    except ValueError as error:
        raise _FILE.bad(folder, f"lacks a number or has a bad one: {error}") from error
    if operation not in (b"undo", b"redo"):
        raise _FILE.bad(folder, "is of neither an undo nor a redo")
    return Note(
        operation="undo" if operation == b"undo" else "redo",
        position=position,
        redo_tip=redo_tip,
        target=target or None,
        acted=acted,
        steps=(first, *others),
    )


def remove(folder: bytes) -> None:
    """Take the note away, if it is there: the history knows, or nothing was done. Durable. Raises `StorageError`."""
    _FILE.remove(folder)

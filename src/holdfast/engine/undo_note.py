"""The note that an undo by the log leaves in the workspace's folder: after a kill the history learns of it (I3).

The undo log finishes by itself what was cut short; where in the history that belongs only the note knows. The format is
specified in ``docs/formats/undo-note.md``.
"""

from __future__ import annotations

from holdfast.engine.folder import UNDO_NOTE
from holdfast.engine.notes import NoteFile
from holdfast.model.named import NamedTuple

_FILE = NoteFile(
    name=UNDO_NOTE,
    magic=b"HFUN 1 ",
    what="an undo note",
    max_bytes=16 << 20,
    advice="an undo was cut short: look at `holdfast steps` and `holdfast log`",
)


class Note(NamedTuple):
    """What an undo was about to do."""

    position: int
    """The event whose state the tree was in."""
    steps: tuple[int, ...]


def write(folder: bytes, note: Note) -> None:
    """Put the note in place, atomic and durable; replaces an earlier one. Raises `StorageError`."""
    _FILE.write(folder, b" ".join(b"%d" % number for number in (note.position, *note.steps)) + b"\n")


def read(folder: bytes) -> Note | None:
    """The note, or None if there is none. Raises `FormatError` if it is damaged or of a newer version."""
    body = _FILE.read(folder)
    if body is None:
        return None
    position, *steps = map(int, body.split())
    return Note(position, tuple(steps))


def remove(folder: bytes) -> None:
    """Take the note away, if it is there: the history knows, or nothing was done. Durable. Raises `StorageError`."""
    _FILE.remove(folder)

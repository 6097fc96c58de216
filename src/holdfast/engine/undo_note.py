"""The note that an undo by the log leaves in the workspace's folder: after a kill the history learns of it (I3).

The undo log finishes by itself what was cut short; where in the history that belongs only the note knows. The format is
specified in ``docs/formats/undo-note.md``.
"""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.engine.folder import UNDO_NOTE
from holdfast.files.gitconfig import read_regular
from holdfast.model.errors import FormatError, StorageError, room_hint
from holdfast.model.ids import hash_bytes
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display

_MAGIC = b"HFUN 1 "
_MAX_BYTES = 16 << 20


class Note(NamedTuple):
    """What an undo was about to do."""

    position: int
    """The event whose state the tree was in."""
    steps: tuple[int, ...]


def write(folder: bytes, note: Note) -> None:
    """Put the note in place, atomically; replaces an earlier one. Raises `StorageError`."""
    body = b" ".join(b"%d" % number for number in (note.position, *note.steps)) + b"\n"
    path = os.path.join(folder, UNDO_NOTE)
    temporary = path + b".new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(_MAGIC + hash_bytes(body).hex().encode() + b"\n" + body)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
    except OSError as error:
        message = f"cannot write {display(path)}: {error.strerror}; nothing was changed"
        raise StorageError(message, hint=room_hint(error)) from error


def read(folder: bytes) -> Note | None:
    """The note, or None if there is none. Raises `FormatError` if it is damaged or of a newer version."""
    path = os.path.join(folder, UNDO_NOTE)
    try:
        data = read_regular(path, _MAX_BYTES + 1, follow=False)
    except OSError as error:
        raise StorageError(f"cannot read {display(path)}: {error.strerror}") from error
    if data is None:
        return None
    head, _, body = data.partition(b"\n")
    if head != _MAGIC + hash_bytes(body).hex().encode() or len(data) > _MAX_BYTES:
        raise FormatError(
            f"{display(path)} is damaged, or not of this version",
            hint=f"an undo was cut short: look at `holdfast steps` and `holdfast log`, and remove {display(path)}",
        )
    position, *steps = map(int, body.split())
    return Note(position, tuple(steps))


def remove(folder: bytes) -> None:
    """Take the note away, if it is there: the history knows, or nothing was done. Raises `StorageError`."""
    path = os.path.join(folder, UNDO_NOTE)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise StorageError(f"cannot remove {display(path)}: {error.strerror}") from error

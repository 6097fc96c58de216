"""Rollbacks that no command has reported yet: recorded beside the log until one does (I3).

The format is specified in ``docs/formats/undo-log.md``. The caller holds the log, or is a visitor of its keeper: no
other process writes the note then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.files.note_file import NoteFile
from holdfast.model.decoders import msgpack_decoder
from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log
from holdfast.undo.service import UndoReport

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = Log(__name__)

UNREPORTED: Final = b"untold"
MOST_REPORTS: Final = 16
MOST_CONFLICTS: Final = 1000
"""Of one report."""

_FILE: Final = NoteFile(
    name=UNREPORTED,
    magic=b"HFUR 1 ",
    what="a note of a rollback",
    max_bytes=1 << 28,
    advice="nothing depends on it",
)
_reports = msgpack_decoder(list[UndoReport])


def note_rollback(directory: bytes, report: UndoReport) -> None:
    """Keep a report for `take_rollbacks`: atomic and durable. A failure is only logged: the log is right without it."""
    kept = [*_read(directory), msgspec.structs.replace(report, conflicts=report.conflicts[:MOST_CONFLICTS])]
    try:
        _FILE.write(directory, msgspec.msgpack.encode(kept[-MOST_REPORTS:]))
    except HoldfastError as error:
        _log.warning("cannot note a rollback for the next command: %s", error.message)


def take_rollbacks(directory: bytes) -> Sequence[UndoReport]:
    """Return the noted reports, oldest first, and delete them. Unreadable ones are logged. Raises `StorageError`."""
    reports = _read(directory)
    _FILE.remove(directory)
    return reports


def _read(directory: bytes) -> list[UndoReport]:
    try:
        body = _FILE.read(directory)
        return [] if body is None else _reports.decode(body)
    except (HoldfastError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        _log.warning("the note of a rollback is damaged, and left out: %s", error)
        return []

"""What was rolled back where nobody was there to be told: noted beside the log until somebody is (I3).

The format is specified in ``docs/formats/undo-log.md``. Whoever calls holds the log, or has its keeper for a visitor:
nobody else writes it then.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.model.log import Log
from holdfast.undo.service import UndoReport

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = Log(__name__)

UNTOLD: Final = b"untold"
MOST_REPORTS: Final = 16
MOST_CONFLICTS: Final = 1000
"""Of one report."""
MOST_BYTES: Final = 1 << 28

_reports = msgspec.msgpack.Decoder(list[UndoReport])


def note(directory: bytes, report: UndoReport) -> None:
    """Keep a report for `take`. Where that is not possible it is only logged: the log is as right without it."""
    kept = [*_read(directory), msgspec.structs.replace(report, conflicts=report.conflicts[:MOST_CONFLICTS])]
    path = os.path.join(directory, UNTOLD)
    temporary = path + b".new"
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
            file.write(msgspec.msgpack.encode(kept[-MOST_REPORTS:]))
        os.rename(temporary, path)
    except OSError as error:
        _log.warning("what was rolled back cannot be noted for whoever comes next: %s", error.strerror)


def take(directory: bytes) -> Sequence[UndoReport]:
    """What was noted, oldest first; then it is not any more."""
    reports = _read(directory)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, UNTOLD))
    return reports


def _read(directory: bytes) -> list[UndoReport]:
    try:
        fd = os.open(os.path.join(directory, UNTOLD), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    with open(fd, "rb") as file:
        body = file.read(MOST_BYTES)
    try:
        return _reports.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _log.warning("the note of what was rolled back is damaged, and is left out: %s", error)
        return []

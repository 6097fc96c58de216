"""The part of the undo log that calls which are carried out natively share with Python: see `holdfast._hot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.linux.native import native

if TYPE_CHECKING:
    from holdfast._hot import Gate, Log
    from holdfast.undo.journal.preimages import Preimages
    from holdfast.undo.journal.segments import Journal


class NativeLog(NamedTuple):
    """The log, and its gate."""

    gate: Gate
    log: Log


def native_log(journal: Journal, preimages: Preimages, device: int, seq: int) -> NativeLog | None:
    """From now on the ``journal`` is written to by it. None where the native part was not built."""
    hot = native().module
    if hot is None:
        return None
    gate = hot.Gate()
    log = hot.Log(gate, preimages.fd, device)
    log.seq = seq
    journal.write_by(log)

    def count_names() -> None:
        log.counts_names = True

    preimages.on_count = count_names
    return NativeLog(gate, log)

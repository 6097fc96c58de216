"""The phrases that several commands share: checkpoints, counts, lists of paths."""

from __future__ import annotations

import sys
import time

from holdfast import RefusedError
from holdfast.cli.terminal import STATUS_COLOURS, Palette, is_terminal, show_path
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.message_text import could_not_change, plural, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from holdfast import Change, Checkpoint, Counts, NotCaptured
    from holdfast.cli.console import Console
    from holdfast.undo.service import TicketInfo

SHORT = 12
"""How many digits of an id people are shown; any unique prefix is enough to name it."""


MOST_NAMED = 10
"""The number of paths that lists show at most, where the user can do nothing about them."""


def short(checkpoint_id: str) -> str:
    """The beginning of an id."""
    return checkpoint_id[:SHORT]


def checkpoint_title(checkpoint: Checkpoint) -> str:
    """``3f2a9c1b04de "before the refactoring"``; several labels have commas between them."""
    return f"{short(checkpoint.id)} {quoted_labels(checkpoint, ', ')}".rstrip()


def quoted_labels(checkpoint: Checkpoint, between: str) -> str:
    """The labels of a checkpoint, each in quotes."""
    return between.join(f'"{visible(label)}"' for label in checkpoint.labels)


def counts_text(counts: Counts) -> str:
    """``12 added, 3 modified, 1 deleted``, without zeros; ``no changes`` if all are zero."""
    parts = ((counts.added, "added"), (counts.modified, "modified"), (counts.deleted, "deleted"))
    return ", ".join(f"{number:,} {what}" for number, what in parts if number) or "no changes"


def compact(counts: Counts) -> str:
    """``+12 ~3 -1``, without zeros."""
    parts = (("+", counts.added), ("~", counts.modified), ("-", counts.deleted))
    return " ".join(f"{sign}{number}" for sign, number in parts if number) or "="


def status_line(paint: Palette, letter: str, *paths: bytes) -> str:
    """``M src/main.py``; two paths for a rename."""
    return paint(f"{letter} {' -> '.join(map(show_path, paths))}", STATUS_COLOURS[letter])


def changed(paint: Palette, changes: Iterable[Change]) -> list[str]:
    """One line for each of ``changes``."""
    return [f"  {status_line(paint, change.status, change.path)}" for change in changes]


BELL = "\a"
"""Rung once for each question that a terminal shows."""


def held_lines(ticket: TicketInfo, *, more: str = "") -> Sequence[str]:
    """The held operation, and how and until when another terminal can answer it; ``more`` is added."""
    seconds = max(0.0, ticket.denied_at / 1e9 - time.time())
    command = f"`holdfast safeguard allow {ticket.id}` or `deny {ticket.id}`"
    return visible(ticket.message), f"  held: {command} in another terminal, within {seconds:.0f} s{more}"


def say_held(console: Console, ticket: TicketInfo, *, end: str = "\n", more: str = "") -> None:
    """Say the same on standard error, each line with this ``end``: also with ``-q``, as what runs waits for the answer.
    With ``--json`` it is a record of the log.
    """
    about, how = held_lines(ticket, more=more)
    if console.json:
        console.warn(f"{about}; {how.strip()}")
        return
    bell = BELL if is_terminal(sys.stderr) else ""
    sys.stderr.write(f"{bell}{end}holdfast: {about}{end}{how}{end}")
    sys.stderr.flush()


def reasons(items: Sequence[NotCaptured]) -> list[str]:
    """One line for each path, with the reason after it."""
    return [f"  {show_path(item.path)}: {visible(item.reason)}" for item in items]


def left_alone(items: Sequence[NotCaptured], hint: str | None = None) -> RefusedError:
    """The error at the end of a command that did its work except for these paths."""
    return RefusedError(could_not_change(items), hint=hint, code="left_alone")


def uncaptured(paths: Sequence[str]) -> list[str]:
    """For people: paths that a fork stopped capturing and that stay here; empty for none."""
    if not paths:
        return []
    lines = [f"  {visible(path)}" for path in paths[:MOST_NAMED]]
    if len(paths) > MOST_NAMED:
        lines.append(f"  and {len(paths) - MOST_NAMED:,} more")
    return ["The fork no longer captures these, and has not deleted them; they stay as they are here:", *lines]


def only_there(items: Sequence[NotCaptured], what: str) -> list[str]:
    """For people: files that only the directory of ``what`` has; empty for none."""
    if not items:
        return []
    lines = reasons(items[:MOST_NAMED])
    if len(items) > MOST_NAMED:
        lines.append(f"  and {len(items) - MOST_NAMED:,} more")
    return [f"No checkpoint holds these; only the directory of {what} has them:", *lines]


def foreseen(expected: Mapping[str, Any]) -> list[str]:
    """For people: the expected work of each rung of the ladder on a file, from a dry run."""
    words = {"applies": "would apply it", "declines": "declines", "asked": "would be asked"}
    return [
        f"{one['rung']}: {words[one['result']]}{', ' if 'said' in one else ''}{visible(one.get('said', ''))}"
        for one in expected["rungs"]
    ]


def files(number: int) -> str:
    """``1 file``, ``2 files``."""
    return plural(number, "file")

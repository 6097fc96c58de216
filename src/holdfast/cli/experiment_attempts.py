"""The attempts of an experiment from its command line, and its outcome as a table for people."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from holdfast import HoldfastError, UsageError
from holdfast.cli.phrases import compact
from holdfast.engine.experiments.attempts import Attempt
from holdfast.model.entries import Counts, count_changes
from holdfast.model.message_text import plural, size, visible

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.cli.console import Console
    from holdfast.cli.terminal import Palette
    from holdfast.engine.experiments.attempts import Comparison, Outcome
    from holdfast.model.command_results import Diff

SHELLS = ("bash", "sh", "zsh")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NAME = 24
_SAID = 100
"""Characters of a name, and of what an attempt says, that people are shown."""


def attempts_of(
    commands: Sequence[str], names: Sequence[str], variants: Sequence[str], timeout: float | None
) -> list[Attempt]:
    """The attempts in ``COMMAND…``, ``--name`` and ``--with``. Raises `UsageError`."""
    if not commands:
        raise UsageError("experiment needs something to try", hint="holdfast experiment 'make CC=gcc' 'make CC=clang'")
    if variants and len(commands) != 1:
        raise UsageError("--with is for one command in several ways", hint="give one command, or no --with")
    number = len(variants) or len(commands)
    if names and len(names) != number:
        raise UsageError(f"{plural(len(names), 'name')} for {plural(number, 'attempt')}", hint="name all, or none")
    found: list[Attempt] = []
    for at in range(number):
        command = commands[0] if variants else commands[at]
        label = names[at] if names else variants[at] if variants else command
        attempt = Attempt(at + 1, label, command, timeout_seconds=timeout)
        found.append(_varied(attempt, variants[at]) if variants else attempt)
    labels = [one.name for one in found]
    return [one._replace(name=f"{one.name} ({one.number})") if labels.count(one.name) > 1 else one for one in found]


def _varied(attempt: Attempt, variant: str) -> Attempt:
    """``attempt`` changed by one ``--with``: ``shell=…``, ``timeout=…``, and variables, split as a shell does."""
    try:
        words = shlex.split(variant)
    except ValueError as error:
        raise UsageError(f"--with {variant!r}: {error}") from None
    env: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not _VARIABLE.match(name):
            raise UsageError(
                f"--with {variant!r}: {word!r} sets nothing", hint="shell=NAME, timeout=SECONDS, or VARIABLE=VALUE"
            )
        if name == "shell":
            if value not in SHELLS:
                raise UsageError(f"--with {variant!r}: a shell is one of {', '.join(SHELLS)}")
            attempt = attempt._replace(shell=value)
        elif name == "timeout":
            attempt = attempt._replace(timeout_seconds=seconds(value))
        else:
            env[name] = value
    return attempt._replace(env=env)


def seconds(argument: str) -> float:
    """An argument that is a time in seconds, above 0. Raises `UsageError`."""
    try:
        number = float(argument)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise UsageError(f"{argument!r} is no number of seconds")
    return number


def cancellable(console: Console, work: Callable[[threading.Event], int]) -> int:
    """Do ``work``, which a signal cancels by setting an event; its exit code, or one that tells of the signal."""
    from holdfast.engine.experiments.cancellation import cancelled_by_signals

    with cancelled_by_signals() as cancelling:
        try:
            return work(cancelling.event)
        except HoldfastError as error:
            if error.code != "cancelled" or not cancelling.signal:
                raise
            console.warn(error.message)
            return 128 + cancelling.signal


def table(paint: Palette, comparison: Comparison, files: Callable[[Outcome], Diff | None]) -> Iterator[str]:
    """The outcomes, the best first, as lines of columns."""
    statistics = comparison.statistics
    yield (
        f"Experiment {comparison.experiment}: {plural(statistics.attempts, 'attempt')}, "
        f"{statistics.succeeded} succeeded"
    )
    yield ""
    scored = comparison.measure == "score"
    head = ["", "attempt", "result", "time", *(["score"] if scored else []), "output", "changes"]
    rows = [_row(place, one, files(one), scored) for place, one in enumerate(comparison.ranked, 1)]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    yield paint(_line(head, widths), "dim")
    for row, one in zip(rows, comparison.ranked, strict=True):
        best = comparison.winner is not None and one.attempt.number == comparison.winner.attempt.number
        line = _line(row, widths)
        yield paint(line, "bold", "green") if best else paint(line, *(() if one.succeeded else ("red",)))
        if said := one.error or _last_words(one):
            yield paint(f"{'':{widths[0]}}  {visible(said)[:_SAID]}", "dim")


def _row(place: int, outcome: Outcome, files: Diff | None, scored: bool) -> list[str]:
    result = outcome.result
    printed = 0 if result is None else len(result.stdout.encode()) + len(result.stderr.encode())
    score = "" if outcome.score is None else f"{outcome.score:g}"
    ran, more = result is not None, "> " if result is not None and result.truncated else ""
    return [
        str(place),
        clipped(outcome.attempt.name),
        _result(outcome),
        f"{outcome.duration_ms / 1000:.2f} s" if ran else "",
        *([score] if scored else []),
        f"{more}{size(printed)}" if ran else "",
        "" if files is None else ", ".join((_changes(files), *_missed(outcome))),
    ]


def _last_words(outcome: Outcome) -> str:
    """The last line that an attempt without success has written, of its errors if there are any."""
    if outcome.succeeded or outcome.result is None:
        return ""
    lines = (outcome.result.stderr.strip() or outcome.result.stdout.strip()).splitlines()
    return lines[-1].strip() if lines else ""


def _result(outcome: Outcome) -> str:
    if outcome.phase in ("done", "failed") and outcome.result is not None:
        return f"exit {outcome.result.exit_code}"
    return outcome.phase


def _changes(diff: Diff) -> str:
    counts = count_changes(list(diff.changes))
    return compact(Counts(counts.added, counts.modified + len(diff.renamed), counts.deleted))


def _missed(outcome: Outcome) -> list[str]:
    return [f"{len(outcome.not_captured):,} not captured"] if outcome.not_captured else []


def clipped(name: str) -> str:
    """A name as people see it, or a command that serves as one."""
    shown = visible(name)
    return shown if len(shown) <= _NAME else shown[: _NAME - 1] + "…"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Columns: the numbers to the right, words to the left."""
    words = (1, 2, len(cells) - 1)
    return "  ".join(
        cell.ljust(width) if at in words else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()

"""The experiments whose forks exist: their attempts side by side, while they run and after that."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.api.web.words import lines_text, moment, path_text
from holdfast.engine.experiments.attempts import ENDS
from holdfast.engine.experiments.records import attempt_files, experiments
from holdfast.model.entries import Counts, count_changes
from holdfast.model.message_text import first_line, plural, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.api.web.addresses import Addresses, Query
    from holdfast.api.web.words import Moment
    from holdfast.engine.experiments.records import RecordedAttempt, RecordedExperiment
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import Diff

_MOST_SHOWN: Final = 3
"""Experiments whose attempts are shown without being asked for."""
_MOST_LISTED: Final = 200
_MOST_LINES: Final = 200
"""Of what an attempt has printed: the last ones."""
_MOST_OF_NAME: Final = 120


class AttemptView(NamedTuple):
    """An attempt, as its column shows it."""

    anchor: str
    number: int
    name: str
    command: str
    """The whole command, where that is not the name."""
    phase: str
    is_running: bool
    exit_code: int | None
    """Of one that has ended, if it is not 0."""
    since: Moment | None
    """When the command began, while it runs."""
    seconds: str
    score: str
    note: str
    """Why the attempt ended early, or has no score."""
    counts: Counts | None
    changes: str
    """The address of the difference that it made; empty while that is not known."""
    to_best: str
    """The address of how it differs from the best; empty of the best one."""
    output: str
    errors: str
    more: bool
    """Whether a part of its output is left out."""
    is_best: bool
    adopt: str
    """The address of the page that adopts it; empty where that cannot be done."""
    session: str
    """The session that is its fork."""
    place: str


class ExperimentView(NamedTuple):
    """An experiment."""

    id: str
    anchor: str
    address: str
    session: str
    at: Moment
    state: str
    measured: str
    """By what the attempts are ranked."""
    scoring: str
    """The command that gives scores; empty without one."""
    summary: str
    attempts: Sequence[AttemptView]
    began: str
    """The address of the state that all attempts began with."""


class ExperimentLine(NamedTuple):
    """An experiment that is listed by name only."""

    id: str
    address: str
    at: Moment
    summary: str


class Experiments(NamedTuple):
    """The page."""

    shown: Sequence[ExperimentView]
    others: Sequence[ExperimentLine]
    more: int
    """Experiments that are not in the list."""
    refresh: str
    """The address of the same anew."""
    digest: str
    """Another text when an attempt has come further."""
    gone: str
    """The id of the requested experiment, if its forks are gone."""


def experiments_page(workspace: Workspace, addresses: Addresses, query: Query) -> Experiments:
    """The experiments: the one in the address, else the newest."""
    every, of = experiments(workspace), query.text("of")
    shown = [one for one in every if one.id == of] if of else every[:_MOST_SHOWN]
    others = [one for one in every if one not in shown]
    return Experiments(
        shown=[_experiment(workspace, addresses, one) for one in shown],
        others=[
            ExperimentLine(one.id, addresses.page("experiments", of=one.id), moment(one.at), _summary(one))
            for one in others[:_MOST_LISTED]
        ],
        more=max(0, len(others) - _MOST_LISTED),
        refresh=addresses.page("experiments", of=of),
        digest=_digest(every),
        gone=visible(of) if of and not shown else "",
    )


def experiments_digest(workspace: Workspace) -> str:
    """A text that changes when an attempt makes progress or prints something."""
    return _digest(experiments(workspace))


def _digest(every: Sequence[RecordedExperiment]) -> str:
    said = [(one.id, one.state, one.missing, [_progress(each) for each in one.attempts]) for one in every]
    return hashlib.blake2b(repr(said).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _progress(attempt: RecordedAttempt) -> tuple[object, ...]:
    outcome = attempt.outcome
    return outcome.attempt.number, outcome.phase, outcome.after, outcome.score, attempt.began_at, attempt.output


_MEASURES: Final = {
    "exit_code": "The lowest exit code is the best",
    "output": "The shortest output is the best",
    "duration": "The quickest is the best",
}
_STATES: Final = {"running": "runs", "killed": "was killed", "over": "is over"}


def _measured(found: RecordedExperiment) -> str:
    if found.measure != "score":
        return _MEASURES[found.measure]
    best = f"The {'highest' if found.highest else 'lowest'} score is the best"
    return best if found.scoring else f"{best}; a function gives it, and only the process of the experiment knows it"


def _summary(found: RecordedExperiment) -> str:
    ended = sum(one.outcome.phase in ENDS for one in found.attempts)
    succeeded = sum(one.outcome.succeeded for one in found.attempts)
    number = len(found.attempts) + found.missing
    said = [f"{plural(number, 'attempt')}", f"{ended} ended", f"{succeeded} succeeded"]
    if found.missing:
        said.append(f"{found.missing} without a fork")
    return ", ".join(said)


def _experiment(workspace: Workspace, addresses: Addresses, found: RecordedExperiment) -> ExperimentView:
    return ExperimentView(
        id=visible(found.id),
        anchor=f"experiment-{found.id}",
        address=addresses.page("experiments", of=found.id),
        session=visible(found.session),
        at=moment(found.at),
        state=_STATES[found.state],
        measured=_measured(found),
        scoring=visible(found.scoring),
        summary=_summary(found),
        attempts=[_attempt(workspace, addresses, found, one) for one in found.attempts],
        began=addresses.page(f"state/{found.began}"),
    )


def _attempt(
    workspace: Workspace, addresses: Addresses, found: RecordedExperiment, attempt: RecordedAttempt
) -> AttemptView:
    outcome = attempt.outcome
    said, result, is_running = outcome.attempt, outcome.result, outcome.phase not in ENDS
    diff = attempt_files(workspace, found, outcome)
    best = None if found.winner is None else found.attempt(found.winner).outcome
    name = visible(first_line(said.name, _MOST_OF_NAME))
    output, cut = _last_lines(attempt.output if result is None else result.stdout)
    errors, errors_cut = _last_lines("" if result is None else result.stderr)
    return AttemptView(
        anchor=f"attempt-{found.id}-{said.number}",
        number=said.number,
        name=name,
        command="" if said.command == name else lines_text(said.command),
        phase=outcome.phase,
        is_running=is_running,
        exit_code=None if result is None or outcome.phase in ("done", "timed out") else result.exit_code,
        since=moment(attempt.began_at) if is_running and attempt.began_at else None,
        seconds="" if is_running or result is None else f"{outcome.duration_ms / 1000:.2f} s",
        score="" if outcome.score is None else f"{outcome.score:g}",
        note=visible(outcome.error),
        counts=None if diff is None else _counts(diff),
        changes="" if diff is None else addresses.page("diff", from_=found.began, to=outcome.after),
        to_best=""
        if best is None or best.after in (None, outcome.after) or diff is None
        else addresses.page("diff", from_=best.after, to=outcome.after),
        output=output,
        errors=errors,
        more=cut or errors_cut or (result is not None and result.truncated),
        is_best=said.number == found.winner,
        adopt=addresses.page("act/adopt", experiment=found.id, attempt=said.number)
        if found.state == "over" and diff is not None and (diff.changes or diff.renamed)
        else "",
        session=visible(outcome.fork or ""),
        place=path_text(outcome.root),
    )


def _counts(diff: Diff) -> Counts:
    found = count_changes(list(diff.changes))
    return Counts(found.added, found.modified + len(diff.renamed), found.deleted)


def _last_lines(text: str) -> tuple[str, bool]:
    """The last lines of a text, and whether there are others."""
    lines = lines_text(text).rstrip("\n").split("\n")
    return "\n".join(lines[-_MOST_LINES:]), len(lines) > _MOST_LINES

"""Experiments as their forks describe them, for other processes, during and after an experiment.

An experiment has no record of its own. Its forks are sessions whose reference describes the attempt, and whose journal
has the commands and their results. So an experiment exists as long as one of its forks.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast, get_args

from holdfast.engine.diffs.tree_diff import diff
from holdfast.engine.experiments import _ranks as ranks
from holdfast.engine.experiments import scores
from holdfast.engine.experiments._attempt_forks import unclipped
from holdfast.engine.experiments._runner import MOST_OUTPUT, ending_of, phase_of
from holdfast.engine.experiments.attempts import ENDS, Attempt, Measure, Outcome
from holdfast.engine.experiments.experiment import adopt, adopted_message, changed_files, changed_meanwhile
from holdfast.engine.history.status import only_uncaptured_paths
from holdfast.engine.sessions.holder.lock import lock_path, output_path
from holdfast.engine.sessions.identifiers import PROCESS, check_may_use
from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
from holdfast.engine.workspace.home import context_of
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.store.catalog.work_lease import may_run
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.experiments.attempts import Phase
    from holdfast.engine.experiments.experiment import Adoption
    from holdfast.engine.opening.context import Context
    from holdfast.engine.sessions.registry import Sessions
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import Diff, RestoreResult
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_types import CommandEntry, SessionId, SessionRef
    from holdfast.store.catalog.session_records import SessionRecord

ExperimentState = Literal["running", "killed", "over"]
"""Whether its process is at it; if that was killed, the next sweep removes its forks."""


class RecordedAttempt(NamedTuple):
    """An attempt whose fork exists."""

    outcome: Outcome
    """Its result so far. For a running attempt the phase is its present one, and the duration is 0."""
    began_at: int
    """When its command began, in microseconds since 1970-01-01 UTC; 0 if it has not."""
    output: str
    """Of one that runs: the last part of what its command has printed."""


class RecordedExperiment(NamedTuple):
    """An experiment as its forks tell of it."""

    id: str
    session: SessionId
    at: int
    """When its first fork was made, in microseconds since 1970-01-01 UTC."""
    state: ExperimentState
    began: CheckpointId
    """The tree that all attempts began with."""
    measure: Measure
    highest: bool
    scoring: str
    """The command that gives scores; empty where a function does, whose scores its process alone knows, or none."""
    attempts: Sequence[RecordedAttempt]
    """The best first once it is over; until then in their order."""
    missing: int
    """Attempts whose forks are not made yet, or gone."""
    winner: int | None
    """The number of the best attempt, if it is any good and the experiment is over."""

    def attempt(self, number: int) -> RecordedAttempt:
        """The attempt with that number. Raises `NotFoundError`."""
        found = next((one for one in self.attempts if one.outcome.attempt.number == number), None)
        if found is None:
            raise NotFoundError(
                f"the experiment {self.id} has no attempt {number} any more",
                hint="its fork is gone",
                code="no_attempt",
            )
        return found


def experiments(workspace: Workspace) -> list[RecordedExperiment]:
    """The experiments of the sessions that work in a workspace, the newest first. Takes no lock."""
    context = context_of(workspace)
    if not context.catalog.has_sessions(context.workspace.id):
        return []
    tiers = SessionCheckpointTiers(context)
    forks: dict[str, list[tuple[SessionRecord, SessionRef]]] = {}
    for session in tiers.rows.list(context.workspace.id):
        for fork in tiers.rows.forks_of(session.id):
            ref = next((one for one in tiers.rows.refs(fork.id) if _is_of_experiment(one.metadata)), None)
            if ref is not None and fork.status != "going":
                forks.setdefault(ref.metadata["experiment"], []).append((fork, ref))
    found = [one for each in forks.values() if (one := _experiment(context, tiers, each)) is not None]
    return sorted(found, key=lambda one: one.at, reverse=True)


_SAID: Final = frozenset(
    ("experiment", "attempt", "command", "number", "attempts", "began", "measure", "best", "setup", "score")
)
_MOST_DIGITS: Final = 6


def _is_of_experiment(said: Mapping[str, str]) -> bool:
    """Whether a fork's metadata is an experiment's: any program may set any metadata."""
    return (
        said.keys() >= _SAID
        and said["measure"] in get_args(Measure)
        and all(said[name].isdecimal() and len(said[name]) <= _MOST_DIGITS for name in ("number", "attempts"))
    )


def recorded_experiment(workspace: Workspace, name: str) -> RecordedExperiment:
    """The experiment with that id. Raises `NotFoundError` (code ``no_experiment``) once its forks are gone."""
    found = next((one for one in experiments(workspace) if one.id == name), None)
    if found is None:
        raise NotFoundError(
            f"no fork of an experiment {name!r:.40} is there",
            hint="when an experiment ends, its forks go, unless it was begun with --keep",
            code="no_experiment",
        )
    return found


def _experiment(
    context: Context, tiers: SessionCheckpointTiers, forks: Sequence[tuple[SessionRecord, SessionRef]]
) -> RecordedExperiment | None:
    """None if all of its forks have just gone."""
    first, ref = forks[0]
    said = ref.metadata
    attempts: list[RecordedAttempt] = []
    for fork, one in forks:
        with suppress(NotFoundError):  # it was deleted meanwhile
            attempts.append(_attempt(context, tiers, fork, one))
    if not attempts:
        return None
    outcomes = [one.outcome for one in attempts]
    measure, highest = cast("Measure", said["measure"]), said["best"] == "highest"
    is_over = all(fork.purpose == "fork" for fork, _ in forks)
    is_running = any(_is_running(fork, one) for fork, one in forks)
    state: ExperimentState = "over" if is_over else "running" if is_running else "killed"
    winner: int | None = None
    if state == "over":
        ranked = ranks.rank(outcomes, measure, highest=highest)
        best = ranks.best(ranked, measure)
        winner = None if best is None else best.attempt.number
        attempts.sort(key=lambda one: ranked.index(one.outcome))
    else:
        attempts.sort(key=lambda one: one.outcome.attempt.number)
    assert first.parent is not None, "a fork is one of a session"
    return RecordedExperiment(
        id=said["experiment"],
        session=first.parent,
        at=min(fork.created_at for fork, _ in forks),
        state=state,
        began=cast("CheckpointId", said["began"]),
        measure=measure,
        highest=highest,
        scoring=unclipped(said["score"]),
        attempts=attempts,
        missing=max(0, int(said["attempts"]) - len(attempts)),
        winner=winner,
    )


def _attempt(context: Context, tiers: SessionCheckpointTiers, fork: SessionRecord, ref: SessionRef) -> RecordedAttempt:
    said = ref.metadata
    is_running = _is_running(fork, ref)
    commands = _Commands(said, list(tiers.commands(fork.id))[::-1] if fork.status == "live" else [])
    phase, error, score = commands.phase(is_running=is_running)
    command, shown = commands.attempt, commands.attempt or commands.setup
    tried = unclipped(said["command"]) if command is None else command.command
    name = tried if said["attempt"] == said["command"] else unclipped(said["attempt"])
    outcome = Outcome(
        attempt=Attempt(int(said["number"]), name, tried),
        phase=phase,
        fork=fork.id,
        root=b"" if fork.workspace is None else last_seen_path(context.catalog.workspace(fork.workspace).path),
        result=None if shown is None else shown.result,
        duration_ms=0 if command is None else command.duration_ms,
        before=None if shown is None else shown.before,
        after=None if shown is None else shown.after,
        score=score,
        error=error,
    )
    output = ""
    if phase not in ENDS:
        output = _read(output_path(lock_path(context.home, context.store.tenant, fork.id)))
    return RecordedAttempt(outcome, 0 if shown is None else shown.started_at, output)


def _is_running(fork: SessionRecord, ref: SessionRef) -> bool:
    """Whether the process of the experiment that a fork belongs to is at it."""
    return fork.purpose == "experiment" and may_run(ref.metadata.get(PROCESS, ""))


class _Commands:
    """The commands of an attempt. Later commands are from users who work in a kept fork."""

    def __init__(self, said: Mapping[str, str], commands: list[CommandEntry]) -> None:
        self._is_scored = bool(said["score"])
        self._has_setup = bool(said["setup"])
        self.setup = commands.pop(0) if self._has_setup and commands else None
        self.attempt = commands.pop(0) if commands else None
        self.score = commands.pop(0) if self._is_scored and commands else None

    def phase(self, *, is_running: bool) -> tuple[Phase, str, float | None]:
        """The phase or the end of the attempt, a message about it, and its score."""
        for phase, entry in (("setting up", self.setup), ("running", self.attempt), ("scoring", self.score)):
            if is_running and entry is not None and entry.result is None:
                return cast("Phase", phase), "", None
        if self.setup is not None and (ended := phase_of(self.setup)) != "done":
            return ended, f"the setup {ending_of(self.setup)}", None
        if self.attempt is None:
            waits = self.setup is None
            return ("waiting" if waits else "running", "", None) if is_running else ("cancelled", "", None)
        ended = phase_of(self.attempt)
        if not self._is_scored or ended == "timed out":
            return ended, "", None
        if self.score is None:
            return ("scoring", "", None) if is_running else (ended, "", None)
        number, error = scores.score_of(self.score.result)
        return ended, error, number


def _read(path: bytes) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(MOST_OUTPUT).decode("utf-8", "replace")
    except OSError:
        return ""


def attempt_files(workspace: Workspace, found: RecordedExperiment, outcome: Outcome) -> Diff | None:
    """The differences of an attempt's result from the common initial state; None if that is unknown. A file that still
    exists, and is only no longer captured, does not count as deleted.
    """
    if outcome.after is None:
        return None
    try:
        return changed_files(context_of(workspace), found.began, outcome.after)
    except NotFoundError:
        return None  # retention has dropped one of the states


def plan_adoption(workspace: Workspace, found: RecordedExperiment, outcome: Outcome) -> RestoreResult:
    """The plan of `adopt_recorded`. Changes nothing.

    Raises `NotFoundError` (code ``no_winner``) if the attempt has no state, `RefusedError` (``experiment_running``,
    ``changed_meanwhile``).
    """
    context = context_of(workspace)
    after = _adoptable(found, outcome)
    if workspace.diff(found.began, None, renames=False).changes:
        raise changed_meanwhile(workspace.path, found.session, outcome)
    differing = diff(context, found.began, after, renames=False).changes
    spared = only_uncaptured_paths(context, after, differing)
    planned = workspace.restore(after, dry_run=True, exact=True)
    return planned._replace(deleted=[path for path in planned.deleted if path not in spared])


def check_session(sessions: Sessions, found: RecordedExperiment) -> None:
    """Raise `RefusedError` where the agent cannot adopt in the session that an experiment began from: it belongs to
    another (``not_owner``), or a process has it open now (``session_busy``).
    """
    info = sessions.info(found.session)
    check_may_use(info, sessions.agent)
    if info.busy:
        raise RefusedError(
            f"the session {found.session} is open in another process",
            hint="end that first; or merge the work of a fork in there, by `holdfast session merge`",
            code="session_busy",
        )


def adopt_recorded(sessions: Sessions, found: RecordedExperiment, outcome: Outcome) -> Adoption:
    """Make what an attempt of an experiment that is over has left the tree of the session that it began from. Its fork
    stays. Raises as `plan_adoption`, `holdfast.engine.experiments.experiment.adopt` and `Sessions.open`.
    """
    _adoptable(found, outcome)
    with sessions.open(found.session) as session:
        return adopt(session, found.began, outcome, adopted_message(found.id, outcome))


def _adoptable(found: RecordedExperiment, outcome: Outcome) -> CheckpointId:
    if found.state != "over":
        raise RefusedError(
            f"the experiment {found.id} is not over",
            hint="adopt an attempt when all have ended",
            code="experiment_running",
        )
    if outcome.after is None:
        raise NotFoundError("there is nothing to adopt: what the attempt has left is not known", code="no_winner")
    return outcome.after

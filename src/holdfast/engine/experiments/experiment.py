"""An experiment: several attempts from one state of a session, side by side, compared, and the best adopted."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.diffs.tree_diff import diff
from holdfast.engine.experiments import _ranks as ranks
from holdfast.engine.experiments._attempt_forks import AttemptForks, clipped
from holdfast.engine.experiments._runner import AttemptRunner
from holdfast.engine.experiments.attempts import Comparison
from holdfast.engine.history.derived_state import create_derived_checkpoint, forgotten_if_unreached
from holdfast.engine.history.status import only_uncaptured_paths
from holdfast.engine.merging.fork_merge import merge_provenance
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.json_encoder import encode
from holdfast.model.message_text import plural
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from holdfast.engine.experiments.attempts import Order, Outcome, Tell
    from holdfast.engine.opening.context import Context
    from holdfast.engine.sessions.registry import Sessions
    from holdfast.engine.sessions.session import Session
    from holdfast.model.command_results import Diff, RestoreResult
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_types import SessionCheckpoint, SessionId

T = TypeVar("T")

# Making what an attempt has done the session's own.


class Adoption(NamedTuple):
    """The result of an adoption."""

    restored: RestoreResult
    """The changes of the session's tree, with the command that reverses them."""
    checkpoint: SessionCheckpoint
    """The session's state with the adopted tree."""


def adopt(session: Session, began: CheckpointId, outcome: Outcome, message: str) -> Adoption:
    """Bring the session's tree to the result of an attempt that started from ``began``, and save it as its state.

    The shell stays unchanged: its directory, its environment, its history. Files that no checkpoint holds, such as
    ignored ones, stay, too, and so do files that the attempt has only begun to ignore. Raises `RefusedError` (code
    ``changed_meanwhile``) if the session's tree is no longer ``began``: its changes would be lost.
    """
    context, workspace = session.context, session.workspace
    assert outcome.after is not None, "the caller has seen its uncaptured files"
    ours = workspace.checkpoint(kind="auto").checkpoint.id
    if diff(context, began, ours, renames=False).changes:
        raise changed_meanwhile(session.root, session.id, outcome)
    differing = diff(context, ours, outcome.after, renames=False).changes
    spared = only_uncaptured_paths(context, outcome.after, differing)
    changes = [one for one in differing if one.path not in spared]
    why = merge_provenance(session.agent, message, outcome.attempt.command)
    # A checkpoint of its own, since the fork's is deleted with it.
    with context.lock():
        target = create_derived_checkpoint(context, ours, changes, why) if changes else ours
    try:
        with nullcontext() if target == ours else forgotten_if_unreached(context, target):
            restored, point = session.bring(target, expected=ours, message=message)
    except RefusedError as error:
        if error.code != "changed_meanwhile":
            raise
        raise changed_meanwhile(session.root, session.id, outcome) from None
    return Adoption(restored, point)


def changed_meanwhile(root: bytes, session: SessionId, outcome: Outcome) -> RefusedError:
    """Explains why an attempt is not adopted, and how to get its work."""
    return RefusedError(
        f"{display(root)} has changed since the attempts began; nothing was adopted",
        hint=f"its fork is kept; `holdfast session merge {outcome.fork} -s {session}` merges it",
        code="changed_meanwhile",
    )


def adopted_message(experiment: str, outcome: Outcome) -> str:
    """The history's message of an adoption."""
    return f"adopted {clipped(outcome.attempt.name)} of the experiment {experiment}"


def changed_files(context: Context, began: CheckpointId, after: CheckpointId) -> Diff:
    """The changes that an attempt made. A file that still exists, and is only no longer captured, does not count as
    deleted.
    """
    found = diff(context, began, after)
    spared = only_uncaptured_paths(context, after, found.changes)
    return found._replace(changes=[one for one in found.changes if one.path not in spared])


class Experiment:
    """The attempts in a session, and their results. Valid within its block (`experiment`)."""

    def __init__(self, session: Session, began: CheckpointId, comparison: Comparison, forks: AttemptForks) -> None:
        self._session = session
        self._began = began
        self._forks = forks
        self._held: set[SessionId] = set()
        self.comparison = comparison

    def adopt(self, outcome: Outcome | None = None) -> Adoption:
        """Make the result of an attempt (None: the winner) the session's tree; see `adopt`. Files that no checkpoint
        holds (`Outcome.not_captured`) are not adopted. If there are some, or the adoption fails or skips a path, the
        attempt's fork is kept in any case (see `is_kept`).

        Raises `NotFoundError` (code ``no_winner``) without an attempt to adopt.
        """
        chosen = self.comparison.winner if outcome is None else outcome
        if chosen is None or chosen.after is None:
            raise NotFoundError(
                "there is nothing to adopt",
                hint="no attempt has succeeded or has a score" if outcome is None else None,
                code="no_winner",
            )
        said = adopted_message(self.comparison.experiment, chosen)
        if chosen.not_captured:
            self._hold(chosen)
        try:
            adopted = adopt(self._session, self._began, chosen, said)
        except BaseException:
            self._hold(chosen)
            raise
        if adopted.restored.skipped:
            self._hold(chosen)
        return adopted

    def is_kept(self, outcome: Outcome) -> bool:
        """Whether the fork of an attempt stays when the experiment is over."""
        return outcome.fork is not None and (self.comparison.stays(outcome) or outcome.fork in self._held)

    def _hold(self, outcome: Outcome) -> None:
        """Keep the fork of an attempt: no other place has its files."""
        if outcome.fork is not None and not self.is_kept(outcome):
            self._held.add(outcome.fork)
            self._forks.keep(outcome.fork)

    def files(self, outcome: Outcome) -> Diff | None:
        """How what an attempt has left differs from the state that all began with; None if that is not known."""
        return None if outcome.after is None else changed_files(self._session.context, self._began, outcome.after)


def experiment_object(kind: type[T], found: Experiment, adopted: Adoption | None, adopted_kind: type[Any]) -> T:
    """The answer for an experiment, and for its adopted attempt: as ``kind``, `answers.experiments.Experiment` or a
    class derived from it, and its ``adopted`` likewise.
    """
    from holdfast.model.answers.experiments import Attempt

    attempts: list[Attempt] = []
    for one in found.comparison.ranked:
        kept = found.is_kept(one)
        fork, directory = (one.fork, one.root) if kept else (None, None)
        attempts.append(encode(Attempt, one, fork=fork, directory=directory, changed=found.files(one)))
    brought = adopted and encode(adopted_kind, adopted.restored, state=adopted.checkpoint.hash)
    return encode(kind, found, attempts=attempts, adopted=brought)


@contextmanager
def experiment(
    make: Callable[[], Sessions],
    session: Session,
    order: Order,
    *,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
) -> Generator[Experiment]:
    """Make the attempts and compare them; the forks go when the block ends. Forks to keep (`Comparison.stays`, which
    includes the best one's if it has files that no checkpoint holds) are marked before the block, and stay whatever the
    block raises.

    ``make`` makes the `Sessions` of ``session``, on any thread. ``stop`` cancels from another thread: running attempts
    end, and `HoldfastError` (code ``cancelled``) is raised. After an error here no fork remains, and the session is
    unchanged. After a kill, the next sweep deletes the forks.

    Raises `UsageError` for an invalid order, `RefusedError` (code ``session_limit``), and as `Session.fork`.
    """
    _check(order)
    session.refuse_machine("an experiment")
    stop = threading.Event() if stop is None else stop
    parallel = _parallel_limit(make, session, order)
    identity = session.context.random(6).hex()
    point = session.checkpoint(f"experiment {identity}", kind="fork")
    began = point.state.tree
    assert began is not None, "a saved state has a tree"

    @contextmanager
    def opened(name: SessionId) -> Generator[Session]:
        with make() as sessions, sessions.open(name) as fork:
            yield fork

    forks = AttemptForks(make, session, order, identity, point, parallel)
    try:
        runner = AttemptRunner(order, opened, began, session.root, tell, stop, session.door())
        outcomes = runner.run(forks, parallel)
        if stop.is_set():
            raise HoldfastError("the experiment was cancelled; nothing of it is left", code="cancelled")
        if order.keep:
            forks.keep()
        found = Experiment(session, began, _compared(session, order, identity, point, outcomes, runner), forks)
        for one in () if order.keep else found.comparison.ranked:
            if one.fork is not None and found.comparison.stays(one):
                forks.keep(one.fork)
        yield found
    finally:
        forks.delete()


def _check(order: Order) -> None:
    """Raise `UsageError` for an order that makes no sense."""
    names = [attempt.name for attempt in order.attempts]
    if not names:
        raise UsageError("an experiment needs something to try", hint="give one command or several")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two attempts are called {twice!r}")
    if (order.measure == "score") != (order.score is not None):
        raise UsageError("only a command or a function gives a score", hint="give it with the measure `score`")
    if order.parallel < 0:
        raise UsageError(f"{order.parallel} attempts cannot run at once")


def _parallel_limit(make: Callable[[], Sessions], session: Session, order: Order) -> int:
    """How many attempts run at once; raises `RefusedError` if there can be no such number of forks."""
    most, wanted = session.settings.max_forks, len(order.attempts)
    with make() as sessions:
        there = len(sessions.info(session.id).forks)
    if there + wanted > most:
        raise RefusedError(
            f"the session {session.id} has {plural(there, 'fork')}, and {wanted:,} more would pass session.max_forks, "
            f"{most:,}",
            hint="run fewer attempts, delete forks, or raise the limit in config.toml",
            code="session_limit",
        )
    return min(order.parallel or most, session.settings.max_parallel, wanted)


def _compared(
    session: Session,
    order: Order,
    identity: str,
    point: SessionCheckpoint,
    outcomes: Sequence[Outcome],
    runner: AttemptRunner,
) -> Comparison:
    if callable(order.score):
        outcomes = [runner.scored(outcome, order.score) for outcome in outcomes]
    ranked = ranks.rank(outcomes, order.measure, highest=order.highest)
    return Comparison(
        experiment=identity,
        session=session.id,
        fork_point=point.hash,
        measure=order.measure,
        ranked=ranked,
        winner=ranks.best(ranked, order.measure),
        differences=ranks.differences(ranked, session.workspace.diff),
        statistics=ranks.statistics(outcomes),
        kept=order.keep,
    )

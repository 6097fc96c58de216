"""Which of many states was the first bad one: a command tells good from bad, in a fork that is brought to each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.sessions.registry import Sessions
    from holdfast.engine.sessions.session import Session
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_types import CommandEntry


_LOG = Log(__name__)
Verdict = Literal["good", "bad", "skip"]


class FirstBad(NamedTuple):
    """Where it went wrong."""

    candidates: range
    """One of these, and none before, is the first bad one; the last of them is known to be bad."""

    @property
    def certain(self) -> bool:
        """True if there is only one."""
        return len(self.candidates) == 1


class Bisection:
    """A search among ``count`` states, oldest first, of which the first is good and the last is bad. Pure.

    It asks about the middle state between the last good and the first bad one, or about a neighbour if that one cannot
    be judged. It finds the first bad state, or several candidates if those right before it cannot be judged.
    """

    def __init__(self, count: int) -> None:
        if count < 2:
            raise UsageError(
                "no state lies between the good one and the bad one",
                hint="name a good state that is older than the bad one",
            )
        self._good = 0
        self._bad = count - 1
        self._skipped: set[int] = set()

    def next(self) -> int | None:
        """Which state to ask about; None if nothing is left to ask."""
        middle = (self._good + self._bad) // 2
        open_ones = [at for at in range(self._good + 1, self._bad) if at not in self._skipped]
        return min(open_ones, key=lambda at: (abs(at - middle), at), default=None)

    def tell(self, at: int, verdict: Verdict) -> None:
        """Report the verdict on the state ``at``, which `next` has named."""
        if verdict == "skip":
            self._skipped.add(at)
        elif verdict == "good":
            self._good = at
        else:
            self._bad = at

    @property
    def left(self) -> int:
        """About how many questions are left, if all of them are answered."""
        untold = sum(1 for at in range(self._good + 1, self._bad) if at not in self._skipped)
        return untold.bit_length()

    def found(self) -> FirstBad:
        """The result so far; the answer, once `next` is None."""
        return FirstBad(range(self._good + 1, self._bad + 1))


def verdict_of(exit_code: int) -> Verdict | None:
    """The verdict of a test command's exit code: 0 good, 125 undecided, others bad.

    None for codes without a verdict: the command could not be run (126, 127), or was killed (from 128 on).
    """
    if exit_code in (0, 125):
        return "skip" if exit_code else "good"
    return "bad" if 0 < exit_code < 126 else None


class Bounds(NamedTuple):
    """Between which states the first bad one is looked for."""

    good: CheckpointId
    bad: CheckpointId
    """A later state than ``good``."""


class TriedState(NamedTuple):
    """A state that was tested."""

    checkpoint: Checkpoint
    verdict: Verdict
    exit_code: int
    duration_ms: int
    left: int
    """About how many more tests follow."""


class BisectResult(NamedTuple):
    """The result of a search."""

    candidates: Sequence[Checkpoint]
    """The first bad state; if several, one of them: the last is bad and the others are undecided."""
    command: CommandEntry | None
    """The session's command that has made the first bad state, if there is one, and only one such state."""
    tried: Sequence[TriedState]
    """In the order in which they were."""


def resolve_state(session: Session, name: str) -> CheckpointId:
    """The checkpoint of the workspace that ``name`` means: as `Workspace.resolve`, else as `Session.find`."""
    try:
        return session.workspace.resolve(name)
    except NotFoundError as error:
        try:
            tree = session.find(name).state.tree
        except NotFoundError:
            raise error from None
        if tree is None:
            raise
        return tree


def bisect(
    make: Callable[[], Sessions],
    session: Session,
    command: str,
    bounds: Bounds,
    *,
    timeout: float | None = None,
    with_ignored: bool = False,
    tell: Callable[[TriedState], None] | None = None,
    stop: threading.Event | None = None,
) -> BisectResult:
    """Find the first bad state within ``bounds``.

    ``command`` runs in a fork of the session, which is brought to one state after another. Exit code 0 means good, 125
    undecided, others up to 124 bad. The two ends are tested first. Raises `RefusedError` (code ``not_bisectable``) if
    their verdicts are wrong, or the command gives none, as one that cannot be run, and `UnsupportedError` for a session
    in a virtual machine. The session stays unchanged, and the fork is deleted in any case. ``stop`` cancels, from
    another thread: `HoldfastError` (code ``cancelled``).
    """
    # A machine would see a restore's changes up to a second later: too late for the command.
    session.refuse_machine("a bisection")
    stop = threading.Event() if stop is None else stop
    row = _between(session, bounds)
    bisection = Bisection(len(row))
    made = session.fork(type="experiment", with_ignored=with_ignored, metadata={"bisect": command})
    tried: list[TriedState] = []
    try:
        with make() as sessions, sessions.open(made.id) as fork:

            def ask(at: int) -> Verdict:
                verdict, entry = _ask(fork, row[at], command, timeout, stop)
                if 0 < at < len(row) - 1:
                    bisection.tell(at, verdict)
                code = 0 if entry.result is None else entry.result.exit_code
                tried.append(TriedState(row[at], verdict, code, entry.duration_ms, bisection.left))
                if tell is not None:
                    tell(tried[-1])
                return verdict

            for at, said in ((len(row) - 1, "bad"), (0, "good")):
                if (found := ask(at)) != said:
                    raise RefusedError(
                        f"{row[at].id[:12]} is named {said}, but the command finds it {_WORDS[found]}",
                        hint="try the command in a fork of that state; it must end with 0 in a good state",
                        code="not_bisectable",
                    )
            while (at := bisection.next()) is not None:
                ask(at)
    finally:
        _delete(make, made.id)
    candidates = [row[at] for at in bisection.found().candidates]
    culprit = None
    if len(candidates) == 1:
        culprit = next((entry for entry in session.history() if entry.after == candidates[0].id != entry.before), None)
    return BisectResult(candidates, culprit, tried)


_WORDS: dict[Verdict, str] = {"good": "good", "bad": "bad", "skip": "untestable"}


def _between(session: Session, bounds: Bounds) -> list[Checkpoint]:
    """The states from the good one to the bad one, oldest first; of consecutive equal ones only the first."""
    good, bad = bounds
    catalog = session.context.catalog
    line = [bad, *catalog.ancestors(bad)]
    if good not in line:
        raise UsageError(
            f"{good[:12]} is none of the states that led to {bad[:12]}",
            hint="`holdfast log` shows them; name a good one that is before the bad one",
        )
    row: list[Checkpoint] = []
    for name in reversed(line[: line.index(good) + 1]):
        checkpoint = catalog.checkpoint(name)
        if not row or row[-1].root != checkpoint.root:
            row.append(checkpoint)
    return row


def _ask(
    fork: Session, state: Checkpoint, command: str, timeout: float | None, stop: threading.Event
) -> tuple[Verdict, CommandEntry]:
    if stop.is_set():
        raise _cancelled()
    fork.workspace.restore(state.id, exact=True)
    # In a subshell, so that its directory and exports do not affect the next state. The line may end in a comment.
    entry = execute(fork, f"({command}\n)", input=command, timeout=timeout, stop=stop)
    if stop.is_set():
        raise _cancelled()
    result = entry.result
    if result is not None and result.timed_out:
        return "bad", entry
    verdict = None if result is None else verdict_of(result.exit_code)
    if verdict is None:
        how = "did not run to its end" if result is None else f"ended with {result.exit_code}"
        raise RefusedError(
            f"at {state.id[:12]} the command {how}, which says neither good nor bad",
            hint="0 means good, 1 to 124 bad, 125 cannot tell",
            code="not_bisectable",
        )
    return verdict, entry


def _cancelled() -> HoldfastError:
    return HoldfastError("the search was cancelled; nothing of it is left", code="cancelled")


def _delete(make: Callable[[], Sessions], name: str) -> None:
    try:
        with make() as sessions:
            sessions.delete(name, look=False)
    except HoldfastError as error:
        _LOG.warning("the fork %s is not deleted yet: %s", name, error.message)

"""The attempts of an experiment, their results, and their comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.model.command_results import Diff
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_types import CommandResult, SessionHash, SessionId, ShellName

    Tell = Callable[["AttemptProgress"], None]
    """Called on several threads, one call at a time."""
    Score = Callable[["Outcome"], float | None]
    """Gives an attempt's score while its directory is there; None: it has none."""

Measure = Literal["exit_code", "output", "duration", "score"]
"""By what attempts are ranked: how they ended, how much they printed, how long they took, or a number that a command
or a function gives each of them."""

Phase = Literal["waiting", "forking", "setting up", "running", "scoring", "done", "failed", "timed out", "cancelled"]
"""Where an attempt is; the last four are how it ends."""

ENDS: tuple[Phase, ...] = ("done", "failed", "timed out", "cancelled")


class Attempt(NamedTuple):
    """One thing to try."""

    number: int
    """From 1, in the order in which they were given."""
    name: str
    """Its name, which is unique in the experiment."""
    command: str
    env: Mapping[str, str] = {}
    """Variables in addition to the session's."""
    shell: ShellName | None = None
    """None: the session's."""
    timeout_seconds: float | None = None
    """None: the session's; 0: none."""


class Order(NamedTuple):
    """The request of an experiment."""

    attempts: Sequence[Attempt]
    setup: str = ""
    """A command that is run in every fork first, with the same variables, shell and timeout; empty: none."""
    measure: Measure = "exit_code"
    score: str | Score | None = None
    """With the measure ``score``: a command that is run in the fork, after the attempt, and prints a number at the end
    of its output; or a function.
    """
    highest: bool = False
    """Whether the highest score is the best, not the lowest."""
    parallel: int = 0
    """How many run at once; 0: as many as the settings allow."""
    keep: bool = False
    """Whether the forks stay, as forks of the session."""
    with_ignored: bool = False
    """Whether the forks have to hold what ignore rules leave out, too."""
    provider: str | None = None
    """The provider of the forks; None: the best available one."""


class Outcome(NamedTuple):
    """How an attempt ended."""

    attempt: Attempt
    phase: Phase
    fork: SessionId | None
    """The session that it ran in; None if none could be made. It is deleted by now, unless forks are kept."""
    root: bytes
    """The directory of that session."""
    result: CommandResult | None
    """None: the command did not run, or its end is unknown."""
    duration_ms: int
    before: CheckpointId | None
    """The tree that the command found: that of the session, or what the setup made of it."""
    after: CheckpointId | None
    """The tree that it left; the same one if it changed nothing."""
    score: float | None = None
    error: str = ""
    """Why it ended early, or has no score; for people."""
    not_captured: Sequence[NotCaptured] = ()
    """Files in its directory that no checkpoint holds, such as one that is too large."""

    @property
    def succeeded(self) -> bool:
        """True if the command was run and ended with 0."""
        return self.phase == "done" and self.result is not None and self.result.exit_code == 0


class Statistics(NamedTuple):
    """Figures of all attempts together. Durations are of attempts that ended by themselves; 0 without any."""

    attempts: int
    succeeded: int
    min_ms: int
    max_ms: int
    average_ms: float
    median_ms: float

    @property
    def success_rate(self) -> float:
        """From 0 to 1."""
        return self.succeeded / self.attempts if self.attempts else 0.0


class Difference(NamedTuple):
    """How the ends of two attempts differ, from ``a`` to ``b``, which are numbers of attempts."""

    a: int
    b: int
    exit_code: int
    """The exit code of ``a`` minus that of ``b``; 0 if either has none."""
    stdout: str
    """A unified diff; empty if they are the same."""
    stderr: str
    files: Diff | None
    """None if the tree of either is not known."""


class Comparison(NamedTuple):
    """The result of an experiment."""

    experiment: str
    """Its id: 12 lower-case hex digits, random."""
    session: SessionId
    fork_point: SessionHash
    """The session's checkpoint that all attempts began with."""
    measure: Measure
    ranked: Sequence[Outcome]
    """The best first."""
    winner: Outcome | None
    """The best attempt; None if none succeeded, or none has a score."""
    differences: Sequence[Difference]
    statistics: Statistics
    kept: bool
    """Whether all forks stay."""

    def stays(self, outcome: Outcome) -> bool:
        """Whether the fork of an attempt stays: all do, or it is the best, and has what no checkpoint holds."""
        return self.kept or (outcome == self.winner and bool(outcome.not_captured))


class AttemptProgress(NamedTuple):
    """An event during an experiment: an attempt has a new phase, or new output."""

    number: int
    phase: Phase
    line: str = ""
    """The last whole line that it has printed; empty with a new phase."""

"""Running the attempts of an experiment side by side, each in the fork that was made for it."""

from __future__ import annotations

import math
import os
import select
import tempfile
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import IO, TYPE_CHECKING, Self

import msgspec

from holdfast.engine.experiments import scores
from holdfast.engine.experiments.attempts import AttemptProgress, Outcome
from holdfast.engine.history.status import only_in_directory, only_uncaptured_paths
from holdfast.engine.sessions.holder.lock import lock_path, output_path
from holdfast.engine.sessions.shell.execution import Streams, execute
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import HoldfastError
from holdfast.model.message_text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from holdfast.engine.experiments._attempt_forks import AttemptForks
    from holdfast.engine.experiments.attempts import Attempt, Order, Phase, Score, Tell
    from holdfast.engine.sessions.holder.request_server import RequestServer
    from holdfast.engine.sessions.session import Session
    from holdfast.engine.sessions.shell.execution import StreamName
    from holdfast.model.ids import CheckpointId
    from holdfast.model.session_results import ForkResult
    from holdfast.model.session_types import CommandEntry, SessionId

    Open = Callable[[SessionId], AbstractContextManager[Session]]
    """Opens a session, on any thread, for the length of a block."""

_MAX_LINE = 200
MOST_OUTPUT = 1 << 16
"""Bytes of what a command has printed that others can see while it runs."""


class AttemptRunner:
    """Runs attempts on threads of their own, and tells of it."""

    def __init__(
        self,
        order: Order,
        open_session: Open,
        began: CheckpointId,
        root: bytes,
        tell: Tell | None,
        stop: threading.Event,
        door: RequestServer | None = None,
    ) -> None:
        """Every fork must begin with the tree ``began``, and is made from the directory ``root``. ``stop`` ends all
        attempts: running ones with their children, and waiting ones are not started. Requests at ``door`` are served
        meanwhile, on the thread of `run`.
        """
        self._door = door
        self._order = order
        self._open = open_session
        self._began = began
        self._root = root
        self._tell = tell
        self._telling = threading.Lock()
        self._stop = stop

    def run(self, forks: AttemptForks, parallel: int) -> list[Outcome]:
        """Run every attempt in a fork of its own, as soon as the fork is made, ``parallel`` of them at once; their
        results, in their order.

        If a fork cannot be made, or an error is not the attempt's own, the others are stopped, and the error is raised.
        When this returns or raises, all threads and commands have ended; forks remain.
        """
        attempts = self._order.attempts
        with ExitStack() as behind:
            ended = os.eventfd(0, os.EFD_CLOEXEC)
            behind.callback(os.close, ended)  # when no thread is left that tells of an end
            pool = behind.enter_context(ThreadPoolExecutor(parallel, thread_name_prefix="attempt"))
            # This pool ends first: its forks continue in the other pool.
            making = behind.enter_context(ThreadPoolExecutor(max(1, forks.at_once), thread_name_prefix="fork"))

            def begin(attempt: Attempt) -> Future[Outcome]:
                return pool.submit(self._attempt, attempt, self._forked(attempt, forks))

            try:
                if forks.at_once:
                    made = [making.submit(begin, attempt) for attempt in attempts]
                    wait(made, return_when=FIRST_EXCEPTION)
                    for future in made:
                        if future.done():
                            future.result()
                    begun = [future.result() for future in made]
                else:
                    begun = [begin(attempt) for attempt in attempts]
                forks.count_made()
                self._serve_until(begun, ended)
                return [future.result() for future in begun]
            except BaseException:
                self._stop.set()
                making.shutdown(wait=True, cancel_futures=True)
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _forked(self, attempt: Attempt, forks: AttemptForks) -> ForkResult | None:
        """The fork for an attempt; None if it is not to be made any more."""
        if self._stop.is_set():
            return None
        self.report(attempt, "forking")
        made = forks.make(attempt)
        self.report(attempt, "waiting")
        return made

    def _serve_until(self, begun: Sequence[Future[Outcome]], ended: int) -> None:
        """Serve requests to the session until all attempts have ended, which the eventfd ``ended`` signals."""
        if self._door is None:
            return
        for future in begun:
            future.add_done_callback(lambda _: os.eventfd_write(ended, 1))
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(self._door.fileno(), select.POLLIN)
        while not all(future.done() for future in begun):
            for fd, _ in poll.poll():
                if fd == ended:
                    os.eventfd_read(ended)
                else:
                    self._door.serve()

    def scored(self, outcome: Outcome, score: Score) -> Outcome:
        """An attempt with the score that a function gives it. An error of the function is the reason for no score."""
        if outcome.phase not in ("done", "failed") or outcome.result is None:
            return outcome
        self.report(outcome.attempt, "scoring")
        try:
            found = score(outcome)
            number, error = (None, "") if found is None else (float(found), "")
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - a function of the caller's may do anything
            number, error = None, f"the scoring function failed: {type(failure).__name__}: {failure}"
        self.report(outcome.attempt, outcome.phase)
        if number is not None and not math.isfinite(number):
            number, error = None, f"the scoring function gave {number}"
        return outcome._replace(score=number, error=error)

    def report(self, attempt: Attempt, phase: Phase, line: str = "") -> None:
        """Tell where an attempt is."""
        if self._tell is not None:
            with self._telling:
                self._tell(AttemptProgress(attempt.number, phase, line))

    def _attempt(self, attempt: Attempt, fork: ForkResult | None) -> Outcome:
        if fork is None:
            return Outcome(attempt, "cancelled", None, b"", None, 0, None, None)
        outcome = Outcome(attempt, "cancelled", fork.id, fork.root, None, 0, None, None)
        if not self._stop.is_set():
            try:
                with self._open(fork.id) as session:
                    outcome = self._in_fork(session, outcome)
                    outcome = outcome._replace(
                        not_captured=only_in_directory(session.root, self._root, session.not_captured)
                    )
            except HoldfastError as error:
                outcome = outcome._replace(phase="failed", error=error.message)
        self.report(attempt, outcome.phase)
        return outcome

    def _in_fork(self, session: Session, outcome: Outcome) -> Outcome:
        attempt, order = outcome.attempt, self._order
        tree = session.state.tree
        if tree is None or self._begins_otherwise(session, tree):
            return outcome._replace(
                phase="failed", error="it would have begun in another state: the tree changed during the fork"
            )
        if attempt.shell is not None and attempt.shell != session.config.shell:
            session.configure(msgspec.structs.replace(session.config, shell=attempt.shell))
        if order.setup:
            setup = self._command(session, attempt, "setting up", order.setup)
            if (ended := self._phase(setup)) != "done":
                return outcome._replace(
                    phase=ended, before=setup.before, after=setup.after, error=f"the setup {ending_of(setup)}"
                )
        entry = self._command(session, attempt, "running", attempt.command)
        outcome = outcome._replace(
            phase=self._phase(entry),
            result=entry.result,
            duration_ms=entry.duration_ms,
            before=entry.before,
            after=entry.after,
        )
        if isinstance(order.score, str) and outcome.phase in ("done", "failed"):
            score, error = self._score(session, attempt, entry, order.score)
            outcome = outcome._replace(score=score, error=error)
        return outcome

    def _begins_otherwise(self, fork: Session, tree: CheckpointId) -> bool:
        """Whether a fork begins with other files than it was made of. By other rules, as they may have been changed
        since the tree was saved, the same files make another tree.
        """
        changes = fork.workspace.diff(self._began, tree, renames=False).changes
        if not changes:
            return False
        left_out = only_uncaptured_paths(fork.context, tree, changes)
        rest = [one for one in changes if one.path not in left_out]
        if any(one.before is not None for one in rest):
            return True
        return bool(only_in_directory(fork.root, self._root, [NotCaptured(one.path, "") for one in rest]))

    def _command(self, session: Session, attempt: Attempt, phase: Phase, command: str) -> CommandEntry:
        self.report(attempt, phase)
        lines = _Lines(lambda line: self.report(attempt, phase, line))
        context = session.context
        with _OutputFile(output_path(lock_path(context.home, context.store.tenant, session.id))) as file:

            def show(_stream: StreamName, data: bytes) -> None:
                file.add(data)
                lines.add(data)

            return execute(
                session,
                command,
                timeout=attempt.timeout_seconds,
                env=dict(attempt.env),
                streams=Streams(output=show),
                stop=self._stop,
            )

    def _phase(self, entry: CommandEntry) -> Phase:
        ended = phase_of(entry)
        return "cancelled" if ended != "done" and self._stop.is_set() else ended

    def _score(self, session: Session, attempt: Attempt, entry: CommandEntry, command: str) -> tuple[float | None, str]:
        self.report(attempt, "scoring")
        with tempfile.TemporaryDirectory(prefix="holdfast-attempt-") as directory:
            told = scores.score_environment(entry, attempt.number, directory.encode())
            scored = execute(session, command, timeout=attempt.timeout_seconds, env={**told}, stop=self._stop)
        return scores.score_of(scored.result)


class _OutputFile:
    """The output of a command so far, for other processes to show: its last part, in bounded space. It is only a view:
    a full disk stops nothing.
    """

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._size = 0

    def __enter__(self) -> Self:
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = open(os.open(self._path, flags, 0o600), "wb", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            with suppress(OSError):
                os.unlink(self._path)

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        if self._file is None:
            return
        with suppress(OSError):
            if self._size + len(data) > MOST_OUTPUT:
                self._file.seek(0)
                self._file.truncate()
                self._size, data = 0, data[-MOST_OUTPUT:]
            self._file.write(data)
            self._size += len(data)


class _Lines:
    """Finds the lines in what a command prints, and tells the last whole one of each piece."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._rest = b""

    def add(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = rest[-_MAX_LINE * 4 :]
        last = next((line for line in reversed(lines) if line.strip()), None)
        if last is not None:
            self._tell(visible(last.decode("utf-8", "surrogateescape").strip())[:_MAX_LINE])


def phase_of(entry: CommandEntry) -> Phase:
    """How a command has ended that nothing has stopped."""
    result = entry.result
    if result is not None and result.exit_code == 0:
        return "done"
    return "timed out" if result is not None and result.timed_out else "failed"


def ending_of(entry: CommandEntry) -> str:
    """The same for people."""
    result = entry.result
    if result is None:
        return "did not run to its end"
    return "took too long" if result.timed_out else f"ended with {result.exit_code}"

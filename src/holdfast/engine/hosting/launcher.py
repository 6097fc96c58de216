"""The launcher of a session's commands: a process that runs the shim as `holdfast run` runs a command.

Its standard input and output are the control channel, which it leaves to the shim. It reports its result when it ends.
If the process that started it is gone, the channel closes; then the shim ends, and so does the run.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.undo_log import log_directory
from holdfast.engine.running.run import Invocation, RunPolicy, run
from holdfast.files.write.rooted_access import open_root
from holdfast.ipc.connection import Connection
from holdfast.model.config.settings import Isolation
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import EscapeError, FormatError, HoldfastError, NotFoundError
from holdfast.model.log import Level, set_sender
from holdfast.model.log_format import LineHandler, send
from holdfast.model.paths import display
from holdfast.processes.forked_process import allow_forks
from holdfast.processes.helper_process import start_module
from holdfast.processes.module_process import ProcessOutcome, decode_outcome, failed_outcome
from holdfast.processes.process_tree import end_child, hindered_seconds
from holdfast.sandbox.channel import shim_command
from holdfast.undo.reports.unreported_rollbacks import note_rollback
from holdfast.undo.service import LogLimits, Thresholds

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_MOST_BYTES = 1 << 20


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a launch."""

    home: bytes
    root: bytes
    flags: dict[str, Any]
    """Settings that go before all others."""
    run: str
    """The run's id."""
    thresholds: Thresholds
    """The limits at which a person is asked."""
    limits: LogLimits | None = None
    """Of the undo log, if no process keeps it yet; None: as the settings say."""
    isolation: Isolation | None
    """None: as the settings say."""
    environment: dict[bytes, bytes]
    """The shim's, and so its commands'."""
    read_only: tuple[bytes, ...] = ()
    """The real paths of directories that the run must not change, with their contents."""
    face: str = ""
    """See `Invocation.face`."""
    log_level: Level = "warn"
    """From which level on it logs, to standard error: as lines of JSON, unless that is a terminal."""


class Launcher:
    """A launcher that was started."""

    def __init__(self, launch: Launch) -> None:
        """Start it. Raises `OSError`."""
        ours, its = socket.socketpair()
        with its:
            self._process = start_module(
                __name__, str(its.fileno()), stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[its.fileno()]
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.writer = self._process.stdin
        """The channel: the shim reads from it."""
        self.reader = self._process.stdout
        self._outcome = Connection(ours, _MOST_BYTES)
        self._outcome.send(msgspec.json.encode(launch))

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def hindered_seconds(self) -> float:
        """See `holdfast.processes.process_tree.hindered_seconds`: also of its child processes."""
        return hindered_seconds(self._process.pid)

    def wait(self, seconds: float) -> ProcessOutcome:
        """Wait until it has ended, and end it if it takes longer than ``seconds``: first in order, then at once."""
        end_child(self._process, seconds, patience=seconds)
        try:
            with self._outcome:
                return decode_outcome(self._outcome.receive())
        except (ConnectionError, FormatError):
            message = f"the process that runs the commands was killed (status {self._process.returncode})"
            return ProcessOutcome(kind="HoldfastError", code="launcher_gone", message=message)


def main(fd: int) -> None:
    """Be a launcher: read a `Launch` from the socket ``fd``, run the shim, and report the outcome there."""
    os.set_inheritable(fd, False)
    with Connection(socket.socket(fileno=fd)) as starter:
        launch = json_decoder(Launch).decode(starter.receive())
        set_sender(launch.log_level, lambda: send(launch.log_level, LineHandler(as_json=not sys.stderr.isatty())))
        try:
            outcome = ProcessOutcome(exit_code=_run(launch))
        except HoldfastError as error:
            outcome = failed_outcome(error)
        with suppress(ConnectionError):  # the process that started it is gone, and asks no more
            starter.send(outcome.encode())


def _run(launch: Launch) -> int:
    opener = Opener(home=launch.home, flags=launch.flags)
    try:
        context = opener.open(launch.root)
        with _held(launch.read_only) as read_only:
            return run(
                context,
                Invocation(
                    shim_command(),
                    launch.root,
                    launch.environment,
                    identity=launch.run,
                    fails_whole=True,  # a shim ends in order or was lost, and then nothing else ends its command
                    face=launch.face,
                    is_shim=True,
                ),
                RunPolicy(launch.isolation, read_only=read_only, thresholds=launch.thresholds, limits=launch.limits),
                told=partial(note_rollback, log_directory(context)),  # our starter may be gone
            ).exit_code
    finally:
        opener.close()


@contextmanager
def _held(paths: Sequence[bytes]) -> Generator[list[int]]:
    """The directories, open for the length of the block. Raises `NotFoundError` if one is not at its path any more."""
    with ExitStack() as context:
        found: list[int] = []
        for path in paths:
            try:
                fd = open_root(path, readable=False)
            except (OSError, EscapeError) as error:
                why = error.strerror if isinstance(error, OSError) else "a link leads there by now"
                raise NotFoundError(
                    f"the session's working directory {display(path)} is not there any more: {why}",
                    hint="begin another session, without it or when it is there again",
                    code="no_directory",
                ) from error
            context.callback(os.close, fd)
            found.append(fd)
        yield found


if __name__ == "__main__":
    allow_forks()
    main(int(sys.argv[1]))

"""The client of a workspace's watcher, which knows the changes since a checkpoint and can pause while others change the
tree.

Cheap to import and to ask: without a watcher it costs one `connect`. A watcher that is gone or being replaced counts as
none; every wait has a limit.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from holdfast.engine.opening.home import WATCH_SOCKET
from holdfast.ipc import messages, private_socket
from holdfast.ipc.connection import Connection
from holdfast.model.clock import SystemClock
from holdfast.model.errors import HoldfastError, LockedError
from holdfast.model.log import Log
from holdfast.wire.watch_messages import (
    MAX_ANSWER_BYTES,
    WatchCall,
    WatcherState,
    encode_call,
    unpack_result,
    unpack_status,
    unpack_watching,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from holdfast.model.clock import Clock
    from holdfast.model.command_results import CheckpointRequest, CheckpointResult, Status
    from holdfast.wire.watch_messages import Json


GONE = "watcher_gone"
"""The code of the error when the watcher stopped before it answered: the work can be done without it."""

_LOG = Log(__name__)

WAIT = 120.0
"""Seconds that an answer may take: the watcher does one thing at a time, and a first checkpoint can be long."""
STOP_WAIT = 30.0
"""Seconds that stopping may take: longer than any save of a few files."""
_CONNECT_WAIT = 1.0


def connect(
    folder: bytes, *, wait: float = WAIT, clock: Clock | None = None, name: bytes = WATCH_SOCKET
) -> WatchClient | None:
    """The watcher of the workspace with this folder in the home; None if none answers.

    With another ``name``, the process that listens there (see `holdfast.engine.opening.current_run`).
    """
    connection = private_socket.try_connect(folder, name, _CONNECT_WAIT)
    if connection is None:
        return None
    return WatchClient(connection, wait, SystemClock() if clock is None else clock)


def connect_answering(folder: bytes, limit: float) -> WatchClient | None:
    """As `connect`, but None as well, and said so, if the watcher gives no sign of life within ``limit`` seconds:
    stopped, hung, or busy for long.

    Then the work is done without it, under the workspace's lock.
    """
    watcher = connect(folder)
    if watcher is None:
        return None
    try:
        watcher.ping(limit)
    except HoldfastError as error:
        _LOG.warning("the watcher is not asked: %s", error.message)
        return None
    return watcher


class WatchClient:
    """A connection to a watcher. Every method raises what the watcher raised, `LockedError` if it takes too long."""

    def __init__(self, connection: socket.socket, wait: float, clock: Clock) -> None:
        self._connection = Connection(connection, MAX_ANSWER_BYTES, clock.monotonic)
        self._wait = wait

    def __enter__(self) -> Self:
        """Return itself; leaving closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Hang up; a pause that this connection holds ends. Harmless a second time."""
        self._connection.close()

    def ping(self, wait: float | None = None) -> WatcherState:
        """How the watcher does; waits ``wait`` seconds, or as long as for everything else."""
        usual = self._wait
        self._wait = usual if wait is None else wait
        try:
            return unpack_watching(self._ask(WatchCall("ping")))
        finally:
            self._wait = usual

    def checkpoint(self, request: CheckpointRequest) -> CheckpointResult:
        """Have the watcher take a checkpoint. Raises `LockedError` while another process holds a pause."""
        return unpack_result(self._ask(WatchCall("checkpoint", request)))

    def status(self) -> Status:
        """How the tree differs from the last checkpoint, as the watcher finds it."""
        return unpack_status(self._ask(WatchCall("status")))

    @contextmanager
    def pause(self) -> Generator[None]:
        """Keep the watcher from saving by itself for the length of the block, or of this process.

        One that has stopped meanwhile needs no holding back.
        """
        try:
            self._ask(WatchCall("pause"))
        except HoldfastError as error:
            if error.code != GONE:
                raise
        try:
            yield
        finally:
            try:
                self._ask(WatchCall("resume"))
            except HoldfastError:
                # The watcher is gone or hangs: closing ends the pause, too, and the block's outcome counts.
                self.close()

    @contextmanager
    def hush(self) -> Generator[None]:
        """Keep the watcher from saving by itself for the length of the block, or of this process; a command that asks
        it to save is served.
        """
        try:
            self._ask(WatchCall("hush"))
        except HoldfastError as error:
            _LOG.info("the watcher goes on saving by itself: %s", error.message)
        try:
            yield
        finally:
            self.close()

    def stop(self) -> str | None:
        """Have the watcher stop, and return when it has: its place is free. Returns None if everything was saved, else
        why not.

        Raises `LockedError`, with a way to end it, if it takes longer than the wait of this connection.
        """
        pid = self._connection.peer.pid
        try:
            unsaved: str | None = self._ask(WatchCall("stop")).get("unsaved")
            try:
                self._connection.wait_for_end(self._wait)
            except TimeoutError as error:
                raise self._too_slow() from error
        except LockedError as error:
            raise LockedError(
                f"the watcher (process {pid}) was told to stop and has not done so for {self._wait:g} s",
                hint="it stops when its present work is done; if it hangs, `kill "
                f"-9 {pid}` ends it: no saved data is lost",
            ) from error
        return unsaved

    def _ask(self, call: WatchCall) -> Json:
        try:
            answer = self._connection.ask(encode_call(call), seconds=self._wait)
        except TimeoutError as error:
            raise self._too_slow() from error
        except ConnectionError as error:
            raise self._gone() from error
        return messages.decode_result(answer)

    def _too_slow(self) -> HoldfastError:
        return LockedError(
            f"the watcher has not answered for {self._wait:g} s",
            hint="it may be busy: try again later, or stop it with `holdfast watch --stop`",
        )

    def _gone(self) -> HoldfastError:
        return HoldfastError(
            "the watcher stopped before it answered",
            hint="try again: the command works without it",
            code=GONE,
        )

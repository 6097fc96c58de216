"""The watch service of one workspace: it saves automatically, and does work for other commands at less cost.

One thread and one loop over the watcher's descriptor, the private socket and signals. The engine is reached through
`Saver`; during its work, calls wait in their sockets and changes in the kernel's queue.
"""

from __future__ import annotations

import os
import selectors
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.engine.opening.home import WATCH_SOCKET
from holdfast.engine.watching._pending_changes import PendingChanges
from holdfast.engine.watching._schedule import Pace, Scheduler
from holdfast.engine.watching.watch_lock import hold_watch_lock
from holdfast.files.watch import open_watcher
from holdfast.ipc import messages
from holdfast.ipc.server import Client, Limits, Server
from holdfast.model.clock import isoformat
from holdfast.model.command_results import CheckpointRequest, CheckpointResult
from holdfast.model.errors import HoldfastError, LockedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.processes.stop_signals import stopped_by_signals
from holdfast.wire import watch_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.watching._pending_changes import WatchExclusion
    from holdfast.files.tree import DirtySource
    from holdfast.files.watch import Backend, Watcher
    from holdfast.model.clock import Clock
    from holdfast.model.command_results import Status

_log = Log(__name__)
_FIRST_RETENTION = 60.0
_FIRST_REST = 0.005
"""As `WatchSetup.rest`, after it was quiet, or saved; half as much again each time that there is more."""
_PREPARED_AT_ONCE = 16
"""Some milliseconds' work."""
_T = TypeVar("_T")


class Saver(Protocol):
    """The engine of one workspace, as far as the service needs it; it got the `DirtySource` when it was opened."""

    def checkpoint(self, request: CheckpointRequest) -> CheckpointResult:
        """See `holdfast.engine.history.checkpoint.create_checkpoint`."""
        ...

    def status(self) -> Status:
        """See `holdfast.engine.history.status.status`."""
        ...

    def prepare(self, paths: Sequence[bytes], *, last: bool) -> None:
        """Do now what the next checkpoint would have to do for files that have changed, ``last`` if these are all that
        were noticed so far; nothing depends on it.
        """
        ...

    def retention(self) -> None:
        """Let old checkpoints go by the settings' policy."""
        ...

    def close(self) -> None:
        """Save the index and release the store."""
        ...


_CLIENTS_A_TURN = 64
"""Where much changes, a turn takes long: clients do not wait for one each."""


class WatchSetup(NamedTuple):
    """The settings of a service; times in seconds."""

    root: bytes
    folder: bytes
    """The workspace's own folder in the home, mode 0700: lock and socket are there."""
    backend: Backend = "auto"
    pace: Pace = Pace()
    full_walk_interval: float = 900.0
    """How often everything counts as changed, for what no watcher can notice."""
    retention_interval: float = 3600.0
    poll_interval: float = 10.0
    """How often the tree is examined where watching is impossible."""
    rest: float = 0.25
    """The longest pause after reading the watcher, so that many events cause few wake-ups."""
    look_interval: float = 30.0
    """How often it is read in any case: it cannot report that its root is back."""
    prepare: bool = True
    """Whether to work ahead on changed files while idle."""
    limits: Limits = Limits(request_bytes=watch_messages.MAX_CALL_BYTES, answer_bytes=watch_messages.MAX_ANSWER_BYTES)


def setup_from_settings(context: Context, *, poll_interval: float) -> WatchSetup:
    """The watch settings of a workspace; the polling interval depends on the caller."""
    settings = context.settings
    return WatchSetup(
        root=context.workspace.path,
        folder=context.folder,
        backend=settings.watch.backend,
        pace=Pace(settings.watch.debounce, settings.watch.max_interval, settings.watch.max_per_hour),
        full_walk_interval=settings.watch.full_walk_interval,
        retention_interval=settings.retention.interval,
        poll_interval=poll_interval,
    )


class WatchService:
    """Watches until `stop`. Owns the saver and the watcher: `run` closes both."""

    def __init__(
        self,
        setup: WatchSetup,
        watcher: Watcher,
        exclusion: WatchExclusion,
        open_saver: Callable[[DirtySource], Saver],
        clock: Clock,
        beside: PeriodicTask | None = None,
    ) -> None:
        """Bind the socket in ``setup.folder``, whose lock the caller holds."""
        self._setup = setup
        self._watcher = watcher
        self._clock = clock
        self._beside = beside
        self._scheduler = Scheduler(setup.pace, clock)
        self._changes = PendingChanges(watcher, exclusion, self._scheduler.changed, self._scheduler.doubted)
        self._started_at = clock.now()
        self._made = 0
        self._failure: str | None = None
        self._stopping = False
        self._ended = False
        """The last save has been tried."""
        self._holds_itself = False
        self._holders: set[Client] = set()
        self._hushing: set[Client] = set()
        """Clients that pause automatic saves, but not saves by others."""
        now = clock.monotonic()
        self._walk_at = now + setup.full_walk_interval
        # Soon for the first time: a watcher that is started every morning may never live for a whole interval.
        self._retention_at = now + min(setup.retention_interval, _FIRST_RETENTION)
        self._look_at = now
        self._look_due = False
        self._resting = False
        self._pause = 0.0
        """The length of the last pause."""
        self._wake_read, self._wake_write = socket.socketpair()
        with ExitStack() as undo:
            undo.callback(self._wake_read.close)
            undo.callback(self._wake_write.close)
            self._wake_read.setblocking(False)
            self._wake_write.setblocking(False)
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._selector.register(self._wake_read, selectors.EVENT_READ, self._wake_read)
            self._saver = open_saver(self._changes)
            undo.callback(self._saver.close)
            self._server = Server(setup.folder, WATCH_SOCKET, clock, self._answer, left=self._left, limits=setup.limits)
            self._selector.register(self._server, selectors.EVENT_READ, self._server)
            undo.pop_all()

    def stop(self) -> None:
        """End `run` soon. May be called from another thread."""
        self._stopping = True
        self._wake()

    def _on_stop_call(self) -> None:
        self._stopping = True

    def run(self, *, signals: bool = False, ready: Callable[[Watcher], None] | None = None) -> str | None:
        """Serve until `stop`, a call to stop, or (``signals``) a signal; then save once more, and close everything.

        Returns None if everything is saved, else why not. ``ready`` is called when calls are answered from now on.
        """
        with ExitStack() as rest:
            rest.callback(self._wake_read.close)
            rest.callback(self._wake_write.close)
            if signals:
                rest.enter_context(stopped_by_signals(self._on_stop_call, self._wake_write.fileno()))
            rest.callback(self._close)
            if ready is not None:
                ready(self._watcher)
            self.begin()
            while not self._stopping:
                self.turn(self.wait_seconds())
            if not self._ended:
                self._save_last()
        return self._unsaved()

    # -- for who has many of them, and one loop: in place of `run` ------------------------------------------------

    @property
    def stopping(self) -> bool:
        """True after a request to stop: `end` is due."""
        return self._stopping

    @property
    def failure(self) -> str | None:
        """Why the last thing that it tried has failed; None if it has not."""
        return self._failure

    def fileno(self) -> int:
        """A descriptor that is readable when `turn` has work; it never changes."""
        return self._selector.fileno()

    def begin(self) -> None:
        """Answer calls, and notice changes, from now on."""
        self._listen_to_watcher()
        self._look()

    def set_auto_save(self, wanted: bool) -> None:
        """Whether to save by itself from now on; calls are answered, and changes noticed, in any case."""
        if wanted != self._holds_itself:
            return
        self._holds_itself = not wanted
        if wanted:
            self._scheduler.resume()
        else:
            self._scheduler.pause()

    def scan_with(self, scan: Callable[[], None]) -> None:
        """Call ``scan``, which looks at the tree and takes the changes noticed until then. If another process holds the
        lock, do nothing: the next occasion tries again.
        """

        def scanned() -> None:
            try:
                with self._all_changed_on_failure():
                    scan()
            except LockedError:
                return
            self._scanned()

        self._attempt("watching", scanned)

    def end(self) -> str | None:
        """Save once more, and close everything. None if all is saved, or automatic saving is off; else the reason."""
        with ExitStack() as rest:
            rest.callback(self._wake_read.close)
            rest.callback(self._wake_write.close)
            rest.callback(self._close)
            if not self._ended:
                self._save_last()
        return None if self._holds_itself else self._unsaved()

    # -- the loop -----------------------------------------------------------------------------------------------

    def turn(self, wait: float = 0.0) -> None:
        """Wait for work, at most ``wait`` seconds, and do it."""
        ready = self._selector.select(wait)
        for key, _ in ready:
            if key.data is self._watcher:
                self._look()
            elif key.data is self._wake_read:
                self._clear_wake()
        self._server.serve(_CLIENTS_A_TURN)
        now = self._clock.monotonic()
        if self._look_due:
            self._look()
        elif now >= self._look_at:
            if self._resting:
                self._listen_to_watcher()
            else:
                self._look()
        if now >= self._walk_at:
            self._walk_at = now + self._setup.full_walk_interval
            self._changes.doubt()
        if self._stopping:
            return
        due = self._scheduler.due_in()
        if due is not None and due <= 0:
            self._save()
        elif now >= self._retention_at and not self._holders:
            self._retention_at = now + self._setup.retention_interval
            self._attempt("retention", self._saver.retention)
        elif not ready and self._may_prepare():
            self._prepare()
        if self._beside is not None and not self._holders:
            self._beside.turn()

    def wait_seconds(self) -> float:
        """How long to wait for an event."""
        if self._look_due or self._may_prepare():
            return 0.0
        now = self._clock.monotonic()
        ends = [self._look_at - now, self._walk_at - now]
        if not self._holders:
            ends.append(self._retention_at - now)
            if self._beside is not None:
                ends.append(self._beside.due_in())
        waits = (self._scheduler.due_in(), self._server.due_in())
        ends.extend(wait for wait in waits if wait is not None)
        return max(0.0, min(ends))

    def _listen_to_watcher(self) -> None:
        self._resting = False
        self._look_at = self._clock.monotonic() + self._setup.look_interval
        self._selector.register(self._watcher.fileno(), selectors.EVENT_READ, self._watcher)

    def _look(self) -> None:
        """Read the watcher, then pause; the pause grows while events keep coming."""
        now = self._clock.monotonic()
        quiet = now >= self._look_at + 2 * self._setup.rest
        self._pause = min(_FIRST_REST if quiet else 1.5 * self._pause or _FIRST_REST, self._setup.rest)
        self._look_due = False
        self._attempt("watching", self._changes.read_watcher)
        if not self._resting:
            self._selector.unregister(self._watcher.fileno())
        self._resting = True
        self._look_at = self._clock.monotonic() + self._pause

    def _may_prepare(self) -> bool:
        return self._setup.prepare and self._changes.unprepared and not self._holders and not self._stopping

    def _prepare(self) -> None:
        """Work ahead, a little at a time: a client that calls meanwhile waits for it."""
        paths = self._changes.to_prepare(_PREPARED_AT_ONCE)
        try:
            self._saver.prepare(paths, last=not self._changes.unprepared)
        except HoldfastError as error:
            _log.debug("nothing is prepared: %s", error.message)
        except Exception:  # noqa: BLE001 - as in `_attempt`
            _log.exception("preparing failed")

    def _wake(self) -> None:
        try:
            self._wake_write.send(b"\0")
        except (BlockingIOError, OSError):
            pass  # it is awake already, or gone

    def _clear_wake(self) -> None:
        try:
            while self._wake_read.recv(4096):
                pass
        except BlockingIOError:
            pass

    # -- saving -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Take a checkpoint, or learn why not and try again later."""
        request = CheckpointRequest("auto", f"auto-{isoformat(self._clock.now())[:19]}Z")
        result = self._attempt("saving", lambda: self._saver.checkpoint(request))
        if result is None:
            self._changes.doubt()
            self._scheduler.failed()
            return
        self._saved(counted=result.created)
        if result.created:
            self._made += 1
            _log.info("saved %s %s", result.checkpoint.id[:12], request.label)

    def _save_last(self) -> None:
        self._ended = True
        if self._beside is not None:
            self._beside.end()
        if self._scheduler.unsaved and not self._scheduler.paused:
            self._save()

    def _unsaved(self) -> str | None:
        """Why changes are unsaved; None if there are none."""
        if not self._scheduler.unsaved:
            return None
        return self._failure or "another command was just changing the tree"

    def _saved(self, *, counted: bool) -> None:
        self._failure = None
        self._scanned()
        self._scheduler.saved(counted=counted)

    def _scanned(self) -> None:
        self._look_due = self._changes.scanned() or self._look_due
        # Changes from here on are new.
        self._pause = 0.0
        if self._resting:
            self._look_at = self._clock.monotonic()

    def _attempt(self, what: str, work: Callable[[], _T]) -> _T | None:
        """Do ``work``; None if it fails, which is logged and kept for ``ping``."""
        try:
            return work()
        except HoldfastError as error:
            self._failure = f"{what}: {error.message}"
            _log.warning("%s failed: %s", what, error.message)
        except Exception as error:  # noqa: BLE001 - a watcher that dies of one mistake protects nothing any more
            self._failure = f"{what}: {error!r}"
            _log.exception("%s failed", what)
        return None

    # -- calls --------------------------------------------------------------------------------------------------

    def _answer(self, client: Client, body: bytes) -> bytes:
        return messages.encode_result(self._perform(client, watch_messages.decode_call(body)))

    def _time_in(self, seconds: float | None) -> int | None:
        return None if seconds is None else self._clock.now() + round(seconds * 1_000_000)

    def _perform(self, client: Client, call: watch_messages.WatchCall) -> watch_messages.Json:
        match call.operation:
            case "ping":
                return watch_messages.pack_watching(self._watching())
            case "checkpoint" if call.request is not None:
                if self._holders - {client}:
                    raise LockedError(
                        "another command is just changing the tree", hint="try again when it is done", code="paused"
                    )
                with self._all_changed_on_failure():
                    result = self._saver.checkpoint(call.request)
                self._saved(counted=False)
                return watch_messages.pack_result(result)
            case "status":
                with self._all_changed_on_failure():
                    status = self._saver.status()
                self._scanned()
                status = status._replace(watch_failure=self._failure)
                if not status.clean:
                    status = status._replace(
                        next_save_at=self._time_in(self._scheduler.due_in()),
                        next_save_by=self._time_in(self._scheduler.due_within()),
                    )
                return watch_messages.pack_status(status)
            case "pause":
                if client not in self._holders:
                    self._holders.add(client)
                    client.keeps = True
                    self._scheduler.pause()
            case "hush":
                if client not in self._hushing:
                    self._hushing.add(client)
                    client.keeps = True
                    self._scheduler.pause()
            case "resume":
                self._left(client)
            case _:
                self._stopping = True  # the connection ends when all is closed, for the client to see
                self._save_last()
                return {"unsaved": self._unsaved()}
        return {}

    @contextmanager
    def _all_changed_on_failure(self) -> Generator[None]:
        """Let everything count as changed if the block fails: it may have taken changes that it made no use of."""
        try:
            yield
        except BaseException:
            self._changes.doubt()
            raise

    def _left(self, client: Client) -> None:
        """The client has gone, or wants no pause any more."""
        for clients in (self._holders, self._hushing):
            if client in clients:
                clients.discard(client)
                client.keeps = False
                self._scheduler.resume()

    def _watching(self) -> watch_messages.WatcherState:
        return watch_messages.WatcherState(
            pid=os.getpid(),
            root=display(self._setup.root),
            backend=self._watcher.backend,
            limits=self._watcher.limits,
            started_at=self._started_at,
            paused=self._scheduler.paused,
            unsaved=self._scheduler.unsaved,
            checkpoints=self._made,
            failure=self._failure,
        )

    def _close(self) -> None:
        """Close in the order that others rely on: no new client, then the state saved, then waiting clients."""
        with ExitStack() as rest:
            rest.callback(self._selector.close)
            rest.callback(self._server.hang_up)
            rest.callback(self._watcher.close)
            rest.callback(self._saver.close)
            rest.callback(self._server.close)


def run_service(
    setup: WatchSetup,
    open_saver: Callable[[DirtySource], Saver],
    exclusion: WatchExclusion,
    clock: Clock,
    *,
    ready: Callable[[Watcher], None] | None = None,
    beside: PeriodicTask | None = None,
) -> str | None:
    """Watch one workspace in the foreground, until a signal or a call to stop.

    Returns None if everything is saved at the end, else the reason.

    ``open_saver`` receives the source of changes for the tree's scans; ``exclusion`` names directories without captured
    files. ``ready`` is called when calls are answered; ``beside`` runs in between. Raises `LockedError` if the
    workspace has a watcher, `NotFoundError` if its root is missing.
    """
    with hold_watch_lock(setup.folder):
        watcher = open_watcher(setup.root, setup.backend, exclusion, poll_interval=setup.poll_interval)
        try:
            service = WatchService(setup, watcher, exclusion, open_saver, clock, beside)
        except BaseException:
            watcher.close()
            raise
        return service.run(signals=True, ready=ready)


# The port for a watcher's other periodic work.


class PeriodicTask(Protocol):
    """Periodic work: each turn is short and raises nothing."""

    def due_in(self) -> float:
        """Seconds until `turn` has work."""
        ...

    def turn(self) -> None:
        """Do the work that is due."""
        ...

    def end(self) -> None:
        """Do no more."""
        ...

"""One host for the calls of several clients: one command at a time in each directory, and its events for each call."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
from anyio import to_thread

from holdfast.engine.hosting.monitor import ForeignEdit, KeeperLogged, OperationHeld, StepsRolledBack, VersionMismatch
from holdfast.model.errors import RefusedError
from holdfast.model.log import Log
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from holdfast.api.mcp._call_progress import CallActivity
    from holdfast.engine.hosting.host import Host
    from holdfast.engine.hosting.monitor import HostEvent
    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.undo.service import UndoReport

T = TypeVar("T")

MOST_WRITES: Final = 16
"""Writes that safeguards may hold at one time; each keeps a thread until a person answers."""

MOST_AT_ONCE: Final = 8
"""Calls that look, and as many that change, are worked on at a time: so much memory do their answers take. Others wait.
"""

client: ContextVar[str] = ContextVar("client", default="")
"""Prefix of a connection's request ids in the log."""

_log = Log(__name__)


class SharedHost:
    """See the module. For the thread of the event loop that made it, except `notify`."""

    def __init__(
        self, open_host: Callable[[Callable[[HostedDirectory, HostEvent], object]], Host], *, forks: bytes | None
    ) -> None:
        """``open_host`` makes the host from a function that receives its events. ``forks``: the directory for forks; by
        default they lie beside their origin. Raises `RefusedError` if it lies inside a working directory.
        """
        self._loop = asyncio.get_running_loop()
        self._activities: dict[int, set[CallActivity]] = {}
        self._turns: dict[int, anyio.Lock] = {}
        self._looks = ThreadPoolExecutor(MOST_AT_ONCE, "look")
        self._changes = anyio.CapacityLimiter(MOST_AT_ONCE)
        self._writes = ThreadPoolExecutor(MOST_WRITES, "write")
        self._runs = ThreadPoolExecutor(MOST_AT_ONCE, "run")
        self._free_writes = threading.BoundedSemaphore(MOST_WRITES)
        self._begun: dict[str, list[tuple[HostedDirectory, int]]] = {}
        """By client, the steps that it has begun."""
        self.recovered: list[UndoReport] = []
        """Steps that killed keepers had left open, and that were rolled back."""
        self.forks = None if forks is None else os.path.realpath(forks)
        self.host = open_host(self._notify)
        if forks is not None:
            _check_fork_place(self.host, forks)

    async def recover(self) -> None:
        """Finish what killed keepers have left, before a client is served."""
        await to_thread.run_sync(self.host.recover)

    def note_begun(self, hosted: HostedDirectory, step: int) -> None:
        """Remember that the client of this call has begun a step there."""
        self._begun.setdefault(client.get(), []).append((hosted, step))

    async def end_client(self, name: str) -> None:
        """The client has disconnected: its open step is committed."""
        for hosted, step in self._begun.pop(name, ()):
            await self.change(partial(hosted.abandon_step, step))

    def turn(self, hosted: HostedDirectory) -> anyio.Lock:
        """Held by the call whose command runs there; others wait for it in their order."""
        return self._turns.setdefault(hosted.index, anyio.Lock())

    @contextmanager
    def listening(self, hosted: HostedDirectory, activity: CallActivity) -> Generator[None]:
        """While the block runs, the activity receives the safeguards that hold operations in the directory."""
        activities = self._activities.setdefault(hosted.index, set())
        activities.add(activity)
        try:
            yield
        finally:
            activities.discard(activity)

    async def look(self, work: Callable[[], T]) -> T:
        """Run ``work``, which changes nothing, on a thread. Cancelling drops queued work and abandons work in progress.

        Abandoned work keeps its thread until it ends, so cancelled calls cannot exceed the limit.
        """
        return await asyncio.wrap_future(self._looks.submit(copy_context().run, work))

    async def change(self, work: Callable[[], T]) -> T:
        """Run ``work``, which must complete or do nothing: even a cancelled call waits for it."""
        return await to_thread.run_sync(work, limiter=self._changes)

    async def write(self, work: Callable[[], T]) -> T:
        """Do what a safeguard may hold for long; a cancelled call does not wait for it. Raises `RefusedError`
        (``busy``).
        """
        if not self._free_writes.acquire(blocking=False):
            raise RefusedError(f"{MOST_WRITES} writes wait for a person already", code="busy")

        future = self._writes.submit(copy_context().run, work)
        future.add_done_callback(lambda _: self._free_writes.release())
        return await asyncio.wrap_future(future)

    async def run(self, work: Callable[[threading.Event], T]) -> T:
        """Run ``work``, which starts commands. Cancelling the call sets the event that ``work`` receives, then waits
        for its end.
        """
        stop = threading.Event()
        future = asyncio.wrap_future(self._runs.submit(copy_context().run, work, stop))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([future])
            raise

    def soon(self, work: Callable[[], object]) -> None:
        """Have the thread of the event loop do it; for every thread. Nothing once that has ended, with all clients."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    @property
    def confines(self) -> bool:
        """Whether commands here are kept off anything that those of sessions reach: by isolation, or as it is another
        working directory.
        """
        levels = {hosted.isolation.level for hosted in self.host.directories if hosted.isolation is not None}
        return len(self.host.directories) > 1 or bool(levels - {"none"})

    async def close(self) -> None:
        """Stop what runs, whose end is saved."""
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self.host.close)
        for pool in (self._looks, self._writes, self._runs):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- events of the host, on its own threads ------------------------------------------------------------------------

    def _notify(self, hosted: HostedDirectory, event: HostEvent) -> None:
        match event:
            case OperationHeld():
                _log.info("held", ticket=event.ticket.id, danger=event.ticket.danger, step_id=event.ticket.step)
                self.soon(lambda: self._hold(hosted, event))
            case ForeignEdit():
                _log.info("another process has changed the tree", paths=event.barrier.paths, who=event.barrier.who)
            case StepsRolledBack():
                self.recovered.append(event.report)
            case KeeperLogged():
                pass  # the keeper logs it itself, and no model reads that log
            case VersionMismatch():
                pass  # the code that sets the log aside, or cannot, reports it
            case _:
                _log.warning("%s", event.message, code=event.code)

    def _hold(self, hosted: HostedDirectory, held: OperationHeld) -> None:
        for activity in self._activities.get(hosted.index, ()):
            activity.hold(hosted, held)


def _check_fork_place(host: Host, forks: bytes) -> None:
    """Raise `RefusedError` if forks would lie in a working directory, where commands could replace their place."""
    for hosted in host.directories:
        root = hosted.path.rstrip(b"/")
        if any(under(path, root) for path in (os.path.abspath(forks), os.path.realpath(forks))):
            raise RefusedError(
                f"forks cannot be written to {display(forks)}: it lies in the working directory {display(hosted.path)}",
                hint="--forks takes a directory outside of them",
            )


def recorded_directories(host: SharedHost) -> Sequence[HostedDirectory]:
    """The directories with checkpoints and an undo log."""
    return [hosted for hosted in host.host.directories if hosted.access == "read_write"]

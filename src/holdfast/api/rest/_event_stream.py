"""Events of exports as server-sent events.

The last events of each export are kept, so that a client can resume after a disconnection. A listener that reads too
slowly loses the oldest events, and gets an event that says so.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import OrderedDict, deque
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.model.answers.workspace import Checkpoint
from holdfast.model.clock import isoformat
from holdfast.model.json_encoder import encode
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from holdfast.model.clock import Clock
    from holdfast.model.command_results import CheckpointResult
    from holdfast.model.content import Progress

_log = Log(__name__)

KEPT: Final = 256
"""Events of one export, for who comes back."""
QUEUE: Final = 256
"""Events that wait for one listener."""
EXPORTS: Final = 4096
"""Exports whose events are kept."""
MOST_PATHS: Final = 100
HEARTBEAT: Final = 15.0
LOOK_AGAIN: Final = 10.0
"""Seconds between checks whether a client may still listen."""
_PROGRESS_EVERY: Final = 0.2
_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,18})")

Key = tuple[str, str]


class StreamEvent(NamedTuple):
    """An event. ``number`` 0 is about the stream itself and has no id."""

    number: int
    name: str
    data: dict[str, Any]


class EventListener:
    """One who listens. Events come from any thread, and are kept and taken on the loop's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[StreamEvent] = deque(maxlen=QUEUE)
        self._lost = 0
        self._ended = False
        self._something = asyncio.Event()

    def put(self, event: StreamEvent | None) -> None:
        """Never waits. None: there will be no more."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._arrived, event)

    def _arrived(self, event: StreamEvent | None) -> None:
        if event is None:
            self._ended = True
        else:
            self._lost += len(self._waiting) == QUEUE
            self._waiting.append(event)
        self._something.set()

    async def take(self) -> list[StreamEvent] | None:
        """The events since the last call; empty after a while without any; None at the end."""
        if not self._ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._something.wait(), HEARTBEAT)
        self._something.clear()
        taken = [StreamEvent(0, "lost", {"events": self._lost})] if self._lost else []
        taken += self._waiting
        self._waiting.clear()
        self._lost = 0
        return None if self._ended and not taken else taken


class EventHub:
    """Sends events to listeners. All methods but `listen` may be called from any thread."""

    def __init__(self, clock: Clock, epoch: str) -> None:
        """``epoch``: 8 hex digits, another one for each process."""
        self._clock = clock
        self._epoch = epoch
        self._lock = threading.Lock()
        self._number = 0
        self._kept: OrderedDict[Key, deque[StreamEvent]] = OrderedDict()
        self._dropped: dict[Key, int] = {}
        """The last event of an export that is not kept any more."""
        self._pushed_out = 0
        """And the last of an export of which none is."""
        self._saved: OrderedDict[Key, str] = OrderedDict()
        """The last checkpoint of each export that was published."""
        self._listeners: dict[Key, set[EventListener]] = {}
        self._ended = False

    # -- telling ------------------------------------------------------------------------------------------------

    def happened(self, tenant: str, export: str, event: str, data: dict[str, Any]) -> None:
        """Publish an event of an export."""
        key = tenant, export
        said = {"export": export, "at": isoformat(self._clock.now()), **data}
        with self._lock:
            self._number += 1
            new = StreamEvent(self._number, event, said)
            kept = self._kept.setdefault(key, deque())
            kept.append(new)
            if len(kept) > KEPT:
                self._dropped[key] = kept.popleft().number
            self._kept.move_to_end(key)
            if len(self._kept) > EXPORTS:
                gone, theirs = self._kept.popitem(last=False)
                self._pushed_out = theirs[-1].number
                self._dropped.pop(gone, None)
            listeners = list(self._listeners.get(key, ()))
        for listener in listeners:
            listener.put(new)

    def changed(self, tenant: str, export: str, paths: Iterable[bytes] | None) -> None:
        """See `holdfast.engine.exports._export_worker.ExportListener`."""
        shown = [] if paths is None else sorted(paths)
        data = {"paths": [display(path) for path in shown[:MOST_PATHS]]}
        more = {"total": None if paths is None else len(shown)}
        self.happened(tenant, export, "changed", {**data, **more})

    def listens(self, tenant: str, export: str) -> bool:
        """See `holdfast.engine.exports._export_worker.ExportListener`."""
        with self._lock:
            return (tenant, export) in self._listeners

    def saved(self, tenant: str, export: str, result: CheckpointResult) -> None:
        """See `holdfast.engine.exports._export_worker.ExportListener`. Each checkpoint is sent once, though both the
        request for it and the process that took it report it.
        """
        key, name = (tenant, export), result.checkpoint.id
        with self._lock:
            if not result.created or self._saved.get(key) == name:
                return
            self._saved[key] = name
            if len(self._saved) > EXPORTS:
                self._saved.popitem(last=False)
        self.happened(tenant, export, "checkpoint", {"checkpoint": encode(Checkpoint, result.checkpoint)})

    def progress(self, tenant: str, export: str, operation: str, request_id: str) -> Progress:
        """Tells how far an operation is, a few times a second."""
        told_at = self._clock.monotonic()

        def tell(phase: str, done: int, total: int) -> None:
            nonlocal told_at
            now = self._clock.monotonic()
            if now - told_at >= _PROGRESS_EVERY:
                told_at = now
                data = {"operation": operation, "phase": phase, "done": done, "total": total, "request_id": request_id}
                self.happened(tenant, export, "progress", data)

        return tell

    # -- listening ----------------------------------------------------------------------------------------------

    async def listen(self, tenant: str, export: str, last: str | None) -> AsyncGenerator[bytes]:
        """The events of an export from now on, or after the one with the id ``last``, as sent."""
        key = tenant, export
        listener = EventListener()
        with self._lock:
            missed = self._since(key, last)
            self._listeners.setdefault(key, set()).add(listener)
            if self._ended:
                listener.put(None)
        try:
            yield b"retry: 2000\n\n"
            yield b"".join(map(self._encoded, missed))
            while (events := await listener.take()) is not None:
                yield b"".join(map(self._encoded, events)) or b": \n\n"
        finally:
            with self._lock:
                rest = self._listeners.get(key, set())
                rest.discard(listener)
                if not rest:
                    self._listeners.pop(key, None)

    def end(self) -> None:
        """End all streams, and every later one at once."""
        with self._lock:
            self._ended = True
            listeners = [one for some in self._listeners.values() for one in some]
        for listener in listeners:
            listener.put(None)

    def count(self) -> int:
        """How many listen."""
        with self._lock:
            return sum(map(len, self._listeners.values()))

    def _since(self, key: Key, last: str | None) -> list[StreamEvent]:
        """The events after ``last``, the last that a client had; if some are lost, one event that says so."""
        if last is None:
            return []
        match = _ID.fullmatch(last)
        kept = self._kept.get(key, ())
        # Exports whose events were all dropped are not remembered, so each unknown export may be one of them.
        if match is None or match[1] != self._epoch or int(match[2]) < self._dropped.get(key, self._pushed_out):
            return [StreamEvent(0, "reset", {"export": key[1]})]
        return [event for event in kept if event.number > int(match[2])]

    def _encoded(self, event: StreamEvent) -> bytes:
        head = f"id: {self._epoch}-{event.number}\n" if event.number else ""
        return f"{head}event: {event.name}\ndata: {json.dumps(event.data)}\n\n".encode()


async def while_allowed(
    events: AsyncGenerator[bytes], may_listen: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[bytes]:
    """``events`` until they end, or until ``may_listen``, which is called now and then, returns False.

    An error here ends the stream and is logged: the response has begun, so its status cannot change.
    """
    checked = time.monotonic()
    try:
        async with aclosing(events):
            async for piece in events:
                if piece:
                    yield piece
                if time.monotonic() - checked > LOOK_AGAIN:
                    checked = time.monotonic()
                    if not await may_listen():
                        return
    except Exception:  # noqa: BLE001 - whatever it is, it is told in the log
        _log.exception("a stream of events has ended by an error")

"""Opened stores, lent to one request each: a store is for one thread at a time, and opening one takes a while."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.exports.named_workspaces import Exports
from holdfast.model.errors import NotFoundError, RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.engine.opening.opener import Opener


class Door:
    """A tenant's store, opened, and its exports."""

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self.exports = Exports(opener)


class Doors:
    """Lends doors. Idle ones are kept, ``most`` of them; those of the tenant that was asked for last stay longest."""

    def __init__(self, open_tenant: Callable[[str], Opener], most: int) -> None:
        self._open = open_tenant
        self._most = most
        self._lock = threading.Lock()
        self._idle: OrderedDict[str, deque[Door]] = OrderedDict()
        self._count = 0
        self._closed = False

    @contextmanager
    def of(self, tenant: str) -> Generator[Door]:
        """A door of this tenant, for the length of the block and this thread alone.

        One that an error came from is not used again, unless it was the request's: it may be about the store.
        """
        door = self._take(tenant)
        if door is None:
            opener = self._open(tenant)
            try:
                door = Door(opener)
            except BaseException:
                opener.close()
                raise
        try:
            yield door
        except (NotFoundError, RefusedError, UsageError):
            self._give_back(tenant, door)
            raise
        except BaseException:
            door.opener.close()
            raise
        self._give_back(tenant, door)

    def close(self) -> None:
        """Close those that are idle, and from now on each when it comes back."""
        with self._lock:
            self._closed = True
            idle = [door for doors in self._idle.values() for door in doors]
            self._idle.clear()
        for door in idle:
            door.opener.close()

    def _take(self, tenant: str) -> Door | None:
        with self._lock:
            doors = self._idle.get(tenant)
            if not doors:
                return None
            self._idle.move_to_end(tenant)
            self._count -= 1
            return doors.pop()

    def _give_back(self, tenant: str, door: Door) -> None:
        over: Door | None = None
        with self._lock:
            if self._closed:
                over = door
            else:
                self._idle.setdefault(tenant, deque()).append(door)
                self._idle.move_to_end(tenant)
                self._count += 1
                if self._count > self._most:
                    over = self._oldest()
        if over is not None:
            over.opener.close()

    def _oldest(self) -> Door | None:
        for name in list(self._idle):
            if self._idle[name]:
                self._count -= 1
                return self._idle[name].popleft()
            del self._idle[name]
        return None

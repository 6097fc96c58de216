"""Opened stores, lent to one request each: a store is for one thread at a time, and opening one takes a while."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.exports.named_workspaces import Exports
from holdfast.engine.upkeep.store_copies import try_objects
from holdfast.model.errors import NotFoundError, RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.engine.opening.opener import Opener


class OpenedStore:
    """A tenant's store, opened, and its exports."""

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self.exports = Exports(opener)


class StorePool:
    """Lends stores to requests. It keeps at most ``most`` idle ones, the last used."""

    def __init__(self, open_tenant: Callable[[str], Opener], most: int) -> None:
        self._open = open_tenant
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[tuple[str, OpenedStore]] = []
        """The last used at the end."""
        self._closed = False

    @contextmanager
    def lend(self, tenant: str) -> Generator[OpenedStore]:
        """A store of this tenant, for the length of the block and this thread alone.

        After an error the store is closed, unless the request caused the error: the store may be at fault.
        """
        store = self._take(tenant)
        if store is None:
            opener = self._open(tenant)
            try:
                store = OpenedStore(opener)
            except BaseException:
                opener.close()
                raise
        try:
            yield store
        except (NotFoundError, RefusedError, UsageError):
            self._give_back(tenant, store)
            raise
        except BaseException:
            store.opener.close()
            raise
        self._give_back(tenant, store)

    def try_objects(self) -> None:
        """Write, read and delete an object where the home's are kept. Raises what fails there."""
        opener = self._open("")
        try:
            try_objects(opener)
        finally:
            opener.close()

    def close(self) -> None:
        """Close the idle stores, and from now on every store that is returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, store in idle:
            store.opener.close()

    def _take(self, tenant: str) -> OpenedStore | None:
        with self._lock:
            for at in reversed(range(len(self._idle))):
                if self._idle[at][0] == tenant:
                    return self._idle.pop(at)[1]
        return None

    def _give_back(self, tenant: str, store: OpenedStore) -> None:
        with self._lock:
            self._idle.append((tenant, store))
            keeps = 0 if self._closed else self._most
            over = self._idle[: max(0, len(self._idle) - keeps)]
            del self._idle[: len(over)]
        for _, each in over:
            each.opener.close()

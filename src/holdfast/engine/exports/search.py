"""Looking for directories of exports that are not where they were, so that nobody who asks for one waits for that.

All that are missing are looked for together, by one walk of their file systems; what is not found is looked for again
after a while, each time after a longer one.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.engine.opening.deleted import find_moved
from holdfast.engine.opening.folder import folder_in
from holdfast.model.errors import NotFoundError
from holdfast.store.records import seen_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.engine.opening.opening import Opener
    from holdfast.model.clock import Clock
    from holdfast.model.ids import WorkspaceId
    from holdfast.store.records import Workspace

_Missing = tuple[str, "WorkspaceId"]
"""A tenant, and a workspace of it."""


class Finder:
    """For one thread."""

    def __init__(self, open_tenant: Callable[[str], Opener], clock: Clock, retry: Callable[[int], float]) -> None:
        """``retry`` says how long to leave one alone that was not found so many times, in seconds."""
        self._open_tenant = open_tenant
        self._clock = clock
        self._retry = retry
        self._tried: dict[_Missing, tuple[int, float]] = {}
        """How often each was looked for, and when it is to be again."""

    def look(self, missing: Iterable[_Missing]) -> None:
        """Look for those of the ``missing`` whose time has come, and note where one is. Raises `HoldfastError`."""
        now = self._clock.monotonic()
        known = {one: self._tried.get(one, (0, now)) for one in missing}
        due = sorted(one for one, (_, at) in known.items() if at <= now)
        self._tried = known | {one: (known[one][0] + 1, now + self._retry(known[one][0])) for one in due}
        for tenant in dict.fromkeys(tenant for tenant, _ in due):
            with closing(self._open_tenant(tenant)) as opener:
                self._look_for(opener, [workspace for of, workspace in due if of == tenant])

    def _look_for(self, opener: Opener, names: Iterable[WorkspaceId]) -> None:
        catalog = opener.store().catalog
        records: list[Workspace] = []
        for name in names:
            try:
                record = catalog.workspace(name)
            except NotFoundError:
                continue
            if not os.path.lexists(seen_at(record.path)):
                records.append(record)
        for path in find_moved(records, lambda one: folder_in(opener.home, one)).values():
            opener.open(path)  # which notes that it is there

"""Whose turn it is with an export."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.api.rest._export_locks import ExportTurns
from holdfast.model.errors import (
    LockedError,
)


def test_one_changes_at_a_time_and_others_may_look() -> None:
    async def turns() -> None:
        found = ExportTurns(2)
        end = await found.take(("t", "e"), 1, changing=True)
        with pytest.raises(LockedError):
            await found.take(("t", "e"), 0.01, changing=True)
        look = await found.take(("t", "e"), 1, changing=False)
        with pytest.raises(LockedError):
            await found.take(("t", "e"), 0.01, changing=False)
        other = await found.take(("t", "f"), 1, changing=True)
        waiting = asyncio.ensure_future(found.take(("t", "e"), 10, changing=True))
        await asyncio.sleep(0)
        end()
        look()
        (await waiting)()
        other()
        assert found._turns == {}

    asyncio.run(turns())

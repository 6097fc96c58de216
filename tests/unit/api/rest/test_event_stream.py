"""What happens to exports, as those who listen hear it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from holdfast.api.rest import _event_stream as event_stream
from holdfast.api.rest._event_stream import EventHub, while_allowed
from holdfast.testing.clocks import ManualClock


async def heard(hub: EventHub, last: str | None, until: int, meanwhile: Callable[[], object] = lambda: None) -> bytes:
    """What a listener gets until there are so many events."""
    stream = hub.listen("t", "e", last)
    said = await anext(stream)
    said += await anext(stream)
    meanwhile()
    while said.count(b"event:") < until:
        said += await anext(stream)
    await stream.aclose()
    return said


def run(work: Awaitable[bytes]) -> list[str]:
    """The names and ids of what was heard."""
    said = asyncio.run(asyncio.wait_for(work, 30))
    return [line for line in said.decode().splitlines() if line.startswith(("id:", "event:"))]


def tell(hub: EventHub, count: int, export: str = "e") -> None:
    for number in range(count):
        hub.happened("t", export, f"n{number}", {})


def test_who_was_cut_off_goes_on_behind_the_last_event() -> None:
    hub = EventHub(ManualClock(), "0000000a")
    tell(hub, 3)
    assert run(heard(hub, "0000000a-1", 2)) == ["id: 0000000a-2", "event: n1", "id: 0000000a-3", "event: n2"]
    assert run(heard(hub, "0000000a-3", 1, lambda: tell(hub, 1)))[-1] == "event: n0"
    for strange in ("0000000b-1", "nonsense", "", "0000000a-" + "9" * 30):
        assert run(heard(hub, strange, 1)) == ["event: reset"]


def test_what_was_dropped_is_told_and_not_left_out() -> None:
    hub = EventHub(ManualClock(), "0000000a")
    tell(hub, event_stream.KEPT + 2)
    assert run(heard(hub, "0000000a-1", 1)) == ["event: reset"]
    assert len(run(heard(hub, "0000000a-2", event_stream.KEPT))) == 2 * event_stream.KEPT


def test_an_export_whose_events_others_have_pushed_out_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "EXPORTS", 2)
    hub = EventHub(ManualClock(), "0000000a")
    tell(hub, 2)
    tell(hub, 1, "second")
    tell(hub, 1, "third")
    assert run(heard(hub, "0000000a-1", 1)) == ["event: reset"]
    assert run(heard(hub, "0000000a-2", 1, lambda: tell(hub, 1))) == ["id: 0000000a-5", "event: n0"]
    # By now others have pushed "second" out, and there is something of this one again.
    assert run(heard(hub, "0000000a-1", 1)) == ["event: reset"]
    assert run(heard(hub, "0000000a-4", 1)) == ["id: 0000000a-5", "event: n0"]


def test_a_slow_listener_loses_the_oldest_and_is_told_so() -> None:
    hub = EventHub(ManualClock(), "0000000a")
    said = run(heard(hub, None, event_stream.QUEUE + 1, lambda: tell(hub, event_stream.QUEUE + 5)))
    assert said[0] == "event: lost"
    assert said[-1] == f"event: n{event_stream.QUEUE + 4}"
    assert hub.count() == 0


def test_nobody_hears_of_another_tenants_export_or_after_the_end() -> None:
    hub = EventHub(ManualClock(), "0000000a")
    hub.happened("other", "e", "theirs", {})
    tell(hub, 1, "another")
    hub.end()

    async def all_of_it() -> bytes:
        return b"".join([piece async for piece in hub.listen("t", "e", "0000000a-0")])

    assert run(all_of_it()) == []


def test_a_stream_that_fails_ends_and_begins_no_other_answer(caplog: pytest.LogCaptureFixture) -> None:
    """What has been said cannot be taken back: a second head would be an error of the server's."""

    async def broken() -> AsyncGenerator[bytes]:
        yield b"data: one\n\n"
        raise ValueError("a mistake")

    async def listened() -> list[bytes]:
        return [piece async for piece in while_allowed(broken(), may_listen)]

    async def may_listen() -> bool:
        return True

    assert asyncio.run(listened()) == [b"data: one\n\n"]
    assert "a mistake" in caplog.text


def test_a_stream_ends_when_its_token_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "LOOK_AGAIN", -1.0)
    ended: list[bool] = []

    async def endless() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"data: one\n\n"
        finally:
            ended.append(True)

    async def listened() -> list[bytes]:
        return [piece async for piece in while_allowed(endless(), may_listen)]

    async def may_listen() -> bool:
        return False

    assert asyncio.run(listened()) == [b"data: one\n\n"]
    assert ended

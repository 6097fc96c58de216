"""Running commands again on another base: in their order, until one ends differently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engine.sessions.exchange.command_replay import RepeatedCommand, commands_between, replay
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.errors import HoldfastError, NotFoundError

Make = Callable[[], Sessions]


def test_commands_are_run_again_from_another_state(make: Make, session: Session) -> None:
    before = session.branch("before")
    execute(session, "export NAME=them; mkdir d; cd d")
    execute(session, "echo for $NAME > f; cat ../a", input="say whom it is for")
    root = Path(session.fork("side", checkpoint=before.checkpoint).root.decode())
    told: list[RepeatedCommand] = []
    with make() as sessions, sessions.open("side") as side:
        (root / "a").write_text("another\n")
        done = replay(side, commands_between(session.history(), 1, None), tell=told.append)
        assert not done.stopped
        assert list(done.repeated) == told
        assert [one.same_end for one in told] == [True, True]
        assert [one.same_output for one in told] == [True, False]
        assert side.history()[0].input == "say whom it is for"
    assert (root / "d" / "f").read_text() == "for them\n"


def test_it_stops_at_the_first_that_ends_differently(make: Make, session: Session) -> None:
    before = session.branch("before")
    for command in ("touch x", "test -e a", "touch y"):
        execute(session, command)
    root = Path(session.fork("side", checkpoint=before.checkpoint).root.decode())
    (root / "a").unlink()
    commands = commands_between(session.history(), 1, None)
    with make() as sessions, sessions.open("side") as side:
        done = replay(side, commands)
        assert [one.before.command for one in done.repeated] == ["touch x", "test -e a"]
        assert [one.command for one in done.left] == ["touch y"]
        assert done.stopped
        assert not (root / "y").exists()
        assert replay(side, commands, keep_going=True).left == ()
    assert (root / "y").exists()


def test_it_can_be_cancelled(session: Session) -> None:
    import threading

    stop = threading.Event()
    entry = execute(session, "true")
    with pytest.raises(HoldfastError) as caught:
        replay(session, [entry, entry], tell=lambda _: stop.set(), stop=stop)
    assert caught.value.code == "cancelled"


def test_which_commands(session: Session) -> None:
    entries = [execute(session, f"echo {number}") for number in range(4)]
    assert [one.seq for one in commands_between(session.history(), 2, 3)] == [2, 3]
    assert commands_between(session.history(), 1, None) == entries
    with pytest.raises(NotFoundError):
        commands_between(session.history(), 5, None)

"""Searching for the first bad state with a real command in a real fork, which is gone afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engine.sessions.exchange.bisection import BisectResult, Bounds, TriedState, bisect, resolve_state
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.ids import CheckpointId

Make = Callable[[], Sessions]


@pytest.fixture
def numbered(session: Session) -> list[CheckpointId]:
    """Twelve states, of which the file n holds the number: the first is 0."""
    return [tree for number in range(12) if (tree := execute(session, f"echo {number} > n").after) is not None]


def found(bisected: BisectResult) -> list[CheckpointId]:
    return [one.id for one in bisected.candidates]


def left(make: Make) -> list[str]:
    with make() as sessions:
        return [one.id for one in sessions.list()]


def test_the_first_bad_state_and_the_command_that_made_it(
    make: Make, session: Session, numbered: list[CheckpointId], tree: Path
) -> None:
    told: list[TriedState] = []
    answer = bisect(make, session, "test $(cat n) -lt 7", Bounds(numbered[0], numbered[-1]), tell=told.append)
    assert found(answer) == [numbered[7]]
    assert answer.command is not None
    assert answer.command.command == "echo 7 > n"
    assert list(answer.tried) == told
    assert len(told) <= 2 + 4
    assert [one.left for one in told][-1] == 0
    assert (tree / "n").read_text() == "11\n"
    assert left(make) == ["main"]


def test_states_that_cannot_be_told_are_left_open(make: Make, session: Session, numbered: list[CheckpointId]) -> None:
    command = "case $(cat n) in 6|7) exit 125;; [0-5]) exit 0;; *) exit 1;; esac"
    answer = bisect(make, session, command, Bounds(numbered[0], numbered[-1]))
    assert found(answer) == numbered[6:9]
    assert answer.command is None
    assert {one.verdict for one in answer.tried} == {"good", "bad", "skip"}


def test_what_the_command_leaves_in_one_state_is_not_in_the_next(
    make: Make, session: Session, numbered: list[CheckpointId]
) -> None:
    command = "test ! -e trace && touch trace && echo x >> n; mkdir -p d && cd d && test $(head -1 ../n) -lt 3 # so"
    assert found(bisect(make, session, command, Bounds(numbered[0], numbered[-1]))) == [numbered[3]]


def test_states_that_are_alike_are_asked_about_once(make: Make, session: Session) -> None:
    first = session.state.tree
    assert first is not None
    last = execute(session, "echo x > a").after
    assert last is not None
    answer = bisect(make, session, "! grep x a", Bounds(first, last))
    assert found(answer) == [last]
    assert len(answer.tried) == 2


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("true", "is named bad, but the command finds it good"),
        ("false", "is named good, but the command finds it bad"),
        ("exit 125", "untestable"),
        ("no-such-program", "ended with 127"),
        ("kill -9 $$", "ended with 137"),
    ],
)
def test_a_command_that_does_not_tell_them_apart_is_found_out(
    make: Make, session: Session, numbered: list[CheckpointId], command: str, reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason) as caught:
        bisect(make, session, command, Bounds(numbered[0], numbered[-1]))
    assert caught.value.code == "not_bisectable"
    assert left(make) == ["main"]


def test_states_that_are_not_in_one_line(make: Make, session: Session, numbered: list[CheckpointId]) -> None:
    with pytest.raises(UsageError, match="none of the states that led to"):
        bisect(make, session, "true", Bounds(numbered[5], numbered[2]))
    with pytest.raises(UsageError, match="no state lies between"):
        bisect(make, session, "true", Bounds(numbered[5], numbered[5]))


def test_it_can_be_cancelled(make: Make, session: Session, numbered: list[CheckpointId]) -> None:
    stop = threading.Event()
    with pytest.raises(HoldfastError) as caught:
        bisect(
            make,
            session,
            "test $(cat n) -lt 7",
            Bounds(numbered[0], numbered[-1]),
            tell=lambda _: stop.set(),
            stop=stop,
        )
    assert caught.value.code == "cancelled"
    assert left(make) == ["main"]


def test_a_state_is_named_as_a_checkpoint_or_as_a_sessions(session: Session) -> None:
    execute(session, "echo 1 > a")
    session.branch("here")
    at = session.workspace.resolve("@")
    assert resolve_state(session, "@") == resolve_state(session, "here") == resolve_state(session, at[:8]) == at
    assert resolve_state(session, session.head.hash[:10]) == at
    with pytest.raises(NotFoundError):
        resolve_state(session, "nowhere")

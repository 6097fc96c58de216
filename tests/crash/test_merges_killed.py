"""I3: merging and adopting, killed at every durable step: the tree is the one before or the one after, or the restore
that was cut short is finished; nothing is lost of either side.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.experiments.attempts import Attempt, Order
from holdfast.engine.experiments.experiment import experiment
from holdfast.engine.sessions.exchange.state_merge import merge
from holdfast.engine.sessions.registry import Sessions

if TYPE_CHECKING:
    from collections.abc import Generator

    from crash.conftest import Place


@contextmanager
def opened(place: Place, name: str = "one") -> Generator[tuple]:
    def make() -> Sessions:
        return Sessions(home=os.fsencode(place.home), agent="me")

    with make() as sessions, sessions.open(name) as session:
        yield make, session


def lived(place: Place) -> None:
    """A session, and a fork of it in which a file was changed and another one added."""
    place.path(b"a").write_text("a")
    place.path(b"b").write_text("b")
    place.init().close()
    with (
        Sessions(home=os.fsencode(place.home), agent="me") as sessions,
        sessions.start(os.fsencode(place.tree), "one") as session,
    ):
        root = Path(os.fsdecode(session.fork("side", provider="holdfast").root))
    (root / "a").write_text("theirs")
    (root / "new").write_text("theirs")
    place.path(b"b").write_text("ours")


def content(place: Place) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(os.fsdecode(place.tree)).iterdir()}


BEFORE = {"a": "a", "b": "ours"}
AFTER = {"a": "theirs", "b": "ours", "new": "theirs"}


@pytest.mark.usefixtures("written_out")
def test_i3_killed_while_it_merges(place: Place) -> None:
    lived(place)

    def work() -> None:
        with opened(place) as (make, session):
            merge(make, session, "side")

    seen = set()
    for death in place.deaths(work, most=14):
        with opened(place) as (make, session):
            assert session.workspace.unfinished() is None, death
            assert content(place) in (BEFORE, AFTER), death
            said = [point.message for point in session.past() if point.metadata.get("merged") == "side"]
            assert bool(said) == (content(place) == AFTER), death
            seen.add(len(content(place)))
            merge(make, session, "side")
            assert content(place) == AFTER, death
            assert session.workspace.status().clean
            session.workspace.undo()
            assert content(place)["b"] == "ours", death
        place.sound(collect=False)
    assert seen == {2, 3}


def test_i3_killed_in_an_experiment_that_adopts(place: Place) -> None:
    place.path(b"a").write_text("a")
    place.init().close()
    with Sessions(home=os.fsencode(place.home), agent="me") as sessions:
        sessions.start(os.fsencode(place.tree), "one").close()
    order = Order([Attempt(1, "best", "echo -n better > a"), Attempt(2, "other", "exit 1")])
    forks = place.root / "home-forks"

    def work() -> None:
        with opened(place) as (make, session), experiment(make, session, order) as found:
            found.adopt()

    seen = set()
    for death in place.deaths(work, most=14):
        with Sessions(home=os.fsencode(place.home), agent="me") as sessions:
            sessions.sweep()
            assert [one.id for one in sessions.list()] == ["one"], death
        assert not forks.exists() or os.listdir(forks) == [], death
        with opened(place) as (_, session):
            assert session.workspace.unfinished() is None, death
            assert place.path(b"a").read_text() in ("a", "better"), death
            adopted = session.head.message.startswith("adopted")
            assert adopted == (place.path(b"a").read_text() == "better"), death
            seen.add(place.path(b"a").read_text())
        place.sound(collect=False)
    assert seen == {"a", "better"}

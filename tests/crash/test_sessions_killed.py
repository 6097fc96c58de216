"""I3: a session, killed at every durable step, goes on where it was; it loses at most the command in flight.

Each death is real, as in ``test_engine_killed.py``.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.sessions.registry import Sessions
from holdfast.model.errors import NotFoundError
from holdfast.model.session_types import CommandResult

if TYPE_CHECKING:
    from collections.abc import Generator

    from crash.conftest import Place
    from holdfast.engine.sessions.session import Session

DONE = CommandResult(exit_code=0, stdout="out", stderr="")


@contextmanager
def sessions(place: Place, **flags: object) -> Generator[Sessions]:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    with Sessions(home=os.fsencode(place.home), agent="me", flags=given) as found:
        yield found


def command(place: Place, session: Session, text: str, **exported: str) -> None:
    entry = session.begin(text, level="changes")
    place.path(b"a").write_text(text)
    session.end(entry, DONE, cwd=".", env={**session.environment(), **exported}, duration_ms=1)


def lived(place: Place) -> None:
    """A session with two commands and a branch between them."""
    place.path(b"a").write_text("first")
    place.init().close()
    with sessions(place) as all_of_them, all_of_them.start(os.fsencode(place.tree), "one") as session:
        command(place, session, "one", A="1")
        session.branch("back")
        command(place, session, "two", A="2")


def texts(session: Session) -> list[str]:
    return [entry.command for entry in session.history()[::-1]]


def test_i3_killed_while_it_begins(place: Place) -> None:
    place.path(b"a").write_text("first")
    place.init().close()

    def work() -> None:
        with sessions(place) as all_of_them:
            all_of_them.start(os.fsencode(place.tree), "one").close()

    for death in place.deaths(work, most=14):
        with sessions(place) as all_of_them:
            try:
                session = all_of_them.open("one")
            except NotFoundError:
                session = all_of_them.start(os.fsencode(place.tree), "one")
            with session:
                command(place, session, "on")
                assert texts(session) == ["on"], death
        place.sound()


def test_i3_killed_while_a_command_is_journalled(place: Place) -> None:
    lived(place)

    def work() -> None:
        flags = {"session__commands": 3, "session__min_interval": 0}
        with sessions(place, **flags) as all_of_them, all_of_them.open("one") as session:
            command(place, session, "three", A="3")

    seen = set()
    for death in place.deaths(work, most=12):
        now = place.path(b"a").read_text()
        with sessions(place) as all_of_them, all_of_them.open("one") as session:
            assert place.path(b"a").read_text() == now, "nothing old is put over it"
            said = texts(session)
            assert said[:2] == ["one", "two"], death
            assert said[2:] in ([], ["three"]), death
            last = session.history(1)[0]
            whole = last.command == "three" and last.result == DONE
            seen.add((len(said), last.result is None))
            assert session.state.env["A"] == ("3" if whole else "2"), death
            if now == "three":
                assert len(said) == 3, "a command that has changed something had been journalled"
            assert session.state.metrics.recoveries == int(last.result is None), death
            command(place, session, "four", A="4")
            assert [entry.seq for entry in session.history()[::-1]] == list(range(1, len(said) + 2)), death
            session.checkout("back")
            assert place.path(b"a").read_text() == "one"
            assert session.state.env["A"] == "1"
        place.sound()
    assert {(2, False), (3, True)} <= seen


@pytest.mark.usefixtures("written_out")
def test_i3_killed_while_a_state_is_saved_beside_a_command(place: Place) -> None:
    lived(place)

    def work() -> None:
        with sessions(place) as all_of_them, all_of_them.open("one") as session:
            entry = session.begin("three", level="changes")
            place.path(b"a").write_text("half")
            with session.asked_by("me"):
                session.checkpoint("beside")
                session.fork("side", provider="holdfast")
            place.path(b"a").write_text("three")
            session.end(entry, DONE, cwd=".", env={**session.environment(), "A": "3"}, duration_ms=1)

    seen = set()
    for death in place.deaths(work, most=14):
        with sessions(place) as all_of_them:
            all_of_them.sweep()
            with all_of_them.open("one") as session:
                said = texts(session)
                assert said in (["one", "two"], ["one", "two", "three"]), death
                last = session.history(1)[0]
                assert session.state.env["A"] == ("3" if last.result and last.command == "three" else "2"), death
                beside = [point for point in session.past() if point.message == "beside"]
                seen.add((len(said), len(beside)))
                for point in beside:
                    assert (point.state.seq, point.state.env["A"]) == (2, "2"), death
                    assert session.workspace.diff(point.state.tree, last.before).changes, death
                command(place, session, "four")
                assert [entry.seq for entry in session.history()[::-1]] == list(range(1, len(said) + 2)), death
            for info in all_of_them.list():
                if info.id == "side":
                    with all_of_them.open("side") as fork:
                        assert texts(fork) == ["one", "two"], death
                        assert Path(os.fsdecode(fork.root), "a").read_text() == "half"
        place.sound(collect=False)
    assert {(3, 0), (3, 1)} <= seen


def test_i3_killed_while_a_state_is_saved(place: Place) -> None:
    lived(place)

    def work() -> None:
        with sessions(place) as all_of_them, all_of_them.open("one") as session:
            session.branch("new", message="m")

    for death in place.deaths(work, most=10):
        with sessions(place) as all_of_them, all_of_them.open("one") as session:
            assert texts(session) == ["one", "two"], death
            assert session.state.env["A"] == "2", death
            there = [ref.name for ref in session.branches()]
            if "branches/one/new" not in there:
                session.branch("new", message="m")
            assert session.find("new").message == "m"
            assert session.find("new").state.seq == 2
        place.sound()


def test_i3_killed_during_a_checkout_it_is_finished_or_never_was(place: Place) -> None:
    lived(place)

    def work() -> None:
        with sessions(place) as all_of_them, all_of_them.open("one") as session:
            session.checkout("back")

    ends = set()
    for death in place.deaths(work, most=14):
        with sessions(place) as all_of_them, all_of_them.open("one") as session:
            tree, env = place.path(b"a").read_text(), session.state.env["A"]
            assert (tree, env) in (("one", "1"), ("two", "2")), death
            assert texts(session) == (["one"] if tree == "one" else ["one", "two"]), death
            assert session.workspace.unfinished() is None, death
            ends.add(tree)
            session.checkout("back")
            assert place.path(b"a").read_text() == "one", death
        place.sound(collect=False)
    assert ends == {"one", "two"}


@pytest.mark.usefixtures("written_out")
def test_i3_killed_while_a_fork_is_made_or_deleted_nothing_is_left_after_a_sweep(place: Place) -> None:
    lived(place)
    forks = place.root / "home-forks"

    def make() -> None:
        with sessions(place) as all_of_them, all_of_them.open("one") as session:
            session.fork("side", provider="holdfast")

    def delete() -> None:
        with sessions(place) as all_of_them:
            all_of_them.open("side").delete()

    for work in (make, delete):
        if work is delete:
            place.put_back("start")
            make()
        for death in place.deaths(work, most=10):
            with sessions(place) as all_of_them:
                all_of_them.sweep()
                known = {info.id: info for info in all_of_them.list()}
                assert set(known) <= {"one", "side"}, death
                assert all(info.status == "live" for info in known.values()), death
                assert len(list(forks.glob("*/*"))) == ("side" in known), death
                if "side" in known:
                    with all_of_them.open("side") as fork:
                        assert texts(fork) == ["one", "two"], death
                        (tree,) = forks.glob("*/*/tree")
                        (tree / "a").write_text("on")
                        fork.delete()
                with all_of_them.open("one") as session:
                    assert texts(session) == ["one", "two"], death
                    catalog = session.workspace._context.catalog
                    assert [one.id for one in catalog.workspaces() if one.live] == [session.workspace.id], death
                    others = [one.id for one in catalog.checkpoints() if one.workspace != session.workspace.id]
                    assert others == [], death
            place.sound()


def test_i3_killed_while_states_are_moved_they_are_never_in_no_place(place: Place) -> None:
    lived(place)
    flags = {"session__hot": 0, "session__warm": 0, "session__cold_url": str(place.root / "cold")}

    def work() -> None:
        with sessions(place, **flags) as all_of_them:
            all_of_them.sweep()

    for death in place.deaths(work, most=14):
        for _ in range(2):
            with sessions(place, **flags) as all_of_them:
                with all_of_them.open("one") as session:
                    assert texts(session) == ["one", "two"], death
                    assert session.workspace.verify(read_data=True).ok, death
                all_of_them.sweep()


@pytest.mark.parametrize("first", [8, 14, 20, 26])
def test_i3_killed_again_while_it_is_mended_it_converges(place: Place, first: int) -> None:
    from holdfast.testing.crash_points import run_killed

    lived(place)
    place.keep("start")

    def work() -> None:
        with sessions(place) as all_of_them, all_of_them.open("one") as session:
            session.checkout("back")

    def mend() -> None:
        with sessions(place) as all_of_them:
            all_of_them.open("one").close()

    run_killed(work, first)
    for fatal in range(1, 200, 2):
        if not run_killed(mend, fatal).killed:
            break
    with sessions(place) as all_of_them, all_of_them.open("one") as session:
        tree, env = place.path(b"a").read_text(), session.state.env["A"]
        assert (tree, env) in (("one", "1"), ("two", "2"))
        assert session.workspace.unfinished() is None
        assert session.state.metrics.recoveries <= 2
    place.sound()

"""What a session remembers of its commands, and when it saves its state."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import LockedError, NotFoundError, RefusedError, UsageError
from holdfast.model.session_types import CommandResult, SessionConfig, Triggers


def test_a_session_goes_on_where_it_was(bench):
    (bench.tree / "sub").mkdir()
    with bench.start() as session:
        assert session.directory() == os.fsencode(bench.tree)
        first = bench.run(session, bench.write("1"), cwd=str(bench.tree / "sub"), A="1", LANG="de", HOME=None)
        second = bench.run(session, A="2\nlines", B="x")
        assert (first.seq, second.seq) == (1, 2)
    with bench.open() as session:
        state = session.state
        assert (state.cwd, state.seq) == ("sub", 2)
        assert state.env == {"A": "2\nlines", "B": "x", "LANG": "de"}
        assert state.unset == ("HOME",)
        assert session.environment() == {"PATH": "/bin", "LANG": "de", "A": "2\nlines", "B": "x"}
        assert session.directory() == os.fsencode(bench.tree / "sub")
        assert session.history() == [second, first]
        assert session.history(1) == [second]
        assert state.metrics.commands == 2
        assert state.metrics.total_ms == 2000
        assert state.metrics.recoveries == 0
        bench.run(session, cwd="/", B=None, HOME="mine")
        assert session.state.cwd == "/"
        assert session.state.env == {"A": "2\nlines", "LANG": "de", "HOME": "mine"}
        assert session.state.unset == ()


def test_the_tree_before_and_after_a_command_are_checkpoints(bench):
    with bench.start() as session:
        bench.write("by hand")()
        entry = bench.run(session, bench.write("by it"), command="write it")
        nothing = bench.run(session)
        catalog = session.context.catalog
        assert catalog.checkpoint(entry.after).parent == entry.before
        assert catalog.checkpoint(entry.after).provenance.command == "write it"
        assert catalog.checkpoint(entry.after).kind == "auto"
        assert nothing.before == nothing.after == entry.after
        assert [change.path for change in session.workspace.diff(entry.before, entry.after).changes] == [b"file"]


def test_what_a_session_has_set_stays_whatever_its_next_process_is_given(bench):
    with bench.start() as session:
        bench.run(session, EDITOR="vi")
    bench.base["EDITOR"] = "vi"
    with bench.open() as session:
        bench.run(session)
    bench.base["EDITOR"] = "nano"
    with bench.open() as session:
        assert session.environment()["EDITOR"] == "vi"


def test_texts_that_are_no_utf_8_come_back(bench):
    odd = os.fsdecode(b"\xff\\x41\\ a")
    with bench.start() as session:
        entry = bench.run(session, command=f"echo {odd}", cwd=os.fsdecode(b"d\xfe"), X=odd)
    with bench.open() as session:
        assert session.state.env["X"] == odd
        assert session.state.cwd == os.fsdecode(b"d\xfe")
        assert session.history() == [entry]
        session.checkpoint()
    with bench.open() as session:
        assert session.history() == [entry]
        assert session.state.env["X"] == odd


def test_output_that_is_no_text_is_recorded_all_the_same(bench):
    with bench.start() as session:
        entry = bench.run(session, output="a\udcffb")
        assert entry.result.stdout == "a\\udcffb"
        assert session.history()[0] == entry


@pytest.mark.parametrize("command", ["", "  ", "a\0b", "\ud800"])
def test_what_no_shell_can_be_given_is_refused(bench, command):
    with bench.start() as session:
        with pytest.raises(UsageError):
            session.begin(command, level="safe")
        assert session.history() == []


def test_one_command_runs_at_a_time(bench):
    with bench.start() as session:
        entry = session.begin("sleep", level="safe")
        for other in (
            lambda: session.begin("more", level="safe"),
            session.checkpoint,
            lambda: session.branch("b"),
            lambda: session.checkout("b"),
            session.fork,
        ):
            with pytest.raises(RefusedError, match="sleep") as caught:
                other()
            assert caught.value.code == "session_running"
        assert session.due() is None
        result = CommandResult(exit_code=1, stdout="", stderr="")
        session.end(entry, result, cwd=".", env={}, duration_ms=1)
        with pytest.raises(UsageError, match="not running"):
            session.end(entry, result, cwd=".", env={}, duration_ms=1)


@pytest.mark.parametrize(
    ("supervised", "level", "saved"),
    [
        (False, "risky", True),
        (False, "dangerous", True),
        (False, "unknown", False),
        (False, "safe", False),
        (True, "dangerous", False),
    ],
)
def test_the_state_is_saved_before_a_risky_command_that_is_not_recorded(bench, supervised, level, saved):
    with bench.start() as session:
        session.configure(SessionConfig(supervised=supervised))
        bench.run(session, bench.write("1"))
        before = session.head
        entry = bench.run(session, bench.write("2"), level=level)
        assert (session.head != before) == saved
        if saved:
            assert session.head.state.tree == entry.before
            again = session.head
            session.checkpoint(kind="auto")
            assert session.head != again


def test_nothing_is_saved_before_a_command_if_nothing_has_happened_since(bench):
    with bench.start() as session:
        before = session.head
        bench.run(session, level="dangerous")
        assert session.head == before


def test_the_state_is_saved_after_so_many_commands_but_not_too_soon(bench):
    with bench.start() as session:
        session.configure(SessionConfig(triggers=Triggers(commands=3, min_seconds=100, idle_seconds=1000)))
        first = session.head
        for _ in range(5):
            bench.run(session)
        assert session.head == first
        bench.clock.advance(100)
        bench.run(session)
        assert session.head != first
        assert len(session.head.history) == 6
        assert session.due() is None
        assert session.head.parent == first.hash


def test_the_journal_never_grows_beyond_its_limit_and_drops_nothing(bench):
    with bench.start(session__max_journal_bytes=64 << 10) as session:
        session.configure(SessionConfig(triggers=Triggers(commands=1000, min_seconds=10_000, max_journal=4)))
        entries = [bench.run(session) for _ in range(9)]
        assert bench.sessions().info("one").journal == 1
        assert session.history() == entries[::-1]
        session.configure(SessionConfig(triggers=Triggers(commands=1000, min_seconds=10_000)))
        before = session.head
        entries.append(bench.run(session, output=os.urandom(80_000).hex()))
        assert session.head != before, "it was too many bytes"
        assert session.history() == entries[::-1]


def test_the_idle_trigger_says_when_and_is_carried_out_by_the_next_to_come(bench):
    with bench.start() as session:
        assert session.due() is None
        bench.run(session)
        assert session.due() == 30
        bench.clock.advance(12)
        assert session.due() == 18
        head = session.head
    bench.clock.advance(18)
    with bench.open() as session:
        assert session.head != head
        assert session.due() is None


def test_a_clock_that_is_set_back_delays_nothing_for_ever(bench):
    with bench.start() as session:
        bench.run(session)
        bench.clock.advance(-100_000)
        assert session.due() == 30


def test_another_process_waits_and_is_told(bench):
    with bench.start(), pytest.raises(LockedError) as caught:
        bench.open()
    assert caught.value.code == "session_busy"
    assert caught.value.exit_code == 4
    bench.open().close()


def test_what_is_there_is_looked_at_without_a_lock(bench):
    sessions = bench.sessions()
    with bench.start() as session:
        session.begin("long one", level="safe")
        (found,) = sessions.list()
        assert found.busy
        assert found.running.command == "long one"
        assert found == sessions.info("one")
        assert (found.id, found.owner, found.mode, found.root) == ("one", "me", "in-place", bytes(bench.tree))
        assert found.state == session.state
        assert found.newest == session.head.hash
        assert sessions.history("one")[0].command == "long one"
    assert not sessions.info("one").busy
    with pytest.raises(NotFoundError) as caught:
        sessions.info("two")
    assert caught.value.code == "no_session"


def test_several_sessions_share_a_workspace(bench):
    with bench.start("one") as one, bench.start("two") as two:
        bench.run(one, bench.write("from one"))
        entry = bench.run(two, bench.write("from two"))
        assert two.workspace.diff(entry.before, entry.after).changes[0].path == b"file"
        assert [info.id for info in bench.sessions().list(bytes(bench.tree))] == ["one", "two"]
        one.delete()
    assert bench.read() == "from two"
    assert [info.id for info in bench.sessions().list()] == ["two"]


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a..b", "x" * 65, "a b", "-x", "a\n", "q.lock"])
def test_names_that_no_session_can_have(bench, name):
    with pytest.raises(UsageError, match="no name"):
        bench.start(name)


def test_a_session_begins_in_the_directory_that_was_named(bench):
    (bench.tree / "a/b").mkdir(parents=True)
    with bench.sessions().start(bytes(bench.tree / "a/b"), "one", env={"X": "1"}) as session:
        assert session.state.cwd == "a/b"
        assert session.environment()["X"] == "1"
        with pytest.raises(RefusedError) as caught:
            bench.start("one")
        assert caught.value.code == "session_exists", "nobody is waited for"
    with pytest.raises(RefusedError) as caught:
        bench.start("one")
    assert caught.value.code == "session_exists"


def test_outside_of_every_workspace_the_directory_becomes_one(bench, tmp_path):
    with pytest.raises(RefusedError, match="is your home directory"):
        bench.sessions().start(bytes(tmp_path), "one")
    (tmp_path / "other").mkdir()
    with bench.sessions().start(bytes(tmp_path / "other"), "one") as session:
        assert session.root == bytes(tmp_path / "other")


def test_the_documented_example_works(tmp_path, monkeypatch):
    """Of docs/reference/api.md."""
    document = (Path(__file__).parents[5] / "docs/reference/api.md").read_text()
    (example,) = re.findall(r"^```python\n(with holdfast\.Sessions.*?)^```$", document, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    holdfast.init("project", home="memory").close()
    exec(example, {"holdfast": holdfast, "subprocess": subprocess})
    with holdfast.Sessions(home="memory", agent="me") as sessions:
        assert {info.id for info in sessions.list("project")} == {"one"}
        assert [entry.command for entry in sessions.history("one")] == ["make"]
        assert sessions.info("another-try").parent == "one"


def test_output_that_compresses_well_fits_all_the_same(bench, monkeypatch):
    monkeypatch.setattr("holdfast.engine.sessions.state.journal._MOST_OUTPUT", 10_000)
    with bench.start() as session:
        session.configure(SessionConfig(triggers=Triggers(commands=1000, min_seconds=10_000)))
        before = session.head
        bench.run(session, output="x" * 4000)
        bench.run(session, output="x" * 4000)
        assert session.head == before
        bench.run(session, output="x" * 4000)
        assert session.head != before


def test_what_runs_supervised_has_no_sessions(bench, monkeypatch):
    bench.start().close()
    from holdfast.engine.sessions import registry

    monkeypatch.setattr(registry, "forbid_inside_run", refuse)
    for asked in (bench.start, bench.open, lambda: bench.sessions().delete("one")):
        with pytest.raises(RefusedError, match="asked for inside"):
            asked()


def refuse(_context, what):
    raise RefusedError(f"{what}: asked for inside")

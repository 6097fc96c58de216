"""States of sessions: saved, named, come back to, held back from retention (I11), let go of, moved to other tiers."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from holdfast.engine.history.retention import Policy
from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError, UsageError


def forget_all(session):
    """What no rule keeps: all but the newest of the workspace's checkpoints, and what is held back."""
    return [one.id for one in session.workspace.forget(policy=Policy(keep_last=1)).removed]


def test_a_checkpoint_that_is_asked_for_is_taken_and_one_by_itself_only_of_something(bench):
    with bench.start() as session:
        first = session.head
        assert session.checkpoint(kind="auto") == first
        made = session.checkpoint("why", metadata={"a": "b"})
        assert (made.kind, made.message, made.metadata, made.parent) == ("manual", "why", {"a": "b"}, first.hash)
        assert session.head == made
        bench.write("changed by hand")()
        assert session.checkpoint(kind="auto") != made
        assert session.state.metrics.checkpoints == 3
    with bench.open() as session:
        assert session.find(made.hash) == made
        assert session.find(made.hash[:8]) == made


@pytest.mark.parametrize("name", ["", "a//b", "/a", "../a", "a b", "x" * 201, "a/.b"])
def test_names_that_no_branch_can_have(bench, name):
    with bench.start() as session, pytest.raises(UsageError, match="no name"):
        session.branch(name)


def test_branches(bench):
    with bench.start() as session:
        assert session.branches() == []
        ref = session.branch("try/1", message="before", metadata={"k": "v"})
        assert (ref.name, ref.type, ref.session, ref.metadata) == (
            "branches/one/try/1",
            "branch",
            "one",
            {"k": "v", "message": "before"},
        )
        assert session.find("try/1").message == "before"
        assert session.branches() == [ref]
        with pytest.raises(RefusedError) as caught:
            session.branch("try/1")
        assert caught.value.code == "branch_exists"
        assert session.remove_branch("try/1") == ref
        with pytest.raises(NotFoundError):
            session.remove_branch("try/1")
        with pytest.raises(NotFoundError) as caught:
            session.checkout("try/1")
        assert caught.value.code == "no_state"
        session.branch("try/1")


def test_checkout_brings_tree_and_shell_back_and_the_way_there_too(bench):
    with bench.start() as session:
        first = bench.run(session, bench.write("1"), A="1")
        session.branch("back")
        (bench.tree / "sub").mkdir()
        (bench.tree / "ignored").write_text("mine")
        second = bench.run(session, bench.write("2"), cwd="sub", A="2", B="b")
        bench.write("by hand", "new")()
        done = session.checkout("back")
        assert bench.read() == "1"
        assert not (bench.tree / "new").exists()
        state = session.state
        assert (state.cwd, state.env, state.seq) == (".", {"A": "1"}, 1)
        assert done.state == state
        assert session.history() == [first]
        assert state.metrics.commands == 2, "what has happened in the session has happened"
        third = bench.run(session, bench.write("3"))
        assert third.seq == 2
        assert session.history() == [third, first]
        session.checkout(done.saved.name.removeprefix("branches/one/"))
        assert (bench.read(), bench.read("new")) == ("2", "by hand")
        assert session.history() == [second, first]
        assert session.state.cwd == "sub"
    with bench.open() as session:
        assert session.history() == [second, first]
        session.workspace.undo()
        assert bench.read() == "3", "the restore can be undone (I6)"
        assert session.state.metrics.recoveries == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("HEAD", "newest saved state"),
        ("head", "newest saved state"),
        ("sessions/one/HEAD", "newest saved state"),
        ("forks/side", "newest state of a fork"),
        ("experiments/x", "other sessions"),
        ("branches/one/x", "other sessions"),
        ("_auto/before-checkout-x", "gives and removes"),
        ("decade", "beginning of a saved state's hash"),
        ("1234", "beginning of a saved state's hash"),
        ("ABCDEF01", "beginning of a saved state's hash"),
        ("one", "a session is called so"),
    ],
)
def test_a_name_that_means_something_else_is_no_branch(bench, name, reason):
    with bench.start() as session:
        with pytest.raises(UsageError, match=reason):
            session.branch(name)
        assert session.branches() == []
        for fine in ("one/two", "fork", "abc", "decades", "forks"):
            assert session.checkout(session.branch(fine).name.removeprefix("branches/one/")).restored.skipped == []


def test_of_the_branches_that_checkouts_make_the_newest_are_kept(bench):
    with bench.start() as session:
        session.branch("_auto/mine")
        last = session.checkout("_auto/mine")
        for turn in range(12):
            bench.run(session, bench.write(str(turn)))
            last = session.checkout("_auto/mine")
        kept = [ref.name for ref in session.branches()]
        assert len(kept) == 11
        assert last.saved.name in kept
        assert "branches/one/_auto/mine" in kept


def test_a_checkout_that_is_refused_leaves_the_session_as_it_was(bench):
    with bench.start() as session:
        bench.run(session, bench.write("1"))
        session.branch("back")
        bench.run(session, bench.write("2"))
        catalog = session.context.catalog
        blob = bench.home / "objects"
        shutil.move(blob, bench.home / "aside")
        blob.mkdir()
        with pytest.raises((IntegrityError, NotFoundError)):
            session.checkout("back")
        blob.rmdir()
        shutil.move(bench.home / "aside", blob)
        assert bench.read() == "2"
        assert catalog.cursor(session.workspace.id).head == session.state.tree
        session.checkout("back")
        assert bench.read() == "1"


def test_what_a_session_names_is_held_back_from_retention_i11(bench):
    with bench.start() as session:
        asked = session.checkpoint("asked")
        entries = [bench.run(session, bench.write(f"number {at}")) for at in range(4)]
        assert forget_all(session) == []
        assert bench.run(session, bench.write("5")).before == entries[-1].after
        session.branch("b")
        gone = forget_all(session)
        assert set(gone) == {entry.after for entry in entries}, "the journal has let go of them"
        with pytest.raises(RefusedError, match="session one") as caught:
            session.workspace.forget([asked.state.tree])
        assert caught.value.code == "protected"
        assert "session delete" in str(caught.value.hint)
        session.workspace.gc(grace=0)
        session.checkout(asked.hash)
        assert bench.read() == "0"
        session.delete()
    with bench.sessions() as sessions:
        assert sessions.list() == []


def test_old_states_that_nobody_asked_for_are_let_go_of_and_say_so(bench):
    with bench.start(session__max_checkpoints=4) as session:
        asked = session.checkpoint("asked")
        session.branch("named")
        states, entries = [], []
        for at in range(6):
            entries.append(bench.run(session, bench.write(f"number {at}")))
            states.append(session.checkpoint(kind="auto"))
        stored = {one.hash: one for one in bench.rows(session).checkpoints("one")}
        assert [stored[one.hash].kept for one in states] == [False] * 4 + [True] * 2
        assert sum(one.kept for one in stored.values()) == 4
        forget_all(session)
        with pytest.raises(NotFoundError) as caught:
            session.checkout(states[0].hash)
        assert caught.value.code == "thinned_out"
        with pytest.raises(NotFoundError):
            session.fork(checkpoint=states[0].hash, provider="holdfast")
        assert session.history() == entries[::-1], "what the shell did is still known"
        session.checkout(asked.hash)
        assert bench.read() == "0"


def test_the_oldest_commands_are_dropped_beyond_the_limit_of_bytes(bench):
    noise = random.Random(1).randbytes(20_000).hex()
    flags = {"session__max_checkpoints": 3, "session__max_history_bytes": 100_000, "session__hot": 5}
    with bench.start(**flags) as session:
        asked = session.branch("asked").checkpoint
        for number in range(20):
            bench.run(session, bench.write(str(number)), output=f"{number} {noise}")
            session.checkpoint(kind="auto")
            if number == 9:
                bench.clock.advance(10)
                assert bench.sessions(**flags).sweep().warmed  # some are dropped from the object store
        found = session.history()
        assert [entry.seq for entry in found] == list(range(20, found[-1].seq - 1, -1)), "without gaps"
        assert 3 <= len(found) < 10
        assert found[-1].result is not None
        assert found[-1].result.stdout.endswith(noise)
        rows = bench.rows(session)
        stored = rows.checkpoints(session.id)
        assert sum(one.stored for one in stored) <= 100_000
        assert asked in [one.hash for one in stored], "what was asked for stays"
        session.checkout("asked")
        assert bench.read() == "0"
    with bench.open(session__max_checkpoints=3, session__max_history_bytes=0) as again:
        for number in range(5):
            bench.run(again, bench.write(f"more {number}"), output=noise)
            again.checkpoint(kind="auto")
        assert [entry.seq for entry in again.history()] == list(range(5, 0, -1)), "of the state that it went back to"


def test_states_that_were_asked_for_are_refused_at_the_limit(bench):
    with bench.start(session__max_checkpoints=3) as session:
        session.branch("a")
        session.branch("b")
        session.checkpoint("c")
        for more in (lambda: session.branch("d"), session.checkpoint):
            with pytest.raises(RefusedError, match="max_checkpoints") as caught:
                more()
            assert caught.value.code == "session_limit"
        bench.run(session, bench.write("x"))
        session.checkpoint(kind="auto")
        session.remove_branch("a")
        session.branch("d")


def test_the_limit_of_states_holds_whatever_was_saved_by_itself_meanwhile(bench):
    with bench.start(session__max_checkpoints=3) as session:
        for name in ("a", "b", "c"):
            session.branch(name)
        bench.run(session, bench.write("x"))
        session.checkpoint(kind="auto")
        with pytest.raises(RefusedError, match="3 states"):
            session.branch("d")
        assert held(session) == 4, "those, and the newest"


def test_branches_that_checkouts_make_go_first_at_the_limit_but_for_the_last(bench):
    with bench.start(session__max_checkpoints=5) as session:
        session.branch("a")
        made = []
        for number in range(6):
            bench.clock.advance(1)
            bench.run(session, bench.write(str(number)))
            made.append(session.checkout("a").saved)
            assert held(session) <= 5
        assert len(session.branches()) == 4, "a, and the three that there is room for beside it and the newest state"
        for name in ("b", "c"):
            session.branch(name)
            assert held(session) <= 5
        session.checkpoint("asked")
        left = made[-1].name
        assert {ref.name for ref in session.branches()} == {left, *(f"branches/one/{name}" for name in "abc")}
        with pytest.raises(RefusedError) as caught:
            session.checkpoint("one too many")
        assert caught.value.code == "session_limit"
        session.checkout(left.removeprefix("branches/one/"))
        assert bench.read() == "5"
        assert held(session) == 6, "all that were asked for, the way back, and the newest"


def held(session) -> int:
    """How many trees the session holds."""
    return sum(stored.kept for stored in SessionCheckpointTiers(session.context).rows.checkpoints(session.id))


def test_the_tiers(bench):
    cold = bench.home.parent / "cold"
    flags = {"session__cold_url": str(cold), "session__hot": "1h", "session__warm": "1d"}
    with bench.start(**flags) as session:
        entries = [bench.run(session, bench.write("1"), output="x" * 3000)]
        states = [session.checkpoint("first")]
        rows, sessions = bench.rows(session), bench.sessions(**flags)
        assert sessions.sweep() == (0, 0, ())
        bench.clock.advance(3601)
        entries.append(bench.run(session))
        states.append(session.checkpoint("second"))
        beginning = states[0].parent
        swept = sessions.sweep()
        assert (swept.warmed, swept.cooled) == (2, 0)
        objects = bench.home / "objects" / "sessions" / "local" / "checkpoints"
        assert sorted(os.listdir(objects)) == sorted([beginning, states[0].hash])
        assert [rows.stored(one.hash).tier for one in states] == ["warm", "hot"]
        bench.clock.advance(90_000)
        assert sessions.sweep()[:2] == (1, 3)
        assert os.listdir(objects) == []
        assert len(os.listdir(cold / "sessions/local/checkpoints")) == 3
        assert sessions.sweep()[:2] == (0, 0)
        assert [session.find(one.hash) for one in states] == states
        assert session.history() == entries[::-1]
        session.checkout(states[0].hash)
        assert session.workspace.verify(read_data=True).ok
        here, name = cold / "sessions/local/checkpoints" / states[0].hash, states[0].hash
        data = here.read_bytes()
        here.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
        (problem,) = session.workspace.verify(read_data=True).problems
        assert problem.kind == "damaged"
        with pytest.raises(IntegrityError):
            session.find(name)
        here.unlink()
        (problem,) = session.workspace.verify().problems
        assert problem.kind == "missing"
        with pytest.raises(IntegrityError, match="missing where it should be"):
            session.find(name)
        here.write_bytes(data)
        session.delete()
        assert os.listdir(here.parent) == []


def test_states_stay_warm_without_a_cold_store(bench):
    with bench.start() as session:
        bench.clock.advance(1_000_000)
        sessions = bench.sessions()
        assert sessions.sweep()[:2] == (1, 0)
        assert sessions.sweep()[:2] == (0, 0)
        assert session.find(session.head.hash) == session.head
        (held,) = bench.rows(session).checkpoints("one")
        assert held.tier == "warm"


def test_objects_that_nothing_names_are_removed_and_no_others(bench):
    with bench.start(session__hot=0) as session:
        bench.clock.advance(10)
        bench.sessions(session__hot=0).sweep()
        tiers = SessionCheckpointTiers(session.context)
        objects = session.context.store.objects
        data = objects.get(tiers.key(session.head.hash))
        objects.put(tiers.key("f" * 32), (data,))
        hot = session.checkpoint("hot")
        objects.put(tiers.key(hot.hash), (b"about to be moved here",))
        assert tiers.remove_orphans(-1 << 40) == 1
        assert objects.size(tiers.key("f" * 32)) is None
        assert objects.size(tiers.key(hot.hash)) is not None
        assert session.find(session.head.parent)


def test_an_unknown_cold_store_is_named(bench):
    flags = {"session__cold_url": str(bench.home.parent / "cold"), "session__hot": 0, "session__warm": 0}
    with bench.start(**flags) as session:
        first = session.head
        bench.clock.advance(10)
        assert bench.sessions(**flags).sweep()[:2] == (1, 1)
        session.checkpoint("later")
    with bench.open() as session, pytest.raises(UsageError, match="cold_url"):
        session.find(first.hash)


def test_collection_removes_what_nothing_names(bench):
    with bench.start() as session:
        tiers = SessionCheckpointTiers(session.context)
        objects = session.context.store.objects
        objects.put(tiers.key("f" * 32), (b"left by a kill",))
        bench.clock.advance(10 * 365 * 86400)
        session.workspace.gc()
        assert objects.size(tiers.key("f" * 32)) is None


def test_the_watchers_upkeep_moves_old_states(bench):
    from holdfast.engine.watching.watcher import WorkspaceSaver

    with bench.start() as session:
        bench.clock.advance(4000)
        context = session.context
        WorkspaceSaver(context, context.tree, bench.sessions().sweep_if_due).retention()
        (held,) = bench.rows(session).checkpoints("one")
        assert held.tier == "warm"


def test_a_damaged_state_keeps_no_other_from_moving(bench, monkeypatch):
    from holdfast.engine.upkeep import session_checkpoint_tiers

    monkeypatch.setattr(session_checkpoint_tiers, "_PER_STEP", 2)
    with bench.start() as session:
        damaged = session.head.hash
        for _ in range(4):
            session.checkpoint("more")
        database = session.context.catalog.database
        (data,) = _content(database, damaged)
        _set_content(database, damaged, data[:-1] + bytes((data[-1] ^ 1,)))
        bench.clock.advance(4000)
        assert bench.sessions().sweep().warmed >= 1
        assert bench.rows(session).stored(damaged).tier == "hot"
        _set_content(database, damaged, data)
        bench.sessions().sweep()
        assert {one.tier for one in bench.rows(session).checkpoints("one")} == {"warm"}


def _content(database, name):
    with database.reading() as transaction:
        return transaction.one("SELECT data FROM session_checkpoints WHERE hash = ?", (name,))


def _set_content(database, name, data):
    with database.writing() as transaction:
        transaction.run("UPDATE session_checkpoints SET data = ? WHERE hash = ?", (data, name))

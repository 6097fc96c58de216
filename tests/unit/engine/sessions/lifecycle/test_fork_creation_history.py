"""What a fork began with: its history stays, whatever becomes of the session that it was made from."""

from __future__ import annotations

import random

import pytest

from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
from holdfast.model.errors import NotFoundError, RefusedError

BOUNDED = {"session__max_checkpoints": 3, "session__max_history_bytes": 100_000}
UNBOUNDED = {"session__max_checkpoints": 3, "session__max_history_bytes": 0}
NOISE = random.Random(1).randbytes(20_000).hex()


def work(bench, session, times):
    for _ in range(times):
        bench.run(session, bench.write(str(session.state.seq)), output=f"{session.state.seq} {NOISE}")
        session.checkpoint(kind="auto")


def numbers(session):
    return [entry.seq for entry in session.history()]


def rows_of(bench, name):
    return SessionCheckpointTiers(bench.opener().open_home()).rows.checkpoints(name)


def test_a_fork_keeps_its_history_when_its_parent_is_deleted(bench):
    with bench.start(session__hot=5) as session:
        work(bench, session, 2)
        bench.clock.advance(10)
        assert bench.sessions(session__hot=5).sweep().warmed, "some of it is in the object store"
        asked = session.checkpoint("asked for").hash
        work(bench, session, 2)
        entries = session.history()
        session.fork("side", provider="holdfast")
        session.fork("other", provider="holdfast")
        bench.run(session, bench.write("later"))
        later = session.checkpoint("later").hash
        session.delete()
    with bench.open("side") as fork:
        assert fork.history() == entries
        with pytest.raises(NotFoundError, match="no branch, fork"):
            fork.find(later)
        assert fork.find(asked).hash == asked
        assert not any(one.kept for one in rows_of(bench, "side")[:-1]), "it holds no trees of the parent's"
        more = bench.run(fork)
    bench.sessions().delete("side")
    with bench.open("other") as other:
        assert other.history() == entries, "and when the one that kept it is deleted in its turn"
        assert more not in other.history()
        inner = other.fork("inner", provider="holdfast")
        assert inner.fork_point == other.head.hash
    with bench.open("inner") as fork:
        assert fork.history() == entries
        fork.delete()
    bench.sessions().delete("other")
    assert rows_of(bench, "other") == []


def test_what_was_taken_over_belongs_to_who_has_it_now(bench):
    with bench.start(agent="me") as session:
        bench.run(session, bench.write("1"))
        asked = session.checkpoint("asked for").hash
        session.share("you")
    with bench.open(agent="you") as session:
        session.fork("yours", provider="holdfast")
    bench.sessions().delete("one")
    with bench.start(agent="me") as again, pytest.raises(RefusedError, match="the session yours is you's"):
        again.find(asked)  # by the same name
    with bench.open("yours", agent="you") as fork:
        assert fork.find(asked).hash == asked
        assert numbers(fork) == [1]


def test_a_fork_keeps_its_history_when_that_of_its_parent_is_bounded(bench):
    with bench.start(**BOUNDED) as session:
        work(bench, session, 2)
        entries = session.history()
        session.fork("side", provider="holdfast")
        with bench.open("side", **UNBOUNDED) as fork:
            fork.fork("inner", provider="holdfast")
        work(bench, session, 10)
        assert sum(one.stored for one in rows_of(bench, "one")) <= 100_000
        with bench.open("side", **UNBOUNDED) as fork:
            assert fork.history() == entries
    with bench.open("inner", **UNBOUNDED) as inner:
        assert inner.history() == entries


def test_a_bound_drops_what_a_fork_began_with_too_and_nobody_gets_back_what_it_has_dropped(bench):
    with bench.start(**BOUNDED) as session:
        asked = session.checkpoint("asked for").hash
        work(bench, session, 2)
        session.fork("side", provider="holdfast")
        work(bench, session, 10)
        with bench.open("side", **BOUNDED) as fork:
            assert numbers(fork) == [2, 1]
            for _ in range(10):
                bench.run(fork, output=f"{fork.state.seq} {NOISE}")
                fork.checkpoint(kind="auto")
            assert numbers(fork)[-1] > 2
            assert sum(one.stored for one in rows_of(bench, "side")) <= 100_000
        kept = {one.hash for one in rows_of(bench, "one")}
        assert asked in kept, "what was asked for stays with who asked for it"
        assert sum(one.stored for one in rows_of(bench, "one")) <= 100_000
        assert 2 < numbers(session)[-1] < 12
        session.delete()
    with bench.open("side", **BOUNDED) as fork:
        assert numbers(fork)[-1] > 2

"""A session that is idle is saved without being opened: as its next command would, and only where it is at rest."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.engine.opening import operation_journal
from holdfast.engine.sessions.holder.lock import lock_path
from holdfast.engine.sessions.idle._idle_save import save_idle
from holdfast.engine.sessions.state import state_history
from holdfast.model.errors import LockedError, RefusedError
from holdfast.model.ids import CheckpointId
from holdfast.model.session_types import SessionId, Triggers

from .....waiting import has_ended


class Killed(BaseException):
    pass


def kill(session):
    """What a kill leaves: nothing is written any more, and the lock is let go."""
    session.close()


def checkpoints(bench):
    return bench.opener().store().catalog.checkpoints()


def refused(bench, code, name="one"):
    """It's refused, and nothing was written."""
    before = checkpoints(bench), bench.sessions().info(name)
    with pytest.raises(RefusedError) as caught:
        save_idle(bench.opener(), name)
    assert caught.value.code == code
    assert caught.value.hint
    assert (checkpoints(bench), bench.sessions().info(name)) == before


def test_it_is_saved_as_its_next_command_would_save_it_in_its_owners_name(bench):
    with bench.start(agent="ann") as session:
        entry = bench.run(session, bench.write("1"), A="1")
        head, state = session.head, session.state
    bench.clock.advance(30)
    bench.write("by hand")()
    assert save_idle(bench.opener(), "one") == 0
    with bench.open(agent="ann") as session:
        point = session.head
        assert (point.parent, point.kind, point.history) == (head.hash, "auto", (entry,))
        assert (point.state.env, point.state.seq, point.state.metrics.recoveries) == (state.env, 1, 0)
        tree = session.context.catalog.checkpoint(point.state.tree)
        assert (tree.parent, tree.kind, tree.provenance.author) == (entry.after, "auto", "ann")
        assert session.due() is None
        assert session.state.tree == tree.id, "nothing was found when it was opened"
    assert save_idle(bench.opener(), "one") is None


def test_it_is_not_saved_before_its_own_triggers_say_so(bench):
    with bench.start() as session:
        assert save_idle(bench.opener(), "nobody") is None
        session.configure(type(session.config)(triggers=Triggers(idle_seconds=100, min_seconds=300, commands=1000)))
    assert save_idle(bench.opener(), "one") is None, "there is nothing to save"
    with bench.open() as session:
        bench.run(session)
        head = session.head
    bench.clock.advance(100)
    assert save_idle(bench.opener(), "one") == 199
    bench.clock.advance(198)
    assert save_idle(bench.opener(), "one") == 1
    with bench.open() as session:
        assert session.head == head
    bench.clock.advance(1)
    assert save_idle(bench.opener(), "one") == 0


def test_one_that_somebody_has_open_is_left_alone(bench):
    with bench.start() as session:
        bench.run(session)
        bench.clock.advance(30)
        with pytest.raises(LockedError) as caught:
            save_idle(bench.opener(**{"lock.timeout": 3600}), "one")
        assert caught.value.code == "session_busy"
    assert save_idle(bench.opener(), "one") == 0


def test_a_command_that_was_left_running_is_not_ended(bench):
    """Whoever opens the session does that."""
    with bench.start() as session:
        flight = session.in_flight().__enter__()
        session.begin("sleep 1000", level="changes")
        kill(session)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as left:
        flight.started(left.pid)
        bench.clock.advance(30)
        refused(bench, "left_running")
        assert not has_ended(left.pid)
        bench.open().close()
        assert has_ended(left.pid)


def test_a_checkout_that_was_cut_short_stays_for_whoever_opens_it(bench, monkeypatch):
    with bench.start() as session:
        bench.run(session, bench.write("1"))
        session.branch("back")
        bench.run(session, bench.write("2"))

        def killed(*_):
            raise Killed

        monkeypatch.setattr(state_history.StateHistory, "arrive", killed)
        with pytest.raises(Killed):
            session.checkout("back")
        kill(session)
    monkeypatch.undo()
    bench.clock.advance(30)
    refused(bench, "cut_short")
    assert bench.read() == "1"


def test_a_directory_that_is_gone_or_another_one_is_neither_made_again_nor_taken_for_it(bench):
    with bench.start() as session:
        bench.run(session)
    bench.clock.advance(30)
    moved = bench.tree.rename(bench.tree.with_name("moved"))
    refused(bench, "not_as_noted")
    assert not bench.tree.exists()
    bench.tree.mkdir()
    refused(bench, "not_as_noted")
    assert os.listdir(bench.tree) == []
    bench.tree.rmdir()
    bench.tree.symlink_to(moved)
    refused(bench, "not_as_noted")
    bench.tree.unlink()
    moved.rename(bench.tree)
    assert save_idle(bench.opener(), "one") == 0


@pytest.mark.usefixtures("written_out")
def test_a_fork_is_saved_and_one_that_was_emptied_is_not(bench):
    with bench.start() as session:
        root = Path(os.fsdecode(session.fork("side", provider="holdfast").root))
        with bench.open("side") as fork:
            bench.run(fork, lambda: (root / "new").write_text("1"))
    bench.clock.advance(30)
    moved = root.rename(root.with_name("moved"))
    shutil.copytree(moved, root)
    refused(bench, "not_as_noted", "side")
    shutil.rmtree(root)
    moved.rename(root)
    assert save_idle(bench.opener(), "side") == 0
    with bench.open("side") as fork:
        bench.run(fork)
    for name in os.listdir(root):
        (root / name).unlink()
    bench.clock.advance(30)
    refused(bench, "emptied", "side")
    assert os.listdir(root) == []


def test_a_tree_that_is_half_way_is_not_saved_as_a_state(bench, monkeypatch):
    with bench.start() as session:
        tree = session.state.tree
        bench.run(session, bench.write("1"))

        def killed(*_, **__):
            raise Killed

        monkeypatch.setattr(type(session.context.tree), "apply", killed)
        with pytest.raises(Killed):
            session.workspace.restore(tree)
        monkeypatch.undo()
    bench.clock.advance(30)
    refused(bench, "half_way")
    with bench.open() as session:
        session.workspace.restore_abort()


def test_so_is_one_in_which_an_undo_was_cut_short(bench):
    with bench.start() as session:
        bench.run(session)
        folder = session.context.folder
    bench.clock.advance(30)
    cut_short = operation_journal.Operation("undo", CheckpointId(""), position=1, redo_tip=1, steps=(1,), acted=1)
    operation_journal.write_operation(folder, cut_short)
    refused(bench, "half_way")
    operation_journal.remove_operation(folder, cut_short)
    assert save_idle(bench.opener(), "one") == 0


def test_a_hook_hears_of_it_and_cannot_stop_it_nor_hold_a_command_up_for_long(bench, tmp_path, caplog):
    with bench.start(agent="ann") as session:
        bench.run(session)
    bench.clock.advance(30)
    said = tmp_path / "said"
    given = {
        "hooks.before_checkpoint": ["sh", "-c", f"cat > {said}; echo $HOLDFAST_AGENT >> {said}; sleep 1000"],
        "hooks.after_checkpoint": ["false"],
        "hooks.timeout": 100,
        "lock.timeout": 9.0,
    }
    assert save_idle(bench.opener(**given), "one") == 0
    assert '"kind": "auto"' in said.read_text()
    assert said.read_text().endswith("ann\n")
    slow, failed = (record.getMessage() for record in caplog.records)
    assert "before_checkpoint" in slow
    assert "hooks.timeout, 3 s" in slow
    assert "after_checkpoint" in failed
    caplog.clear()


def test_one_that_is_deleted_at_that_moment_leaves_nothing_behind(bench, monkeypatch):
    with bench.start() as session:
        bench.run(session)
        path = Path(os.fsdecode(lock_path(os.fsencode(bench.home), session.context.store.tenant, SessionId("one"))))
    bench.clock.advance(30)
    from holdfast.store.catalog.session_rows import SessionRows

    has = SessionRows.has

    def then_gone(self, name):
        found = has(self, name)
        monkeypatch.undo()
        bench.sessions().delete("one")
        return found

    monkeypatch.setattr(SessionRows, "has", then_gone)
    assert save_idle(bench.opener(), "one") is None
    assert not path.exists()

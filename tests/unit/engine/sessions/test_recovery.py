"""What opening a session mends. What the directory holds is the truth: nothing old is put over it (I3)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.engine.sessions import states
from holdfast.model.errors import NotFoundError, RefusedError


class Killed(BaseException):
    pass


def kill(session):
    """What a kill leaves: nothing is written any more, and the lock is let go."""
    session._stack.close()


def test_the_command_in_flight_is_shown_as_such_and_nothing_else_is_lost_i3(bench):
    with bench.start() as session:
        first = bench.run(session, bench.write("1"), A="1")
        session.begin("rm -rf .", level="dangerous")
        bench.write("half way")()
        kill(session)
    info = bench.sessions().info("one")
    assert (info.running.command, info.busy) == ("rm -rf .", False)
    with bench.open() as session:
        assert bench.read() == "half way", "what the directory holds is the truth"
        lost, before = session.history()
        assert before == first
        assert (lost.command, lost.result, lost.seq, lost.duration_ms) == ("rm -rf .", None, 2, 0)
        diff = session.workspace.diff(lost.before, lost.after)
        assert [change.path for change in diff.changes] == [b"file"]
        assert session.state.env == {"A": "1"}
        assert session.state.tree == lost.after
        assert session.state.metrics.recoveries == 1
        assert bench.run(session).seq == 3
    with bench.open() as session:
        assert session.state.metrics.recoveries == 1
        assert session.history()[1] == lost
    assert bench.sessions().info("one").running is None


def test_what_somebody_changed_meanwhile_is_saved_as_found(bench):
    with bench.start() as session:
        bench.run(session, bench.write("1"))
        tree = session.state.tree
    bench.write("by hand")()
    with bench.open() as session:
        assert bench.read() == "by hand"
        found = session.workspace._context.catalog.checkpoint(session.state.tree)
        assert found.parent == tree
        assert found.provenance.message == "found when the session one was opened"
        assert session.state.metrics.recoveries == 0, "nobody was killed"
    with bench.open() as session:
        assert session.state.tree == found.id
        assert bench.run(session).before == found.id


def test_a_directory_that_is_gone_is_made_again_as_it_was_recorded_last(bench):
    with bench.start() as session:
        bench.run(session, bench.write("1"))
        bench.run(session, bench.write("2", "more"))
    shutil.rmtree(bench.tree)
    with bench.open() as session:
        assert (bench.read(), bench.read("more")) == ("1", "2")
        assert session.state.metrics.recoveries == 1
        session.workspace.undo()
        assert os.listdir(bench.tree) == []
    with bench.open():
        assert os.listdir(bench.tree) == [], "it is there, and empty: somebody may have meant that"


def test_a_forks_directory_that_was_emptied_is_made_again(bench):
    with bench.start() as session:
        made = session.fork("side", provider="plain")
    root = Path(os.fsdecode(made.root))
    (root / "file").unlink()
    with bench.open("side") as fork:
        assert (root / "file").read_text() == "0"
        assert fork.state.metrics.recoveries == 1
    shutil.rmtree(root)
    with bench.open("side"):
        assert (root / "file").read_text() == "0"


def test_a_directory_whose_file_system_is_not_there_is_not_made_again(bench, monkeypatch):
    with bench.start():
        pass
    shutil.rmtree(bench.tree)
    from holdfast.engine.sessions import recovery

    monkeypatch.setattr(recovery, "is_missing", lambda *_: False)
    with pytest.raises(RefusedError) as caught:
        bench.open()
    assert caught.value.code == "not_mounted"
    assert not bench.tree.exists()
    monkeypatch.undo()
    bench.open().close()
    assert bench.read() == "0"


@pytest.mark.parametrize("at", ["before", "within", "behind"])
def test_a_checkout_that_was_cut_short_is_finished_or_never_was(bench, monkeypatch, at):
    with bench.start() as session:
        bench.run(session, bench.write("1"), A="1")
        session.branch("back")
        bench.run(session, bench.write("2"), A="2")
        if at == "behind":
            monkeypatch.setattr(states.States, "arrive", killed)
        else:
            monkeypatch.setattr(type(session.workspace), "restore", killed if at == "before" else half(bench))
        with pytest.raises(Killed):
            session.checkout("back")
        kill(session)
    monkeypatch.undo()
    with bench.open() as session:
        came = at != "before"
        assert bench.read() == ("1" if came else "2")
        assert session.state.env == ({"A": "1"} if came else {"A": "2"})
        assert len(session.history()) == (1 if came else 2)
        assert session.state.metrics.recoveries == 1
        assert session.workspace.unfinished() is None
        (saved,) = [ref for ref in session.branches() if "before-checkout" in ref.name]
        session.checkout(saved.name.removeprefix("branches/one/"))
        assert bench.read() == "2"
        assert session.state.env == {"A": "2"}


def killed(*_, **__):
    raise Killed


def half(bench):
    """A restore that is killed when its journal is written."""
    from holdfast.engine.workspace import Workspace

    real = Workspace.restore

    def restore(self, name):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(self._context.tree), "apply", killed)
            return real(self, name)

    return restore


def test_a_checkout_that_fails_half_way_is_to_be_mended_first(bench, monkeypatch):
    with bench.start() as session:
        bench.run(session, bench.write("1"))
        session.branch("back")
        bench.run(session, bench.write("2"))
        monkeypatch.setattr(type(session.workspace), "restore", half(bench))
        with pytest.raises(Killed):
            session.checkout("back")
        monkeypatch.undo()
        with pytest.raises(RefusedError) as caught:
            session.begin("x", level="safe")
        assert caught.value.code == "cut_short"
    with bench.open() as session:
        bench.run(session)
        assert bench.read() == "1"


def test_a_session_that_was_killed_while_it_began_is_begun_again(bench, monkeypatch):
    from holdfast.engine.sessions.line import Line

    monkeypatch.setattr(Line, "commit", killed)
    with pytest.raises(Killed):
        bench.start()
    monkeypatch.undo()
    assert [info.status for info in bench.sessions().list()] == ["making"]
    with pytest.raises(NotFoundError):
        bench.open()
    with bench.start() as session:
        bench.run(session)
    assert [info.status for info in bench.sessions().list()] == ["live"]


def test_a_fork_that_was_killed_while_it_was_made_is_swept(bench, monkeypatch):
    from holdfast.engine.sessions import forking

    with bench.start() as session:
        monkeypatch.setattr(forking, "_begin", killed)
        with pytest.raises(Killed):
            session.fork("side", provider="plain")
        with pytest.raises(Killed):
            session.fork("again", provider="plain")
        monkeypatch.undo()
        session.fork("again", provider="plain")
        assert bench.sessions().sweep().removed == ("side",)
        assert os.listdir(f"{bench.home}-forks") == ["again"]
        bench.open("again").delete()
    catalog = bench.opener().store().catalog
    assert len([one for one in catalog.workspaces() if one.live]) == 1


def test_a_deletion_that_was_cut_short_is_finished(bench, monkeypatch):
    from holdfast.store.session_rows import SessionRows

    with bench.start() as session:
        session.fork("side", provider="plain")
    monkeypatch.setattr(SessionRows, "clear", killed)
    with pytest.raises(Killed):
        bench.open("side").delete()
    monkeypatch.undo()
    assert bench.sessions().info("side").status == "going"
    with pytest.raises(NotFoundError):
        bench.open("side")
    monkeypatch.setattr(SessionRows, "remove", killed)
    with pytest.raises(Killed):
        bench.sessions().sweep()
    monkeypatch.undo()
    assert bench.sessions().sweep().removed == ("side",)
    assert os.listdir(f"{bench.home}-forks") == []
    assert [info.id for info in bench.sessions().list()] == ["one"]


def test_a_damaged_journal_is_named_and_nothing_is_guessed(bench):
    with bench.start() as session:
        bench.run(session)
    opener = bench.opener()
    with opener.store().catalog.database.writing() as transaction:
        (data,) = transaction.one("SELECT data FROM session_journals")
        transaction.run("UPDATE session_journals SET data = ?", (data[:-1] + bytes((data[-1] ^ 1,)),))
    from holdfast.model.errors import IntegrityError

    with pytest.raises(IntegrityError, match="journal"):
        bench.open()
    kinds = {problem.kind for problem in opener.store().verifier().verify().problems}
    assert kinds == {"format", "damaged"}
    with opener.store().catalog.database.writing() as transaction:
        transaction.run("UPDATE session_journals SET data = ?", (data,))


def test_a_directory_that_was_moved_is_found(bench):
    with bench.start() as session:
        bench.run(session, bench.write("1"))
    moved = bench.tree.parent / "elsewhere" / "deep"
    moved.parent.mkdir()
    bench.tree.rename(moved)
    with bench.open() as session:
        assert session.root == os.fsencode(moved)
        assert session.state.metrics.recoveries == 0
    assert not bench.tree.exists()
    moved.rename(bench.tree)
    bench.open().close()


def test_a_fork_whose_directory_was_deleted_by_hand_is_made_again_or_deleted_without_that(bench):
    with bench.start() as session:
        made = session.fork("side", provider="plain")
        session.fork("other", provider="plain")
        shutil.rmtree(made.root)
        session.workspace.forget_gone()
        with bench.open("side") as fork:
            assert Path(os.fsdecode(fork.root), "file").read_text() == "0"
        for name in ("side", "other"):
            shutil.rmtree(Path(f"{bench.home}-forks", name))
            session.workspace.forget_gone()
            with pytest.raises(RefusedError):
                bench.sessions("you").delete(name)
            bench.sessions().delete(name)
            assert not Path(f"{bench.home}-forks", name).exists()
        with pytest.raises(NotFoundError):
            bench.sessions().delete("side")
        assert [info.id for info in bench.sessions().list()] == ["one"]

"""What opening a session mends. What the directory holds is the truth: nothing old is put over it (I3)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.sessions.exchange import state_merge
from holdfast.engine.sessions.state import state_history
from holdfast.model.errors import NotFoundError, RefusedError, UnsupportedError
from holdfast.model.session_types import SessionId


class Killed(BaseException):
    pass


def kill(session):
    """What a kill leaves: nothing is written any more, and the lock is let go."""
    session.close()


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
        found = session.context.catalog.checkpoint(session.state.tree)
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


@pytest.mark.usefixtures("written_out")
def test_a_forks_directory_that_was_emptied_is_made_again(bench):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
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
    from holdfast.engine.sessions.state import repair

    monkeypatch.setattr(repair, "is_missing", lambda *_: False)
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
            monkeypatch.setattr(state_history.StateHistory, "arrive", killed)
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
    from holdfast.engine.workspace.workspace import Workspace

    real = Workspace.restore

    def restore(self, name, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(self._context.tree), "apply", killed)
            return real(self, name, **options)

    return restore


@pytest.mark.parametrize("what", ["checkout", "merge", "pick"])
def test_i8_what_was_edited_after_it_was_cut_short_stays_and_is_said(bench, monkeypatch, caplog, what):
    cut(bench, monkeypatch, what)
    bench.write("by hand")()
    with bench.open() as session:
        assert bench.read() == "by hand"
        (said,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("file ")]
        way = said.partition("`holdfast ")[2].partition("`")[0].split()
        assert way[0] == "restore"
        assert session.workspace.unfinished() is None
        assert session.state.metrics.recoveries == 1
        assert session.workspace.status().clean, "it is saved as the session's state"
        session.workspace.restore(way[1], way[2:])
        assert bench.read() == ("1" if what == "checkout" else "theirs")


@pytest.mark.parametrize("what", ["merge", "pick"])
@pytest.mark.parametrize("by", ["the session", "restore --continue", "restore --abort", "undo"])
def test_i3_a_merge_that_was_cut_short_is_finished_by_whatever_opens_the_session(bench, monkeypatch, what, by):
    cut(bench, monkeypatch, what)
    with holdfast.open(bench.tree, home=bench.home) as workspace:
        if by == "restore --abort":
            workspace.restore_abort()
        elif by != "the session":
            workspace.restore_continue()
        if by == "undo":
            workspace.undo()
    back = by in ("restore --abort", "undo")
    with bench.open() as session:
        assert bench.read() == ("1" if back else "theirs")
        assert session.workspace.unfinished() is None
        assert session.state.metrics.recoveries == 1
        assert bool(session.head.message) == (not back)
        assert ("merged" in session.head.metadata) == (what == "merge" and not back)
        assert session.state.env == {"A": "2"}, "the shell stays as it was"
        bench.run(session)
    with bench.open() as session:
        assert session.state.metrics.recoveries == 1


def test_a_restore_of_somebody_elses_that_was_cut_short_is_named_by_whatever_opens_the_session(
    bench, monkeypatch, caplog
):
    with bench.start() as session:
        before = session.state.tree
        bench.run(session, bench.write("1"))
        monkeypatch.setattr(type(session.workspace), "restore", half(bench))
        with pytest.raises(Killed):
            session.workspace.restore(before)
        monkeypatch.undo()
    bench.open().close()
    assert "`holdfast restore --continue` finishes it" in caplog.text


def cut(bench, monkeypatch, what):
    """A session in which a checkout, a merge or a pick was killed when it had begun to change the tree."""
    with bench.start() as session:
        bench.run(session, bench.write("1"), A="1")
        session.branch("back")
        bench.run(session, A="2")
        root = Path(os.fsdecode(session.fork("side", provider="holdfast").root))
        with bench.open("side") as fork:
            entry = bench.run(fork, lambda: (root / "file").write_text("theirs"))
        bench.run(session, bench.write("2" if what == "checkout" else "1"))
        bench.run(session, bench.write("x", "other"))
        monkeypatch.setattr(type(session.workspace), "restore", half(bench))
        work = {
            "checkout": lambda: session.checkout("back"),
            "merge": lambda: state_merge.merge(bench.sessions, session, "side"),
            "pick": lambda: state_merge.pick(session, SessionId("side"), entry),
        }
        with pytest.raises(Killed):
            work[what]()
        kill(session)
    monkeypatch.undo()


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
    from holdfast.engine.sessions.state.journal import SessionLine

    monkeypatch.setattr(SessionLine, "commit", killed)
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
    from holdfast.engine.sessions.lifecycle import fork_creation

    with bench.start() as session:
        monkeypatch.setattr(fork_creation, "_begin", killed)
        with pytest.raises(Killed):
            session.fork("side", provider="holdfast")
        with pytest.raises(Killed):
            session.fork("again", provider="holdfast")
        monkeypatch.undo()
        again = session.fork("again", provider="holdfast")
        assert bench.sessions().sweep().removed == ("side",)
        (left,) = [one for one in bench.opener().store().catalog.workspaces() if one.live and one.source]
        assert left.path == again.root
        bench.open("again").delete()
    catalog = bench.opener().store().catalog
    assert len([one for one in catalog.workspaces() if one.live]) == 1


def test_a_deletion_that_was_cut_short_is_finished(bench, monkeypatch):
    from holdfast.store.catalog.session_rows import SessionRows

    with bench.start() as session:
        session.fork("side", provider="holdfast")
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
    assert not os.path.exists(f"{bench.home}-forks")
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


@pytest.mark.usefixtures("written_out")
def test_a_fork_whose_directory_was_deleted_by_hand_is_made_again_or_deleted_without_that(bench):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
        other = session.fork("other", provider="holdfast")
        shutil.rmtree(made.root)
        session.workspace.forget_gone()
        with bench.open("side") as fork:
            assert Path(os.fsdecode(fork.root), "file").read_text() == "0"
        for name, root in (("side", made.root), ("other", other.root)):
            shutil.rmtree(root)
            session.workspace.forget_gone()
            with pytest.raises(RefusedError):
                bench.sessions("you").delete(name)
            bench.sessions().delete(name)
            assert not os.path.exists(os.path.dirname(root))
        with pytest.raises(NotFoundError):
            bench.sessions().delete("side")
        assert [info.id for info in bench.sessions().list()] == ["one"]


def test_a_fork_by_git_that_is_made_again_is_in_no_repository_of_the_users(bench, caplog):
    """The home may lie in one: what is committed in the fork would move its branch (I15)."""

    def git(root, *words, ok=True):
        identity = ("-c", "user.name=U", "-c", "user.email=u@example.org")
        done = subprocess.run(["git", *identity, *words], cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not ok, done.stderr
        return done.stdout.strip()

    outer = bench.home.parent
    for root in (outer, bench.tree):
        git(root, "init", "--quiet")
        (root / "file").write_text("0")
        git(root, "add", "file")
        git(root, "commit", "--quiet", "-m", "yours")
    (outer / "file").write_text("not committed yet")
    with bench.start() as session:
        made = session.fork("side", provider="git")
    root = Path(os.fsdecode(made.root))
    assert git(root, "rev-parse", "--show-toplevel") == str(root)
    shutil.rmtree(root)
    with bench.open("side") as fork:
        assert (root / "file").read_text() == "0"
        assert "its Git repository is gone" in caplog.text
        git(root, "commit", "--quiet", "--allow-empty", "-m", "by the agent", ok=False)
        git(root, "reset", "--quiet", "--hard", ok=False)
        with pytest.raises(UnsupportedError):
            fork.fork("inner", provider="git")
    assert "stays at" not in caplog.text, "which would be a branch of the outer one"
    assert "holdfast" not in git(outer, "for-each-ref")
    assert git(outer, "log", "--format=%s") == "yours"
    assert (outer / "file").read_text() == "not committed yet"
    with bench.open("one") as session:
        assert Path(os.fsdecode(session.fork("other", provider="git").root), ".git").is_dir()

"""Forks of sessions: apart from each other, gone without a trace, owned, limited, swept."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.sessions.holder.lock import holding, is_held, lock_path, remove_lock
from holdfast.engine.workspace.workspace import Workspace
from holdfast.files.index.stat_index import DirectoryColumns, load
from holdfast.model.clock import SystemClock
from holdfast.model.errors import LockedError, NotFoundError, RefusedError, UnsupportedError, UsageError
from holdfast.model.session_types import SessionId
from holdfast.store.catalog.promotion_rows import PromotionRow, PromotionRows
from holdfast.store.catalog.session_records import ref_name

from .....waiting import wait_until


def root_of(made):
    return Path(os.fsdecode(made.root))


def traces(bench):
    """What a fork has left: directories, live workspaces, checkpoints of others than the bench's, rows."""
    opener = bench.opener()
    catalog = opener.store().catalog
    mine = catalog.find_workspace(bytes(bench.tree)).id
    forks = Path(f"{bench.home}-forks")
    return {
        "directories": sorted(os.listdir(forks)) if forks.exists() else [],
        "workspaces": [one.path for one in catalog.workspaces() if one.live and one.id != mine],
        "checkpoints": [one.id for one in catalog.checkpoints() if one.workspace != mine],
        "folders": [name for name in os.listdir(bench.home / "workspaces") if name != mine],
    }


NOTHING = {"directories": [], "workspaces": [], "checkpoints": [], "folders": []}


def test_a_fork_goes_its_own_way(bench):
    (bench.tree / "sub").mkdir()
    with bench.start() as session:
        first = bench.run(session, bench.write("1", "sub/f"), cwd="sub", A="1")
        made = session.fork("side", metadata={"why": "to try"}, provider="holdfast")
        root = root_of(made)
        assert (made.id, made.provider, made.mode) == ("side", "holdfast", "worktree")
        assert made.fork_point == session.head.hash
        assert session.state.metrics.forks == 1
        with bench.open("side") as fork:
            assert fork.root == made.root
            assert fork.directory() == made.root + b"/sub"
            assert fork.state.env == {"A": "1"}
            assert fork.state.parent == "one"
            assert fork.head.parent == made.fork_point
            assert (root / "sub/f").read_text() == "1"
            second = bench.run(fork, lambda: (root / "sub/f").write_text("2"), A="2")
            assert second.seq == 2
            assert fork.history() == [second, first]
            bench.run(session, bench.write("3", "sub/f"))
            assert (root / "sub/f").read_text() == "2"
        assert session.state.env == {"A": "1"}
        assert [ref.metadata for ref in bench.rows(session).refs("side") if ref.type == "fork"] == [{"why": "to try"}]
        info = bench.sessions().info("one")
        assert info.forks == ("side",)
        again = session.fork(provider="holdfast")
        assert again.id.startswith("fork-")
        assert again.fork_point == session.head.hash != made.fork_point


def test_forks_of_one_state_stand_on_one_saved_state(bench):
    with bench.start() as session:
        bench.run(session, bench.write("1"))
        points = {session.fork(provider="holdfast").fork_point for _ in range(3)}
        assert points == {session.head.hash}
        assert session.state.metrics.forks == 3


def test_a_fork_of_an_earlier_state(bench):
    with bench.start() as session:
        bench.run(session, bench.write("1"), A="1")
        session.branch("then")
        bench.run(session, bench.write("2"), A="2")
        made = session.fork("side", checkpoint="then", provider="holdfast")
        assert (root_of(made) / "file").read_text() == "1"
        assert bench.read() == "2"
        with bench.open("side") as fork:
            assert fork.state.env == {"A": "1"}
            assert len(fork.history()) == 1


def test_what_a_fork_became_is_taken_over_with_what_it_did(bench):
    with bench.start() as session:
        first = bench.run(session, bench.write("1"))
        made = session.fork("side", provider="holdfast")
        with bench.open("side") as fork:
            second = bench.run(fork, lambda: (root_of(made) / "file").write_text("better"), X="1")
            fork.checkpoint("done")
            third = bench.run(fork, lambda: (root_of(made) / "file").write_text("best"))
            fork.checkpoint("done")
        session.checkout("forks/side")
        assert bench.read() == "best"
        assert session.state.env == {"X": "1"}
        bench.open("side").delete()
        assert session.history() == [third, second, first], "also when the fork is gone"
        assert session.state.id == "one"
        assert session.state.parent is None
        with pytest.raises(NotFoundError):
            session.checkout("forks/side")
        bench.run(session, bench.write("on"))


def test_what_a_fork_has_made_since_it_was_saved_last_is_taken_over_too(bench):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
        with bench.open("side") as fork:
            before = fork.head
            entry = bench.run(fork, lambda: (root_of(made) / "file").write_text("command"), X="1")
        (root_of(made) / "more").write_text("by hand")
        found = session.checkout("forks/side")
        assert (bench.read(), bench.read("more")) == ("command", "by hand")
        assert (session.state.env, session.history()) == ({"X": "1"}, [entry])
        assert found.checkpoint.hash != before.hash
        assert session.find("forks/side").hash == found.checkpoint.hash, "it is the fork's newest state"
        assert session.checkout("forks/side").checkpoint == found.checkpoint, "nothing has happened there since"
        with bench.open("side"), pytest.raises(LockedError) as caught:
            session.checkout("forks/side")
        assert caught.value.code == "session_busy"
        assert caught.value.message == "the session side is open in this process already"


@pytest.mark.parametrize("provider", ["holdfast", "git"])
def test_no_lock_no_ledger_and_no_socket_stays_behind_a_session(bench, provider):
    def there():
        return {
            path.relative_to(bench.home)
            for path in bench.home.rglob("*")
            if path.is_file() and ({"sessions", "ledger"} & set(path.parts) or path.suffix in (".lock", ".sock"))
        }

    if provider == "git":
        subprocess.run(["git", "init", "-q", bench.tree], check=True)
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", bench.tree, *author, "commit", "-qm", "x", "--allow-empty"], check=True)
    before = there()
    with bench.start() as session:
        assert session.door() is not None
        session.fork("side", provider=provider)
        with bench.open("side") as fork:
            assert fork.door() is not None
        with pytest.raises(UnsupportedError):
            session.fork("other", provider="nothing")
        bench.sessions().delete("side")
    bench.sessions().delete("one")
    # (What sessions of one provider share stays: it is made once.)
    assert {path for path in there() - before if path.name != "ledger.lock"} == set()
    with bench.start() as session:
        assert session.history() == []


def test_who_waits_for_a_session_that_is_deleted_does_not_hold_what_is_gone(tmp_path):
    lock, clock = bytes(tmp_path / "sessions/local/one.lock"), SystemClock()
    waits, holds = threading.Event(), threading.Event()

    def wait():
        waits.set()
        with holding(lock, SessionId("one"), timeout=30, clock=clock):
            holds.set()
            assert is_held(lock)

    with holding(lock, SessionId("one"), timeout=0, clock=clock):
        thread = threading.Thread(target=wait)
        thread.start()
        waits.wait()
        remove_lock(lock)
    thread.join(30)
    assert holds.is_set()
    with holding(lock, SessionId("one"), timeout=0, clock=clock):
        remove_lock(lock)
    assert os.listdir(tmp_path / "sessions/local") == []


def test_deleting_a_fork_leaves_nothing_of_it(bench):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
        fork = bench.open("side")
        bench.run(fork, lambda: (root_of(made) / "more").write_text("x"))
        (root_of(made) / "locked").mkdir(mode=0o500)
        fork.branch("b")
        fork.delete()
        assert traces(bench) == NOTHING
        with pytest.raises(NotFoundError):
            bench.open("side")
        assert session.history() == []
        session.fork("side", provider="holdfast")


@pytest.mark.usefixtures("written_out")
def test_a_directory_that_took_the_place_of_a_forks_is_left_alone(bench):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
        session.delete()
    root_of(made).rename(bench.tree.parent / "moved")
    root_of(made).mkdir()
    (root_of(made) / "theirs").write_text("x")
    bench.clock.advance(8 * 86400)
    assert bench.sessions().sweep().removed == ()
    assert (root_of(made) / "theirs").read_text() == "x"


@pytest.mark.usefixtures("written_out")
def test_a_directory_that_took_the_place_and_the_inode_number_of_a_forks_is_not_taken_for_it(bench):
    # File systems use inode numbers anew at once; only the moment of birth tells the two.
    for number in range(8):
        with bench.start(f"from{number}") as session:
            made = session.fork(f"side{number}", provider="holdfast")
            session.delete()
        root = root_of(made)
        inode = root.stat().st_ino
        shutil.rmtree(root)
        root.mkdir()
        (root / "theirs").write_text("x")
        if root.stat().st_ino == inode:
            break
    else:
        pytest.skip("this file system does not use inode numbers anew at once")
    before = bench.opener().store().catalog.workspaces()
    for no in (
        lambda: bench.open(f"side{number}"),
        lambda: bench.opener().open(os.fsencode(root)),
        lambda: bench.sessions().delete(f"side{number}"),
    ):
        with pytest.raises(RefusedError) as caught:
            no()
        assert caught.value.code == "not_ours"
        assert bench.opener().store().catalog.workspaces() == before
    bench.clock.advance(8 * 86400)
    assert bench.sessions().sweep().removed == ()
    assert (root / "theirs").read_text() == "x"


@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize("back", [True, False])
def test_a_directory_that_took_the_place_of_a_forks_is_not_taken_for_it(bench, back):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
    root, moved = root_of(made), bench.tree.parent / "moved"
    before = bench.opener().store().catalog.workspaces()
    root.rename(moved)
    root.mkdir()
    (root / "theirs").write_text("x")
    for no in (lambda: bench.open("side"), lambda: bench.opener().open(os.fsencode(root))):
        with pytest.raises(RefusedError) as caught:
            no()
        assert caught.value.code == "not_ours"
        assert bench.opener().store().catalog.workspaces() == before
    assert [path.name for path in root.iterdir()] == ["theirs"]
    root.rename(bench.tree.parent / "theirs")
    if back:
        moved.rename(root)
    else:
        shutil.rmtree(moved)
    with bench.open("side") as fork:
        assert [path.name for path in root.iterdir()] == ["file"]
        fork.delete()
    assert not root.exists()


@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize("phase", ["building", "swapping", "ended"])
def test_what_a_promotion_to_a_fork_has_swapped_is_the_promotions_to_judge(bench, phase):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
        tree = session.state.tree
    opener = bench.opener()
    known = opener.open(made.root).workspace.id
    PromotionRows(opener.store().catalog).add(PromotionRow("0" * 16, known, phase, "", "", tree, "{}", "{}"))
    root_of(made).rename(bench.tree.parent / "old")
    root_of(made).mkdir()
    (root_of(made) / "built").write_text("x")
    if phase == "swapping":
        assert bench.opener().open_known(known).workspace.path == made.root
    else:
        with pytest.raises(RefusedError):
            bench.opener().open_known(known)


@pytest.mark.usefixtures("written_out")
def test_a_forks_directory_that_a_restore_has_made_again_is_the_forks(bench):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
    shutil.rmtree(made.root)
    opener = bench.opener()
    workspace = Workspace(opener, opener.open(made.root))
    workspace.restore(workspace.log().checkpoints[0].id)
    assert (root_of(made) / "file").read_text() == "0"
    with bench.open("side") as fork:
        assert fork.root == made.root
        fork.delete()
    assert not root_of(made).exists()


def test_a_fork_that_holds_another_ones_directory_is_not_deleted(bench):
    with bench.start() as session:
        made = session.fork("outer", provider="holdfast")
        inside = os.fsdecode(made.root) + "/inner"
        with (
            bench.open("outer", snapshot__directory=inside) as outer,
            pytest.raises(UnsupportedError, match="would lie in the workspace"),
        ):
            outer.fork("inner", provider="holdfast")
        assert traces(bench)["workspaces"] == [made.root]


@pytest.mark.parametrize("agent", ["you", "you two"])
def test_whose_a_session_is(bench, agent):
    with bench.start() as session:
        bench.run(session, bench.write("1"))
    with pytest.raises(RefusedError, match="me's") as caught:
        bench.open(agent=agent)
    assert caught.value.code == "not_owner"
    assert bench.sessions(agent).info("one").owner == "me"
    with bench.open() as session:
        session.share(agent)
        session.share(agent)
        assert session.shared == (agent,)
    with bench.open(agent=agent) as session:
        bench.run(session, bench.write("2"))
        session.branch("theirs")
        made = session.fork("side", provider="holdfast")
        for no in (lambda: session.share("more"), lambda: session.unshare(agent), session.delete):
            with pytest.raises(RefusedError) as caught:
                no()
            assert caught.value.code == "not_owner"
        assert bench.sessions().info("side").owner == agent
    with bench.open() as session:
        with pytest.raises(RefusedError) as caught:
            session.checkout("forks/side")
        assert caught.value.code == "not_owner"
        session.unshare(agent)
    with pytest.raises(RefusedError):
        bench.open(agent=agent)
    assert made


def test_a_fork_is_not_led_to_the_repository_of_the_hook_that_began_it(bench):
    """Git tells its hooks by variables where to work (in a linked work tree: with an absolute path)."""
    bench.base |= {"GIT_DIR": "/users/.git", "GIT_INDEX_FILE": "/users/.git/index", "GIT_EDITOR": "vi"}
    with bench.start() as session:
        assert session.environment()["GIT_DIR"] == "/users/.git"
        session.fork("side", provider="holdfast")
    with bench.open("side") as fork:
        assert not {"GIT_DIR", "GIT_INDEX_FILE"} & fork.environment().keys()
        assert fork.environment()["GIT_EDITOR"] == "vi"


def test_who_asks(bench, monkeypatch):
    from holdfast.engine.sessions.registry import Sessions

    bench.base["HOLDFAST_AGENT"] = "from the environment"
    assert Sessions(opener=bench.opener()).agent == "from the environment"
    assert bench.sessions("given").agent == "given"
    bench.base["HOLDFAST_AGENT"] = ""
    assert Sessions(opener=bench.opener(**{"identity.author": "author"})).agent == "author"
    assert Sessions(opener=bench.opener()).agent
    with pytest.raises(UsageError, match="no name"):
        bench.sessions("a\nb")


def test_the_limit_of_forks(bench):
    with bench.start(session__max_forks=2) as session:
        session.fork("a", provider="holdfast")
        session.fork("b", provider="holdfast")
        with pytest.raises(RefusedError, match="max_forks") as caught:
            session.fork("c", provider="holdfast")
        assert caught.value.code == "session_limit"
        bench.open("a").delete()
        session.fork("c", provider="holdfast")


def test_one_fork_is_one(bench):
    with bench.start(session__max_forks=1) as session:
        session.fork("a", provider="holdfast")
        with pytest.raises(RefusedError, match=r"has 1 fork, and session\.max_forks is 1"):
            session.fork("b", provider="holdfast")


def test_what_cannot_be_forked_leaves_nothing(bench):
    with bench.start() as session:
        with pytest.raises(UnsupportedError) as caught:
            session.fork("a", provider="git", with_ignored=True)
        assert caught.value.code == "no_provider"
        assert caught.value.message.startswith("the provider git, which was asked for, cannot be used here: git: ")
        assert (caught.value.hint or "").startswith("name none, and ")
        with pytest.raises(UnsupportedError):
            session.fork("a", provider="nothing like it")
        with pytest.raises(UnsupportedError):
            session.fork("a", provider="holdfast", with_ignored=True)
        with pytest.raises(UsageError):
            session.fork("a", type="branch", provider="holdfast")
        with pytest.raises(UsageError):
            session.fork("../a", provider="holdfast")
        session.fork("a", provider="holdfast")
        with pytest.raises(RefusedError) as caught:
            session.fork("a", provider="holdfast")
        assert caught.value.code == "session_exists"
        with pytest.raises(RefusedError) as caught:
            session.fork("one", provider="holdfast")
        assert caught.value.code == "session_exists", "it does not wait for itself"
        for name in ("plain", ""):
            with pytest.raises(UnsupportedError if name else UsageError):
                session.fork(name and "b", provider=name or "holdfast")
        assert {info.id for info in bench.sessions().list()} == {"one", "a"}


def test_forks_without_a_parent_expire(bench):
    with bench.start() as session:
        session.fork("side", provider="holdfast")
        session.fork("busy", provider="holdfast")
        session.delete()
    sessions = bench.sessions()
    assert sessions.sweep().removed == ()
    bench.clock.advance(8 * 86400)
    with bench.open("busy") as busy:
        bench.run(busy)
        assert bench.sessions().sweep().removed == (), "opening swept"
        assert [info.id for info in sessions.list()] == ["busy"]
    bench.clock.advance(6 * 86400)
    assert sessions.sweep().removed == ()
    bench.clock.advance(2 * 86400)
    assert sessions.sweep().removed == ("busy",)
    assert traces(bench) == NOTHING


def test_forks_in_which_somebody_works_do_not_expire(bench):
    with bench.start() as session:
        roots = {name: Path(os.fsdecode(session.fork(name, provider="holdfast").root)) for name in ("a", "b", "c")}
        session.delete()
    bench.clock.advance(8 * 86400)
    (roots["a"] / "by hand").write_text("nobody has saved this")
    with holdfast.open(roots["b"], home=bench.home) as workspace:
        workspace.checkpoint("mine")
    sessions = bench.sessions()
    bench.clock.advance(8 * 86400)
    with bench.sessions().start(os.fsencode(roots["c"]), "lodger"):
        pass
    assert sessions.sweep().removed == ()
    assert (roots["a"] / "by hand").exists()
    bench.clock.advance(8 * 86400)
    assert sessions.sweep().removed == ("a",), "what was found there was not touched since"
    with bench.open("c") as fork, pytest.raises(RefusedError) as refused:
        fork.delete()
    assert refused.value.code == "in_use"
    assert roots["c"].exists()


def test_an_experiments_forks_go_when_its_process_is_gone(bench):
    with bench.start() as session:
        made = session.fork("try", type="experiment", provider="holdfast")
        kept = session.fork("keep", type="experiment", provider="holdfast")
        assert made.ref.name == "experiments/try"
        with bench.open("keep") as fork:
            bench.run(fork)
            fork.checkpoint("x")
            assert bench.rows(fork).ref("experiments/keep").checkpoint == fork.head.hash
            fork.keep()
            fork.keep()
            assert bench.rows(fork).ref("experiments/keep") is None
            assert bench.rows(fork).ref("forks/keep").checkpoint == fork.head.hash
            assert bench.rows(fork).ref("forks/keep").type == "fork"
        assert bench.sessions().sweep().removed == ()
        opener = bench.opener()
        with opener.store().catalog.database.writing() as transaction:
            transaction.run(
                "UPDATE session_refs SET metadata = ? WHERE name = ?",
                ('{"process":"another boot 1 1"}', ref_name("experiment", made.id)),
            )
            (boot,) = transaction.one("SELECT metadata FROM session_refs WHERE name = 'forks/keep'")
        assert bench.sessions().sweep().removed == (), "nobody can tell"
        with opener.store().catalog.database.writing() as transaction:
            dead = boot.replace(f" {os.getpid()} ", " 4194305 ")
            assert dead != boot
            transaction.run("UPDATE session_refs SET metadata = ? WHERE name = ?", (dead, "experiments/try"))
        assert bench.sessions().sweep().removed == ("try",)
        assert traces(bench)["workspaces"] == [kept.root]
        assert kept


def test_a_fork_that_is_open_is_never_swept(bench):
    with bench.start() as session:
        session.fork("side", provider="holdfast")
        with bench.open("side"):
            session.delete()
            bench.clock.advance(30 * 86400)
            path = lock_path(bytes(bench.home), "local", SessionId("side"))
            assert is_held(path)
            assert bench.sessions().sweep().removed == ()
        assert bench.sessions().sweep().removed == ("side",)


def test_forks_of_forks_go_from_the_last_to_the_first(bench):
    with bench.start() as session:
        session.fork("outer", provider="holdfast")
        with bench.open("outer") as outer:
            outer.fork("inner", provider="holdfast")
        with bench.open("inner") as inner:
            inner.fork("innermost", provider="holdfast")
        bench.clock.advance(8 * 86400)
        assert bench.sessions().sweep().removed == ()
        session.delete()
        with pytest.raises(RefusedError, match="inner") as caught:
            bench.sessions().delete("outer")
        assert caught.value.code == "has_forks"
    assert bench.sessions().sweep().removed == ("innermost", "inner", "outer")
    assert traces(bench) == NOTHING


@pytest.mark.usefixtures("written_out")
def test_a_fork_that_an_older_version_wrote_out_is_opened_and_deleted(bench):
    with bench.start() as session:
        made = session.fork("side", provider="holdfast")
        rows = bench.rows(session)
        record = rows.get(SessionId("side"))
        rows.put(record._replace(provider="plain", token="", place=made.root))
    assert bench.sessions().info("side").provider == "plain"
    with bench.open("side") as fork:
        bench.run(fork, lambda: (root_of(made) / "file").write_text("1"))
        inner = fork.fork("inner", provider="holdfast")
        assert (root_of(inner) / "file").read_text() == "1"
    with bench.open() as session:
        session.checkout("forks/side")
        assert bench.read() == "1"
    bench.sessions().delete("inner")
    bench.sessions().delete("side")
    assert not os.path.lexists(made.root)


def test_what_is_known_of_the_files_goes_with_a_whole_copy(bench):
    (bench.tree / "old").write_text("old")
    written = (bench.tree / "old").stat().st_ctime_ns
    wait_until(lambda: time.time_ns() > written + 60_000_000, "its time to be past")
    with bench.start() as session:
        bench.run(session, bench.write("1"))
        session.branch("then")
        bench.run(session, bench.write("2"))
        catalog = session.context.catalog
        made = session.fork("now", provider="copy")
        index = load(bytes(bench.home / "workspaces" / catalog.find_workspace(made.root).id / "index"))
        assert index.root == catalog.checkpoint(session.head.state.tree).root
        columns = DirectoryColumns(index.directories[b""])
        at = columns.names.index(b"old")
        assert columns.row(at)[3] == (root_of(made) / "old").stat().st_ino
        earlier = session.fork("earlier", checkpoint="then", provider="copy")
        assert (root_of(earlier) / "file").read_text() == "1"
    for name, text in (("now", "2"), ("earlier", "1")):
        with bench.open(name) as fork:
            more = functools.partial(Path(os.fsdecode(fork.root), "file").write_text, f"{text}.")
            entry = bench.run(fork, more)
            assert fork.workspace.diff(entry.before).changes[0].path == b"file"
            assert b"".join(fork.workspace.cat(entry.before, "file")) == text.encode()
            assert b"".join(fork.workspace.cat(entry.after, "file")) == f"{text}.".encode()

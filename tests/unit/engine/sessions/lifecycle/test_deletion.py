"""Ends of forks: what no checkpoint holds is kept or named (I5), and what is true of a directory that was moved."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.store.catalog.session_records import ref_name

LARGE = bytes(70_000)


@pytest.fixture(autouse=True)
def limited(bench):
    bench.flags["capture.max_file_bytes"] = 65_536


def fork(bench, name="side", **options):
    """A fork of a session; its directory."""
    with bench.start() as session:
        return Path(os.fsdecode(session.fork(name, **{"provider": "holdfast", **options}).root))


def die(bench, name):
    """Have the experiment that a fork belongs to be one whose process is gone."""
    with bench.opener().store().catalog.database.writing() as transaction:
        query = "SELECT metadata FROM session_refs WHERE name = ?"
        (metadata,) = transaction.one(query, (ref_name("experiment", name),))
        dead = metadata.replace(f" {os.getpid()} ", " 4194305 ")
        assert dead != metadata
        statement = "UPDATE session_refs SET metadata = ? WHERE name = ?"
        transaction.run(statement, (dead, ref_name("experiment", name)))


def names(missed):
    return [path for path, _ in missed]


def test_a_fork_does_not_expire_with_what_no_checkpoint_holds(bench, caplog):
    root = fork(bench)
    bench.sessions().delete("one")
    (root / "model").write_bytes(LARGE)
    os.mkfifo(root / "pipe")
    for _ in range(2):
        bench.clock.advance(8 * 86400)
        assert bench.sessions().sweep().removed == ()
        (warned,) = [record.getMessage() for record in caplog.records]
        assert f"the fork side stays, because {root} holds files that no checkpoint holds (model: too large" in warned
        assert "; pipe: " in warned
        assert warned.endswith("`holdfast session delete side` deletes it")
        caplog.clear()
        assert bench.sessions().sweep().removed == (), "nobody looks at it again before its time has passed once more"
        assert caplog.records == []
    assert (root / "model").read_bytes() == LARGE
    (root / "model").unlink()
    (root / "pipe").unlink()
    bench.clock.advance(8 * 86400)
    assert bench.sessions().sweep().removed == ("side",)


def test_what_a_fork_began_with_keeps_it_from_nothing(bench):
    (bench.tree / "data").write_bytes(LARGE)
    root = fork(bench, provider="copy", with_ignored=True)
    assert (root / "data").read_bytes() == LARGE
    bench.sessions().delete("one")
    bench.clock.advance(8 * 86400)
    assert bench.sessions().sweep().removed == ("side",)


def test_forks_of_a_killed_experiment_stay_if_no_checkpoint_holds_what_they_have(bench, caplog):
    roots = {}
    with bench.start() as session:
        for name in ("plain", "more"):
            roots[name] = Path(os.fsdecode(session.fork(name, type="experiment", provider="holdfast").root))
    (roots["plain"] / "file").write_text("what a checkpoint could hold goes with an experiment")
    (roots["more"] / "model").write_bytes(LARGE)
    for name in roots:
        die(bench, name)
    assert bench.sessions().sweep().removed == ("plain",)
    (warned,) = [record.getMessage() for record in caplog.records]
    assert "the fork more stays" in warned
    caplog.clear()
    assert bench.sessions().info("more").purpose == "fork"
    assert bench.sessions().sweep().removed == ()
    with bench.open() as session:
        session.checkout("forks/more")
    gone = bench.sessions().delete("more")
    assert (gone.directory, names(gone.not_captured)) == (bytes(roots["more"]), [b"model"])
    assert not roots["more"].exists()


def test_deleting_a_fork_says_what_went_that_no_checkpoint_holds(bench):
    roots = [fork(bench, "side")]
    with bench.open() as session:
        roots.append(Path(os.fsdecode(session.fork("other", provider="holdfast").root)))
    for root in roots:
        (root / "model").write_bytes(LARGE)
    sessions = bench.sessions()
    would = sessions.delete("side", dry_run=True)
    assert (would.directory, names(would.not_captured)) == (bytes(roots[0]), [b"model"])
    assert (roots[0] / "model").exists()
    assert sessions.delete("side") == would
    assert names(bench.open("other").delete().not_captured) == [b"model"]
    gone = sessions.delete("one")
    assert gone == ("one", None, None, None, ())


@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("instead", [False, True])
def test_a_forks_directory_that_was_moved_stays_and_is_named(bench, used, instead):
    """Also where it was used there; and where an empty directory is in its place."""
    root = fork(bench)
    moved = bench.tree.parent / "moved"
    root.rename(moved)
    if used:
        with bench.open("side"):
            pass
    if instead:
        root.mkdir()
    (moved / "model").write_bytes(LARGE)
    sessions = bench.sessions()
    would = sessions.delete("side", dry_run=True)
    assert would == ("side", None, would.not_found, bytes(moved), ())
    assert would.not_found in (bytes(root), bytes(root.parent)), "what was made is a directory with the fork in it"
    assert sessions.delete("side") == would
    assert sorted(os.listdir(moved)) == ["file", "model"]
    assert sessions.list() == [sessions.info("one")]
    assert [path for path in Path(f"{bench.home}-forks").rglob("*") if path.name == "tree"] == []


@pytest.mark.usefixtures("written_out")
def test_a_forks_directory_that_was_moved_where_all_goes_is_said_to_go(bench):
    root = fork(bench)
    moved = root.with_name("moved")
    root.rename(moved)
    (moved / "model").write_bytes(LARGE)
    gone = bench.sessions().delete("side")
    assert (gone.directory, names(gone.not_captured)) == (bytes(moved), [b"model"])
    assert not moved.exists()


@pytest.mark.usefixtures("written_out")
def test_a_forks_directory_that_is_gone_is_not_said_to_be_deleted(bench):
    root = fork(bench)
    shutil.rmtree(root)
    assert bench.sessions().delete("side") == ("side", None, bytes(root), None, ())


@pytest.mark.usefixtures("written_out")
def test_a_fork_that_was_moved_where_all_goes_does_not_expire_with_what_no_checkpoint_holds(bench, caplog):
    root = fork(bench)
    bench.sessions().delete("one")
    (root / "model").write_bytes(LARGE)
    root.rename(root.with_name("moved"))
    bench.clock.advance(8 * 86400)
    assert bench.sessions().sweep().removed == ()
    (warned,) = [record.getMessage() for record in caplog.records]
    assert f"{root.with_name('moved')} holds files that no checkpoint holds (model: " in warned
    caplog.clear()


@pytest.mark.usefixtures("written_out")
def test_a_fork_that_expires_says_where_its_directory_is(bench, caplog):
    root = fork(bench)
    bench.sessions().delete("one")
    root.rename(bench.tree.parent / "moved")
    bench.clock.advance(8 * 86400)
    assert bench.sessions().sweep().removed == ("side",)
    (warned,) = [record.getMessage() for record in caplog.records]
    assert f"was moved from {root} to {bench.tree.parent / 'moved'}, and stays there" in warned
    caplog.clear()
    assert (bench.tree.parent / "moved/file").read_text() == "0"

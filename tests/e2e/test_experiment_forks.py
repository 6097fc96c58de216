"""Experiments in forks of every kind: what the attempts find in them, and what is adopted."""

from __future__ import annotations

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.experiments.attempts import Attempt, Order
from holdfast.engine.experiments.experiment import experiment
from holdfast.engine.sessions.registry import Sessions
from holdfast.model.errors import UnsupportedError

from ..disks import mounted


@pytest.fixture
def disk(tmp_path):
    """A file system whose files can share blocks."""
    with mounted("xfs", tmp_path) as place:
        yield place


def lay(tree: Path) -> None:
    tree.mkdir()
    (tree / ".gitignore").write_text("deps\n")
    (tree / "deps").mkdir()
    (tree / "deps" / "lib").write_text("installed")
    (tree / "source").write_text("1")


def tried(home: Path, tree: Path, **options):
    """Two attempts, of which the second needs what is ignored; the winner is adopted."""
    holdfast.init(tree, home=home).close()

    def make() -> Sessions:
        return Sessions(home=os.fsencode(home), agent="me")

    order = Order([Attempt(1, "no", "exit 1"), Attempt(2, "yes", "cat deps/lib && echo 2 > source")], **options)
    with make() as sessions, sessions.start(os.fsencode(tree), "main") as session:
        with experiment(make, session, order) as found:
            winner = found.comparison.winner
            if winner is not None:
                found.adopt()
            roots = [Path(os.fsdecode(one.root)) for one in found.comparison.ranked]
        assert not any(root.exists() for root in roots)
        assert [one.id for one in sessions.list()] == ["main"]
        assert session.workspace.verify(read_data=True).ok
        return winner


@pytest.mark.root
def test_attempts_in_copies_that_share_blocks_find_what_is_ignored(disk: Path) -> None:
    lay(disk / "tree")
    winner = tried(disk / "home", disk / "tree", with_ignored=True)
    assert winner is not None
    assert (disk / "tree" / "source").read_text() == "2\n"
    assert (disk / "tree" / "deps" / "lib").read_text() == "installed"


def test_attempts_in_forks_that_are_written_out_do_not_but_for_a_setup(tmp_path: Path) -> None:
    lay(tmp_path / "tree")
    assert tried(tmp_path / "home", tmp_path / "tree", provider="holdfast") is None
    setup = "mkdir deps && echo made > deps/lib"
    winner = tried(tmp_path / "other home", tmp_path / "tree", provider="holdfast", setup=setup)
    assert winner is not None
    assert winner.result is not None
    assert winner.result.stdout == "made\n"
    assert (tmp_path / "tree" / "source").read_text() == "2\n"
    assert (tmp_path / "tree" / "deps" / "lib").read_text() == "installed"


def test_where_no_provider_carries_what_is_ignored_it_is_refused(tmp_path: Path) -> None:
    lay(tmp_path / "tree")
    with pytest.raises(UnsupportedError):
        tried(tmp_path / "home", tmp_path / "tree", provider="holdfast", with_ignored=True)


def test_attempts_in_work_trees_of_git(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    lay(tree)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"]):
        subprocess.run(["git", *words], cwd=tree, check=True)
    (tree / "new").write_text("not tracked")
    holdfast.init(tree, home=tmp_path / "home").close()
    head = (tree / ".git" / "index").read_bytes()
    setup = "test -e new && mkdir deps && echo made > deps/lib"
    winner = tried(tmp_path / "home", tree, provider="git", setup=setup)
    assert winner is not None
    assert (tree / "source").read_text() == "2\n"
    assert (tree / ".git" / "index").read_bytes() == head


SEVERAL = 5


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "provider"),
    [("", "git"), ("", "holdfast"), ("", "overlay"), ("xfs", "reflink"), ("btrfs", "btrfs")],
)
def test_forks_that_are_made_at_once_hold_the_same_and_are_apart(tmp_path: Path, kind: str, provider: str) -> None:
    with mounted(kind, tmp_path) if kind else nullcontext(tmp_path) as place:
        tree, home = place / "tree", place / "home"
        if provider == "btrfs":
            subprocess.run(["btrfs", "-q", "subvolume", "create", str(tree)], check=True)
        else:
            tree.mkdir()
        for number in range(60):
            file = tree / f"d{number % 6}" / f"f{number}"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{number}\n")
        for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"]):
            subprocess.run(["git", *words], cwd=tree, check=True)
        holdfast.init(tree, home=home).close()

        def make() -> Sessions:
            return Sessions(home=os.fsencode(home), agent="me")

        # Each finds everything, and nothing that another one has made.
        found_all = "test ! -e mine && cat d*/f* | sort -n | md5sum && echo {0} > mine && sleep 0.2 && cat mine"
        attempts = [Attempt(at, f"{at}", found_all.format(at)) for at in range(1, SEVERAL + 1)]
        with make() as sessions, sessions.start(os.fsencode(tree), "main") as session:
            with experiment(make, session, Order(attempts, provider=provider, parallel=4)) as found:
                outcomes = found.comparison.ranked
                assert [(one.phase, one.error) for one in outcomes] == [("done", "")] * SEVERAL
                printed = {one.attempt.name: one.result.stdout.split() for one in outcomes if one.result is not None}
                assert len({words[0] for words in printed.values()}) == 1
                assert {name: words[-1] for name, words in printed.items()} == {one.name: one.name for one in attempts}
                with make() as others:
                    assert {others.info(one.fork).provider for one in outcomes if one.fork} == {provider}
            assert not any(os.path.exists(one.root) for one in outcomes)
            assert [one.id for one in sessions.list()] == ["main"]
            assert session.workspace.verify(read_data=True).ok
        assert not (tree / "mine").exists()

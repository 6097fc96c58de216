"""Experiments with real shells in real forks: what comes of them (undone again by I6), and that nothing is left."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.experiments.attempts import Attempt, AttemptProgress, Order
from holdfast.engine.experiments.experiment import experiment
from holdfast.engine.sessions.registry import Sessions
from holdfast.engine.sessions.session import Session
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError

from ....waiting import has_ended

Make = Callable[[], Sessions]


def order(*commands: str, **options: object) -> Order:
    attempts = [Attempt(at, f"way {at}", command) for at, command in enumerate(commands, 1)]
    return Order(attempts, **options)  # type: ignore[arg-type]


def content(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(root.iterdir()) if path.name != ".holdfast"}


def sessions_left(make: Make) -> list[str]:
    with make() as sessions:
        return [one.id for one in sessions.list()]


def forks_on_disk(home: Path) -> list[str]:
    directory = Path(f"{home}-forks")
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_the_best_is_found_and_adopted_and_that_can_be_undone_i6(make: Make, session: Session, tree: Path) -> None:
    before = content(tree)
    commands = ("echo one > a; exit 3", "echo two > a; rm b; echo said", "sleep 3; echo three > a; echo said more")
    with experiment(make, session, order(*commands)) as found:
        comparison = found.comparison
        assert [one.attempt.number for one in comparison.ranked] == [2, 3, 1]
        assert comparison.winner is not None
        assert comparison.winner.result is not None
        assert comparison.winner.result.stdout == "said\n"
        assert comparison.statistics.succeeded == 2
        assert content(tree) == before
        diff = found.files(comparison.winner)
        assert diff is not None
        assert [(change.path, change.status) for change in diff.changes] == [(b"a", "M"), (b"b", "D")]
        (pair,) = [one for one in comparison.differences if (one.a, one.b) == (2, 3)]
        assert pair.stdout == "@@ -1 +1 @@\n-said\n+said more\n"
        assert pair.files is not None
        assert [change.path for change in pair.files.changes] == [b"a", b"b"]
        adopted = found.adopt()
        assert adopted.restored.undo_command == "holdfast undo"
    assert content(tree) == {"a": "two\n", "c": "c\n"}
    assert session.state.tree == session.workspace.resolve("@")
    assert session.head.message.startswith("adopted way 2 of the experiment ")
    session.workspace.undo()
    assert content(tree) == before


def test_nothing_is_left_of_the_forks(make: Make, session: Session, home: Path) -> None:
    with experiment(make, session, order("true", "false")) as found:
        assert len(sessions_left(make)) == 3
        roots = [Path(os.fsdecode(one.root)) for one in found.comparison.ranked]
        assert all(root.is_dir() for root in roots)
    assert sessions_left(make) == ["main"]
    assert not any(root.exists() for root in roots)
    assert forks_on_disk(home) == []


def test_forks_that_are_kept_are_forks_of_the_session(make: Make, session: Session) -> None:
    with experiment(make, session, order("echo x > new", "true", keep=True)) as found:
        pass
    with make() as sessions:
        forks = [sessions.info(one.fork) for one in found.comparison.ranked if one.fork is not None]
        assert {(one.parent, one.purpose) for one in forks} == {("main", "fork")}
        sessions.sweep()
        assert all(one.root is not None and os.path.isdir(one.root) for one in forks)


def test_a_setup_comes_first_and_its_failure_is_the_attempts(make: Make, session: Session) -> None:
    with experiment(make, session, order("cat made", "true", setup="echo made > made")) as found:
        first = next(one for one in found.comparison.ranked if one.attempt.number == 1)
        assert first.result is not None
        assert first.result.stdout == "made\n"
    with experiment(make, session, order("true", setup="exit 9")) as found:
        (one,) = found.comparison.ranked
        assert (one.phase, one.error, one.result) == ("failed", "the setup ended with 9", None)
        assert found.comparison.winner is None
        with pytest.raises(NotFoundError, match="nothing to adopt"):
            found.adopt()


def test_one_command_in_several_ways(make: Make, session: Session) -> None:
    ways = [
        Attempt(1, "variable", 'echo "$WAY ${BASH_VERSION:+bash}"', {"WAY": "one"}),
        Attempt(2, "shell", 'echo "$WAY ${BASH_VERSION:+bash}"', shell="sh"),
        Attempt(3, "time", 'echo "$WAY ${BASH_VERSION:+bash}"; sleep 60', timeout_seconds=0.3),
    ]
    with experiment(make, session, Order(ways)) as found:
        ends = {
            one.attempt.name: (one.phase, one.result.stdout if one.result else "") for one in found.comparison.ranked
        }
    assert ends == {
        "variable": ("done", "one bash\n"),
        "shell": ("done", " \n"),
        "time": ("timed out", " bash\n"),
    }


def test_attempts_run_at_once_but_no_more_than_allowed(make: Make, session: Session, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meet")
    # Neither end of a named pipe opens without the other: one after another they would wait for ever.
    commands = (f"echo hello > {tmp_path}/meet", f"cat {tmp_path}/meet")
    with experiment(make, session, order(*commands, parallel=2)) as found:
        assert found.comparison.statistics.succeeded == 2
    together = f"mkdir {tmp_path}/alone && sleep 0.1 && rmdir {tmp_path}/alone"
    with experiment(make, session, order(*[together] * 4, parallel=1)) as found:
        assert found.comparison.statistics.succeeded == 4


def test_a_command_gives_the_score(make: Make, session: Session) -> None:
    commands = ("seq 5; exit 1", "seq 3", "seq 9")
    score = 'test "$ATTEMPT" != 3 && wc -l < "$ATTEMPT_STDOUT"'
    with experiment(make, session, order(*commands, measure="score", score=score, highest=True)) as found:
        assert [(one.attempt.number, one.score) for one in found.comparison.ranked] == [(1, 5), (2, 3), (3, None)]
        assert found.comparison.ranked[2].error == "the scoring command ended with 1"
        assert found.comparison.winner is not None
        assert found.comparison.winner.attempt.number == 1


def test_what_the_scoring_command_changes_is_not_adopted(make: Make, session: Session, tree: Path) -> None:
    with experiment(make, session, order("echo x > a", measure="score", score="rm b; echo 1")) as found:
        found.adopt()
    assert content(tree) == {"a": "x\n", "b": "b\n", "c": "c\n"}


def test_a_function_gives_the_score_while_the_fork_is_there(make: Make, session: Session) -> None:
    def score(outcome):
        if outcome.attempt.number == 3:
            raise ValueError("odd")
        return len((Path(os.fsdecode(outcome.root)) / "a").read_text())

    commands = ("echo long > a", "echo s > a", "true")
    with experiment(make, session, order(*commands, measure="score", score=score)) as found:
        assert [(one.attempt.number, one.score) for one in found.comparison.ranked] == [(2, 2), (1, 5), (3, None)]
        assert found.comparison.ranked[2].error == "the scoring function failed: ValueError: odd"


def test_what_was_changed_in_the_session_meanwhile_is_not_lost(make: Make, session: Session, tree: Path) -> None:
    with experiment(make, session, order("echo theirs > a", "exit 1")) as found:
        (tree / "b").write_text("mine\n")
        with pytest.raises(RefusedError, match="has changed since") as caught:
            found.adopt()
        assert caught.value.code == "changed_meanwhile"
        assert [found.is_kept(one) for one in found.comparison.ranked] == [True, False]
    assert content(tree) == {"a": "a\n", "b": "mine\n", "c": "c\n"}
    winner = found.comparison.winner
    assert winner is not None
    assert content(Path(os.fsdecode(winner.root)))["a"] == "theirs\n"
    assert sessions_left(make) == ["main", winner.fork]


def test_it_is_told_how_it_goes(make: Make, session: Session) -> None:
    told: list[AttemptProgress] = []
    with experiment(make, session, order("echo one; echo two", "exit 4"), tell=told.append):
        pass
    assert [one.phase for one in told if one.number == 1 and not one.line] == ["forking", "waiting", "running", "done"]
    assert [one.phase for one in told if one.number == 2][-1] == "failed"
    assert [one.line for one in told if one.line][-1] == "two"


def test_cancelling_ends_everything_and_leaves_nothing(
    make: Make, session: Session, home: Path, tree: Path, tmp_path: Path
) -> None:
    stop = threading.Event()
    before = content(tree)
    os.mkfifo(tmp_path / "never")

    def tell(moved: AttemptProgress) -> None:
        if moved.line == "begun":
            stop.set()

    commands = (f"echo $$ > {tmp_path}/shell; echo begun; cat {tmp_path}/never", "sleep 600", "sleep 600")
    with (
        pytest.raises(HoldfastError) as caught,
        experiment(make, session, order(*commands, parallel=2, keep=True), tell=tell, stop=stop),
    ):
        pytest.fail("it was cancelled")
    assert caught.value.code == "cancelled"
    assert sessions_left(make) == ["main"]
    assert forks_on_disk(home) == []
    assert content(tree) == before
    assert has_ended(int((tmp_path / "shell").read_text()))


def test_what_goes_wrong_in_the_block_leaves_nothing_either(make: Make, session: Session, home: Path) -> None:
    with pytest.raises(KeyError), experiment(make, session, order("true")):
        raise KeyError
    assert sessions_left(make) == ["main"]
    assert forks_on_disk(home) == []


def test_forks_that_are_to_be_kept_are_so_whatever_goes_wrong_in_the_block(make: Make, session: Session) -> None:
    with pytest.raises(KeyError), experiment(make, session, order("echo x > new", "true", keep=True)) as found:
        raise KeyError
    with make() as sessions:
        forks = [sessions.info(one.fork) for one in found.comparison.ranked if one.fork is not None]
        assert [(one.parent, one.purpose) for one in forks] == [("main", "fork")] * 2
        sessions.sweep()
        assert all(one.root is not None and os.path.isdir(one.root) for one in forks)


def test_what_an_attempt_leaves_running_is_ended(make: Make, session: Session, tmp_path: Path) -> None:
    with experiment(make, session, order(f"setsid sleep 600 & echo $! > {tmp_path}/pid")):
        pid = (tmp_path / "pid").read_text().strip()
    assert has_ended(int(pid))


def test_orders_that_make_no_sense(make: Make, session: Session) -> None:
    same = [Attempt(1, "same", "true"), Attempt(2, "same", "true")]
    orders = [
        Order([]),
        Order(same),
        order("true", measure="score"),
        order("true", score="echo 1"),
        order("true", parallel=-1),
    ]
    for one in orders:
        with pytest.raises(UsageError), experiment(make, session, one):
            pytest.fail("it began")
    most = session.settings.max_forks
    with pytest.raises(RefusedError) as caught, experiment(make, session, order(*["true"] * (most + 1))):
        pytest.fail("it began")
    assert caught.value.code == "session_limit"
    assert sessions_left(make) == ["main"]
    session.fork("side")
    with pytest.raises(RefusedError, match=f"has 1 fork, and {most} more would pass"):
        experiment(make, session, order(*["true"] * most)).__enter__()


def test_long_commands_that_are_no_text_can_be_tried_and_adopted(make: Make, session: Session, tree: Path) -> None:
    command = "echo x > a # caf\udce9" + "." * 40_000
    with experiment(make, session, Order([Attempt(1, command, command)])) as found:
        found.adopt()
    assert content(tree)["a"] == "x\n"


def test_an_attempt_may_remove_its_own_directory(make: Make, session: Session, tree: Path, home: Path) -> None:
    before = content(tree)
    with experiment(make, session, order('cd /; rm -rf "$OLDPWD"', "echo x > a")) as found:
        assert found.comparison.winner is not None
        assert {one.attempt.number: one.after is None for one in found.comparison.ranked}[2] is False
    assert content(tree) == before
    assert sessions_left(make) == ["main"]
    assert forks_on_disk(home) == []


def test_the_fork_of_the_best_stays_if_no_checkpoint_holds_all_that_it_has(
    make: Make, session: Session, tree: Path, home: Path
) -> None:
    (home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    large = "head -c 70000 /dev/zero"
    commands = f"{large} > model; {large} > a; rm b; echo n > note", f"{large} > model; exit 1"
    with experiment(make, session, order(*commands)) as found:
        best, other = found.comparison.ranked
        assert [[path for path, _ in one.not_captured] for one in (best, other)] == [[b"a", b"model"], [b"model"]]
        diff = found.files(best)
        assert diff is not None
        assert [(change.path, change.status) for change in diff.changes] == [(b"b", "D"), (b"note", "A")]
        assert found.adopt().restored.deleted == [b"b"]
    assert content(tree) == {"a": "a\n", "c": "c\n", "note": "n\n"}
    assert sessions_left(make) == ["main", best.fork]
    assert (Path(os.fsdecode(best.root)) / "model").stat().st_size == 70_000


def test_the_fork_of_what_was_adopted_stays_whatever_happens_then(make: Make, session: Session, home: Path) -> None:
    (home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    commands = "true", "head -c 70000 /dev/zero > model; exit 1"
    adopted: list[str | None] = []

    def adopt_and_fail() -> None:
        with experiment(make, session, order(*commands)) as found:
            found.adopt(found.comparison.ranked[1])
            adopted.append(found.comparison.ranked[1].fork)
            raise RefusedError("something else")

    with pytest.raises(RefusedError):
        adopt_and_fail()
    assert sessions_left(make) == ["main", *adopted]


def test_what_is_adopted_is_kept_before_it_is_brought_here(
    make: Make, session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed from then on, it is no experiment's fork any more, which the next sweep would have to judge."""
    (home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    bring, then = session.bring, list[str]()

    def looked_at(*given: object, **named: object) -> object:
        with make() as sessions:
            then.extend(one.purpose for one in sessions.list())
        return bring(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "bring", looked_at)
    with experiment(make, session, order("true", "head -c 70000 /dev/zero > model; exit 1")) as found:
        found.adopt(found.comparison.ranked[1])
    assert sorted(then) == ["experiment", "fork", "session"]


_RULES = {
    "much": 'max_file_bytes = "1MiB"\n',
    "little": 'max_file_bytes = "64KiB"\n',
    "without": 'exclude = ["/data"]\n',
}


@pytest.mark.parametrize("provider", ["holdfast", "copy"])
@pytest.mark.parametrize(("before", "after"), [("much", "little"), ("little", "much"), ("much", "without")])
def test_rules_that_were_changed_while_the_session_is_open_are_no_change_of_the_tree(
    make: Make, tree: Path, home: Path, before: str, after: str, provider: str
) -> None:
    (tree / "holdfast.toml").write_text(f"[capture]\n{_RULES[before]}")
    (tree / "a").write_text("a\n")
    (tree / "data").write_bytes(bytes(70_000))
    holdfast.init(tree, home=home).close()
    with make() as sessions, sessions.start(os.fsencode(tree), "main") as session:
        (tree / "holdfast.toml").write_text(f"[capture]\n{_RULES[after]}")
        asked = order("echo x > a", provider=provider, with_ignored=provider == "copy")
        with experiment(make, session, asked) as found:
            (outcome,) = found.comparison.ranked
            assert (outcome.phase, outcome.error) == ("done", "")
            diff = found.files(outcome)
            assert diff is not None
            assert b"data" not in [change.path for change in diff.changes if change.after is None]
            assert found.adopt().restored.deleted == []
    assert (tree / "a").read_text() == "x\n"
    assert (tree / "data").read_bytes() == bytes(70_000)


@pytest.mark.parametrize("rules", ["as they were", "changed"])
@pytest.mark.parametrize("change", ["echo theirs > new", "rm b", "echo theirs > b", "echo '/b' > .gitignore"])
def test_a_tree_that_was_changed_while_it_was_forked_is_told_from_changed_rules(
    make: Make, session: Session, tree: Path, home: Path, change: str, rules: str
) -> None:
    """The fork's directory is changed before anything looks at it."""
    if rules == "changed":
        (tree / "holdfast.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')

    def tell(moved: AttemptProgress) -> None:
        if moved.phase == "waiting":
            (fork,) = Path(f"{home}-forks").glob("*/*/tree")
            subprocess.run(["sh", "-ec", change], cwd=fork, check=True)

    with experiment(make, session, order("true", provider="holdfast"), tell=tell) as found:
        (outcome,) = found.comparison.ranked
        assert outcome.error == "it would have begun in another state: the tree changed during the fork"


def test_what_forks_began_with_keeps_none_of_them(make: Make, tree: Path, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[capture]\nmax_file_bytes = "64KiB"\n')
    (tree / "a").write_text("a\n")
    (tree / "data").write_bytes(bytes(70_000))
    (tree / "more").write_bytes(bytes(70_000))
    holdfast.init(tree, home=home).close()
    with make() as sessions, sessions.start(os.fsencode(tree), "main") as session:
        with experiment(make, session, order("echo x >> more; test -e data", with_ignored=True)) as found:
            assert found.comparison.winner is not None
            assert [path for path, _ in found.comparison.winner.not_captured] == [b"more"]
        with experiment(make, session, order("test -e data", with_ignored=True)):
            pass
    assert len(sessions_left(make)) == 2

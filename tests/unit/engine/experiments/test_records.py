"""Experiments as their forks tell of them: how far each attempt is, how it ended, and what may be adopted."""

from __future__ import annotations

import pytest

from holdfast.engine.experiments._runner import MOST_OUTPUT, _OutputFile
from holdfast.engine.experiments.attempts import Attempt, Order
from holdfast.engine.experiments.experiment import experiment
from holdfast.engine.experiments.records import (
    adopt_recorded,
    attempt_files,
    experiments,
    plan_adoption,
    recorded_experiment,
)
from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.errors import NotFoundError, RefusedError


def tried(make, session, *commands, **options):
    """An experiment that is over, and whose forks stay; what its own process says."""
    timeouts = options.pop("timeouts", {})
    attempts = [
        Attempt(at, f"way {at}", command, timeout_seconds=timeouts.get(at)) for at, command in enumerate(commands, 1)
    ]
    with experiment(make, session, Order(attempts, keep=True, **options)) as found:
        return found.comparison


def test_it_tells_what_its_own_process_does(make, session):
    commands = ("echo one > a; echo said; exit 3", "echo two > a", "sleep 60", "rm a")
    for options in (
        {"measure": "output"},
        {"measure": "score", "score": "cat a | wc -c", "setup": "echo set > up"},
        {"measure": "score", "score": "cat a | wc -c", "highest": True},
    ):
        expected = tried(make, session, *commands, timeouts={3: 1}, **options)
        found = recorded_experiment(session.workspace, expected.experiment)
        assert found.state == "over"
        assert found.winner == (None if expected.winner is None else expected.winner.attempt.number)
        for one, recorded in zip(expected.ranked, found.attempts, strict=True):
            outcome = recorded.outcome
            assert (outcome.attempt.number, outcome.attempt.name) == (one.attempt.number, one.attempt.name)
            assert outcome.attempt.command == one.attempt.command
            for name in ("phase", "fork", "root", "result", "duration_ms", "before", "after", "score", "error"):
                assert getattr(outcome, name) == getattr(one, name), name
    assert len(experiments(session.workspace)) == 3


def test_an_attempt_whose_setup_failed_has_not_run(make, session):
    name = tried(make, session, "echo one > a", setup="exit 7").experiment
    found = recorded_experiment(session.workspace, name)
    (attempt,) = found.attempts
    assert (attempt.outcome.phase, attempt.outcome.error) == ("failed", "the setup ended with 7")
    assert found.winner is None


def test_what_is_done_later_in_a_fork_that_stays_is_none_of_the_attempt(make, session):
    comparison = tried(make, session, "echo one > a", measure="score", score="wc -c < a")
    fork = comparison.ranked[0].fork
    with make() as sessions, sessions.open(fork) as there:
        execute(there, "echo later > later; exit 1")
    found = recorded_experiment(session.workspace, comparison.experiment)
    outcome = found.attempt(1).outcome
    assert (outcome.phase, outcome.score, outcome.after) == ("done", 4.0, comparison.ranked[0].after)
    diff = attempt_files(session.workspace, found, outcome)
    assert diff is not None
    assert [change.path for change in diff.changes] == [b"a"]


def test_the_plan_is_what_adopting_does_i6(make, session, tree):
    name = tried(make, session, "echo one > a; rm b; echo new > c", "true").experiment
    found = recorded_experiment(session.workspace, name)
    outcome = found.attempt(1).outcome
    before = {path.name: path.read_bytes() for path in tree.iterdir() if path.is_file()}
    planned = plan_adoption(session.workspace, found, outcome)
    session.close()
    with make() as sessions:
        done = adopt_recorded(sessions, found, outcome)
    assert (sorted(planned.written), list(planned.deleted)) == (sorted(done.restored.written), [b"b"])
    assert (tree / "c").read_text() == "new\n"
    assert done.restored.undo_command == "holdfast undo"
    import holdfast

    with holdfast.open(tree, home=session.context.home) as workspace:
        workspace.undo()
    assert {path.name: path.read_bytes() for path in tree.iterdir() if path.is_file()} == before


def test_what_cannot_be_adopted_is_refused(make, session, tree):
    name = tried(make, session, "echo one > a").experiment
    found = recorded_experiment(session.workspace, name)
    outcome = found.attempt(1).outcome
    running = found._replace(state="running")
    with pytest.raises(RefusedError) as caught:
        plan_adoption(session.workspace, running, outcome)
    assert caught.value.code == "experiment_running"
    with pytest.raises(NotFoundError) as missing:
        plan_adoption(session.workspace, found, outcome._replace(after=None))
    assert missing.value.code == "no_winner"
    with pytest.raises(NotFoundError) as missing:
        found.attempt(9)
    assert missing.value.code == "no_attempt"
    (tree / "mine").write_text("mine")
    with pytest.raises(RefusedError) as caught:
        plan_adoption(session.workspace, found, outcome)
    assert caught.value.code == "changed_meanwhile"
    with pytest.raises(NotFoundError) as missing:
        recorded_experiment(session.workspace, "0" * 12)
    assert missing.value.code == "no_experiment"


def test_what_anyone_says_of_a_fork_makes_no_experiment(session):
    said = {
        **dict.fromkeys(("experiment", "attempt", "command", "began", "best", "setup", "score"), "x"),
        "measure": "duration",
        "number": "1",
        "attempts": "1",
    }
    session.fork("honest", metadata=said)
    for number, wrong in enumerate(({"number": "-1"}, {"attempts": "9" * 30}, {"measure": "luck"})):
        session.fork(f"wrong{number}", metadata={**said, "experiment": "y", **wrong})
    session.fork("less", metadata={"experiment": "z", "began": "x"})
    (found,) = experiments(session.workspace)
    assert [one.outcome.fork for one in found.attempts] == ["honest"]
    assert found.attempts[0].outcome.phase == "cancelled"
    assert attempt_files(session.workspace, found, found.attempts[0].outcome) is None


def test_what_is_printed_is_seen_in_bounded_room_and_goes_with_the_command(tmp_path):
    path = tmp_path / "output"
    with _OutputFile(bytes(path)) as file:
        file.add(b"first\n")
        assert path.read_bytes() == b"first\n"
        assert path.stat().st_mode & 0o777 == 0o600
        for number in range(3):
            file.add(str(number).encode() * MOST_OUTPUT)
            assert path.read_bytes() == str(number).encode() * MOST_OUTPUT
        file.add(b"x" * (MOST_OUTPUT + 1) + b"end")
        assert path.stat().st_size == MOST_OUTPUT
        assert path.read_bytes().endswith(b"end")
    assert not path.exists()


def test_a_directory_that_is_gone_stops_no_command(tmp_path):
    with _OutputFile(bytes(tmp_path / "gone" / "output")) as file:
        file.add(b"said")

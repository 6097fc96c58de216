"""Steps of several commands, and a session in several directories, by requests of a frontend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.undo_log import log_directory
from holdfast.supervisor.control.remote_service import visit
from holdfast.testing.tree_state import differences, photograph

from ..waiting import wait_until
from .frontend import Start


def test_commands_between_begin_and_commit_are_one_step(start: Start, tree: Path) -> None:
    """I1."""
    (tree / ".gitignore").write_text("ignored\n")
    (tree / "ignored").write_text("1")
    before = photograph(tree)
    client = start()
    client.ask("hello", versions=[1])
    client.ask("session.start")
    begun = client.ask("step.begin", label="both")
    for command in ("rm ignored; echo 1 > f", "echo 2 > g"):
        done = client.ask("agent.execute", command=command)
        assert done["changed"] == 0
    step = client.ask("step.commit")
    assert (step["id"], step["kind"], step["command"]) == (begun["step_id"], "explicit", ["both"])
    assert sorted(change["path"] for change in step["changes"]) == ["f", "g", "ignored"]
    assert client.ask("agent.execute", command="echo 3 > h")["changed"] == 1
    assert client.ask("undo.rollback", steps=2)["steps"][-1] == begun["step_id"]
    assert differences(before, photograph(tree)) == []


def test_rollback_takes_all_of_it_back_and_nothing_of_others(start: Start, tree: Path) -> None:
    client = start()
    client.ask("hello", versions=[1])
    client.ask("session.start")
    client.ask("agent.execute", command="echo 1 > f")
    before = photograph(tree)
    begun = client.ask("step.begin")["step_id"]
    client.ask("agent.execute", command="echo 2 > f; echo 1 > g")
    assert client.refused("step.begin")["code"] == "open_step"
    assert client.ask("step.rollback")["steps"] == [begun]
    assert differences(before, photograph(tree)) == []
    assert client.refused("step.commit")["code"] == "no_open_step"
    assert client.refused("step.rollback")["code"] == "no_open_step"


def test_a_step_that_is_open_at_the_end_of_the_session_is_closed(start: Start, tree: Path) -> None:
    client = start()
    client.ask("hello", versions=[1])
    client.ask("session.start")
    begun = client.ask("step.begin")["step_id"]
    client.ask("agent.execute", command="echo 1 > f")
    client.ask("session.stop")
    client.ask("session.start")
    found = {step["id"]: step for step in client.ask("undo.history")["steps"]}
    assert (found[begun]["state"], found[begun]["paths"]) == ("done", 1)
    assert client.ask("undo.rollback", step_id=begun)["deleted"] == ["f"]
    assert not (tree / "f").exists()


def test_a_step_ends_as_a_commit_with_the_process_that_has_begun_it(start: Start, tree: Path) -> None:
    """Also where another run, which would go on into it, keeps the keeper."""
    client, other = start(), start()
    for one in (client, other):
        one.ask("hello", versions=[1])
        one.ask("session.start")
    begun = client.ask("step.begin", label="both")["step_id"]
    client.ask("agent.execute", command="echo 1 > f")
    client.process.kill()
    client.process.wait()

    def found() -> dict[str, Any]:
        return next(step for step in other.ask("undo.history")["steps"] if step["id"] == begun)

    wait_until(lambda: found()["state"] == "done")
    assert found()["command"] == ["both", "[committed: its client ended]"]
    assert (tree / "f").read_text() == "1\n", "nothing is taken back"
    assert other.ask("agent.execute", command="echo 2 > g")["changed"] == 1, "what comes later is a step of its own"
    assert other.ask("step.begin", label="next")["step_id"] > begun
    other.ask("step.commit")
    assert other.ask("undo.rollback", step_id=begun)["deleted"] == ["f"]


def test_one_directory_does_not_wait_for_another_to_begin(start: Start, tmp_path: Path) -> None:
    home, places = tmp_path / "home", [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
        holdfast.init(place, home=home).close()
    client = start(HOLDFAST_LOCK_TIMEOUT="10m")
    client.ask("hello", versions=[1])
    opener = Opener(home=bytes(home))
    try:
        one, two = (opener.open(bytes(place)) for place in places)

        def is_kept() -> bool:
            keeper = visit(log_directory(two))
            if keeper is not None:
                keeper.close()
            return keeper is not None

        with one.lock():
            asked = client.send("session.start", working_directories=[{"path": str(place)} for place in places])
            wait_until(is_kept)
    finally:
        opener.close()
    states = [each["state"] for each in client.answer(asked)["payload"]["directories"]]
    assert states == ["idle", "idle"]

"""Steps of several commands, by requests of a frontend."""

from __future__ import annotations

from pathlib import Path

from holdfast.testing.tree_state import differences, photograph

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

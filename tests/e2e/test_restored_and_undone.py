"""I8: restores while a session lives, and the undo of them: what they take and bring back is nobody else's edit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.testing.tree_state import photograph

from .frontend import Frontend, Message, Start

ACTIONS = (
    "echo new > new",
    "echo other > f",
    "echo more >> f",
    "chmod 600 f",
    "mv f moved",
    "mkdir -p d/e && echo in > d/e/in",
    "ln -s f link",
)


def seen(tree: Path) -> dict[bytes, tuple[int, bytes]]:
    """What checkpoints hold of a tree."""
    return {path: (one.mode, one.content) for path, one in photograph(tree).items() if path}


def done(client: Frontend, command: str) -> Message:
    answer = client.ask("agent.execute", command=command)
    assert answer["exit_code"] == 0
    return answer


def assert_nobody_is_blamed(client: Frontend) -> None:
    history = client.ask("undo.history")
    assert history["barriers"] == []
    assert not any(step["barrier_after"] for step in history["steps"])
    assert client.events("external_modification") == []


def test_a_step_before_a_restore_that_was_undone_is_undone(start: Start, tree: Path) -> None:
    (tree / "f").write_text("one\n")
    before = seen(tree)
    client = start()
    client.begin()
    client.ask("checkpoint.create", label="b")
    for action in ACTIONS:
        step = done(client, action)["step_id"]
        after = seen(tree)
        client.ask("checkpoint.restore", checkpoint="b")
        assert seen(tree) == before
        client.ask("undo.rollback")
        assert seen(tree) == after
        assert client.ask("undo.rollback")["steps"] == [step], action
        assert seen(tree) == before
    assert_nobody_is_blamed(client)


def test_what_an_undone_step_gave_back_is_known_again_too(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    client.ask("checkpoint.create", label="b")
    first = done(client, "echo one > f")["step_id"]
    second = done(client, "echo two >> f")["step_id"]
    assert client.ask("undo.rollback")["steps"] == [second]
    client.ask("checkpoint.restore", checkpoint="b")
    client.ask("undo.rollback")
    assert client.ask("undo.rollback")["steps"] == [first]
    assert seen(tree) == {}


@pytest.mark.parametrize("anew", [False, True])
def test_what_a_restore_brought_is_nobody_elses_where_a_step_comes_upon_it(
    start: Start, tree: Path, anew: bool
) -> None:
    (tree / "f").write_text("zero\n")
    client = start()
    client.begin()
    client.ask("checkpoint.create", label="b")
    first = done(client, "echo one >> f; echo new > g; mkdir d; echo in > d/h")["step_id"]
    client.ask("checkpoint.restore", checkpoint="b")
    if anew:
        client.ask("session.stop")
        client.ask("session.start")
    second = done(client, "echo two >> f; echo newer > g; mkdir d; echo within > d/h")["step_id"]
    assert_nobody_is_blamed(client)
    for dry_run in (True, False):
        refused = client.refused("undo.rollback", step_ids=[first, second], dry_run=dry_run)
        assert (refused["code"], refused["data"]["barriers"]) == ("barrier", [])
    # (A directory made anew may have the inode number of the old one: then what is in it is named.)
    assert re.fullmatch("d(/h)?, f, g have changed since step 1, outside of any step", refused["message"])
    assert (tree / "f").read_text() == "zero\ntwo\n"
    for steps in ([second], [], [first]):
        assert client.ask("undo.rollback")["steps"] == steps
    assert_nobody_is_blamed(client)
    assert seen(tree).keys() == {b"f"}
    assert (tree / "f").read_text() == "zero\n"


def test_an_edit_of_what_a_restore_brought_is_its_editors(start: Start, tree: Path) -> None:
    (tree / "f").write_text("zero\n")
    client = start()
    client.begin()
    client.ask("checkpoint.create", label="b")
    done(client, "echo one >> f")
    client.ask("checkpoint.restore", checkpoint="b")
    (tree / "f").write_text("by hand\n")
    done(client, "echo two >> f")
    assert {path for barrier in client.ask("undo.history")["barriers"] for path in barrier["paths"]} == {"f"}


def test_what_was_edited_by_hand_and_restored_is_as_the_step_left_it(start: Start, tree: Path) -> None:
    client = start()
    client.begin()
    step = done(client, "echo one > f")["step_id"]
    client.ask("checkpoint.create", label="b")
    (tree / "f").write_text("by hand\n")
    client.ask("checkpoint.restore", checkpoint="b")
    assert client.ask("undo.rollback", step_id=step)["steps"] == [step]
    assert not (tree / "f").exists()


@pytest.mark.parametrize("again", [False, True])
def test_it_holds_in_the_next_session_too(start: Start, tree: Path, again: bool) -> None:
    client = start()
    client.begin()
    client.ask("checkpoint.create", label="b")
    step = done(client, "echo one > f")["step_id"]
    client.ask("checkpoint.restore", checkpoint="b")
    if again:
        client.ask("undo.rollback")
    client.ask("session.stop")
    client.ask("session.start")
    if not again:
        client.ask("undo.rollback")
    assert client.ask("undo.rollback")["steps"] == [step]
    assert seen(tree) == {}

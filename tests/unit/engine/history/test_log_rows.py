"""The rows of the log: one for each thing that happened, whatever it left in the history."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.running.run import begin_run, end_run
from holdfast.engine.sessions.shell.execution import execute
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import NotFoundError
from holdfast.testing.clocks import ManualClock


def rows(workspace, **wanted):
    return list(workspace.log_rows(**wanted))


def names(workspace, **wanted):
    return [
        item.name.split(":")[0] if item.made is None or ":" in item.name else item.made.kind
        for item in rows(workspace, **wanted)
    ]


def test_a_run_is_one_row_with_its_command_whatever_it_changed(bench):
    for command in ("true", "make"):
        run = begin_run(bench.context, command)
        if command == "make":
            bench.step(lambda actor: actor.write(b"n", b"1"), run=run)
        end_run(bench.context, run, command)
    gone = begin_run(bench.context, "killed")
    found = [(item.name, item.command, item.state, bool(item.made)) for item in rows(bench.workspace)[:-1]]
    assert found == [
        (f"run:{gone}", "killed", "open", False),
        (f"run:{run}", "make", "", True),
        (found[2][0], "true", "", False),
    ]
    assert [item.kind for item in rows(bench.workspace, steps=True)] == ["run", "run", "step", "run", "checkpoint"]


def test_a_run_that_was_killed_is_said_to_be_once_no_keeper_can_have_it(home, tree):
    opener = Opener(home=os.fsencode(home), clock=(clock := ManualClock()))
    with closing(Workspace(opener, opener.init(os.fsencode(tree))[0])) as workspace:
        begin_run(workspace._context, "make")
        assert [item.state for item in rows(workspace) if item.kind == "run"] == ["open"]
        clock.advance(60)
        assert [item.state for item in rows(workspace) if item.kind == "run"] == ["killed"]
        with opener.open(os.fsencode(tree)).lock():  # (as the process does that notes its end)
            assert [item.state for item in rows(workspace) if item.kind == "run"] == ["open"]


def test_an_undo_and_a_redo_by_checkpoints_name_the_row_that_they_are_of(bench):
    bench.workspace.fork("@", fork := bench.tree.parent / "fork")
    (fork / "f").write_text("of the fork")
    bench.workspace.merge(str(fork))
    merge = rows(bench.workspace)[0].name
    step = bench.step(lambda actor: actor.write(b"n", b"1"))
    bench.workspace.undo(2)
    bench.workspace.redo(2)
    bench.workspace.undo(step=step)
    bench.workspace.undo()
    (bench.tree / "g").write_text("1")
    saved = bench.workspace.checkpoint().checkpoint.id
    bench.workspace.undo()
    bench.workspace.redo()
    bench.workspace.restore(rows(bench.workspace)[-1].name)
    restore = rows(bench.workspace)[0].name
    bench.workspace.undo()
    found = [(item.kind, item.of) for item in rows(bench.workspace) if item.kind in ("undo", "redo") and not item.steps]
    assert found == [
        ("undo", restore),
        ("redo", saved),
        ("undo", saved),
        ("undo", merge),
        ("redo", merge),
        ("undo", merge),
    ]


def test_what_was_undone_is_said_and_states_that_steps_leave_are_no_rows_of_their_own(bench):
    step = bench.step(lambda actor: actor.write(b"n", b"1"))
    bench.workspace.undo()
    bench.workspace.redo()
    (bench.tree / "f").write_text("by hand")
    saved = bench.workspace.checkpoint("By Hand").checkpoint.id
    bench.workspace.undo()
    back, labelled, redo, undo, *_ = rows(bench.workspace)
    assert (back.kind, back.steps, back.before) == ("undo", (), saved)
    assert labelled.name == saved
    for item in (redo, undo):
        assert (item.steps, item.command) == ((step,), "do")
    assert (undo.made.kind, undo.made.changes) == ("auto", (0, 0, 1))
    assert names(bench.workspace) == ["undo", "manual", "redo", "undo", "rescue", "manual"]


def test_a_command_of_a_session_and_what_was_saved_of_it_are_one_row(session, home, tree):
    execute(session, "echo 2 > a")
    execute(session, "false")
    execute(session, "rm b")
    with holdfast.open(tree, home=home) as workspace:
        found = rows(workspace)
        assert [(item.name, item.command, item.exit_code) for item in found[:3]] == [
            ("command:main:3", "rm b", 0),
            ("command:main:2", "false", 1),
            ("command:main:1", "echo 2 > a", 0),
        ]
        assert [None if item.made is None else item.made.changes for item in found[:3]] == [(0, 0, 1), None, (0, 1, 0)]
        assert rows(workspace, paths=["b"])[0].name == "command:main:3"
        shown = workspace.show_row("command:main:1")
        assert [change.path for change in shown.changes] == [b"a"]


def test_a_command_stands_above_what_came_before_it_in_the_same_state(session, home, tree):
    with holdfast.open(tree, home=home) as workspace:
        workspace.prompt("first")
        execute(session, "echo 2 > a")
        assert [item.kind for item in rows(workspace)][:2] == ["command", "prompt"]


def test_a_merge_is_a_row_and_a_return_to_it_a_restore(bench, tmp_path):
    bench.workspace.fork("@", tmp_path / "fork")
    (tmp_path / "fork/new").write_text("1")
    bench.workspace.merge(str(tmp_path / "fork"))
    merged = bench.workspace.resolve("@")
    bench.workspace.undo()
    bench.workspace.restore(merged)
    assert names(bench.workspace) == ["restore", "undo", "merge", "manual"]
    (item,) = (one for one in rows(bench.workspace) if one.kind == "merge")
    assert (item.made.id, item.text) == (merged, f"merged the fork {tmp_path / 'fork'}")
    assert [change.path for change in bench.workspace.show_row(item.name).changes] == [b"new"]


def test_what_came_with_a_bundle_is_in_it(bench, home, tmp_path):
    (bench.tree / "f").write_text("1")
    exported = bench.workspace.checkpoint("one").checkpoint.id
    bench.workspace.export([exported], tmp_path / "bundle")
    (tmp_path / "other").mkdir()
    with holdfast.init(tmp_path / "other", home=tmp_path / "otherhome") as workspace:
        (tmp_path / "other/x").write_text("1")
        first = workspace.checkpoint("first").checkpoint.id
        workspace.import_(tmp_path / "bundle")
        (tmp_path / "other/x").write_text("2")
        last = workspace.checkpoint("last").checkpoint.id
        found = rows(workspace)
        assert [item.name for item in found] == [last, exported, found[2].name, first]
        assert [item.made.kind for item in found if item.made is not None] == ["manual", "import", "import", "manual"]
        workspace.restore(exported)
        assert [item.name for item in rows(workspace)][1:] == [item.name for item in found]


def test_rows_are_found_by_what_they_say_and_changed(bench):
    number = bench.workspace.prompt("count the Items", author="claude").prompt
    (bench.tree / "d").mkdir()
    (bench.tree / "d/n").write_text("1")
    made = bench.workspace.checkpoint("one", author="ada").checkpoint.id
    bench.workspace.checkpoint("zwei")
    (bench.tree / "f").write_text("1")
    bench.workspace.checkpoint()
    assert [item.name for item in rows(bench.workspace, text="ITEMS")] == [f"prompt:{number}"]
    assert [item.name for item in rows(bench.workspace, text="zwei")] == [made]
    assert [item.name for item in rows(bench.workspace, author="ada")] == [made]
    for paths in (["d"], [b"d/n"], ["nowhere", "d/n/below"]):
        assert [item.name for item in rows(bench.workspace, paths=paths)] == [made]
    assert len(rows(bench.workspace, paths=["d", "f"])) == 3
    assert rows(bench.workspace, paths=["nowhere"]) == []
    assert rows(bench.workspace, paths=["nowhere", ""]) == rows(bench.workspace)


def test_the_changes_of_a_forgotten_checkpoint_count_as_those_of_its_children(bench):
    workspace, made = bench.workspace, []
    for number in range(4):
        (bench.tree / "a").write_text(str(number))
        if number == 1:
            (bench.tree / "d").mkdir()
            (bench.tree / "d/token").write_text("secret")
        made.append(workspace.checkpoint().checkpoint.id)
    first, second, third, last = made
    assert [item.name for item in rows(workspace, paths=["d/token"])] == [second]
    workspace.forget([second])
    assert [item.name for item in rows(workspace, paths=["a"])][:3] == [last, third, first]
    assert [item.name for item in rows(workspace, paths=["d/token"])] == [third]
    assert [item.name for item in workspace.log_page(path="d").items] == [third]
    assert [item.name for item in workspace.timeline(path="d/token").items] == [third]
    (row,) = rows(workspace, paths=["d"])
    shown = workspace.row_details(row)
    assert (row.before, shown.before) == (first, first)
    assert [change.path for change in shown.changes] == [b"a", b"d/token"]
    assert len(workspace.row_diff(shown).changes) == 2
    workspace.forget([third])
    assert [item.name for item in rows(workspace, paths=["d/token"])] == [last]
    (bench.tree / "d/token").unlink()
    gone = workspace.checkpoint().checkpoint.id
    assert [item.name for item in rows(workspace, paths=["d/token"])] == [gone, last]
    workspace.forget([last])
    assert rows(workspace, paths=["d/token"]) == []
    assert list(workspace.checkpoints_holding(["d/token"])) == []


def test_a_run_whose_beginning_was_forgotten_shows_the_changes_of_its_checkpoint(bench):
    bench.step(lambda actor: actor.write(b"m", b"1"))
    first = bench.workspace.checkpoint().checkpoint.id
    bench.step(lambda actor: actor.write(b"m", b"2"))
    run = begin_run(bench.context, "make")
    bench.step(lambda actor: actor.write(b"n", b"1"), run=run)
    end_run(bench.context, run, "make")
    began = bench.workspace.show_row(f"run:{run}").before
    assert began not in (None, first)
    bench.workspace.forget([began])
    bench.workspace.discard_steps()
    assert rows(bench.workspace, paths=["m"])[0].name == f"run:{run}"
    shown = bench.workspace.show_row(f"run:{run}")
    assert (shown.before, [change.path for change in shown.changes]) == (first, [b"m", b"n"])


def test_the_checkpoints_that_hold_a_path_are_found(bench):
    workspace = bench.workspace
    (bench.tree / "d").mkdir()
    for name in ("d/x", "d-y", "e"):
        (bench.tree / name).write_text("1")
        workspace.checkpoint(name)
    (bench.tree / "d/x").unlink()
    workspace.checkpoint("none")

    def holding(*paths):
        return [one.label for one in workspace.checkpoints_holding(paths)]

    assert holding("d") == holding("d/x/") == holding(b"d/x") == ["e", "d-y", "d/x"]
    assert holding("d/x", "e") == ["none", "e", "d-y", "d/x"]
    assert holding("d/x/y") == holding("nothing") == []


def test_a_row_is_shown_by_its_name(bench):
    run = begin_run(bench.context, "make")
    step = bench.step(lambda actor: actor.write(b"n", b"1"), run=run)
    number = bench.workspace.prompt("why\nnot").prompt
    end_run(bench.context, run, "make")
    for item in rows(bench.workspace, steps=True):
        assert bench.workspace.show_row(item.name).item == item
    shown = bench.workspace.show_row(f"run:{run}")
    assert ([one.id for one in shown.steps], [change.path for change in shown.changes]) == ([step], [b"n"])
    assert shown.began is not None
    assert shown.began < shown.item.at
    assert bench.workspace.show_row(f"prompt:{number}").item.text == "why\nnot"
    for wrong in ("prompt:0", "run:", "step:x", "nothing", f"prompt:{number} "):
        with pytest.raises(NotFoundError):
            bench.workspace.show_row(wrong)


def test_nothing_is_held_while_rows_are_looked_at(bench):
    bench.step(lambda actor: actor.write(b"n", b"1"))
    bench.workspace.checkpoint()
    looked_at = bench.workspace.log_rows(steps=True, paths=["n"])
    next(looked_at)
    bench.workspace.undo()
    bench.step(lambda actor: actor.write(b"m", b"1"))
    assert [item.kind for item in looked_at] == ["step"]


def test_a_workspace_without_a_state_has_no_rows(workspace):
    assert rows(workspace, steps=True) == []

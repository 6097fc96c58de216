"""Pages of the log: all rows once, however they are cut; and what the web page asks besides."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.engine.history.timeline import log_page
from holdfast.engine.running.run import begin_run, end_run
from holdfast.engine.sessions.shell.execution import execute
from holdfast.model.errors import NotFoundError, UsageError
from holdfast.model.ids import CheckpointId


def read(workspace, limit, **wanted):
    found, cursor = [], None
    while True:
        page = workspace.log_page(limit=limit, cursor=cursor, **wanted)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.fixture
def lived(bench):
    """Runs of which one goes on, a step without one, a prompt, an undo."""
    workspace = bench.workspace
    for command in ("make", "true"):
        run = begin_run(bench.context, command)
        if command == "make":
            bench.step(lambda actor: actor.write(b"n", b"1"), run=run)
            bench.step(lambda actor: actor.write(b"m", b"1"), run=run)
        end_run(bench.context, run, command)
    bench.step(lambda actor: actor.write(b"alone", b"1"))
    (bench.tree / "f").write_text("by hand")
    workspace.checkpoint("by hand", author="ada")
    begin_run(bench.context, "goes on")
    workspace.checkpoint(message="prompt: go on", author="claude")
    workspace.undo()
    return bench


def test_all_pages_together_have_every_row_once(lived):
    whole = [item for item in lived.workspace.log_rows(steps=True) if not (item.kind == "step" and item.run)]
    assert {item.kind for item in whole} >= {"run", "undo", "checkpoint", "step"}
    for limit in (1, 2, 3, 100):
        assert read(lived.workspace, limit) == whole


def test_rows_of_a_bundle_are_on_pages_too(bench, tmp_path):
    (tmp_path / "other").mkdir()
    with holdfast.init(tmp_path / "other", home=tmp_path / "other home") as other:
        for number in range(3):
            (tmp_path / "other" / "x").write_text(str(number))
            other.checkpoint(f"foreign {number}")
        other.export([f"foreign {number}" for number in range(3)], tmp_path / "bundle")
    bench.workspace.import_(tmp_path / "bundle")
    (bench.tree / "f").write_text("1")
    bench.workspace.checkpoint("own")
    whole = list(bench.workspace.log_rows(steps=True))
    assert sum(item.label.startswith("foreign") for item in whole) == 3
    for limit in (1, 2, 100):
        assert read(bench.workspace, limit) == whole


def test_a_command_and_what_it_left_stay_one_row_where_a_page_ends(session, home, tree):
    for number in range(3):
        execute(session, f"echo {number} > a")
    with holdfast.open(tree, home=home) as workspace:
        whole = [item for item in workspace.log_rows(steps=True) if not (item.kind == "step" and item.run)]
        assert sum(item.kind == "command" for item in whole) == 3
        for limit in (1, 2):
            assert read(workspace, limit) == whole


def test_a_run_that_ends_between_two_pages_is_open_on_the_second(bench):
    run = begin_run(bench.context, "make")
    (bench.tree / "f").write_text("1")
    bench.workspace.checkpoint()
    first = bench.workspace.log_page(limit=1)
    end_run(bench.context, run, "make")
    rest = read_on(bench.workspace, first.cursor)
    assert [item.kind for item in first.items] == ["checkpoint"]
    assert [(item.kind, item.state) for item in rest] == [("run", "open"), ("checkpoint", "")]
    assert [item.kind for item in read(bench.workspace, 2)] == ["run", "checkpoint", "checkpoint"]


def read_on(workspace, cursor):
    return list(workspace.log_page(cursor=cursor).items)


def test_a_part_is_read_again_down_to_its_end(lived):
    first = lived.workspace.log_page(limit=2)
    (lived.tree / "f").write_text("new")
    lived.workspace.checkpoint("new")
    again = lived.workspace.log_page(limit=50, down_to=first.cursor)
    assert again.cursor == first.cursor
    assert list(again.items)[-2:] == list(first.items)
    assert again.items[0].label == "new"


def test_filters_hold_on_every_page_and_give_up_in_time(lived, monkeypatch):
    monkeypatch.setattr("holdfast.engine.history.timeline._MOST_SCANNED", 2)
    monkeypatch.setattr("holdfast.engine.history.timeline._MOST_COMPARED", 1)
    assert {item.author for item in read(lived.workspace, 5, author="ada")} == {"ada"}
    assert [item.label for item in read(lived.workspace, 5, path="f")][-2:] == ["by hand", ""]
    page = lived.workspace.log_page(author="nobody")
    assert not page.items
    assert page.cursor is not None


@pytest.mark.parametrize("cursor", ["", "x", "1;;2", "1;;2:3:4", "a;;1:1.1.1:1.1.x"])
def test_a_cursor_that_is_none_is_refused(bench, cursor):
    with pytest.raises(UsageError):
        log_page(bench.context, cursor=cursor)
    with pytest.raises(UsageError):
        log_page(bench.context, limit=0)


def test_where_the_tree_stands_and_what_lies_ahead(bench):
    workspace = bench.workspace
    states = [workspace.resolve("@")]
    for number in range(3):
        (bench.tree / "f").write_text(str(number + 1))
        states.append(workspace.checkpoint().checkpoint.id)
    assert workspace.position() == (states[3], ())
    workspace.undo(2)
    assert workspace.position() == (states[1], [states[2], states[3]])
    workspace.redo()
    assert workspace.position() == (states[2], [states[3]])


def test_an_undone_step_is_ahead(bench):
    run = begin_run(bench.context, "make")
    bench.step(lambda actor: actor.write(b"n", b"1"), run=run)
    end_run(bench.context, run, "make")
    made = bench.workspace.resolve("@")
    bench.workspace.undo()
    assert bench.workspace.position().ahead == [made]


def test_the_revision_is_another_one_whenever_anything_happens(bench):
    workspace = bench.workspace
    seen = [workspace.history_revision()]
    assert workspace.history_revision() == seen[0]
    bench.step(lambda actor: actor.write(b"n", b"1"))
    seen.append(workspace.history_revision())
    workspace.checkpoint()
    seen.append(workspace.history_revision())
    workspace.undo()
    seen.append(workspace.history_revision())
    assert len(set(seen)) == len(seen)


def test_the_revision_tells_of_a_command_that_changed_nothing(session, home, tree):
    with holdfast.open(tree, home=home) as workspace:
        before = workspace.history_revision()
        execute(session, "true")
        assert workspace.history_revision() != before


def test_forks_and_merges_are_told(bench):
    workspace = bench.workspace
    source = workspace.resolve("@")
    fork = bench.tree.parent / "fork"
    begun = workspace.fork("@", fork).checkpoint
    with holdfast.open(fork, home=workspace.home) as other:
        (fork / "new").write_text("1")
        tip = other.checkpoint().checkpoint.id
    workspace.merge(str(fork))
    merged = workspace.resolve("@")
    found = workspace.relatives([source, merged, CheckpointId("0" * 24)])
    assert set(found) == {source, merged}
    assert found[source] == ([(bytes(fork), begun)], [])
    assert found[merged] == ([], [(bytes(fork), tip)])


def test_a_state_is_browsed_by_directory(bench):
    (bench.tree / "d" / "e").mkdir(parents=True)
    (bench.tree / "d" / "e" / "f").write_text("123")
    (bench.tree / "d" / "g").symlink_to("e")
    (bench.tree / "d-").write_text("4")
    bench.workspace.checkpoint("browsed")
    place = bench.workspace.browse("browsed")
    assert [(item.name, item.files, item.size) for item in place.items][:1] == [(b"d", 2, 4)]
    assert b"d-" in [item.name for item in place.items if item.entry is not None]
    below = bench.workspace.browse("browsed", "d/")
    assert [(item.name, item.entry is None) for item in below.items] == [(b"e", True), (b"g", False)]
    file = bench.workspace.browse("browsed", b"d/e/f")
    assert file.entry is not None
    assert (file.entry.size, file.items) == (3, ())
    for path in ("nowhere", "d/e/f/g", ".."):
        with pytest.raises(NotFoundError):
            bench.workspace.browse("browsed", path)

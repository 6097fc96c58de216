"""Restores over every implementation of the tree port: nothing is lost, however they end."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.history import undo as history
from holdfast.engine.history.recovery import abandon, resume
from holdfast.engine.history.restore import restore
from holdfast.engine.history.status import status
from holdfast.engine.opening.context import Context
from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.operation_journal import unfinished
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.model.ids import CheckpointId
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Callable


from .engine_house import Crash, House, Space, filled

PROGRAM = stat.S_IFREG | 0o755


def test_a_full_restore_brings_exactly_that_state(space: Space) -> None:
    first = filled(space)
    then = space.state()
    space.edit.delete(b"d")
    space.edit.write(b"d", b"a file now")
    space.edit.delete(b"link")
    space.edit.write(b"link/inner", b"a directory now")
    space.edit.write(b"\xff\xfe name", b"changed")
    space.edit.write(b"new/file", b"n")
    changed = space.state()
    result = restore(space.context, first)
    assert not result.skipped
    assert space.state() == then
    assert space.clean()
    assert space.head() == first
    assert result.rescue is not None
    assert space.context.catalog.checkpoint(result.rescue).kind == "rescue"
    restore(space.context, result.rescue)  # I6
    assert space.state() == changed
    assert space.clean()


def test_a_restore_touches_only_what_differs(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"extra", b"x")
    result = restore(space.context, first)
    assert (list(result.written), list(result.deleted)) == ([b"keep"], [b"extra"])
    again = restore(space.context, first)
    assert (list(again.written), list(again.deleted)) == ([], [])


def test_a_restore_of_some_paths_leaves_the_others(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"d/run", b"2", 0o755)
    space.edit.write(b"d/extra", b"x")
    dirty = space.state()
    result = restore(space.context, first, [b"d"])
    assert sorted([*result.written, *result.deleted]) == [b"d/extra", b"d/run"]
    assert space.state() == {
        **{path: at for path, at in dirty.items() if path != b"d/extra"},
        b"d/run": (PROGRAM, b"#!\n"),
    }
    assert not space.clean()
    space.undo()
    assert space.state() == dirty
    with pytest.raises(NotFoundError):
        restore(space.context, first, [b"nowhere"])
    assert space.state() == dirty


def test_a_dry_run_changes_nothing_at_all(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"extra", b"x")
    catalog, mine = space.context.catalog, space.context.workspace.id
    before = space.state(), catalog.cursor(mine), catalog.events(mine), catalog.checkpoints(), catalog.stats()
    result = restore(space.context, first, dry_run=True)
    assert (list(result.written), list(result.deleted), result.rescue) == ([b"keep"], [b"extra"], None)
    assert result.dry_run
    undone = history.undo(space.context, dry_run=True)
    assert (list(undone.written), list(undone.deleted)) == ([b"keep"], [b"extra"])
    assert (
        space.state(),
        catalog.cursor(mine),
        catalog.events(mine),
        catalog.checkpoints(),
        catalog.stats(),
    ) == before
    assert "apply" not in space.tree.calls
    done = restore(space.context, first)
    assert (done.written, done.deleted) == (result.written, result.deleted)


def test_what_changes_between_the_plan_and_the_write_is_left_alone_and_said(space: Space) -> None:
    # I6, I8: the other's edit is neither overwritten nor deleted, and the printed command takes the restore back.
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"extra", b"x")
    space.edit.delete(b"d/e/deep")
    space.edit.delete(b"d/run")
    before = space.state()

    def meddle() -> None:
        space.edit.write(b"keep", b"mine!")
        space.edit.write(b"extra", b"mine too")
        space.edit.write(b"d/e/deep", b"and this")

    space.tree.before_apply = meddle
    result = restore(space.context, first)
    space.tree.before_apply = lambda: None
    assert {path for path, _ in result.skipped} == {b"keep", b"extra", b"d/e/deep"}
    assert all(reason for _, reason in result.skipped)
    now = space.state()
    assert (now[b"keep"][1], now[b"extra"][1], now[b"d/e/deep"][1]) == (b"mine!", b"mine too", b"and this")
    assert result.undo_command == "holdfast undo"
    undone = space.undo()
    assert not undone.skipped
    assert space.state() == before
    kept = space.context.catalog.checkpoint(history_of(space, 1))
    assert {path for path, _ in manifest.iterate(space.context.store.pages, kept.root)} >= {b"keep", b"extra"}


def test_a_restore_that_left_everything_alone_is_refused_and_none_of_the_history(space: Space) -> None:
    # I6: there is nothing of its own to take back, and what others did is not it.
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.tree.before_apply = lambda: space.edit.write(b"keep", b"mine!")
    with pytest.raises(RefusedError) as refused:
        restore(space.context, first)
    space.tree.before_apply = lambda: None
    assert (refused.value.code, refused.value.data) == ("left_alone", {"paths": ["keep"]})
    assert space.context.catalog.events(space.context.workspace.id)[0].operation == "checkpoint"


def history_of(space: Space, back: int) -> CheckpointId:
    return space.context.catalog.events(space.context.workspace.id)[back].checkpoint


def test_after_an_undo_that_left_something_alone_the_command_it_gives_takes_it_back(space: Space) -> None:
    filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"d/run", b"2", 0o755)
    space.save("second")
    before = space.state()
    space.tree.before_apply = lambda: space.edit.write(b"keep", b"mine!")
    result = space.undo()
    space.tree.before_apply = lambda: None
    assert [path for path, _ in result.skipped] == [b"keep"]
    assert result.undo_command is not None
    verb, command, name = result.undo_command.split()
    assert (verb, command) == ("holdfast", "restore")
    (rescue,) = space.context.catalog.by_prefix(name)
    restore(space.context, rescue)
    assert space.state() == before
    space.undo()
    assert space.state()[b"keep"][1] == b"mine!"


def test_ignored_files_survive_every_restore_and_undo(space: Space) -> None:
    # I5
    first = filled(space)
    space.edit.write(b"d/own.pid", b"17")
    space.edit.write(b"fresh/own.pid", b"18")
    space.edit.write(b"fresh/file", b"f")
    space.save()
    restore(space.context, first)
    assert space.state()[b"d/own.pid"][1] == b"17"
    assert space.state()[b"fresh/own.pid"][1] == b"18"
    assert b"fresh/file" not in space.state()
    space.undo()
    assert space.state()[b"fresh/file"][1] == b"f"
    assert space.state()[b"fresh/own.pid"][1] == b"18"


def test_what_no_checkpoint_holds_is_not_overwritten(space: Space) -> None:
    # I5: where the target has a file, something lies that could not be captured.
    first = filled(space)
    space.edit.delete(b"keep")
    space.edit.special(b"keep")
    with pytest.raises(RefusedError) as refused:
        restore(space.context, first)
    assert (refused.value.code, refused.value.data) == ("left_alone", {"paths": ["keep"]})
    assert b"keep" not in space.state()


def test_damage_shows_before_anything_is_touched(house: House, space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", os.urandom(5000))
    second = space.save()
    restore(space.context, first)
    before = space.state()
    packs = sorted((house.place / "home" / "objects").rglob("*"), key=lambda path: path.stat().st_mtime_ns)
    broken = [(path, path.read_bytes()) for path in packs if path.is_file() and path.stat().st_size > 5000]
    assert broken
    fresh = Opener(home=bytes(house.place / "home"), clock=house.clock, flags=house.opener.flags)
    try:
        for path, data in broken:
            path.chmod(0o600)
            path.write_bytes(data[:3000] + bytes([data[3000] ^ 255]) + data[3001:])
        space.context.store = fresh.store()
        with pytest.raises(IntegrityError):
            restore(space.context, second)
    finally:
        for path, data in broken:
            path.write_bytes(data)
    assert space.state() == before
    assert unfinished(space.context) is None
    restore(space.context, second)
    fresh.close()


@pytest.mark.parametrize("writes", [0, 1, 3])
@pytest.mark.parametrize("end", ["resume", "abandon"])
def test_a_restore_that_was_cut_short_is_finished_or_taken_back(space: Space, writes: int, end: str) -> None:
    # I3
    first = filled(space)
    then = space.state()
    for path in (b"keep", b"d/run", b"d/e/deep", b"link"):
        space.edit.delete(path)
    space.edit.write(b"extra", b"x")
    before = space.state()
    space.tree.writes_left = writes
    with pytest.raises(Crash):
        restore(space.context, first)
    space.tree.writes_left = None
    journal = unfinished(space.context)
    assert journal is not None
    assert journal.target == first
    for refused in (lambda: restore(space.context, first), space.undo, space.redo):
        with pytest.raises(RefusedError) as caught:
            refused()
        assert caught.value.code == "unfinished_restore"
    assert status(space.context, watching=False).unfinished_restore == first
    if end == "resume":
        resume(space.context)
        assert space.state() == then
        assert space.head() == first
        space.undo()
        assert space.state() == before
    else:
        half_way = space.state()
        result = abandon(space.context)
        assert space.state() == before
        assert space.head() == journal.rescue
        if half_way != before:
            # I6
            assert result.rescue is not None
            assert result.undo_command == f"holdfast restore {result.rescue[:12]}"
            restore(space.context, result.rescue)
            assert space.state() == half_way
        else:
            assert result.undo_command is None
    assert unfinished(space.context) is None
    with pytest.raises(NotFoundError):
        resume(space.context)


@pytest.mark.parametrize("end", [resume, abandon])
def test_what_was_made_after_a_restore_was_cut_short_is_not_deleted(
    space: Space, end: Callable[[Context], object]
) -> None:
    # I5: no rescue of that restore holds it.
    first = filled(space)
    space.edit.delete(b"keep")
    space.tree.writes_left = 0
    with pytest.raises(Crash):
        restore(space.context, first)
    space.tree.writes_left = None
    space.edit.write(b"made/since", b"precious")
    end(space.context)
    assert space.state()[b"made/since"][1] == b"precious"
    assert not space.clean()
    assert unfinished(space.context) is None


@pytest.mark.parametrize("end", ["resume", "abandon"])
@pytest.mark.parametrize("writes", [0, 1, 5])
def test_i8_what_somebody_changed_after_a_restore_was_cut_short_stays_and_is_said(
    space: Space, writes: int, end: str
) -> None:
    first = filled(space)
    then = space.state()
    space.edit.write(b"keep", b"other\n")
    space.edit.write(b"d/run", b"other\n")
    space.edit.write(b"goes", b"g")
    space.edit.write(b"goes too", b"g")
    space.edit.delete(b"d/e/deep")
    space.edit.delete(b"link")
    before = space.state()
    space.tree.writes_left = writes
    with pytest.raises(Crash):
        restore(space.context, first)
    space.tree.writes_left = None
    there = space.state()
    space.edit.write(b"keep", b"by hand\n")
    space.edit.write(b"d/e/deep", b"by hand\n")
    space.edit.write(b"goes", b"by hand\n")
    if b"d/run" in there:
        space.edit.delete(b"d/run")
    result = (resume if end == "resume" else abandon)(space.context)
    said = dict(result.skipped)
    assert sorted(said) == [b"d/e/deep", b"d/run", b"goes", b"keep"]
    now = space.state()
    assert {now[path][1] for path in (b"keep", b"d/e/deep", b"goes")} == {b"by hand\n"}
    assert b"d/run" not in now
    reached = first if end == "resume" else result.checkpoint
    target = then if end == "resume" else before
    for path, reason in said.items():
        how = f"`holdfast restore {reached[:12]} {os.fsdecode(path)}`" if path in target else "has nothing there"
        assert how in reason
    assert (b"link" in now, b"goes too" in now) == ((True, False) if end == "resume" else (False, True))
    assert unfinished(space.context) is None
    if end == "resume":
        space.undo()
        assert space.state()[b"keep"][1] == before[b"keep"][1], "what was there before can still be had (I6)"
        space.redo()
    restore(space.context, reached, [path for path in said if path in target])
    for path in said:
        assert space.state().get(path, (0, b"by hand\n"))[1:] == target.get(path, (0, b"by hand\n"))[1:]


def test_i8_the_rule_holds_when_the_way_back_was_cut_short_in_its_turn(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"other\n")
    space.edit.write(b"d/run", b"other\n")
    space.edit.write(b"new", b"n")
    before = space.state()
    for call in (lambda: restore(space.context, first), lambda: abandon(space.context)):
        space.tree.writes_left = 1
        with pytest.raises(Crash):
            call()
        space.tree.writes_left = None
    space.edit.write(b"keep", b"by hand\n")
    result = resume(space.context)
    assert [path for path, _ in result.skipped] == [b"keep"]
    assert {**space.state(), b"keep": before[b"keep"]} == before
    assert space.state()[b"keep"][1] == b"by hand\n"


def test_a_target_that_is_forgotten_meanwhile_is_named_before_anything_is_changed(space: Space) -> None:
    # I3, I6
    first = filled(space)
    space.edit.write(b"keep", b"other\n")
    space.save()
    space.edit.delete(b"d/run")
    before = space.state()
    space.tree.before_scan = lambda: space.context.catalog.forget([first])
    with pytest.raises(NotFoundError, match=first) as caught:
        restore(space.context, first)
    assert caught.value.hint
    assert space.state() == before
    assert "apply" not in space.tree.calls
    assert unfinished(space.context) is None
    assert not pins(space)
    space.undo()
    assert space.state()[b"d/run"] == (PROGRAM, b"#!\n")


@pytest.mark.parametrize("operation", ["restore", "undo"])
@pytest.mark.parametrize("writes", [0, 1, 3])
def test_the_way_back_needs_no_target_of_what_was_cut_short(space: Space, operation: str, writes: int) -> None:
    # I3: the row is gone, and a pin keeps what it stood for.
    first = filled(space)
    for path in (b"keep", b"d/run", b"d/e/deep", b"link"):
        space.edit.delete(path)
    space.edit.write(b"extra", b"x")
    space.save()
    before = space.state()
    space.tree.writes_left = writes
    with pytest.raises(Crash):
        space.undo() if operation == "undo" else restore(space.context, first)
    lose_row(space, first)
    saved = space.head()
    with pytest.raises(NotFoundError, match=first) as caught:
        resume(space.context)
    assert "--abort" in (caught.value.hint or "")
    assert space.head() == saved, "nothing was saved or changed by that"
    if writes:
        with pytest.raises(Crash):
            abandon(space.context)
    space.tree.writes_left = None
    space.edit.write(b"made/since", b"precious")
    (resume if writes else abandon)(space.context)
    assert space.state().pop(b"made/since")[1] == b"precious"
    assert {path: at for path, at in space.state().items() if not path.startswith(b"made")} == before
    assert unfinished(space.context) is None
    assert not pins(space)


def test_i8_where_nothing_is_left_of_the_target_the_way_back_names_what_differs(
    space: Space, caplog: pytest.LogCaptureFixture
) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"other\n")
    space.edit.delete(b"d/run")
    space.edit.write(b"goes", b"g")
    rescue = space.save()
    before = space.state()
    space.tree.writes_left = 8
    with pytest.raises(Crash):
        restore(space.context, first)
    space.tree.writes_left = None
    half_way = space.state()
    lose_row(space, first)
    space.context.catalog.unpin_all(f"an unfinished restore in the workspace {space.context.workspace.id}")
    result = abandon(space.context)
    assert f"`holdfast restore {rescue[:12]}`" in caplog.text
    differing = {path for path in before if half_way.get(path) != before[path]}
    assert b"goes" in differing
    assert {path for path, _ in result.skipped} == differing
    assert space.state() == half_way
    assert unfinished(space.context) is None
    restore(space.context, rescue)
    assert space.state() == before


def pins(space: Space) -> list[str]:
    found = space.context.catalog.protections().values()
    return [reason.by for reasons in found for reason in reasons if reason.kind == "pin"]


def lose_row(space: Space, checkpoint: CheckpointId) -> None:
    """Leave a checkpoint's pins and take its row, as where it was forgotten just before it was pinned."""
    catalog = space.context.catalog
    with catalog.database.writing() as transaction:
        pinned = transaction.all("SELECT number FROM pins WHERE checkpoint = ?", (checkpoint,))
        transaction.run("UPDATE pins SET checkpoint = NULL WHERE checkpoint = ?", (checkpoint,))
    assert [one.id for one in catalog.forget([checkpoint])] == [checkpoint]
    with catalog.database.writing() as transaction:
        for (number,) in pinned:
            transaction.run("UPDATE pins SET checkpoint = ? WHERE number = ?", (checkpoint, number))

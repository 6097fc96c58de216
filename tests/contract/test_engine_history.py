"""Undo, redo and forks over every implementation of the tree port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.engine.forks.fork import fork
from holdfast.engine.history.recovery import abandon, resume
from holdfast.engine.history.restore import restore
from holdfast.engine.history.retention import Policy
from holdfast.engine.opening.context import Context
from holdfast.engine.upkeep.forget_checkpoints import forget
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.ids import CheckpointId

if TYPE_CHECKING:
    from collections.abc import Callable


from .engine_house import Crash, House, Space, State, filled


def test_undo_walks_back_and_redo_forward(space: Space) -> None:
    """I6."""
    states: list[State] = []
    for number in range(4):
        space.edit.write(b"f", b"%d" % number)
        if number % 2:
            space.edit.write(b"d/odd", b"%d" % number)
        space.save()
        states.append(space.state())
    space.edit.write(b"f", b"unsaved")
    states.append(space.state())
    for at in (3, 2, 1, 0):
        assert space.undo().undo_command == "holdfast redo"
        assert space.state() == states[at]
    with pytest.raises(NotFoundError) as caught:
        space.undo()
    assert caught.value.code == "nothing_to_undo"
    for at in (1, 2, 3, 4):
        space.redo()
        assert space.state() == states[at]
    with pytest.raises(NotFoundError) as caught:
        space.redo()
    assert caught.value.code == "nothing_to_redo"
    space.undo(3)
    assert space.state() == states[1]
    space.redo(2)
    assert space.state() == states[3]
    with pytest.raises(NotFoundError):
        space.undo(9)
    with pytest.raises(UsageError):
        space.undo(0)
    assert space.state() == states[3]


def test_undo_after_a_restore_goes_to_what_was_before_it(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.save("second")
    space.edit.write(b"keep", b"3 unsaved")
    before = space.state()
    restore(space.context, first)
    space.undo()
    assert space.state() == before
    space.undo()
    assert space.state()[b"keep"][1] == b"2"
    space.redo(2)
    assert space.head() == first


def test_a_change_after_an_undo_cuts_what_could_be_redone_but_loses_nothing(space: Space) -> None:
    filled(space)
    space.edit.write(b"keep", b"2")
    second = space.save()
    space.undo()
    space.edit.write(b"keep", b"other")
    with pytest.raises(RefusedError) as caught:
        space.redo()
    assert caught.value.code == "changed_since_undo"
    assert space.state()[b"keep"][1] == b"other"
    space.save()
    with pytest.raises(NotFoundError):
        space.redo()
    restore(space.context, second)
    assert space.state()[b"keep"][1] == b"2"
    space.undo()
    assert space.state()[b"keep"][1] == b"other"


def test_undo_steps_over_forgotten_checkpoints(space: Space) -> None:
    ids: list[CheckpointId] = []
    for number in range(5):
        space.edit.write(b"f", b"%d" % number)
        ids.append(space.save())
    forget(space.context, ids[1:4])
    space.undo()
    assert space.state()[b"f"][1] == b"0"
    space.redo()
    assert space.state()[b"f"][1] == b"4"


def test_a_tree_that_lost_everything_comes_back(space: Space) -> None:
    filled(space)
    before = space.state()
    for path in (b"keep", b"d", b"link", b"\xff\xfe name"):
        space.edit.delete(path)
    assert space.state() == {}
    space.undo()
    assert space.state() == before


# --- forks


def test_a_fork_of_a_fork_stands_on_its_own(house: House, space: Space) -> None:
    first = filled(space)
    made: list[Space] = []

    def make(source: CheckpointId) -> Callable[[], Context]:
        def open_fork() -> Context:
            made.append(house.new(source))
            return made[-1].context

        return open_fork

    result = fork(space.context, first, make(first))
    one = made[-1]
    assert result.written == 5
    assert one.state() == space.state()
    assert one.clean()
    assert one.context.catalog.checkpoint(result.checkpoint).parent == first
    assert one.context.catalog.checkpoint(result.checkpoint).kind == "fork"
    one.edit.write(b"keep", b"forked")
    second = one.save()
    fork(one.context, second, make(second))
    two = made[-1]
    assert two.state() == one.state()
    two.edit.delete(b"d")
    two.save()
    assert space.state()[b"keep"][1] == b"k\n"
    assert b"d/run" in one.state()
    two.undo()
    assert two.state() == one.state()
    with pytest.raises(NotFoundError):
        two.undo()
    # What a live fork stands on stays.
    space.edit.write(b"keep", b"later")
    space.save()
    for source in (first, second):
        with pytest.raises(RefusedError) as caught:
            forget(space.context, [source])
        assert caught.value.code == "protected"
    forgotten = forget(space.context, (), policy=Policy(keep_last=1))
    assert not forgotten.removed


def test_a_fork_that_was_cut_short_is_finished(house: House, space: Space) -> None:
    # I3
    first = filled(space)
    target = house.new(first)
    target.tree.writes_left = 2
    with pytest.raises(Crash):
        fork(space.context, first, lambda: target.context)
    target.tree.writes_left = None
    with pytest.raises(RefusedError):
        abandon(target.context)
    fork(space.context, first, lambda: target.context)
    assert target.state() == space.state()
    assert target.clean()
    other = house.new(first)
    other.tree.writes_left = 4
    with pytest.raises(Crash):
        fork(space.context, first, lambda: other.context)
    other.tree.writes_left = None
    resume(other.context)
    assert other.state() == space.state()
    assert other.clean()


def test_a_fork_overwrites_nothing(house: House, space: Space) -> None:
    first = filled(space)
    target = house.new(first)
    target.edit.write(b"keep", b"somebody's")
    with pytest.raises(RefusedError, match="keep"):
        fork(space.context, first, lambda: target.context)
    assert target.state()[b"keep"][1] == b"somebody's"

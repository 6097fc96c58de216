"""What somebody else changes while a step goes on that has had to do with it is theirs: undo does not take it back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.files.linux.metadata import Metadata
from holdfast.model.errors import RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.journal.records import Content, ForeignEdit, Keeping, KeepMethod, Make, Move, Mutation
from holdfast.undo.journal.step_footprint import filled_paths, touched_before
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.safeguards.open_step import MOST_EDITS, EditsInStep

from ..conftest import Bench
from ..local_service.test_undo_service import Keeper, opened, write

Work = Callable[[InterceptedActor], object]


def nothing(_actor: InterceptedActor) -> None:
    """A step that has done what it does."""


def by_hand(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"HAND")


def edited(keeper: Keeper, path: bytes, before: Work, after: Work = nothing) -> int:
    """A step, in the middle of which somebody edits the path."""
    step = keeper.service.open("command", command=(b"work",))
    keeper.act(step, before)
    by_hand(Path(os.fsdecode(os.path.join(os.fsencode(keeper.bench.tree), path))))
    keeper.service.record_foreign_edit([path], "vim (12)")
    keeper.act(step, after)
    keeper.service.close(step, 0)
    return step


def refuses(service: LocalUndoService, *steps: int, match: str = "has changed") -> None:
    with pytest.raises(RefusedError, match=match) as refused:
        service.undo(steps)
    assert refused.value.code == "barrier"


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        pytest.param(b"old", write(b"old", b"new"), nothing, id="written"),
        pytest.param(b"old", write(b"old", b"new"), lambda actor: actor.write(b"old", b"more"), id="written after it"),
        pytest.param(b"new", write(b"new"), nothing, id="created"),
        pytest.param(b"old", lambda actor: actor.unlink(b"old"), nothing, id="removed"),
        pytest.param(b"old", write(b"old"), lambda actor: actor.rename(b"old", b"moved"), id="moved after it"),
        pytest.param(b"old", write(b"old"), lambda actor: actor.unlink(b"old"), id="removed after it"),
        pytest.param(b"dir/in", write(b"dir/in"), lambda actor: actor.rename(b"dir", b"d2"), id="moved with all"),
    ],
)
def test_an_edit_in_the_midst_of_a_step_is_not_taken_back(bench: Bench, path: bytes, before: Work, after: Work) -> None:
    """I8."""
    (bench.tree / "old").write_bytes(b"old")
    (bench.tree / "dir").mkdir()
    (bench.tree / "dir" / "in").write_bytes(b"in")
    with opened(bench) as keeper:
        step = edited(keeper, path, before, after)
        there = bench.photograph()
        refuses(keeper.service, step)
        bench.assert_as(there)
    with opened(bench) as keeper:
        refuses(keeper.service, step)
        keeper.service.undo([step], force=True)
        keeper.service.redo([step])


def test_an_edit_that_was_overwritten_by_force_is_theirs_again_once_it_is_back(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        step = edited(keeper, b"old", write(b"old", b"new"))
        refuses(keeper.service, step, match=r"vim \(12\) has changed old")
        keeper.service.undo([step], force=True)
        assert (bench.tree / "old").read_bytes() == b"old"
        keeper.service.redo([step])
        assert (bench.tree / "old").read_bytes() == b"newHAND"
        refuses(keeper.service, step)


@pytest.mark.parametrize(
    ("work", "name"),
    [
        pytest.param(lambda actor: actor.chmod(b"old", 0o600), "old", id="described"),
        pytest.param(lambda actor: actor.rename(b"old", b"moved"), "moved", id="moved"),
    ],
)
def test_an_edit_that_a_forced_undo_leaves_is_no_reason_to_refuse_its_redo(bench: Bench, work: Work, name: str) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        first = keeper.step(write(b"old", b"first"))
        step = keeper.step(work)
        by_hand(bench.tree / name)
        there = bench.photograph()
        keeper.service.undo([step], force=True)
        assert (bench.tree / "old").read_bytes() == b"firstHAND"
        refuses(keeper.service, first)
        keeper.service.redo([step])
        bench.assert_as(there)
        refuses(keeper.service, step)
        keeper.service.undo([step], force=True)
        by_hand(bench.tree / "old")
        with pytest.raises(RefusedError):
            keeper.service.redo([step])


@pytest.mark.parametrize("is_later", [False, True])
def test_another_step_that_left_the_edit_does_not_vouch_for_it(bench: Bench, is_later: bool) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        first = keeper.service.open("command")
        keeper.act(first, write(b"old", b"new"))
        by_hand(bench.tree / "old")
        keeper.service.record_foreign_edit([b"old"], "vim (12)")
        if is_later:
            keeper.service.close(first, 0)
        second = keeper.step(write(b"old", b"more"))
        if is_later:
            keeper.service.undo([second])
            refuses(keeper.service, first)
            assert (bench.tree / "old").read_bytes() == b"newHAND"
        else:
            keeper.service.close(first, 0)
            refuses(keeper.service, first, second)
            assert (bench.tree / "old").read_bytes() == b"more"


def test_what_is_told_only_after_the_look_is_known_when_the_step_is_finished(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        step = keeper.service.open("command")
        keeper.act(step, write(b"old", b"new"))
        by_hand(bench.tree / "old")
        finish = keeper.service.begin_close(step, 0)
        assert finish is not None
        keeper.log.flush_foreign_edits = lambda: keeper.service.record_foreign_edit([b"old"], "vim (12)")
        finish()
        refuses(keeper.service, step)


def test_an_edit_before_a_step_comes_to_a_file_is_given_back(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        step = edited(keeper, b"old", write(b"other"), write(b"old", b"new"))
        keeper.service.undo([step])
        assert (bench.tree / "old").read_bytes() == b"oldHAND"


def locks(actor: InterceptedActor) -> None:
    actor.write(b"lock", b"")
    actor.write(b"made", b"")


def test_edits_of_other_files_and_what_came_and_went_block_nothing(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")
    before = bench.photograph()
    with opened(bench) as keeper:
        keeper.service.undo([edited(keeper, b"lock", locks, lambda actor: actor.unlink(b"lock"))])
        bench.assert_as(before)
        step = edited(keeper, b"old", write(b"new"))
        keeper.service.undo([step])
        assert (bench.tree / "old").read_bytes() == b"oldHAND"
        assert not (bench.tree / "new").exists()


def test_a_rollback_leaves_the_edit(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        step = keeper.service.begin("a try")
        keeper.act(step, write(b"old", b"new"))
        keeper.act(step, write(b"new"))
        by_hand(bench.tree / "old")
        keeper.service.record_foreign_edit([b"old"], "vim (12)")
        assert [conflict.path for conflict in keeper.service.rollback(step).conflicts] == [b"old"]
        assert (bench.tree / "old").read_bytes() == b"newHAND"
        assert not (bench.tree / "new").exists()


def test_a_recovery_leaves_the_edit(bench: Bench) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        step = keeper.service.open("command")
        keeper.act(step, write(b"old", b"new"))
        keeper.act(step, write(b"new"))
        by_hand(bench.tree / "old")
        keeper.service.record_foreign_edit([b"old"], "vim (12)")
        keeper.service.record_foreign_edit([b"new-by-vim"], "vim (12)")
        keeper.service.beat()
    with opened(bench) as keeper:
        assert [conflict.path for conflict in keeper.service.conflicts(step)] == [b"old"]
        assert (bench.tree / "old").read_bytes() == b"newHAND"
        assert not (bench.tree / "new").exists()


def linked(bench: Bench) -> Identity:
    """A file with two names; who it is."""
    (bench.tree / "old").write_bytes(b"old")
    os.link(bench.tree / "old", bench.tree / "also")
    return whose(bench.tree / "old")


def whose(path: Path) -> Identity:
    root = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return identity(root, os.fsencode(path.name))
    finally:
        os.close(root)


def appends(path: bytes) -> Work:
    return lambda actor: actor.write(path, b"new", at=3)


def appends_and_removes(path: bytes) -> Work:
    def work(actor: InterceptedActor) -> None:
        actor.write(path, b"new", at=3)
        actor.unlink(path)

    return work


def links(actor: InterceptedActor) -> None:
    actor.write(b"old", b"new", at=3)
    actor.link(b"old", b"third")


OTHER_NAMES = [
    pytest.param(appends(b"old"), "also", b"also", id="another name"),
    pytest.param(appends(b"old"), "also", b"old", id="a name outside of the tree"),
    pytest.param(appends_and_removes(b"old"), "also", b"also", id="the step's name is gone"),
    pytest.param(appends_and_removes(b"also"), "old", b"old", id="the other name is gone"),
    pytest.param(links, "also", b"also", id="the step has made one more"),
    pytest.param(lambda actor: actor.chmod(b"old", 0o600), "also", b"also", id="described"),
]


@pytest.mark.parametrize(("work", "name", "told"), OTHER_NAMES)
@pytest.mark.parametrize("after", [nothing, lambda actor: actor.write(b"more", b"more")])
def test_an_edit_by_another_name_is_not_taken_back(
    bench: Bench, work: Work, name: str, told: bytes, after: Work
) -> None:
    """I8."""
    file = linked(bench)
    with opened(bench) as keeper:
        step = keeper.service.open("command")
        keeper.act(step, work)
        by_hand(bench.tree / name)
        keeper.service.record_foreign_edit([told], "vim (12)", objects=[file])
        keeper.act(step, after)
        keeper.service.close(step, 0)
        there = bench.photograph()
        refuses(keeper.service, step)
        bench.assert_as(there)
    with opened(bench) as keeper:
        refuses(keeper.service, step)
        keeper.service.undo([step], force=True)
        assert (bench.tree / "old").read_bytes() == (bench.tree / "also").read_bytes()
        keeper.service.redo([step])
        assert (bench.tree / name).read_bytes().endswith(b"HAND")
        refuses(keeper.service, step)


@pytest.mark.parametrize(("work", "name", "told"), OTHER_NAMES)
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_rollback_leaves_an_edit_by_another_name(
    bench: Bench, work: Work, name: str, told: bytes, is_killed: bool
) -> None:
    """I8."""
    file = linked(bench)
    with opened(bench) as keeper:
        step = keeper.service.begin("a try")
        keeper.act(step, work)
        by_hand(bench.tree / name)
        keeper.service.record_foreign_edit([told], "vim (12)", objects=[file])
        keeper.service.beat()
        if not is_killed:
            assert keeper.service.rollback(step).conflicts
    with opened(bench) as keeper:
        assert keeper.service.conflicts(step)
        assert (bench.tree / name).read_bytes().endswith(b"HAND")


def test_an_edit_by_another_name_before_a_step_writes_is_given_back(bench: Bench) -> None:
    file = linked(bench)
    with opened(bench) as keeper:
        step = keeper.service.open("command")
        keeper.act(step, lambda actor: actor.link(b"old", b"third"))
        by_hand(bench.tree / "also")
        keeper.service.record_foreign_edit([b"also"], "vim (12)", objects=[file])
        keeper.act(step, lambda actor: actor.write(b"third", b"new"))
        keeper.service.close(step, 0)
        keeper.service.undo([step])
        assert (bench.tree / "old").read_bytes() == b"oldHAND"
        assert not (bench.tree / "third").exists()


def test_where_too_much_is_edited_all_that_the_step_has_touched_counts(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (bench.tree / "old").write_bytes(b"old")
    with opened(bench) as keeper:
        step = keeper.service.open("command")
        keeper.act(step, write(b"old", b"new"))
        for at in range(0, MOST_EDITS + 500, 500):
            keeper.service.record_foreign_edit(
                [b"%d" % one for one in range(at, at + 500)], f"git ({at})", blocks=False
            )
        assert "count as edited" in caplog.text
        keeper.act(step, write(b"later"))
        keeper.service.close(step, 0)
        refuses(keeper.service, step, match="has changed what step 1 left: old")


def test_edits_are_kept_within_bounds() -> None:
    edits = EditsInStep()
    for seq in range(1, MOST_EDITS + 2):
        edits.add(ForeignEdit(seq, (b"%d" % seq,), 0, ""), 0)
    assert edits.is_bounded
    edits.add(ForeignEdit(MOST_EDITS + 9, (b"last",), 0, ""), 0)
    assert list(edits.paths()) == [(MOST_EDITS + 9, b"")]
    assert list(edits.objects()) == []


def test_what_a_step_had_touched_by_when(bench: Bench) -> None:
    file, directory = Identity(b"h-file"), Identity(b"h-directory")
    records: list[Mutation] = [
        Content(3, 1, b"dir/file", file, Keeping(KeepMethod.NOT), Metadata(0o644, 0, 0, 0)),
        Move(6, 1, b"dir", b"moved", "d", directory),
        Make(8, 1, b"dir", "f", 0),
    ]
    edits = [(3, b"dir/file"), (4, b"dir/file"), (7, b"moved/file"), (7, b"dir/file"), (7, b"dir"), (9, b"other")]
    assert list(touched_before(records, edits)) == [(b"dir/file", file), (b"dir", None), (b"moved/file", file)]
    assert filled_paths(records) == {b"moved"}

"""The quota, retention and collection as a workspace has them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.history.checkpoint import create_checkpoint
from holdfast.engine.history.restore import restore
from holdfast.engine.history.retention import Policy
from holdfast.engine.history.undo import undo
from holdfast.engine.opening.opener import Opener
from holdfast.engine.upkeep.forget_checkpoints import forget
from holdfast.engine.upkeep.housekeeping import collect, stats, verify
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import LockedError, NotFoundError, QuotaError, RefusedError
from holdfast.testing.clocks import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.engine.opening.context import Context


@pytest.fixture(name="clock")
def _clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(name="open_context")
def _open_context(tree: Path, home: Path, clock: ManualClock) -> Iterator[Callable[..., Context]]:
    """Opens the workspace in `tree` with settings; afterwards every byte of the store is verified."""
    openers: list[Opener] = []

    def open_it(**flags: object) -> Context:
        given = {name.replace("__", "."): value for name, value in flags.items()}
        opener = Opener(home=bytes(home), flags=given, clock=clock)
        openers.append(opener)
        return opener.init(bytes(tree))[0]

    yield open_it
    found = verify(open_it(), read_data=True)
    assert found.ok, found.problems
    for opener in openers:
        opener.close()


def objects(home: Path) -> set[Path]:
    return {path for path in (home / "objects").rglob("*") if path.is_file()}


def test_at_the_quota_old_checkpoints_make_room(
    open_context: Callable[..., Context], tree: Path, clock: ManualClock
) -> None:
    # What retention would drop at its next turn goes first.
    context = open_context(store__max_bytes=200_000)
    for _ in range(30):
        (tree / "f").write_bytes(os.urandom(30_000))
        create_checkpoint(context, CheckpointRequest(kind="auto"))
        clock.advance(120)
        if len(context.catalog.checkpoints()) < 6 and context.store.used_bytes() > 150_000:
            break
        clock.advance(3600)
    assert context.store.used_bytes() <= 200_000
    assert len(context.catalog.checkpoints()) < 30


def test_past_the_quota_a_checkpoint_is_refused_and_nothing_is_lost(
    open_context: Callable[..., Context], tree: Path, home: Path
) -> None:
    context = open_context(store__max_bytes=100_000)
    (tree / "f").write_bytes(os.urandom(60_000))
    first = create_checkpoint(context, CheckpointRequest(label="kept")).checkpoint
    before, used = objects(home), context.store.used_bytes()
    (tree / "g").write_bytes(os.urandom(60_000))
    for _ in range(2):
        with pytest.raises(QuotaError) as caught:
            create_checkpoint(context, CheckpointRequest())
        assert "100,000" in caught.value.message
        assert "gc" in (caught.value.hint or "")
    assert context.catalog.checkpoints() == [first]
    assert (objects(home), context.store.used_bytes()) == (before, used), "what was refused left nothing behind"
    assert (tree / "g").stat().st_size == 60_000
    assert not (tree / "h").exists()
    (tree / "g").unlink()
    assert not create_checkpoint(context, CheckpointRequest()).created
    (tree / "h").write_bytes(b"small")
    assert create_checkpoint(context, CheckpointRequest()).created
    assert create_checkpoint(open_context(store__max_bytes=0), CheckpointRequest()).checkpoint.total_files == 2


def test_the_quota_stops_no_way_back(
    open_context: Callable[..., Context], tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = open_context(store__max_bytes=100_000)
    (tree / "f").write_bytes(os.urandom(60_000))
    first = create_checkpoint(context, CheckpointRequest()).checkpoint
    (tree / "g").write_bytes(late := os.urandom(60_000))
    done = restore(context, first.id)
    assert done.deleted == [b"g"]
    assert "beyond its quota" in caplog.text
    caplog.clear()
    assert done.rescue is not None
    restore(context, done.rescue)
    assert (tree / "g").read_bytes() == late
    caplog.clear()


def test_large_files_past_the_quota_do_not_pile_up(
    open_context: Callable[..., Context], tree: Path, home: Path, clock: ManualClock
) -> None:
    # Their keys are shared with whoever stores the same content, so it is collection that deletes them.
    clock.advance(time.time() - clock.now() / 1_000_000)
    context = open_context(store__max_bytes=100_000)
    (tree / "f").write_text("1")
    create_checkpoint(context, CheckpointRequest())
    before = objects(home)
    for _ in range(3):
        (tree / "large").write_bytes(os.urandom(2 << 20))
        with pytest.raises(QuotaError):
            create_checkpoint(context, CheckpointRequest())
        clock.advance(3600)
        assert len(objects(home) - before) <= 1
    collect(context, grace=0)
    assert objects(home) == before


def test_room_that_was_made_by_hand_is_room(open_context: Callable[..., Context], tree: Path) -> None:
    context = open_context(store__max_bytes=100_000)
    (tree / "f").write_bytes(os.urandom(60_000))
    first = create_checkpoint(context, CheckpointRequest()).checkpoint.id
    (tree / "f").write_text("small")
    create_checkpoint(context, CheckpointRequest())
    (tree / "f").write_bytes(os.urandom(60_000))
    with pytest.raises(QuotaError):
        create_checkpoint(context, CheckpointRequest())
    forget(context, [first])
    assert create_checkpoint(context, CheckpointRequest()).created
    assert stats(context).stored_bytes <= 100_000


def test_the_rule_that_applies_by_itself_keeps_what_somebody_named(
    open_context: Callable[..., Context], tree: Path, clock: ManualClock
) -> None:
    context = open_context()
    kept: list[str] = []
    for number in range(48):
        (tree / "f").write_text(str(number))
        named = number % 16 == 0
        result = create_checkpoint(
            context, CheckpointRequest(label=f"v{number}") if named else CheckpointRequest(kind="auto")
        )
        if named:
            kept.append(result.checkpoint.id)
        clock.advance(300)
    clock.advance(8 * 86400)
    tried = forget(context, (), dry_run=True)
    assert len(context.catalog.checkpoints()) == 48
    done = forget(context, ())
    assert [checkpoint.id for checkpoint in done.removed] == [checkpoint.id for checkpoint in tried.removed]
    left = {checkpoint.id for checkpoint in context.catalog.checkpoints()}
    assert left >= set(kept)
    assert len(left) < 10
    assert all(reasons for _, reasons in done.kept)
    collect(context)
    clock.advance(2 * 86400)
    collect(context)
    assert (tree / "f").read_text() == "47"
    restore(context, context.catalog.checkpoints()[-1].id)
    assert (tree / "f").read_text() == "0"


def test_the_newest_state_is_never_forgotten(open_context: Callable[..., Context], tree: Path) -> None:
    context = open_context()
    (tree / "f").write_text("1")
    head = create_checkpoint(context, CheckpointRequest(kind="auto")).checkpoint.id
    with pytest.raises(RefusedError) as caught:
        forget(context, [head])
    assert caught.value.code == "protected"
    assert (
        caught.value.hint == f"save a change in {tree}, or restore another checkpoint there, so that it stands on that"
    )
    assert not forget(context, (), policy=Policy(keep_label=("nothing",))).removed


def test_undo_after_everything_before_was_forgotten_says_so(
    open_context: Callable[..., Context], tree: Path, clock: ManualClock
) -> None:
    context = open_context()
    for number in range(3):
        (tree / "f").write_text(str(number))
        create_checkpoint(context, CheckpointRequest())
        clock.advance(1)
    forget(context, (), policy=Policy(keep_last=1))
    with pytest.raises(NotFoundError) as caught:
        undo(context)
    assert caught.value.code == "nothing_to_undo"
    assert (tree / "f").read_text() == "2"


def test_a_rescue_is_kept_for_its_time(open_context: Callable[..., Context], tree: Path, clock: ManualClock) -> None:
    # I6
    context = open_context()
    (tree / "f").write_text("1")
    first = create_checkpoint(context, CheckpointRequest()).checkpoint.id
    rescues: list[str | None] = []
    for number in range(12):
        (tree / "f").write_text(f"unsaved {number}")
        rescues.append(restore(context, first).rescue)
        clock.advance(3 * 60)
    clock.advance(20 * 3600)
    assert not {checkpoint.id for checkpoint in forget(context, ()).removed} & set(rescues)
    clock.advance(30 * 86400)
    assert {checkpoint.id for checkpoint in forget(context, ()).removed} & set(rescues)


def test_one_collection_at_a_time(open_context: Callable[..., Context], tree: Path) -> None:
    # I11
    context, other = open_context(), open_context()
    (tree / "f").write_text("1")
    create_checkpoint(context, CheckpointRequest())
    (tree / "f").write_text("2")
    forgotten = create_checkpoint(context, CheckpointRequest()).checkpoint
    (tree / "f").write_text("3")
    create_checkpoint(context, CheckpointRequest())
    forget(context, [forgotten.id])
    refused: list[Exception] = []

    def meanwhile(phase: str, done: int, total: int) -> None:
        for work in (collect, verify):
            try:
                work(other)
            except LockedError as error:
                refused.append(error)

    collect(context, grace=0, progress=meanwhile)
    assert refused or not stats(context).dead_bytes


def test_i11_a_dry_run_of_a_collection_says_what_it_does_and_does_nothing(
    open_context: Callable[..., Context], tree: Path, home: Path, clock: ManualClock
) -> None:
    context = open_context()
    for number in range(12):
        (tree / "large").write_bytes(os.urandom(1_500_000))
        for name in range(40):
            (tree / f"{name % 7}-{name}").write_bytes(os.urandom(200) + b"%d" % number if name >= number else b"same")
        create_checkpoint(context, CheckpointRequest())
        clock.advance(10)
    (home / "objects/packs/local/11111111111111111111111111111111").write_bytes(b"written, and never committed")
    for policy in (Policy(keep_last=9), Policy(keep_last=3), Policy(keep_last=1)):
        forget(context, (), policy=policy)
        assert collect(context, dry_run=True).blobs_deleted == 0, "the grace time has not passed"
        before = objects(home)
        planned = collect(context, grace=0, dry_run=True)
        assert objects(home) == before
        assert planned.dry_run
        assert planned.bytes_freed > 1_500_000
        assert collect(context, grace=0) == planned._replace(dry_run=False)
    assert collect(context, grace=0, dry_run=True) == (0, 0, 0, 0, True, ())

"""What counts as lost in a step, and what does not."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.files.exclusion import ExcludedDirectories
from holdfast.files.ignore import IgnoreSources
from holdfast.model.errors import HeldError
from holdfast.testing.acting import Actor
from holdfast.testing.clocks import ManualClock
from holdfast.undo.desk import Desk
from holdfast.undo.directories import Directories
from holdfast.undo.log import UndoLog
from holdfast.undo.losses import Losses
from holdfast.undo.recovery import recover
from holdfast.undo.safeguards import Safeguards, Thresholds

from .conftest import Bench

SIZE = 1000
BIG = b"big"
ASKED = Thresholds(deletes=3, overwrite_bytes=SIZE)


class Guarded:
    """A tree with a large file and some small ones, and steps in it that are guarded."""

    def __init__(self, bench: Bench, log: UndoLog, root: int, desk: Desk) -> None:
        self.tree = bench.tree
        self.desk = desk
        self.log = log
        self.root = root

    @contextmanager
    def step(self, run: str = "run") -> Generator[Actor]:
        step = self.desk.open("command", run=run)
        with Actor(self.log.recorder, os.fsencode(self.tree), step) as actor:
            yield actor
        self.desk.close(step)

    def lose(self, actor: Actor, path: bytes, lost: int) -> None:
        """By a descriptor that is open."""
        directories = Directories(self.root)
        fd = os.open(self.tree / os.fsdecode(path), os.O_RDONLY)
        try:
            self.log.recorder.losing(actor.step, directories.place(path), fd, lost)
        finally:
            os.close(fd)
            directories.close()


@pytest.fixture(name="guarded")
def _guarded(bench: Bench) -> Iterator[Guarded]:
    (bench.tree / "big").write_bytes(b"0" * SIZE)
    (bench.tree / "small").write_bytes(b"small")
    (bench.tree / ".git" / "objects").mkdir(parents=True)
    (bench.tree / ".git" / "objects" / "pack").write_bytes(b"0" * SIZE)
    (bench.tree / "ignored").mkdir()
    (bench.tree / "ignored" / "big").write_bytes(b"0" * SIZE)
    (bench.tree / ".gitignore").write_text("/ignored/\n*.o\n")
    (bench.tree / "d").mkdir()
    for number in range(3):
        (bench.tree / "d" / str(number)).write_bytes(b"x")
    root = os.open(bench.tree, os.O_RDONLY | os.O_DIRECTORY)
    path, clock = os.fsencode(os.path.realpath(bench.tree)), ManualClock()

    def rules() -> Callable[[bytes], bool]:
        return ExcludedDirectories(path, IgnoreSources(path), ()).leaves_out

    safeguards = Safeguards(clock, losses=Losses(rules))
    log = UndoLog(os.fsencode(bench.directory), root, clock, safeguards)
    recover(log)
    desk = Desk(log, safeguards, intercepts=True)
    desk.guard(ASKED, ["run", "other"])
    yield Guarded(bench, log, root, desk)
    log.close()
    os.close(root)


def opened(flags: int) -> Callable[[Guarded, Actor], None]:
    return lambda _guarded, actor: os.close(actor.open(BIG, flags))


def _replaced(_guarded: Guarded, actor: Actor) -> None:
    actor.rename(b"small", BIG)


def _emptied_behind_what_is_appended(_guarded: Guarded, actor: Actor) -> None:
    os.close(actor.open(BIG, os.O_WRONLY | os.O_APPEND))
    os.close(actor.open(BIG, os.O_WRONLY | os.O_APPEND | os.O_TRUNC))


def _moved_where_nothing_is_captured(to: bytes) -> Callable[[Guarded, Actor], None]:
    def work(_guarded: Guarded, actor: Actor) -> None:
        actor.rename(BIG, to)
        actor.unlink(to)

    return work


def _hidden_by_new_rules(_guarded: Guarded, actor: Actor) -> None:
    actor.write(b"d/.gitignore", b"*\n")
    actor.rename(BIG, b"d/big")
    actor.rename(b"d", b"e")
    actor.unlink(b"e/big")


def _hidden_by_changed_rules(_guarded: Guarded, actor: Actor) -> None:
    actor.write(b".gitignore", b"*\n")
    actor.unlink(BIG)


def _exchanged(_guarded: Guarded, actor: Actor) -> None:
    actor.exchange(BIG, b"ignored/big")
    actor.unlink(b"ignored/big")


def _cut(guarded: Guarded, actor: Actor) -> None:
    guarded.lose(actor, BIG, SIZE)


def _bit_by_bit(guarded: Guarded, actor: Actor) -> None:
    guarded.lose(actor, BIG, SIZE // 2)
    actor.unlink(BIG)


@pytest.mark.parametrize(
    "work",
    [
        opened(os.O_WRONLY),
        opened(os.O_RDWR),
        opened(os.O_RDWR | os.O_APPEND),
        opened(os.O_WRONLY | os.O_TRUNC),
        opened(os.O_RDONLY | os.O_TRUNC),
        opened(os.O_WRONLY | os.O_APPEND | os.O_TRUNC),
        _replaced,
        _emptied_behind_what_is_appended,
        _moved_where_nothing_is_captured(b".git/big"),
        _moved_where_nothing_is_captured(b"ignored/other"),
        _moved_where_nothing_is_captured(b"big.o"),
        _hidden_by_new_rules,
        _hidden_by_changed_rules,
        _exchanged,
        _cut,
        _bit_by_bit,
        lambda _guarded, actor: actor.unlink(BIG),
    ],
)
def test_every_way_to_lose_content_is_asked_about(guarded: Guarded, work: Callable[[Guarded, Actor], None]) -> None:
    """I9."""
    with guarded.step() as actor, pytest.raises(HeldError):
        work(guarded, actor)
    assert sorted(os.listdir(guarded.tree)) == [".git", ".gitignore", "big", "d", "ignored", "small"]
    assert (guarded.tree / "big").stat().st_size == (guarded.tree / "ignored" / "big").stat().st_size == SIZE


def _own(_guarded: Guarded, actor: Actor) -> None:
    for _ in range(9):
        actor.write(b"own", b"0" * SIZE)
        actor.write(b"own", b"1" * SIZE)
        actor.rename(b"own", b"moved")
        actor.unlink(b"moved")


def _of_git(_guarded: Guarded, actor: Actor) -> None:
    actor.unlink(b".git/objects/pack")


def _ignored(_guarded: Guarded, actor: Actor) -> None:
    actor.write(b"ignored/big", b"")
    actor.rename(b"ignored", b"aside")
    actor.unlink(b"aside/big")
    actor.rmdir(b"aside")


def _twice(_guarded: Guarded, actor: Actor) -> None:
    for _ in range(9):
        actor.write(b"small", b"1", at=0)
        actor.write(b"d/0", b"1")
    actor.unlink(b"d/0")


def _little(guarded: Guarded, actor: Actor) -> None:
    guarded.lose(actor, BIG, SIZE - 1)
    guarded.lose(actor, b"small", 0)


@pytest.mark.parametrize("work", [opened(os.O_WRONLY | os.O_APPEND), _own, _of_git, _ignored, _twice, _little])
def test_what_is_no_loss_is_not_asked_about(guarded: Guarded, work: Callable[[Guarded, Actor], None]) -> None:
    with guarded.step() as actor:
        work(guarded, actor)
    assert guarded.desk.held() == []


def test_what_a_run_has_made_in_another_step_is_its_own_and_of_no_other_run(guarded: Guarded) -> None:
    with guarded.step() as actor:
        actor.write(b"made", b"0" * SIZE)
        actor.write(b"ours", b"0" * SIZE)
    with guarded.step() as actor:
        actor.unlink(b"ours")
    with guarded.step("other") as actor, pytest.raises(HeldError):
        actor.unlink(b"made")


def test_opening_counts_once_in_a_run_and_what_is_removed_then_counts(guarded: Guarded) -> None:
    guarded.desk.guard(ASKED._replace(overwrite_bytes=SIZE + 1), ["run"])
    with guarded.step() as actor:
        actor.write(BIG, b"1", at=0)
    with guarded.step() as actor:
        actor.write(BIG, b"1", at=0)
        actor.unlink(b"small")
    with guarded.step() as actor:
        actor.write(BIG, b"1", at=0)
        os.close(actor.open(b"d/0", os.O_RDWR))
        with pytest.raises(HeldError):
            actor.unlink(BIG)


@pytest.mark.parametrize("is_answered", [True, False])
def test_who_tries_again_what_was_denied_is_asked_as_before(guarded: Guarded, is_answered: bool) -> None:
    guarded.desk.guard(ASKED._replace(overwrite_bytes=SIZE + 5), ["run"])

    def work(actor: Actor) -> None:
        os.close(actor.open(BIG, os.O_RDWR))
        os.close(actor.open(b"small", os.O_RDWR))

    for _ in range(2):
        with guarded.step() as actor:
            with pytest.raises(HeldError) as held:
                work(actor)
            if is_answered:
                guarded.desk.answer(held.value.ticket, allow=False)


def test_what_failed_is_no_loss(guarded: Guarded) -> None:
    def fail() -> None:
        raise PermissionError

    directories = Directories(guarded.root)
    with guarded.step() as actor:
        for number in range(3):
            for _ in range(3):
                place = directories.place(b"d/%d" % number)
                with pytest.raises(PermissionError):
                    guarded.log.recorder.unlink(actor.step, place, fail, own=None)
    directories.close()


def test_a_number_of_files_is_asked_about_however_each_is_lost(guarded: Guarded) -> None:
    with guarded.step() as actor:
        actor.unlink(b"d/0")
        actor.rename(b"d/1", b"d/2")
        with pytest.raises(HeldError):
            actor.write(b"small", b"other")
        (ticket,) = guarded.desk.held()
        assert "is about to overwrite its file number 3: small" in ticket.message
        guarded.desk.answer(ticket.id, allow=True)
        actor.write(b"small", b"other")
        actor.unlink(BIG)  # it was allowed, whatever else goes


def _database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table t (a)")
        database.execute("insert into t values (zeroblob(100000))")
    database.close()


def test_a_database_may_change_pages_and_is_asked_about_when_it_is_emptied(guarded: Guarded) -> None:
    _database(guarded.tree / "app.db")
    guarded.desk.guard(ASKED, ["run"])
    with guarded.step() as actor:
        os.close(actor.open(b"app.db", os.O_RDWR | os.O_CREAT))
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC):  # as dd conv=notrunc opens it
        with guarded.step() as actor, pytest.raises(HeldError):
            os.close(actor.open(b"app.db", flags))
    with guarded.step() as actor, pytest.raises(HeldError):
        guarded.lose(actor, b"app.db", 100_000)
    with guarded.step() as actor, pytest.raises(HeldError):
        actor.unlink(b"app.db")

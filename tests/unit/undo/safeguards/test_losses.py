"""What counts as lost in a step, and what does not."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.files.ignore.excluded_paths import ExcludedDirectories
from holdfast.files.ignore.rules import IgnoreSources
from holdfast.files.linux.file_handle import Identity
from holdfast.model.errors import HeldError
from holdfast.model.paths import under
from holdfast.testing.clocks import ManualClock
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.journal.records import Begin
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.safeguards import losses
from holdfast.undo.safeguards.losses import Losses
from holdfast.undo.safeguards.open_step import OpenStep
from holdfast.undo.safeguards.tickets import Safeguards
from holdfast.undo.service import Thresholds
from holdfast.undo.tree.rooted_directories import Directories

from ..conftest import Bench

SIZE = 1000
BIG = b"big"
ASKED = Thresholds(deletes=3, overwrite_bytes=SIZE)


class Guarded:
    """A tree with a large file and some small ones, and steps in it that are guarded."""

    def __init__(self, bench: Bench, log: UndoLog, root: int, service: LocalUndoService) -> None:
        self.tree = bench.tree
        self.service = service
        self.log = log
        self.root = root

    @contextmanager
    def step(self, run: str = "run") -> Generator[InterceptedActor]:
        step = self.service.open("command", run=run)
        with InterceptedActor(self.log.recorder, os.fsencode(self.tree), step) as actor:
            yield actor
        self.service.close(step)

    def lose(self, actor: InterceptedActor, path: bytes, lost: int) -> None:
        """By a descriptor that is open."""
        directories = Directories(self.root)
        fd = os.open(self.tree / os.fsdecode(path), os.O_RDONLY)
        try:
            self.log.recorder.before_loss(actor.step, directories.place(path), fd, lost)
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

    def rules() -> Callable[[bytes, tuple[bytes, bytes]], bool]:
        return ExcludedDirectories(path, IgnoreSources(path), ()).leaves_out

    safeguards = Safeguards(clock, losses=Losses(rules, lambda path: path.startswith(b"d/")))
    log = UndoLog(os.fsencode(bench.directory), root, clock, safeguards)
    recover(log)
    service = LocalUndoService(log, safeguards, intercepts=True)
    service.guard(ASKED, ["run", "other"])
    yield Guarded(bench, log, root, service)
    log.close()
    os.close(root)


def opened(flags: int) -> Callable[[Guarded, InterceptedActor], None]:
    return lambda _guarded, actor: os.close(actor.open(BIG, flags))


def _replaced(_guarded: Guarded, actor: InterceptedActor) -> None:
    actor.rename(b"small", BIG)


def _emptied_behind_what_is_appended(_guarded: Guarded, actor: InterceptedActor) -> None:
    os.close(actor.open(BIG, os.O_WRONLY | os.O_APPEND))
    os.close(actor.open(BIG, os.O_WRONLY | os.O_APPEND | os.O_TRUNC))


def _moved_where_nothing_is_captured(to: bytes) -> Callable[[Guarded, InterceptedActor], None]:
    def work(_guarded: Guarded, actor: InterceptedActor) -> None:
        actor.rename(BIG, to)
        actor.unlink(to)

    return work


def _hidden_by_new_rules(_guarded: Guarded, actor: InterceptedActor) -> None:
    actor.write(b"d/.gitignore", b"*\n")
    actor.rename(BIG, b"d/big")
    actor.rename(b"d", b"e")
    actor.unlink(b"e/big")


def _hidden_by_changed_rules(_guarded: Guarded, actor: InterceptedActor) -> None:
    actor.write(b".gitignore", b"*\n")
    actor.unlink(BIG)


def _moved_before_many_others(_guarded: Guarded, actor: InterceptedActor) -> None:
    actor.rename(BIG, b"ignored/other")
    for _ in range(150):
        actor.rename(b"small", b"ignored/small")
        actor.rename(b"ignored/small", b"small")
        actor.rename(b"d", b"e")
        actor.rename(b"e", b"d")
    actor.unlink(b"ignored/other")


def _hidden_by_rules_that_took_its_directory(guarded: Guarded, actor: InterceptedActor) -> None:
    """The rules that tell are those that lay beside it, wherever they lie by now."""
    (guarded.tree / "hides" / "sub").mkdir(parents=True)
    (guarded.tree / "hides" / "sub" / ".gitignore").write_text("*\n")
    (guarded.tree / "d" / "sub").mkdir()
    (guarded.tree / "d" / "sub" / "big").write_bytes(b"0" * SIZE)
    try:
        actor.rename(b"d", b"e")
        actor.rename(b"hides", b"d")
        actor.unlink(b"e/sub/big")
    finally:
        shutil.rmtree(guarded.tree / "d")
        shutil.rmtree(guarded.tree / "e" / "sub")
        (guarded.tree / "e").rename(guarded.tree / "d")


def _exchanged(_guarded: Guarded, actor: InterceptedActor) -> None:
    actor.exchange(BIG, b"ignored/big")
    actor.unlink(b"ignored/big")


def _cut(guarded: Guarded, actor: InterceptedActor) -> None:
    guarded.lose(actor, BIG, SIZE)


def _bit_by_bit(guarded: Guarded, actor: InterceptedActor) -> None:
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
        _moved_before_many_others,
        _hidden_by_rules_that_took_its_directory,
        _cut,
        _bit_by_bit,
        lambda _guarded, actor: actor.unlink(BIG),
    ],
)
def test_every_way_to_lose_content_is_asked_about(
    guarded: Guarded, work: Callable[[Guarded, InterceptedActor], None]
) -> None:
    """I9."""
    with guarded.step() as actor, pytest.raises(HeldError):
        work(guarded, actor)
    assert sorted(os.listdir(guarded.tree)) == [".git", ".gitignore", "big", "d", "ignored", "small"]
    assert (guarded.tree / "big").stat().st_size == (guarded.tree / "ignored" / "big").stat().st_size == SIZE


def _own(_guarded: Guarded, actor: InterceptedActor) -> None:
    for _ in range(9):
        actor.write(b"own", b"0" * SIZE)
        actor.write(b"own", b"1" * SIZE)
        actor.rename(b"own", b"moved")
        actor.unlink(b"moved")


def _of_git(_guarded: Guarded, actor: InterceptedActor) -> None:
    actor.unlink(b".git/objects/pack")


def _ignored(_guarded: Guarded, actor: InterceptedActor) -> None:
    actor.write(b"ignored/big", b"")
    actor.rename(b"ignored", b"aside")
    actor.unlink(b"aside/big")
    actor.rmdir(b"aside")


def _ignored_by_rules_that_moved_with_it(guarded: Guarded, actor: InterceptedActor) -> None:
    (guarded.tree / "cache" / "sub").mkdir(parents=True)
    (guarded.tree / "cache" / ".gitignore").write_text("*\n")
    (guarded.tree / "cache" / "sub" / "big").write_bytes(b"0" * SIZE)
    actor.rename(b"cache", b"old")
    actor.rename(b"d", b"cache")
    actor.unlink(b"old/.gitignore")
    actor.unlink(b"old/sub/big")


def _twice(_guarded: Guarded, actor: InterceptedActor) -> None:
    for _ in range(9):
        actor.write(b"small", b"1", at=0)
        actor.write(b"d/0", b"1")
    actor.unlink(b"d/0")


def _little(guarded: Guarded, actor: InterceptedActor) -> None:
    guarded.lose(actor, BIG, SIZE - 1)
    guarded.lose(actor, b"small", 0)


@pytest.mark.parametrize(
    "work",
    [
        opened(os.O_WRONLY | os.O_APPEND),
        _own,
        _of_git,
        _ignored,
        _ignored_by_rules_that_moved_with_it,
        _twice,
        _little,
    ],
)
def test_what_is_no_loss_is_not_asked_about(
    guarded: Guarded, work: Callable[[Guarded, InterceptedActor], None]
) -> None:
    with guarded.step() as actor:
        work(guarded, actor)
    assert guarded.service.held() == []


def test_what_a_run_has_made_in_another_step_is_its_own_and_of_no_other_run(guarded: Guarded) -> None:
    with guarded.step() as actor:
        actor.write(b"made", b"0" * SIZE)
        actor.write(b"ours", b"0" * SIZE)
    with guarded.step() as actor:
        actor.unlink(b"ours")
    with guarded.step("other") as actor, pytest.raises(HeldError):
        actor.unlink(b"made")


def test_opening_counts_once_in_a_run_and_what_is_removed_then_counts(guarded: Guarded) -> None:
    guarded.service.guard(ASKED._replace(overwrite_bytes=SIZE + 1), ["run"])
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


def test_what_git_holds_counts_until_it_is_made_anew(guarded: Guarded) -> None:
    with guarded.step() as actor:
        for name in (b"d/0", b"d/1", b"d/2"):
            actor.unlink(name)
            actor.write(name, b"other")
        actor.unlink(b"small")
        actor.write(b"small", b"other")
        actor.unlink(b".gitignore")
        actor.write(b".gitignore", b"other")
        with pytest.raises(HeldError):
            actor.unlink(BIG)
    with guarded.step("other") as actor:
        actor.unlink(b"d/0")
        actor.write(b"elsewhere", b"other")
        actor.unlink(b"d/1")
        with pytest.raises(HeldError):
            actor.unlink(b"d/2")


def test_what_is_moved_back_by_a_denial_counts_as_before(guarded: Guarded) -> None:
    for _ in range(2):
        with guarded.step() as actor:
            actor.exchange(BIG, b"ignored/big")
            with pytest.raises(HeldError) as held:
                actor.unlink(b"ignored/big")
            guarded.service.answer(held.value.ticket, allow=False)
    with guarded.step() as actor, pytest.raises(HeldError):
        actor.unlink(BIG)


def test_what_another_run_makes_where_something_ignored_was_moved_to_counts(guarded: Guarded) -> None:
    with guarded.step() as actor:
        actor.rename(b"ignored", b"shown")
        actor.rename(b"shown/big", b"moved")
        actor.unlink(b"moved")
    with guarded.step("other") as actor:
        actor.write(b"shown/big", b"0" * SIZE)
        actor.write(b"moved", b"0" * SIZE)
    for path in (b"shown/big", b"moved"):
        with guarded.step() as actor, pytest.raises(HeldError):
            actor.unlink(path)


def test_beyond_what_can_be_known_of_moves_everything_counts(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_MOST_MOVED", 1)
    with guarded.step() as actor:
        actor.rename(b"ignored/big", b"shown")
        actor.rename(b"d", b"e")
        with pytest.raises(HeldError):
            actor.unlink(b"shown")


NAMES = st.sampled_from([b"a", b"b", b"out"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)


@given(st.lists(st.tuples(st.sampled_from(["move", "exchange", "make"]), PATHS, PATHS), max_size=30))
def test_a_path_counts_by_where_what_is_there_lay_first(calls: list[tuple[str, bytes, bytes]]) -> None:
    """Against a tree in which everything, directories too, knows where it was first."""
    asked: list[bytes] = []
    known = Losses(lambda: lambda path, _moved: asked.append(path) or path.startswith(b"out/"))
    tree = {path: path for path in (b"a", b"b", b"out", b"a/a", b"a/b", b"out/a", b"out/out")}
    step = OpenStep(Begin(1, 1, "command", "run", (), b"", 0, None))

    def carry(source: bytes, target: bytes) -> dict[bytes, bytes]:
        return {target + path[len(source) :]: tree.pop(path) for path in list(tree) if under(path, source)}

    for number, (call, one, other) in enumerate(calls):
        above = other.rpartition(b"/")[0]
        if call == "make":
            if other not in tree and (not above or above in tree):
                known.note_made(step, other, Identity(b"%d" % number))
                tree[other] = other
            continue
        if one not in tree or under(other, one) or under(one, other) or (above and above not in tree):
            continue
        if call == "exchange" and other not in tree:
            continue
        moved, replaced = carry(one, other), carry(other, one)
        tree |= moved | (replaced if call == "exchange" else {})
        known.note_moved(one, other, is_directory=True, is_exchanged=call == "exchange")
    for path, first in tree.items():
        asked.clear()
        known.note_touch(path + b"/.gitignore")
        assert asked == [first + b"/.gitignore"]


@pytest.mark.parametrize("is_answered", [True, False])
def test_who_tries_again_what_was_denied_is_asked_as_before(guarded: Guarded, is_answered: bool) -> None:
    guarded.service.guard(ASKED._replace(overwrite_bytes=SIZE + 5), ["run"])

    def work(actor: InterceptedActor) -> None:
        os.close(actor.open(BIG, os.O_RDWR))
        os.close(actor.open(b"small", os.O_RDWR))

    for _ in range(2):
        with guarded.step() as actor:
            with pytest.raises(HeldError) as held:
                work(actor)
            if is_answered:
                guarded.service.answer(held.value.ticket, allow=False)


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
        (ticket,) = guarded.service.held()
        assert "is about to overwrite its file number 3: small" in ticket.message
        guarded.service.answer(ticket.id, allow=True)
        actor.write(b"small", b"other")
        actor.unlink(BIG)  # it was allowed, whatever else goes


def _database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table t (a)")
        database.execute("insert into t values (zeroblob(100000))")
    database.close()


def test_a_database_may_change_pages_and_is_asked_about_when_it_is_emptied(guarded: Guarded) -> None:
    _database(guarded.tree / "app.db")
    guarded.service.guard(ASKED, ["run"])
    with guarded.step() as actor:
        os.close(actor.open(b"app.db", os.O_RDWR | os.O_CREAT))
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC):  # as dd conv=notrunc opens it
        with guarded.step() as actor, pytest.raises(HeldError):
            os.close(actor.open(b"app.db", flags))
    with guarded.step() as actor, pytest.raises(HeldError):
        guarded.lose(actor, b"app.db", 100_000)
    with guarded.step() as actor, pytest.raises(HeldError):
        actor.unlink(b"app.db")

"""I1, I3, I8 for what is killed on its way back: whatever was moved meanwhile, it is finished exactly; and what
somebody edits before that is neither overwritten nor removed.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.testing.crash_points import MUTATIONS, run_killed
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.journal.step_file import StepHead
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.reversal.reversal_context import Conflict

from ..sampling import some, spread

MOST = 600
CALLS = [call for call in MUTATIONS if call[1] != "mkdir"]
"""(Hundreds of which open a log.)"""
MARK = b"<by hand %d>"

Act = Callable[[InterceptedActor], None]


class Bench:
    """A tree and its undo log, for each use opened anew as by the next command."""

    def __init__(self, base: Path, home: Path) -> None:
        self.tree = base / "tree"
        self._log = os.fsencode(home / "log")
        self.aside = home / "log" / "aside"
        self.tree.mkdir()
        self.root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)

    def keep(self) -> UndoLog:
        return UndoLog(self._log, self.root, SystemClock())

    def step(self, act: Act, *, ends: bool = True) -> None:
        log = self.keep()
        service = LocalUndoService(log)
        step = service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(self.tree), step) as actor:
            act(actor)
        if ends:
            service.close(step, 0)
        log.close()

    def undo(self) -> None:
        self._change("done")

    def redo(self) -> None:
        self._change("undone")

    def _change(self, state: str) -> None:
        with closing(self.keep()) as log:
            service = LocalUndoService(log)
            (service.undo if state == "done" else service.redo)([max(log.heads)])

    def recover(self) -> list[Conflict]:
        with closing(self.keep()) as log:
            found = recover(log)
        done = [*found.finished, *([found.rolled_back] if found.rolled_back else [])]
        return [conflict for one in done for conflict in one.conflicts]

    @property
    def is_sealed(self) -> bool:
        with closing(self.keep()) as log:
            return bool(log.heads)

    @property
    def newest(self) -> StepHead:
        with closing(self.keep()) as log:
            return log.heads[max(log.heads)]

    @property
    def state(self) -> str:
        return self.newest.state

    def photograph(self) -> dict[bytes, PathState]:
        return photograph(self.tree)


@pytest.fixture(params=[True, False], ids=["", "nothing can be renamed into the log"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Also one where everything has to be copied, and is brought back as another object."""
    bench = Bench(tmp_path, tmp_path if request.param else request.getfixturevalue("elsewhere"))
    for path, size in {"d/f": 3, "d/s/g": 5, "d/s/large": 40_000, "e/h": 7, "top": 2}.items():
        (bench.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (bench.tree / path).write_bytes(random.Random(path).randbytes(size))
    os.link(bench.tree / "d/f", bench.tree / "e/other")
    yield bench
    os.close(bench.root)


def killed(at: int, work: Callable[[], object]) -> bool:
    return run_killed(work, at, calls=CALLS).killed


def moved_after(actor: InterceptedActor) -> None:
    """Everything that there is to do in a directory, and then that is moved."""
    actor.write(b"d/f", b"yy", at=1)
    actor.write(b"d/s/large", b"zz", at=35_000)
    actor.write(b"d/new", b"new")
    actor.link(b"d/s/g", b"d/linked")
    actor.chmod(b"d/s/g", 0o600)
    actor.rename(b"d/s", b"d/t")
    actor.rename(b"d", b"m")


def moved_before(actor: InterceptedActor) -> None:
    """A directory is moved, and changed where it is then."""
    actor.rename(b"d", b"m")
    actor.write(b"m/f", b"yy", at=1)
    actor.write(b"m/s/large", b"zz", at=35_000)
    actor.rename(b"m/s/g", b"m/g")
    actor.unlink(b"top")
    actor.exchange(b"m", b"e")


def renamed(actor: InterceptedActor) -> None:
    """Files are changed, and then renamed one by one: their names are back long before what they hold is."""
    files = [b"d/f", b"d/s/g", b"d/s/large", b"e/h", b"top"]
    for path in files:
        actor.write(path, b"yy", at=1)
    for path in files:
        actor.rename(path, path + b"-renamed")


def at_random(seed: int) -> Act:
    """Several operations, among which directories are moved as often as files are changed."""

    def act(actor: InterceptedActor) -> None:
        chance = random.Random(seed)
        root = os.fsdecode(actor.path)
        for _ in range(chance.randrange(4, 10)):
            directories, files = [b""], list[bytes]()
            for at, below, names in os.walk(root):
                inner = os.fsencode(os.path.relpath(at, root))
                inner = b"" if inner == b"." else inner + b"/"
                directories += [inner + os.fsencode(name) for name in sorted(below)]
                files += [inner + os.fsencode(name) for name in sorted(names)]
            file, directory = chance.choice(files), chance.choice(directories)
            fresh = b"%sn%d" % (directory + b"/" if directory else b"", chance.randrange(1000))
            with suppress(OSError):  # into itself
                match chance.randrange(9):
                    case 0 | 1:
                        actor.write(file, chance.randbytes(4), at=chance.randrange(4))
                    case 2:
                        actor.write(fresh, chance.randbytes(5))
                    case 3:
                        actor.link(file, fresh)
                    case 4:
                        actor.unlink(file)
                    case 5:
                        actor.rename(file, chance.choice([fresh, *files]))
                    case 6:
                        actor.exchange(chance.choice(directories[1:]), chance.choice([*directories[1:], file]))
                    case _:
                        actor.rename(chance.choice(directories[1:]), fresh)

    return act


ACTS = [moved_after, moved_before, renamed, *(at_random(seed) for seed in range(3))]
NAMES = ["after", "before", "renamed", *"012"]


@pytest.mark.parametrize("act", ACTS, ids=NAMES)
def test_what_was_moved_back_already_is_finished(bench: Bench, act: Act) -> None:
    before = bench.photograph()
    bench.step(act)
    after = bench.photograph()
    for at in range(1, MOST, 5 * spread(4)):
        is_killed = False
        for change, state, expected in ((bench.undo, "undone", before), (bench.redo, "done", after)):
            is_killed |= killed(at, change)
            killed(at % 9 * 5 + 1, bench.recover)
            assert bench.recover() == []
            if bench.state != state:
                change()  # it had not begun
            assert differences(expected, bench.photograph()) == []
        if not is_killed:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("act", ACTS, ids=NAMES)
def test_a_rollback_that_is_cut_short_is_finished(bench: Bench, act: Act) -> None:
    before = bench.photograph()
    for at in range(1, MOST, 11 * spread(2)):
        bench.step(act, ends=False)
        is_killed = killed(at, bench.recover)
        killed(at % 9 * 5 + 1, bench.recover)
        assert bench.recover() == []
        assert differences(before, bench.photograph()) == []
        if not is_killed:
            return
    raise AssertionError("it never came to its end")


class Hand:
    """Somebody who edits files, and wants to find that again."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self._tree = bench.tree
        self._aside = bench.aside
        self._chance = chance
        self.marks: list[bytes] = []

    def edit(self) -> None:
        for _ in range(5):
            files = sorted(path for path in self._tree.rglob("*") if stat.S_ISREG(path.lstat().st_mode))
            path = self._chance.choice(files)
            mark = MARK % len(self.marks)
            match self._chance.randrange(4):
                case 0 if path.stat().st_nlink == 1:  # as many editors save, but for what has several names
                    other = path.with_name("saving")
                    other.write_bytes(path.read_bytes() + mark)
                    other.rename(path)
                case 1:
                    path.with_name(f"made{len(self.marks)}").write_bytes(mark)
                case _:
                    with path.open("ab") as file:
                        file.write(mark)
            self.marks.append(mark)

    def assert_all_is_there(self) -> None:
        kept = [path.read_bytes() for top in (self._tree, self._aside) for path in top.rglob("*") if path.is_file()]
        for mark in self.marks:
            assert any(mark in content for content in kept), mark

    def without(self, seen: dict[bytes, PathState]) -> dict[bytes, bytes]:
        """The contents of the files that were there, without what was written by hand."""
        found: dict[bytes, bytes] = {}
        for path, one in seen.items():
            content = one.content
            for mark in self.marks:
                content = content.replace(mark, b"")
            if b"made" not in path:
                found[path] = content
        return found


def assert_nothing_of_the_hand_is_lost(
    bench: Bench, hand: Hand, chance: random.Random, state: str, expected: dict[bytes, PathState]
) -> None:
    killed(chance.randrange(1, 60), bench.recover)
    bench.recover()
    hand.assert_all_is_there()
    if bench.state == state and not bench.newest.conflicts:
        assert hand.without(bench.photograph()) == hand.without(expected)
    for change in (bench.redo, bench.undo):
        with suppress(RefusedError, NotFoundError):
            change()
        hand.assert_all_is_there()


@pytest.mark.parametrize("seed", some(range(12), 3))
@pytest.mark.parametrize("act", ACTS, ids=NAMES)
def test_an_edit_before_an_undo_is_finished_is_not_lost(bench: Bench, act: Act, seed: int) -> None:
    chance = random.Random(seed)
    before = bench.photograph()
    bench.step(act)
    after = bench.photograph()
    change, state, expected = bench.undo, "undone", before
    if seed % 3 == 2:
        bench.undo()
        change, state, expected = bench.redo, "done", after
    if not killed(4 + seed * 5, change):
        return
    hand = Hand(bench, chance)
    hand.edit()
    assert_nothing_of_the_hand_is_lost(bench, hand, chance, state, expected)


@pytest.mark.parametrize("seed", some(range(12), 3))
@pytest.mark.parametrize("act", ACTS, ids=NAMES)
def test_an_edit_before_a_rollback_is_finished_is_not_lost(bench: Bench, act: Act, seed: int) -> None:
    chance = random.Random(seed)
    before = bench.photograph()
    bench.step(act, ends=False)
    if not killed(10 + seed * 6, bench.recover) or not bench.is_sealed:
        return  # (before, what is edited at once cannot be told from what the step itself did)
    hand = Hand(bench, chance)
    hand.edit()
    assert_nothing_of_the_hand_is_lost(bench, hand, chance, "undone", before)


@pytest.mark.parametrize("at", some(range(8, 30, 2), 6))
def test_attributes_that_are_set_before_an_undo_is_finished_are_not_lost(bench: Bench, at: int) -> None:
    """Of directories and of a file with several names."""
    paths = [b"d", b"d/f", b"d/s", b"e"]

    def describe(actor: InterceptedActor) -> None:
        for path in paths:
            actor.chmod(path, 0o700)

    bench.step(describe)
    assert killed(at, bench.undo)
    for path in paths:
        os.setxattr(bench.tree / os.fsdecode(path), "user.hand", path)
    bench.recover()
    lost = [path for path in paths if "user.hand" not in os.listxattr(bench.tree / os.fsdecode(path))]
    # (What was being described when it was cut short may be anything on the way.)
    assert len(lost) <= 1

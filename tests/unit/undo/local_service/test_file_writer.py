"""Files that a face writes: steps of their own, whole or not at all, and never outside of the tree."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.model.errors import EscapeError, HeldError, RefusedError, StorageError
from holdfast.model.ids import hash_bytes
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.records import StepId
from holdfast.undo.local_service import file_writer
from holdfast.undo.local_service.file_writer import ABSENT
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.reversal.durable_reversal import reverse
from holdfast.undo.safeguards.guard import NO_RISK, Risk
from holdfast.undo.service import PRESET

from ..conftest import Bench
from .test_undo_service import Keeper, opened

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@contextmanager
def content(data: bytes) -> Generator[int]:
    fd = os.memfd_create("content")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


def write(keeper: Keeper, path: bytes, data: bytes, expected: bytes | None = None) -> int:
    with content(data) as fd:
        info = keeper.service.write(path, fd, expected=expected)
    assert info is not None
    assert (info.kind, info.command) == ("api", (b"write", path))
    return info.id


def test_a_file_is_written_as_a_step_that_can_be_undone_and_redone(bench: Bench) -> None:
    """I1."""
    (bench.tree / "old").write_bytes(b"old")
    os.link(bench.tree / "old", bench.tree / "other name")
    (bench.tree / "old").chmod(0o751)
    before = photograph(bench.tree)
    with opened(bench) as keeper:
        first = write(keeper, b"old", b"x" * 3_000_000)
        second = write(keeper, b"a/b/new", b"new")
        after = photograph(bench.tree)
        assert (bench.tree / "other name").stat().st_size == 3_000_000
        assert (bench.tree / "old").stat().st_mode & 0o777 == 0o751
        assert (bench.tree / "a/b/new").read_bytes() == b"new"
        keeper.service.undo([second, first])
        assert differences(before, photograph(bench.tree)) == []
        keeper.service.redo([first, second])
        assert differences(after, photograph(bench.tree)) == []


def test_what_is_made_is_as_private_as_where_it_is_made(bench: Bench) -> None:
    for name, mode in (("private", 0o700), ("open", 0o775)):
        (bench.tree / name).mkdir()
        (bench.tree / name).chmod(mode)
    with opened(bench) as keeper:
        for name in (b"private", b"open"):
            write(keeper, name + b"/a/f", b"1")
    modes = {path: (bench.tree / path).stat().st_mode & 0o777 for path in ("private/a", "private/a/f", "open/a/f")}
    assert modes == {"private/a": 0o700, "private/a/f": 0o600, "open/a/f": 0o664}


@needs_root
def test_what_is_made_belongs_to_whom_its_directory_does(bench: Bench) -> None:
    os.chown(bench.tree, 65534, 65533)
    with opened(bench) as keeper:
        write(keeper, b"a/f", b"1")
    for path in ("a", "a/f"):
        found = (bench.tree / path).stat()
        assert (found.st_uid, found.st_gid) == (65534, 65533)


def test_only_what_was_expected_is_overwritten(bench: Bench) -> None:
    """I8."""
    (bench.tree / "f").write_bytes(b"theirs")
    before = photograph(bench.tree)
    with opened(bench) as keeper, content(b"ours") as fd:
        for path, expected in ((b"f", hash_bytes(b"mine")), (b"f", ABSENT), (b"g", hash_bytes(b"gone"))):
            with pytest.raises(RefusedError) as caught:
                keeper.service.write(path, fd, expected=expected)
            assert caught.value.code == "changed"
        assert differences(before, photograph(bench.tree)) == []
        assert keeper.service.steps() == []
        write(keeper, b"f", b"ours", hash_bytes(b"theirs"))
        write(keeper, b"g", b"ours", ABSENT)
    assert (bench.tree / "f").read_bytes() == (bench.tree / "g").read_bytes() == b"ours"


@contextmanager
def leased(path: Path) -> Generator[int]:
    """Have a lease on a file, and do not give it up when asked to; yields the descriptor that has it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored, unlike SIGIO
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        yield fd
    finally:
        os.close(fd)


def test_nobody_who_has_a_lease_on_a_file_is_waited_for(bench: Bench) -> None:
    (bench.tree / "f").write_bytes(b"theirs")
    with opened(bench) as keeper:
        before = photograph(bench.tree)
        with leased(bench.tree / "f") as lease:
            with pytest.raises(RefusedError) as caught:
                write(keeper, b"f", b"ours")
            assert caught.value.code == "leased"
            assert fcntl.fcntl(lease, fcntl.F_GETLEASE) == fcntl.F_UNLCK, "it was not asked for it"
        assert keeper.service.steps() == []
        assert differences(before, photograph(bench.tree)) == []
        first, second = write(keeper, b"new", b"new"), write(keeper, b"f", b"ours")
        after = photograph(bench.tree)
        with leased(bench.tree / "f"):
            for force in (False, True):
                with pytest.raises(RefusedError) as caught:
                    keeper.service.undo([second, first], force=force)
                assert caught.value.code == "leased"
        assert differences(after, photograph(bench.tree)) == []
        with leased(bench.tree / "f"), pytest.raises(StorageError, match="lease on f"):
            # As if it were too late to be seen before.
            reverse(keeper.log, [keeper.log.read(step) for step in (second, first)])
        keeper.service.undo([second, first])
        assert differences(before, photograph(bench.tree)) == []


def test_no_path_leads_out_or_through_a_link(bench: Bench, tmp_path: Path) -> None:
    """I7, I14."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"outside")
    (bench.tree / "link").symlink_to(outside)
    (bench.tree / "direct").symlink_to(outside / "f")
    (bench.tree / "dangling").symlink_to(outside / "new")
    (bench.tree / "file").write_bytes(b"1")
    before = photograph(bench.tree)
    with opened(bench) as keeper, content(b"ours") as fd:
        for path in (
            *(b"link/f", b"link/new", b"link/a/new", b"direct", b"dangling", b"../f", b"/etc/f", b"a/../../f"),
            *(b".git/hooks/pre-commit", b".holdfast/f", b"", b"a\0b", b"a//b", b"x" * 300),
        ):
            with pytest.raises(EscapeError):
                keeper.service.write(path, fd)
        for path in (b"file/f", b"link"):
            with pytest.raises(RefusedError):
                keeper.service.write(path, fd)
        assert differences(before, photograph(bench.tree)) == []
        assert keeper.service.steps() == []
    assert sorted(os.listdir(outside)) == ["f"]
    assert (outside / "f").read_bytes() == b"outside"


def test_what_fails_in_the_middle_leaves_nothing(bench: Bench) -> None:
    """I3."""
    (bench.tree / "f").write_bytes(b"before" * 10_000)
    before = photograph(bench.tree)
    with opened(bench) as keeper:
        unreadable = os.open(bench.tree / "f", os.O_WRONLY)  # that the content cannot be read is seen last
        for path in (b"f", b"new/g"):
            with pytest.raises(StorageError):
                keeper.service.write(path, unreadable)
        os.close(unreadable)
        assert differences(before, photograph(bench.tree)) == []
        assert keeper.service.steps() == []


@pytest.mark.parametrize("allow", [True, False])
def test_a_safeguard_is_asked_before_anything_happens(bench: Bench, allow: bool) -> None:
    """I9."""
    (bench.tree / "large").write_bytes(b"1" * 10_000_000)
    before = photograph(bench.tree)
    with opened(bench, PRESET) as keeper, content(b"small") as fd:
        go_on = keeper.service.writing(b"large", fd, None)
        for _ in range(2):
            with pytest.raises(HeldError):
                go_on()
            assert differences(before, photograph(bench.tree)) == []
        (ticket,) = keeper.service.held()
        keeper.service.answer(ticket.id, allow=allow)
        if allow:
            assert go_on() is not None
            assert (bench.tree / "large").read_bytes() == b"small"
        else:
            with pytest.raises(RefusedError) as caught:
                go_on()
            assert caught.value.code == "denied"
            assert differences(before, photograph(bench.tree)) == []
        assert keeper.log.recorder.open_steps == []


def test_inside_of_an_explicit_step_it_is_a_part_of_it(bench: Bench) -> None:
    with opened(bench) as keeper, content(b"1") as fd:
        step = keeper.service.begin("several")
        for name in (b"a", b"b"):
            info = keeper.service.write(name, fd)
            assert info is not None
            assert info.id == step
        keeper.service.rollback(step)
    assert list(bench.tree.iterdir()) == []


def test_thresholds_and_limits_change_while_it_is_open(bench: Bench) -> None:
    (bench.tree / "large").write_bytes(b"1" * 10_000_000)
    with opened(bench) as keeper, content(b"small") as fd:
        for number in range(5):
            write(keeper, b"f%d" % number, b"1")
        keeper.service.guard(PRESET)
        keeper.service.configure(keeper.log.limits._replace(max_steps=2))
        assert len(keeper.service.steps()) == 2
        with pytest.raises(HeldError):
            keeper.service.write(b"large", fd)


def test_nothing_is_written_into_what_is_holdfast_s_own(bench: Bench) -> None:
    """I7, I14: the undo log, and what else it is said to be."""
    bench.directory = bench.tree / "d/log"
    home = bench.tree / "home"
    (home / "objects").mkdir(parents=True)
    (home / "catalog.db").write_bytes(b"catalog")
    (bench.tree / "d").mkdir()
    with opened(bench) as keeper:
        keeper.service = LocalUndoService(keeper.log, keeper.safeguards, own=[os.fsencode(home)])
        before = photograph(home)
        for path in (b"home/catalog.db", b"home/new", b"home/objects/a/b", b"d/log/version", b"d/log/new/file"):
            with pytest.raises(EscapeError), content(b"x") as fd:
                keeper.service.write(path, fd)
        assert differences(before, photograph(home)) == []
        assert not (bench.directory / "new").exists()
        assert keeper.service.steps() == []
        write(keeper, b"d/beside", b"content")


class Meanwhile:
    """Somebody who does something at the moment at which the content of a file has just been kept."""

    def __init__(self, keeper: Keeper, monkeypatch: pytest.MonkeyPatch, *edits: Callable[[], object]) -> None:
        keep, left = keeper.log.recorder.before_open, list(edits)

        def opening(step: StepId, place: Place, fd: int, risk: Risk = NO_RISK) -> bool:
            is_kept = keep(step, place, fd, risk)
            if left:
                left.pop(0)()
            return is_kept

        monkeypatch.setattr(keeper.log.recorder, "before_open", opening)


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_others_write_while_a_file_is_kept_is_not_overwritten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """I8: neither in what is kept nor in what is written."""
    file = bench.tree / "f"
    file.write_bytes(b"a" * size)

    def append() -> None:
        with file.open("ab") as out:
            out.write(b"by hand")

    with opened(bench) as keeper:
        Meanwhile(keeper, monkeypatch, append)
        with pytest.raises(RefusedError) as caught:
            write(keeper, b"f", b"tool", hash_bytes(b"a" * size))
        assert caught.value.code == "changed"
        assert file.read_bytes() == b"a" * size + b"by hand"
        assert keeper.service.steps() == []
        assert list(keeper.log.preimages.numbers()) == []


def test_what_may_be_overwritten_whatever_it_is_is_kept_as_it_was_last(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I8."""
    file = bench.tree / "f"
    file.write_bytes(b"a" * 100_000)

    def append() -> None:
        with file.open("ab") as out:
            out.write(b"by hand")

    with opened(bench) as keeper:
        Meanwhile(keeper, monkeypatch, append, append)
        step = write(keeper, b"f", b"tool")
        assert file.read_bytes() == b"tool"
        keeper.service.undo([step])
        assert file.read_bytes() == b"a" * 100_000 + b"by hand" * 2
        Meanwhile(keeper, monkeypatch, append, append, append)
        with pytest.raises(RefusedError):
            write(keeper, b"f", b"tool")
        assert file.read_bytes() == b"a" * 100_000 + b"by hand" * 5


@pytest.mark.parametrize("is_written", [False, True])
def test_a_file_that_takes_the_place_of_one_meanwhile_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """I8: what is written would be in a file that has no name any more."""
    file = bench.tree / "f"
    file.write_bytes(b"before")

    def save() -> None:
        (bench.tree / "f.new").write_bytes(b"by hand")
        (bench.tree / "f.new").rename(file)

    with opened(bench) as keeper:
        if is_written:
            copy = file_writer._copy

            def copy_and_save(source: int, target: int) -> None:
                copy(source, target)
                save()

            monkeypatch.setattr(file_writer, "_copy", copy_and_save)
        else:
            Meanwhile(keeper, monkeypatch, save)
        with pytest.raises(RefusedError) as caught:
            write(keeper, b"f", b"tool", hash_bytes(b"before"))
        assert caught.value.code == "changed"
        assert [path.name for path in bench.tree.iterdir()] == ["f"]
        assert file.read_bytes() == b"by hand"


def test_who_opens_a_file_while_it_is_written_waits_until_it_is_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = bench.tree / "f"
    file.write_bytes(b"before")
    copy, kept_out = file_writer._copy, list[type[OSError]]()

    def look_in(source: int, target: int) -> None:
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND):
            with pytest.raises(BlockingIOError) as caught:
                os.open(file, flags | os.O_NONBLOCK)
            kept_out.append(caught.type)
        copy(source, target)

    monkeypatch.setattr(file_writer, "_copy", look_in)
    with opened(bench) as keeper:
        write(keeper, b"f", b"after", hash_bytes(b"before"))
    assert len(kept_out) == 2
    assert file.read_bytes() == b"after"

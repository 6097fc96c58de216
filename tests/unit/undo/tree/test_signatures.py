"""Owner and attributes that somebody else has set are not lost where the ctime cannot tell of them (I8)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.model.errors import RefusedError
from holdfast.model.ids import hash_bytes
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.log import UndoLog

from ..conftest import Bench, redo, undo

by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives things away")


def directory(path: Path) -> None:
    path.mkdir()


def several_names(path: Path) -> None:
    path.write_bytes(b"before")
    os.link(path, path.with_name("other"))


def link(path: Path) -> None:
    path.symlink_to("nowhere")
    os.link(path, path.with_name("other"), follow_symlinks=False)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def describes(actor: InterceptedActor) -> None:
    actor.chmod(b"it", 0o700)


def writes(actor: InterceptedActor) -> None:
    actor.write(b"it", b"the step's")


def dates(actor: InterceptedActor) -> None:
    actor.utime(b"it", 1)


def sets(path: Path) -> None:
    os.setxattr(path, "user.a", b"by hand")


def adds(path: Path) -> None:
    os.setxattr(path, "user.hand", b"")


def removes(path: Path) -> None:
    os.removexattr(path, "user.a")


def trusts(path: Path) -> None:
    os.setxattr(path, "trusted.hand", b"1", follow_symlinks=False)


def owns(path: Path) -> None:
    os.chown(path, 1000, -1, follow_symlinks=False)


def groups(path: Path) -> None:
    os.chown(path, -1, 1000, follow_symlinks=False)


Make = Callable[[Path], None]
Work = Callable[[InterceptedActor], None]

BY_ANYBODY, BY_ROOT = (sets, adds, removes), (trusts, owns, groups)
OBJECTS: dict[str, tuple[Make, Work]] = {
    "directory": (directory, describes),
    "file with several names": (several_names, writes),
    "the same, described": (several_names, describes),
    "link with several names": (link, dates),
    "pipe": (pipe, describes),
}
CASES = [
    pytest.param(*kind, edit, id=f"{name}, {edit.__name__}", marks=[by_root] if edit in BY_ROOT else [])
    for name, kind in OBJECTS.items()
    # (The attributes of users are for files and directories alone.)
    for edit in (*(() if kind[0] in (link, pipe) else BY_ANYBODY), *BY_ROOT)
]


def refused(log: UndoLog, step: int) -> None:
    with pytest.raises(RefusedError, match=r"another process has changed .*it") as error:
        undo(log, [step])
    assert error.value.code == "barrier"


def made(bench: Bench, make: Make) -> Path:
    path = bench.tree / "it"
    make(path)
    if make in (directory, several_names):
        os.setxattr(path, "user.a", b"before")
    return path


@pytest.mark.parametrize(("make", "work", "edit"), CASES)
def test_an_edit_stops_the_undo(bench: Bench, make: Make, work: Work, edit: Make) -> None:
    path = made(bench, make)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, work)
        edit(path)
        edited = bench.photograph()
        refused(log, step)
        bench.assert_as(edited)
    with bench.keeper() as log:
        refused(log, step)
        undo(log, [step], force=True)
        bench.assert_as(before)
    with bench.keeper() as log:
        redo(log, [step], force=True)
        bench.assert_as(edited)
        refused(log, step)  # it is theirs again


@pytest.mark.parametrize(("make", "work", "edit"), CASES)
def test_a_later_step_comes_upon_the_edit(bench: Bench, make: Make, work: Work, edit: Make) -> None:
    path = made(bench, make)
    with bench.keeper() as log:
        first = bench.step(log, work)
        edit(path)
        edited = bench.photograph()
        second = bench.step(log, lambda actor: actor.rename(b"it", b"moved"))
        undo(log, [second])
        bench.assert_as(edited)
        refused(log, first)
        bench.assert_as(edited)


def test_what_a_forced_undo_has_described_anew_is_brought_forward_without_force(bench: Bench) -> None:
    path = bench.tree / "it"
    path.mkdir()
    with bench.keeper() as log:
        step = bench.step(log, describes)
        adds(path)
        edited = bench.photograph()
        undo(log, [step], force=True)
        redo(log, [step])
        bench.assert_as(edited)
        refused(log, step)


def test_a_name_that_is_gone_makes_no_edit(bench: Bench) -> None:
    path = bench.tree / "it"
    several_names(path)
    with bench.keeper() as log:
        step = bench.step(log, writes)
        path.with_name("other").unlink()
        undo(log, [step])
        assert path.read_bytes() == b"before"


def test_nor_does_it_hide_one(bench: Bench) -> None:
    path = bench.tree / "it"
    several_names(path)
    with bench.keeper() as log:
        step = bench.step(log, writes)
        path.with_name("other").unlink()
        adds(path)
        refused(log, step)


def test_names_that_come_and_go_in_a_directory_are_no_edit(bench: Bench) -> None:
    path = bench.tree / "it"
    path.mkdir()
    adds(path)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, describes)
        (path / "by hand").mkdir()
        (path / "by hand").rmdir()
        os.utime(path, ns=(0, before[b"it"].mtime))
        undo(log, [step])
        assert path.stat().st_mode & 0o7777 == before[b"it"].mode & 0o7777


def test_steps_alone_are_no_edit(bench: Bench) -> None:
    path = bench.tree / "it"
    path.mkdir()
    several_names(path / "file")
    before = bench.photograph()

    def all_of_it(actor: InterceptedActor) -> None:
        for name in (b"it", b"it/file", b"it/other"):
            actor.setxattr(name, "user.a", b"%d" % actor.step)
            actor.chmod(name, 0o700 + actor.step)
        actor.link(b"it/file", b"it/third")

    def parts(actor: InterceptedActor) -> None:
        actor.removexattr(b"it/other", "user.a")
        actor.unlink(b"it/third")
        actor.unlink(b"it/file")
        actor.removexattr(b"it", "user.a")
        actor.rename(b"it", b"moved")

    with bench.keeper() as log:
        first, second = bench.step(log, all_of_it), bench.step(log, parts)
    with bench.keeper() as log:
        for _ in range(2):
            after = bench.photograph()
            undo(log, [second])
            undo(log, [first])
            bench.assert_as(before)
            redo(log, [first])
            redo(log, [second])
            bench.assert_as(after)
        assert log.barriers.records == []


def test_another_directory_in_its_place_is_known_again_only_if_it_is_described_alike(bench: Bench) -> None:
    path = bench.tree / "it"
    path.mkdir()
    with bench.keeper() as log:
        step = bench.step(log, describes)
        path.rename(path.with_name("first"))
        path.mkdir(0o700)
        adds(path)
        refused(log, step)
        os.removexattr(path, "user.hand")
        undo(log, [step])


@pytest.mark.parametrize("kind", ["directory", "file with several names"])
def test_what_an_earlier_version_has_written_is_compared_by_what_it_has(bench: Bench, kind: str) -> None:
    make, work = OBJECTS[kind]
    path = made(bench, make)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, work)
    for file in (bench.directory / "steps").iterdir():
        file.write_bytes(as_before(file.read_bytes()))
    with bench.keeper() as log:
        assert [left.described for _, left in log.heads[step].left if left is not None] == [None]
        path.chmod(0o711)
        refused(log, step)
        path.chmod(0o700 if path.is_dir() else before[b"it"].mode & 0o7777)
        undo(log, [step])
        bench.assert_as(before)
        redo(log, [step])
        adds(path)
        refused(log, step)  # this version has seen what the redo left


def as_before(data: bytes) -> bytes:
    """A finished step with signatures of nine fields."""
    (size,) = struct.unpack_from("<Q", data, 24)
    head = msgspec.msgpack.decode(data[32 : 32 + size])
    assert [len(left) for _, left in head["left"]] == [10]
    head["left"] = [(path, left[:9]) for path, left in head["left"]]
    head["others"] = [left[:9] for left in head["others"]]
    packed = msgspec.msgpack.encode(head)
    body = struct.pack("<Q", len(packed)) + packed + data[32 + size :]
    return data[:8] + hash_bytes(body) + body

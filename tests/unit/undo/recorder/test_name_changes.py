"""Objects with several names: what undo brings back of them (I1), and edits that neither size nor mtime tells (I8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.tree.signatures import CHECKED_BYTES

from ..conftest import Bench, redo, undo


@pytest.fixture(name="file")
def _file(bench: Bench) -> Path:
    """It has two names; so have a link and a pipe."""
    (bench.tree / "file").write_bytes(b"before")
    os.symlink("file", bench.tree / "link")
    os.mkfifo(bench.tree / "pipe")
    for name in ("file", "link", "pipe"):
        os.link(bench.tree / name, bench.tree / f"other {name}", follow_symlinks=False)
    return bench.tree / "file"


def counts(bench: Bench) -> dict[str, int]:
    return {path.name: path.lstat().st_nlink for path in bench.tree.iterdir()}


def secretly(path: Path, content: bytes) -> None:
    """Write as many bytes as there are, and set the times back."""
    found = path.stat()
    assert found.st_size == len(content)
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def replace(actor: InterceptedActor) -> None:
    actor.write(b"new", b"content")
    actor.rename(b"new", b"other file")


def remove_all(actor: InterceptedActor) -> None:
    for name in (b"file", b"link", b"pipe"):
        actor.unlink(name)
        actor.unlink(b"other " + name)


def write_and_remove(actor: InterceptedActor) -> None:
    actor.write(b"file", b"content")
    actor.unlink(b"other file")
    actor.write(b"file", b"more content")


def remove_and_link(actor: InterceptedActor) -> None:
    actor.unlink(b"other file")
    actor.link(b"file", b"other file")


WORK: dict[str, Callable[[InterceptedActor], object]] = {
    "remove a file's": lambda actor: actor.unlink(b"other file"),
    "remove a link's": lambda actor: actor.unlink(b"other link"),
    "remove a pipe's": lambda actor: actor.unlink(b"other pipe"),
    "replace": replace,
    "move": lambda actor: actor.rename(b"other file", b"moved"),
    "exchange": lambda actor: actor.exchange(b"other file", b"link"),
    "remove all": remove_all,
    "write and remove": write_and_remove,
    "remove and link": remove_and_link,
    "link": lambda actor: actor.link(b"file", b"third"),
    "link a link": lambda actor: actor.link(b"link", b"third"),
}


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("work", WORK)
def test_the_names_of_an_object_are_those_of_before(bench: Bench, work: str) -> None:
    before, counted = bench.photograph(), counts(bench)
    with bench.keeper() as log:
        step = bench.step(log, WORK[work])
        for _ in range(2):
            undo(log, [step])
            bench.assert_as(before)
            assert counts(bench) == counted
            redo(log, [step])
    with bench.keeper() as log:
        undo(log, [step])
        bench.assert_as(before)
        assert counts(bench) == counted


@pytest.mark.parametrize("size", [6, CHECKED_BYTES + 1])
def test_a_secret_edit_of_a_file_with_several_names(bench: Bench, file: Path, size: int) -> None:
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.write(b"file", b"a" * size))
        secretly(file, b"b" * size)
        with pytest.raises(RefusedError, match="another process has changed"):
            undo(log, [step])
        assert file.read_bytes() == b"b" * size


def test_a_secret_edit_of_a_file_that_got_another_name(bench: Bench, file: Path) -> None:
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.write(b"new", b"after"))
        os.link(bench.tree / "new", file.with_name("its other name"))
        secretly(bench.tree / "new", b"edits")
        with pytest.raises(RefusedError, match="another process has changed"):
            undo(log, [step])
        assert (bench.tree / "new").read_bytes() == b"edits"


def test_names_that_others_take_away_are_no_edit(bench: Bench, file: Path) -> None:
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.write(b"file", b"after"))
        file.with_name("other file").unlink()
        undo(log, [step])
        assert file.read_bytes() == b"before"


def test_names_that_steps_give_and_take_are_no_edit(bench: Bench, file: Path) -> None:
    big = b"a" * (CHECKED_BYTES + 1)
    file.write_bytes(big)
    before = bench.photograph()
    with bench.keeper() as log:
        works: list[Callable[[InterceptedActor], object]] = [
            lambda actor: actor.write(b"file", big[::-1]),
            lambda actor: actor.link(b"file", b"third"),
            lambda actor: actor.unlink(b"other file"),
            lambda actor: actor.rename(b"third", b"fourth"),
            replace,
        ]
        steps = [bench.step(log, work) for work in works]
        for step in reversed(steps):
            undo(log, [step])
        bench.assert_as(before)
        for step in steps:
            redo(log, [step])
        undo(log, steps)
        bench.assert_as(before)
        assert log.barriers.records == []

"""Where nothing can be renamed or linked into the log, what lost one of its names is still the same object (I1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from holdfast.testing.permissions import permissions_hold
from holdfast.testing.tree_actor import InterceptedActor

from ..conftest import Bench, redo, undo


@pytest.fixture(name="bench", params=[True, False], ids=["", "without privileges"])
def _bench(tmp_path: Path, elsewhere: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Its log is on another file system. With privileges an object can be opened by its handle, wherever it is."""
    bench = Bench(tmp_path)
    bench.directory = elsewhere / "log"
    (bench.tree / "d").mkdir()
    (bench.tree / "d/file").write_bytes(b"before")
    os.symlink("file", bench.tree / "d/link")
    os.mkfifo(bench.tree / "d/pipe")
    for name in ("file", "link", "pipe"):
        os.link(bench.tree / "d" / name, bench.tree / name, follow_symlinks=False)
    with nullcontext() if request.param else permissions_hold():
        yield bench


def write_and_remove(actor: InterceptedActor) -> None:
    actor.write(b"file", b"after")
    actor.unlink(b"file")


def replace(actor: InterceptedActor) -> None:
    actor.write(b"file", b"after")
    actor.write(b"new", b"new")
    actor.rename(b"new", b"file")


def move_write_and_remove(actor: InterceptedActor) -> None:
    actor.rename(b"d", b"e")
    actor.write(b"e/file", b"after")
    actor.unlink(b"file")


def link_and_unlink(actor: InterceptedActor) -> None:
    actor.write(b"new", b"new")
    actor.link(b"new", b"newer")
    actor.unlink(b"new")


def remove_all(actor: InterceptedActor) -> None:
    for name in (b"file", b"link", b"pipe"):
        actor.unlink(name)
        actor.unlink(b"d/" + name)


WORK: dict[str, list[Callable[[InterceptedActor], None]]] = {
    "remove a file's": [lambda actor: actor.unlink(b"file")],
    "remove a link's": [lambda actor: actor.unlink(b"link")],
    "remove a pipe's": [lambda actor: actor.unlink(b"pipe")],
    "write and remove": [write_and_remove],
    "replace": [replace],
    "move, write and remove": [move_write_and_remove],
    "link and unlink": [link_and_unlink],
    "remove all": [remove_all],
    "write, then remove": [lambda actor: actor.write(b"file", b"after"), lambda actor: actor.unlink(b"file")],
    "link, then unlink": [lambda actor: actor.link(b"file", b"new"), lambda actor: actor.unlink(b"file")],
    "link a pipe, then unlink": [lambda actor: actor.link(b"pipe", b"new"), lambda actor: actor.unlink(b"pipe")],
    "write, then move, then remove": [
        lambda actor: actor.write(b"d/file", b"after"),
        lambda actor: actor.rename(b"d", b"e"),
        lambda actor: actor.unlink(b"file"),
    ],
    "remove one, then the other": [lambda actor: actor.unlink(b"file"), lambda actor: actor.unlink(b"d/file")],
}


@pytest.mark.parametrize("is_together", [True, False], ids=["together", "one by one"])
@pytest.mark.parametrize("work", WORK)
def test_a_name_comes_back_as_one_of_the_same_object(bench: Bench, work: str, is_together: bool) -> None:
    photos = [bench.photograph()]
    steps: list[int] = []
    for each in WORK[work]:
        with bench.keeper() as log:
            steps.append(bench.step(log, each))
        photos.append(bench.photograph())
    if is_together:
        for change, expected in ((undo, photos[0]), (redo, photos[-1]), (undo, photos[0])):
            with bench.keeper() as log:
                assert change(log, steps).conflicts == ()
            bench.assert_as(expected)
        return
    for change in (undo, redo, undo):
        order = list(enumerate(steps))
        for at, step in order if change is redo else reversed(order):
            with bench.keeper() as log:
                assert change(log, [step]).conflicts == ()
            bench.assert_as(photos[at if change is undo else at + 1])


def test_what_has_its_other_names_outside_of_the_tree_is_never_silently_another_object(bench: Bench) -> None:
    outside = bench.tree.parent / "outside"
    (bench.tree / "file").unlink()
    os.link(bench.tree / "d/file", outside)
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.unlink(b"d/file"))
        after = bench.photograph()
        conflicts = undo(log, [step]).conflicts
    found = bench.tree / "d/file"
    assert found.read_bytes() == b"before"
    if found.samefile(outside):
        assert conflicts == ()
    else:
        assert [(one.path, one.reason) for one in conflicts] == [
            (b"d/file", "its other names were not found: it is an object of its own now")
        ]
    with bench.keeper() as log:
        assert redo(log, [step]).conflicts == ()
        bench.assert_as(after)
        undo(log, [step])
    assert found.read_bytes() == b"before"


def test_another_name_out_of_reach_keeps_what_the_records_say_of_it(bench: Bench) -> None:
    """It cannot be found, and is not taken for the copy: what is put aside is what was there first."""
    with bench.keeper() as log:
        step = bench.step(log, write_and_remove)
        os.chmod(bench.tree / "d", 0)
        if os.access(bench.tree / "d", os.R_OK, effective_ids=True):
            os.chmod(bench.tree / "d", 0o755)
            pytest.skip("is for those to whom permissions apply")
        reasons = {one.reason for one in undo(log, [step]).conflicts}
    os.chmod(bench.tree / "d", 0o755)
    assert "its other names were not found: it is an object of its own now" in reasons
    assert (bench.tree / "file").read_bytes() == b"after"
    assert (bench.tree / "d/file").read_bytes() == b"after"

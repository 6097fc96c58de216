"""What the end of a step asks of the system, path by path."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

from holdfast.files.linux import syscalls
from holdfast.undo.journal.preimages import Preimages

from ..conftest import redo, undo

if TYPE_CHECKING:
    import pytest

    from holdfast.testing.tree_actor import InterceptedActor

    from ..conftest import Bench

FILES = [b"d/%d" % number for number in range(20)]


def _make(bench: Bench) -> None:
    (bench.tree / "d/e").mkdir(parents=True)
    for name in (*FILES, b"d/e/f"):
        (bench.tree / name.decode()).write_bytes(name)


def _remove_all(actor: InterceptedActor) -> None:
    for name in (*FILES, b"d/e/f"):
        actor.unlink(name)
    actor.rmdir(b"d/e")
    actor.rmdir(b"d")


def test_in_a_directory_that_the_step_removed_nothing_is_looked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make(bench)
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.open_step(log, _remove_all)
        opened: list[bytes] = []
        with monkeypatch.context() as patched:
            patched.setattr(syscalls, "openat2", lambda _fd, path, *_: opened.append(path))
            bench.finish(log, step)
        assert opened == []
        assert {path for path, left in log.heads[step].left if left is None} == {*FILES, b"d/e/f", b"d/e", b"d"}
        undo(log, [step])
        bench.assert_as(before)
        redo(log, [step])
        assert list(bench.tree.iterdir()) == []


def test_each_kept_file_is_looked_at_once_and_asked_for_writers_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make(bench)
    with bench.keeper() as log:
        step = bench.open_step(log, lambda actor: [actor.unlink(name) for name in FILES])
        looked: list[int] = []
        asked: list[int] = []
        look, control = Preimages.metadata_of, fcntl.fcntl
        with monkeypatch.context() as patched:
            patched.setattr(
                Preimages, "metadata_of", lambda self, number: (looked.append(number), look(self, number))[1]
            )
            patched.setattr(fcntl, "fcntl", lambda *given: (asked.append(given[1]), control(*given))[1])
            bench.finish(log, step)
        assert len(looked) == len(FILES)
        assert asked == [fcntl.F_SETSIG, fcntl.F_SETLEASE] * len(FILES)

"""Those who wait to write to a named pipe are all writers of it once one of them is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.supervisor.syscalls.pending_call import PendingCall
from holdfast.supervisor.syscalls.retries import Retries


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[Path, int, tuple[int, int]]]:
    """A named pipe, a reader of it that does not wait, and what it is known by."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    found = os.fstat(reader)
    yield path, reader, (found.st_dev, found.st_ino)
    os.close(reader)


def call(number: int) -> PendingCall:
    nothing: object = None
    return PendingCall(number, 1, "open", (0, 0, 0, 0, 0, 0), nothing)  # type: ignore[arg-type]


def write(path: Path, retries: Retries) -> None:
    """What one does whose turn has come: the pipe is opened, somebody told, who writes and goes."""
    fd = os.open(path, os.O_WRONLY)
    retries.note_opened(fd)
    os.write(fd, b"x")
    os.close(fd)


def ended(reader: int) -> bool:
    try:
        return os.read(reader, 100) == b""
    except BlockingIOError:
        return False


def test_a_pipe_has_no_end_while_somebody_waits_to_write(pipe: tuple[Path, int, tuple[int, int]]) -> None:
    path, reader, key = pipe
    retries = Retries()
    for number in range(6):
        retries.add(call(number), key)
    seen: list[int] = []
    for one in retries.take():
        write(path, retries)
        seen.append(one.id)
        assert os.read(reader, 100) == b"x"
        assert not ended(reader)
    assert seen == [0, 1, 2, 3]
    for _ in retries.take():
        write(path, retries)
        assert os.read(reader, 100) == b"x"
    assert not retries
    assert ended(reader)


def test_somebody_new_who_comes_before_them_does_not_end_it(pipe: tuple[Path, int, tuple[int, int]]) -> None:
    path, reader, key = pipe
    retries = Retries()
    retries.add(call(1), key)
    write(path, retries)
    assert os.read(reader, 100) == b"x"
    assert not ended(reader)
    for _ in retries.take():
        pass  # it was killed
    assert ended(reader)


def test_nothing_is_kept_of_another_pipe_nor_of_a_reader(pipe: tuple[Path, int, tuple[int, int]]) -> None:
    path, reader, key = pipe
    retries = Retries()
    retries.add(call(1), (key[0], key[1] + 1))
    retries.add(call(2), None)
    write(path, retries)
    retries.add(call(3), key)
    retries.note_opened(reader)
    assert os.read(reader, 100) == b"x"
    assert ended(reader)


def test_what_waits_at_the_end_is_let_go(pipe: tuple[Path, int, tuple[int, int]]) -> None:
    path, reader, key = pipe
    retries = Retries()
    retries.add(call(1), key)
    write(path, retries)
    retries.close()
    assert os.read(reader, 100) == b"x"
    assert ended(reader)
    assert not retries

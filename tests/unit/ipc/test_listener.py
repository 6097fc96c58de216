"""Sockets at paths that people name: their directory, what lies there already, and what is left."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.ipc import private_socket
from holdfast.ipc.listener import listen
from holdfast.model.errors import LockedError, RefusedError, StorageError


def connects(path: Path) -> bool:
    found = private_socket.try_connect(os.fsencode(path.parent), os.fsencode(path.name), 5)
    if found is not None:
        found.close()
    return found is not None


def test_it_listens_for_the_length_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / "socket"
    with listen(bytes(path), 5) as listener:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert connects(path)
        assert not listener.getblocking()
        with pytest.raises(LockedError), listen(bytes(path), 5):
            pass
        assert connects(path)
    assert list(path.parent.iterdir()) == []


def test_what_a_dead_process_left_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "own" / "socket"
    path.parent.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(bytes(path))
    with listen(bytes(path), 5):
        assert connects(path)
    path.write_text("a file")
    with pytest.raises(RefusedError) as caught, listen(bytes(path), 5):
        pass
    assert caught.value.code == "exists"
    assert path.read_text() == "a file"


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(RefusedError) as caught, listen(bytes(tmp_path / "socket"), 5):
        pass
    assert caught.value.code == "open_directory"
    with pytest.raises(StorageError), listen(bytes(tmp_path / "nowhere" / "more" / "socket"), 5):
        pass


def test_what_comes_before_is_undone_first_and_its_failure_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "own" / "socket"
    seen: list[bool] = []

    def before(context: ExitStack) -> None:
        seen.append(connects(path))
        context.callback(lambda: seen.append(path.exists()))

    with listen(bytes(path), 5, before):
        assert seen == [False]
    assert seen == [False, True]

    def fail(_: ExitStack) -> None:
        raise RefusedError("no")

    with pytest.raises(RefusedError), listen(bytes(path), 5, fail):
        pass
    assert list(path.parent.iterdir()) == []


def test_another_server_that_has_the_name_by_now_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "own" / "socket"
    with listen(bytes(path), 5):
        path.unlink()
        path.write_text("another")
    assert path.read_text() == "another"

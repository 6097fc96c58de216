"""The watch service and its clients: those that misbehave, and how they find it."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.opening.home import WATCH_LOCK, WATCH_SOCKET
from holdfast.engine.opening.watch_client import connect
from holdfast.engine.watching.listener import ClientLimits, hold_watch_lock
from holdfast.engine.watching.service import WatchSetup, run_service
from holdfast.model.clock import SystemClock
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.entries import Change
from holdfast.model.errors import FormatError, HoldfastError, LockedError
from holdfast.wire import watch_messages

from ....waiting import wait_until

if TYPE_CHECKING:
    from holdfast.files.tree import DirtySource

from .watch_service import ENTRY, LIMIT, STATUS, FakeSaver, Nothing, Running, everything_read, raw, reach, running


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"garbage\n",
        b"\xff\xfe\n",
        b"[1]\n",
        b"{}\n",
        b'{"v":2,"op":"ping"}\n',
        b'{"v":1,"op":"explode"}\n',
        b'{"v":1,"op":["ping"]}\n',
        b'{"v":1,"op":"checkpoint","label":7}\n',
        b'{"v":1,"op":"checkpoint","kind":"other"}\n',
        b'{"v":1,"op":"checkpoint","kind":[]}\n',
        b'{"v":1,"op":"checkpoint","full_hash":1}\n',
        b"[" * 60_000 + b"\n",
        b'{"v":1,"op":"ping"}\n{"v":1,"op":"ping"}\n',
        b"x" * 200_000,
    ],
)
def test_garbage_gets_an_error_and_harms_nobody(setup: WatchSetup, line: bytes) -> None:
    """I12."""
    with running(setup) as run:
        with raw(setup) as connection:
            try:
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
            except ConnectionError:
                pass  # it had enough before the end
            answer = everything_read(connection)
        if answer:
            body = json.loads(answer)
            assert body["ok"] is False
            assert body["error"]["type"] == "FormatError"
        else:
            assert len(line) > watch_messages.MAX_CALL_BYTES  # reset, with part of the line unread
        with reach(setup) as watcher:
            assert watcher.ping().pid == os.getpid()
        assert run.saver.requests == []


def test_half_a_line_is_ended_after_a_while(setup: WatchSetup) -> None:
    setup = setup._replace(limits=ClientLimits(request=0.05))
    with running(setup), raw(setup) as slow:
        slow.sendall(b'{"v":1,')
        with reach(setup) as watcher:
            assert watcher.ping()
        assert everything_read(slow) == b""


def test_whoever_does_not_read_blocks_nobody(setup: WatchSetup) -> None:
    """Bounded: the answer waits in memory for its time, then the connection ends."""
    setup = setup._replace(limits=ClientLimits(answer=0.3))
    with running(setup) as run:
        many = [Change(b"%d" % number * 20, None, ENTRY) for number in range(30_000)]
        run.saver.status_answer = STATUS._replace(changes=many)
        deaf = raw(setup)
        deaf.sendall(watch_messages.encode_call(watch_messages.WatchCall("status")))
        with reach(setup) as watcher:
            assert watcher.ping()
            assert watcher.status().changes == many  # a long answer arrives whole where it is read
        hung_up = select.poll()
        hung_up.register(deaf, 0)
        assert hung_up.poll(LIMIT * 1000)
        received = everything_read(deaf)
        assert len(received) < len(watch_messages.encode_answer(watch_messages.pack_status(run.saver.status_answer)))
        deaf.close()


def test_an_answer_too_long_is_refused(setup: WatchSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_messages, "MAX_ANSWER_BYTES", 500)
    with running(setup), reach(setup) as watcher:
        with pytest.raises(HoldfastError) as caught:
            watcher.status()
        assert caught.value.code == "too_long"


def test_many_clients_at_once(setup: WatchSetup) -> None:
    with running(setup) as run:
        answers: list[object] = []

        def ask() -> None:
            with reach(setup) as watcher:
                answers.append(watcher.checkpoint(CheckpointRequest()).checkpoint)

        threads = [threading.Thread(target=ask) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert len(answers) == len(run.saver.requests) == 30


def test_too_many_clients_are_turned_away(setup: WatchSetup) -> None:
    setup = setup._replace(limits=ClientLimits(clients=3))
    with running(setup), ExitStack() as open_ones:
        keep = [open_ones.enter_context(reach(setup)) for _ in range(3)]
        assert all(watcher.ping() for watcher in keep)
        with raw(setup) as fourth:
            assert everything_read(fourth) == b""
        keep[0].close()
        wait_until(lambda: answers(setup), "a free place")


def answers(setup: WatchSetup) -> bool:
    with reach(setup) as watcher:
        try:
            return bool(watcher.ping())
        except HoldfastError:
            return False


def test_a_client_that_dies_before_its_answer(setup: WatchSetup) -> None:
    with running(setup) as run:
        run.saver.gate = threading.Event()
        connection = raw(setup)
        connection.sendall(watch_messages.encode_call(watch_messages.WatchCall("checkpoint", CheckpointRequest())))
        connection.close()
        run.saver.gate.set()
        with reach(setup) as watcher:
            assert watcher.ping()


def test_a_watcher_that_does_not_answer(setup: WatchSetup) -> None:
    with running(setup) as run:
        run.saver.gate = threading.Event()
        watcher = connect(setup.folder, wait=0.05)
        assert watcher is not None
        with pytest.raises(LockedError, match=r"has not answered for 0\.05 s"):
            watcher.checkpoint(CheckpointRequest())
        run.saver.gate.set()


def test_a_request_too_long_is_not_sent() -> None:
    with pytest.raises(FormatError):
        watch_messages.encode_call(watch_messages.WatchCall("checkpoint", CheckpointRequest("manual", "x" * 70_000)))


# -- its place ----------------------------------------------------------------------------------------------------


def test_the_socket_is_private(setup: WatchSetup) -> None:
    umask = os.umask(0)
    try:
        with running(setup), reach(setup):
            about = os.stat(setup.folder + b"/" + WATCH_SOCKET)
            assert stat.S_IMODE(about.st_mode) == 0o600
            assert stat.S_IMODE(os.stat(setup.folder + b"/" + WATCH_LOCK).st_mode) == 0o600
    finally:
        os.umask(umask)


def test_no_watcher_is_none(setup: WatchSetup) -> None:
    assert connect(setup.folder) is None
    assert connect(setup.folder + b"/nowhere") is None


def test_a_folder_with_a_long_path(setup: WatchSetup) -> None:
    folder = os.fsdecode(setup.folder) + "/long" * 40
    os.makedirs(folder, mode=0o700)
    setup = setup._replace(folder=os.fsencode(folder))
    assert connect(setup.folder) is None
    with running(setup), reach(setup) as watcher:
        assert watcher.ping().pid == os.getpid()


def test_a_second_watcher_is_refused(setup: WatchSetup) -> None:
    with running(setup), pytest.raises(LockedError, match=f"pid {os.getpid()}"):
        run_service(setup, FakeSaver, Nothing(), SystemClock())
    with hold_watch_lock(setup.folder):  # and the place is free again
        pass


def test_what_a_dead_watcher_left_is_in_nobodys_way(setup: WatchSetup) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(setup.folder + b"/" + WATCH_SOCKET)
    dead.close()
    Path(os.fsdecode(setup.folder + b"/" + WATCH_LOCK)).write_text("999999\n")
    assert connect(setup.folder) is None
    with running(setup), reach(setup) as watcher:
        assert watcher.ping().pid == os.getpid()


def test_stop_returns_when_all_is_closed(setup: WatchSetup) -> None:
    run = Running(setup)
    run.thread.start()
    with reach(setup) as watcher:
        watcher.stop()
        assert run.saver.closed == 1
        assert connect(setup.folder) is None
    run.thread.join(LIMIT)
    with hold_watch_lock(setup.folder):
        pass


def test_a_saver_that_cannot_be_opened_leaves_nothing(setup: WatchSetup) -> None:
    def broken(_: DirtySource) -> FakeSaver:
        raise HoldfastError("no store")

    with pytest.raises(HoldfastError, match="no store"):
        run_service(setup, broken, Nothing(), SystemClock())
    assert connect(setup.folder) is None
    with hold_watch_lock(setup.folder):
        pass

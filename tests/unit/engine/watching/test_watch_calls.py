"""What the watch service is asked, and how its clients find it."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.opening.home import WATCH_LOCK, WATCH_SOCKET
from holdfast.engine.opening.watch_client import connect
from holdfast.engine.watching.service import WatchSetup, run_service
from holdfast.engine.watching.watch_lock import hold_watch_lock
from holdfast.ipc import messages
from holdfast.ipc.connection import Connection
from holdfast.model.clock import SystemClock
from holdfast.model.command_results import CheckpointRequest, CheckpointResult
from holdfast.model.entries import Change
from holdfast.model.errors import FormatError, HoldfastError, LockedError
from holdfast.wire import watch_messages

if TYPE_CHECKING:
    from holdfast.files.tree import DirtySource

from .watch_service import ENTRY, LIMIT, RECORD, STATUS, FakeSaver, Nothing, Running, raw, reach, running


@pytest.mark.parametrize(
    "body",
    [
        b'["explode",[]]',
        b'["checkpoint",[]]',
        b'["checkpoint",[7]]',
        b'["checkpoint",[{"label":7}]]',
        b'["checkpoint",[{"kind":"other"}]]',
        b'["checkpoint",[{"kind":[]}]]',
        b'["checkpoint",[{"full_hash":1}]]',
        b'["checkpoint",[{"prompt":1}]]',
    ],
)
def test_what_is_no_call_gets_an_error_and_harms_no_other_client(setup: WatchSetup, body: bytes) -> None:
    """I12."""
    with running(setup) as run:
        with raw(setup) as connection, Connection(connection) as client, pytest.raises(FormatError):
            messages.decode_result(client.ask(body))
        with reach(setup) as watcher:
            assert watcher.ping().pid == os.getpid()
        assert run.saver.requests == []


def test_an_answer_too_long_is_refused(setup: WatchSetup) -> None:
    setup = setup._replace(limits=setup.limits._replace(answer_bytes=500))
    with running(setup), reach(setup) as watcher:
        with pytest.raises(HoldfastError) as caught:
            watcher.status()
        assert caught.value.code == "too_long"


def test_a_prompt_is_told_of_and_what_an_earlier_build_answers_is_understood() -> None:
    asked = watch_messages.WatchCall("checkpoint", CheckpointRequest("auto", prompt="tidy up\n\0é"))
    assert watch_messages.decode_call(watch_messages.encode_call(asked)) == asked
    made = CheckpointResult(RECORD._replace(labels=("one",)), True, (), 1.0, prompt=41)
    packed = watch_messages.pack_result(made)
    assert watch_messages.unpack_result(packed) == made._replace(not_captured=[])
    old = packed | {"checkpoint": packed["checkpoint"] | {"label": "one"}}
    del old["prompt"], old["checkpoint"]["labels"]
    assert watch_messages.unpack_result(old) == made._replace(not_captured=[], prompt=None)


def test_a_long_answer_arrives_whole(setup: WatchSetup) -> None:
    with running(setup) as run, reach(setup) as watcher:
        many = [Change(b"%d" % number * 20, None, ENTRY) for number in range(30_000)]
        run.saver.status_answer = STATUS._replace(changes=many)
        assert watcher.status().changes == many


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


def test_a_client_that_dies_before_its_answer(setup: WatchSetup) -> None:
    with running(setup) as run:
        run.saver.gate = threading.Event()
        connection = raw(setup)
        connection.sendall(
            messages.frame(watch_messages.encode_call(watch_messages.WatchCall("checkpoint", CheckpointRequest())))
        )
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

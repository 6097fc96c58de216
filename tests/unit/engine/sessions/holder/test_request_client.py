"""What the process says that asks the holder of a session, where that does not answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.engine.sessions.holder.request_client import RemoteSession
from holdfast.ipc import messages
from holdfast.model.errors import HoldfastError, LockedError, NotFoundError, RefusedError
from holdfast.wire.session_requests import PingRequest, decode_call


def remote(lock: Path) -> tuple[RemoteSession, socket.socket]:
    record = cast("Any", SimpleNamespace(id="work", owner="me", shared=()))
    ours, its = socket.socketpair()
    its.settimeout(20)
    return RemoteSession(ours, bytes(lock), record, cast("Any", None), "agent"), its


@pytest.fixture(name="lock")
def _lock(tmp_path: Path) -> Path:
    lock = tmp_path / "work.lock"
    lock.touch(0o600)
    return lock


def test_the_lock_is_shown_and_what_the_holder_raises_is_raised(lock: Path) -> None:
    session, its = remote(lock)
    with session, its:
        its.sendall(messages.frame(messages.encode_error(NotFoundError("no such branch"))))
        with pytest.raises(NotFoundError, match="no such branch"):
            session.ask(PingRequest())
        said, found, _, _ = socket.recv_fds(its, 1000, 1)
        call = decode_call(said[messages.HEADER_BYTES :])
        assert (call.ask, call.agent) == (PingRequest(), "agent")
        assert os.readlink(f"/proc/self/fd/{found[0]}") == str(lock)
        os.close(found[0])


def test_a_holder_that_takes_its_time_is_named(lock: Path) -> None:
    session, its = remote(lock)
    with (
        session,
        its,
        pytest.raises(LockedError, match=rf"\({os.getpid()}\), which has not answered for 0\.01 s") as busy,
    ):
        session.ask(PingRequest(), 0.01)
    assert busy.value.code == "session_busy"


def test_a_holder_that_ends_is_no_answer(lock: Path) -> None:
    session, its = remote(lock)
    its.close()
    with session:
        for _ in range(2):
            with pytest.raises(LockedError) as gone:
                session.ask(PingRequest())
            assert gone.value.code == "holder_gone"
        assert not session.ping(1)


@pytest.mark.parametrize(("code", "answers"), [("later", False), ("session_running", True)])
def test_not_now_is_no_answer_either(lock: Path, code: str, answers: bool) -> None:
    session, its = remote(lock)
    with session, its:
        its.sendall(messages.frame(messages.encode_error(LockedError("not now", code=code))))
        if answers:
            with pytest.raises(HoldfastError):
                session.ping(20)
        else:
            assert not session.ping(20)


def test_what_cannot_open_the_lock_for_writing_asks_nothing(lock: Path) -> None:
    lock.unlink()
    session, its = remote(lock)
    with session, its:
        with pytest.raises(RefusedError) as refused:
            session.ask(PingRequest())
        assert refused.value.code == "inside_run"
        its.setblocking(False)
        with pytest.raises(BlockingIOError):
            its.recv(1)

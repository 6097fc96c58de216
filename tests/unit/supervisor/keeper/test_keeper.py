"""A keeper's socket, without any run: who may ask what, and that nobody can hold it up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from holdfast.ipc import messages
from holdfast.ipc.private_socket import address
from holdfast.model.errors import FormatError, HoldfastError, LockedError, NotFoundError, RefusedError, UsageError
from holdfast.model.paths import KEEPER_SOCKET
from holdfast.supervisor.control._unsupervised_proof import make_proof
from holdfast.supervisor.control.keeper_port import GONE, MAX_REQUEST_BYTES, MOST_READ_ONLY, PORT, JoinRequest
from holdfast.supervisor.control.remote_service import RemoteUndoService, connect, visit
from holdfast.supervisor.keeper.keeper import Keeper
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.undo.service import OFF


def _request(read_only: int = 0) -> JoinRequest:
    return JoinRequest("r", os.getpid(), False, (b"x",), b"/", read_only, OFF, "filter")


@pytest.fixture(name="settings")
def _settings(tmp_path: Path) -> KeeperSettings:
    for name in ("tree", "log", "home"):
        (tmp_path / name).mkdir()
    return KeeperSettings(
        root=os.fsencode(tmp_path / "tree"),
        log=os.fsencode(tmp_path / "log"),
        forbidden=(os.fsencode(tmp_path / "home"),),
    )


@pytest.fixture(name="keeper")
def _keeper(settings: KeeperSettings) -> Generator[Keeper]:
    keeper = Keeper(settings)
    thread = threading.Thread(target=keeper.serve, daemon=True)
    thread.start()
    yield keeper
    keeper.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert not os.path.exists(settings.log + b"/keeper")


def connected(settings: KeeperSettings) -> RemoteUndoService:
    remote = connect(settings.log)
    assert remote is not None
    return remote


def raw(settings: KeeperSettings) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    with address(settings.log, KEEPER_SOCKET) as path:
        connection.connect(path)
    return connection


@pytest.mark.usefixtures("keeper")
def test_the_service_is_there(settings: KeeperSettings) -> None:
    with connected(settings) as remote:
        assert remote.steps() == []
        assert remote.barriers() == []
        assert remote.held() == []
        assert remote.discard() == 0
        with pytest.raises(NotFoundError):
            remote.changes(7)
        with pytest.raises(HoldfastError):
            remote.undo([7])
        step = remote.begin("mine")
        assert [found.id for found in remote.steps()] == [step]
        assert remote.rollback(step).conflicts == ()


@pytest.mark.usefixtures("keeper")
def test_there_is_one_keeper_and_its_socket_is_private(settings: KeeperSettings) -> None:
    with pytest.raises(LockedError):
        Keeper(settings)
    assert os.stat(settings.log + b"/keeper").st_mode & 0o777 == 0o600


def test_without_a_keeper_there_is_none(settings: KeeperSettings) -> None:
    assert connect(settings.log) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead, address(settings.log, KEEPER_SOCKET) as path:
        dead.bind(path)
    assert connect(settings.log) is None
    keeper = Keeper(settings)  # in place of the dead one's
    keeper.stop()
    keeper.serve()
    assert connect(settings.log) is None


@pytest.mark.usefixtures("keeper")
def test_whoever_talks_nonsense_or_not_at_all_holds_nobody_up(settings: KeeperSettings) -> None:
    """I12: a frame that is too long, half a frame, garbage."""
    with raw(settings) as huge, raw(settings) as half, raw(settings) as garbage, raw(settings) as silent:
        huge.sendall(messages.frame(b"x" * (MAX_REQUEST_BYTES + 1))[:100])
        half.sendall(messages.frame(b"x" * 100)[:50])
        garbage.sendall(messages.frame(b"\xc1\xc1\xc1"))
        for connection in (huge, garbage):
            with pytest.raises(FormatError):
                _read_answer(connection)
        assert huge.recv(100) == b""
        assert silent.fileno() >= 0
        with connected(settings) as remote:
            assert remote.steps() == []


def _read_answer(connection: socket.socket, method: str = "steps") -> object:
    length = messages.body_bytes(connection.recv(messages.HEADER_BYTES, socket.MSG_WAITALL), 1 << 28)
    return PORT.decode_answer(method, connection.recv(length, socket.MSG_WAITALL))


@pytest.mark.usefixtures("keeper")
def test_a_pause_ends_with_its_connection(keeper: Keeper, settings: KeeperSettings) -> None:
    first = connected(settings)
    pause = first.quiet()
    pause.__enter__()
    with connected(settings) as other:
        with other.quiet():
            assert keeper.is_quiet
        assert keeper.is_quiet
        first.close()
        while keeper.is_quiet:
            other.held()


def test_whoever_hangs_up_before_the_answer_comes_disturbs_nobody(keeper: Keeper, settings: KeeperSettings) -> None:
    with connected(settings) as remote:
        for method in ("steps", "pause", "pause", "resume"):
            for _ in range(20):
                with raw(settings) as impatient:
                    impatient.sendall(messages.frame(PORT.encode_request(method, [])))
                remote.held()
        assert remote.steps() == []
        while keeper.is_quiet:
            remote.held()


@pytest.mark.usefixtures("keeper")
def test_a_run_joins_with_a_listener_alone(settings: KeeperSettings) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    with connected(settings) as remote, pytest.raises(HoldfastError):
        remote.join_run(_request(), [null, null])
    os.close(null)
    with connected(settings) as remote:
        assert remote.steps() == []


@pytest.mark.usefixtures("keeper")
def test_a_run_joins_with_directories_apart_from_the_workspace(settings: KeeperSettings, tmp_path: Path) -> None:
    """What could not be kept read-only is said, and what got lost on the way is not taken for nothing."""
    (tmp_path / "apart").mkdir()
    (tmp_path / "gone").mkdir()
    (tmp_path / "file").touch()
    inside = Path(os.fsdecode(settings.root)) / "inside"
    inside.mkdir()
    paths = [tmp_path / "gone", tmp_path / "file", tmp_path, settings.root, inside, "/"]
    fds = {str(path): os.open(path, os.O_PATH) for path in paths}
    (tmp_path / "gone").rmdir()
    apart = os.open(tmp_path / "apart", os.O_PATH)
    null = os.open(os.devnull, os.O_RDONLY)

    def join(*read_only: int) -> None:
        with connected(settings) as remote:
            remote.join_run(_request(len(read_only)), [null, null, *read_only])

    for fd in fds.values():
        with pytest.raises(RefusedError):
            join(apart, fd)
    with pytest.raises(UsageError):
        join(*[apart] * (MOST_READ_ONLY + 1))
    with raw(settings) as other:
        frame = messages.frame(PORT.encode_request("join", [_request(read_only=2)]))
        with make_proof(settings.log) as proof:
            socket.send_fds(other, [frame], [*proof, null, null, apart])
        with pytest.raises(HoldfastError, match="a run joins with"):
            _read_answer(other, "join")
    for fd in (*fds.values(), apart, null):
        os.close(fd)
    with connected(settings) as remote:
        assert remote.steps() == []


@pytest.mark.usefixtures("keeper")
def test_a_run_that_never_joined_cannot_leave(settings: KeeperSettings) -> None:
    with connected(settings) as remote:
        with pytest.raises(NotFoundError, match="no run"):
            remote.leave()
        assert remote.steps() == []


def test_the_end_of_a_keeper_is_told_to_who_waits(settings: KeeperSettings) -> None:
    keeper = Keeper(settings)
    thread = threading.Thread(target=keeper.serve, daemon=True)
    thread.start()
    with connected(settings) as remote:
        assert remote.steps() == []
        keeper.stop()
        thread.join(20)
        with pytest.raises(HoldfastError) as caught:
            remote.steps()
        assert caught.value.code == GONE


def test_a_keeper_with_nothing_to_do_stays_until_the_last_visitor_has_left(settings: KeeperSettings) -> None:
    keeper = Keeper(settings)
    thread = threading.Thread(target=keeper.serve, daemon=True)
    thread.start()
    visitor = visit(settings.log)
    assert visitor is not None
    with visitor, connected(settings) as other:
        keeper.end_when_idle()
        for _ in range(20):
            assert other.steps() == []
            assert visitor.steps() == []
        assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()
    assert visit(settings.log) is None


def test_a_keeper_that_is_ending_is_not_visited(settings: KeeperSettings) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address(settings.log, KEEPER_SOCKET) as path:
        listener.bind(path)
    listener.listen()
    found: list[RemoteUndoService | None] = []
    visitor = threading.Thread(target=lambda: found.append(visit(settings.log)))
    visitor.start()
    connection, _ = listener.accept()
    connection.close()
    visitor.join(20)
    listener.close()
    assert found == [None]


def test_a_keeper_that_nobody_joins_ends_with_who_started_it(settings: KeeperSettings) -> None:
    ours, its = socket.socketpair()
    with ours, its:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.supervisor.keeper.keeper", str(its.fileno())],
            pass_fds=[its.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        its.close()
        ours.sendall(messages.frame(msgspec.json.encode(settings)))
        assert _read_answer(ours, "visit") is None
        ours.close()
        assert keeper.wait(20) == 0

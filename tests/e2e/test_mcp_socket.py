"""The Model Context Protocol on a Unix socket: who may come in, several at once, and what becomes of who leaves."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

import holdfast
from holdfast.api.mcp import authenticated_socket
from holdfast.model.errors import HoldfastError, LockedError, RefusedError

from ..waiting import wait_until
from .conftest import INSTALLED
from .mcp_client import SECONDS, Place, call, run, until
from .test_mcp import HELLO


class Server:
    """A server on a socket."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.path = place.base / "run" / "mcp.sock"
        self.token = Path(f"{self.path}.token")
        with open(place.log, "wb") as log:
            self.process = subprocess.Popen(
                place.words("--socket", str(self.path)), stderr=log, stdin=subprocess.DEVNULL
            )

    def said(self) -> str:
        """What it says to people."""
        return next(line for line in self.place.log.read_text().splitlines() if line.startswith("holdfast: "))

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        """One that is joined by `holdfast mcp --connect`."""
        words = [*INSTALLED, "mcp", "--connect", str(self.path)]
        environment = {**os.environ}
        started = StdioServerParameters(command=words[0], args=words[1:], env=environment)
        async with Client(started, read_timeout_seconds=SECONDS) as client:
            yield client

    @contextmanager
    def connection(self, first: bytes) -> Generator[socket.socket]:
        """A connection that begins with a line."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.fspath(self.path))  # (it waits for the queue in front of the door to get shorter)
            connection.settimeout(SECONDS)
            connection.sendall(first + b"\n")
            yield connection


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Generator[Server]:
    server = Server(Place(tmp_path))
    wait_until(lambda: server.path.exists() and "listening" in server.place.log.read_text())
    yield server
    if server.process.poll() is None:
        server.process.terminate()
        assert server.process.wait(60) == 0
    assert not server.path.exists()
    assert not server.token.exists()
    with holdfast.open_home(server.place.home) as home:
        assert home.verify().ok


def test_nobody_else_can_come_in(server: Server) -> None:
    """Case 14."""
    assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.token.stat().st_mode) == 0o600
    assert str(server.path) in server.said()
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}).encode()
    token = server.token.read_bytes().strip()
    assert len(token) == 64
    for first in (b"", b"x", hello, token[:-1], token + b"0"):
        with server.connection(first) as connection, connection.makefile("rb") as file:
            try:
                connection.sendall(hello + b"\n")
            except OSError:
                pass  # it has hung up already
            lines = file.read().splitlines()
            assert [json.loads(line)["error"]["code"] for line in lines] == [-32001]
    with server.connection(token) as connection, connection.makefile("rb") as file:
        connection.sendall(hello + b"\n")
        assert json.loads(file.readline())["result"]["serverInfo"]["name"] == "holdfast"


def test_a_step_ends_with_the_client_that_has_begun_it(server: Server) -> None:
    async def work() -> None:
        async with server.client() as other:
            async with server.client() as one:
                begun = (await call(one, "begin_step", label="both"))["id"]
                await call(one, "execute_command", command="echo 1 > f")
            async with server.client() as next_one:

                async def found() -> dict[str, Any]:
                    steps = (await call(other, "get_undo_history"))["steps"]
                    return next(step for step in steps if step["id"] == begun)

                with anyio.fail_after(SECONDS):
                    while (await found())["state"] == "open":
                        await anyio.sleep(0.05)
                assert (await found())["command"] == ["both", "[committed: its client ended]"]
                assert (server.place.tree / "f").read_text() == "1\n"
                assert (await call(next_one, "begin_step", label="next"))["id"] > begun
                assert (await call(other, "commit_step"))["command"] == ["next"], "one server, one step"

    run(work)


def test_several_clients_work_at_once(server: Server) -> None:
    async def work() -> None:
        async with server.client() as one, server.client() as two:
            async with anyio.create_task_group() as group:

                async def append(client: Client, name: str) -> None:
                    for _ in range(5):
                        await call(client, "execute_command", command=f"echo {name} >> log")
                        assert (await call(client, "read_file", path="log"))["size"]

                group.start_soon(append, one, "one")
                group.start_soon(append, two, "two")
            lines = (server.place.tree / "log").read_text().split()
            assert sorted(lines) == ["one"] * 5 + ["two"] * 5
            assert (await call(one, "get_undo_history"))["total"] == 10
            assert (await call(two, "undo", count=10))["steps"] == list(range(10, 0, -1))
        async with server.client() as three:
            assert (await call(three, "list_directory"))["entries"] == []

    run(work)
    names = {line["request_id"].split("-")[0] for line in _logged(server) if "request_id" in line}
    assert names == {"1", "2", "3"}


def _logged(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.place.log.read_text().splitlines() if line.startswith("{")]


def test_who_leaves_in_the_middle_ends_its_command_and_no_other(server: Server) -> None:
    tree = server.place.tree

    async def work() -> None:
        async with server.client() as stays:
            token = server.token.read_bytes().strip()
            with server.connection(token) as leaves:
                for message in (
                    {"id": 1, "method": "initialize", "params": HELLO},
                    {"method": "notifications/initialized"},
                    *(
                        {
                            "id": number,
                            "method": "tools/call",
                            "params": {"name": "execute_command", "arguments": {"command": command}},
                        }
                        for number, command in ((2, "echo $$ > pid; touch begun; sleep 100"), (3, "touch never"))
                    ),
                ):
                    leaves.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
                await until((tree / "begun").exists)
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: call(stays, "execute_command", command="touch other"))
                    await until(lambda: sum(line["message"] == "tool called" for line in _logged(server)) == 3)
                    pid = int((tree / "pid").read_text())
                    leaves.close()
                    await until(lambda: not Path(f"/proc/{pid}").exists())
            assert sorted(os.listdir(tree)) == ["begun", "other", "pid"]
            assert (await call(stays, "undo", count=2))["steps"]
            assert os.listdir(tree) == []

    run(work)


def test_a_signal_ends_commands_and_says_goodbye(server: Server) -> None:
    async def work() -> None:
        async with server.client() as client:
            async with anyio.create_task_group() as group:

                async def execute() -> None:
                    with pytest.raises(Exception, match="losed"):
                        await client.call_tool("execute_command", {"command": "touch begun; sleep 100"})

                group.start_soon(execute)
                await until((server.place.tree / "begun").exists)
                server.process.send_signal(signal.SIGTERM)
            assert await anyio.to_thread.run_sync(lambda: server.process.wait(60)) == 0

    run(work)
    assert "begun" in server.place.holdfast("steps", "show", "1")


def test_a_dead_servers_socket_is_taken_and_a_living_ones_is_not(server: Server) -> None:
    with pytest.raises(LockedError), authenticated_socket.listen_with_token(os.fsencode(server.path)):
        pass
    server.process.kill()
    server.process.wait()
    assert server.path.exists()
    before = server.token.read_bytes()
    with authenticated_socket.listen_with_token(os.fsencode(server.path)):
        assert server.token.read_bytes() != before
    assert not server.path.exists()


def test_a_server_that_is_only_beginning_is_no_dead_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    path = folder / "sock"
    caught: list[HoldfastError] = []

    def begin() -> None:
        try:
            with authenticated_socket.listen_with_token(os.fsencode(path)):
                pass
        except HoldfastError as error:
            caught.append(error)

    second = threading.Thread(target=begin)

    locks = Path("/proc/locks")

    def waits() -> bool:
        return any(f":{folder.stat().st_ino} " in line and "->" in line for line in locks.read_text().splitlines())

    fd = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as first:
        fcntl.flock(fd, fcntl.LOCK_EX)
        first.bind(os.fspath(path))
        number = path.stat().st_ino
        second.start()
        wait_until(lambda: waits() or not second.is_alive())
        first.listen()
        os.close(fd)
        second.join(SECONDS)
        assert [type(error) for error in caught] == [LockedError]
        assert path.stat().st_ino == number


def test_what_others_have_put_in_place_of_a_socket_and_its_token_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    path = folder / "sock"
    names = ("sock", "sock.token")
    with authenticated_socket.listen_with_token(os.fsencode(path)):
        for name in names:
            (folder / name).unlink()
            (folder / name).write_text("another's")
    assert [(folder / name).read_text() for name in names] == ["another's"] * 2


def test_what_is_no_socket_or_token_of_a_dead_server_is_left_alone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    own = place.base / "run"
    own.mkdir(mode=0o700)
    (own / "file").write_text("mine")
    (own / "sock.token").write_text("mine too\n")
    (own / "link.token").symlink_to("file")
    for name, what, code in (
        ("file", "no socket", 4),
        ("sock", "no token", 4),
        ("link", "no token", 4),
        ("s" * 200, "cannot open the socket", 1),
        ("s" * 300, "cannot open the socket", 1),
    ):
        words = place.words("--socket", str(own / name))
        done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=SECONDS)
        assert done.returncode == code, done.stderr
        assert what in done.stderr
        assert "bug" not in done.stderr
    assert sorted(os.listdir(own)) == ["file", "link.token", "sock.token"]
    assert ((own / "file").read_text(), (own / "sock.token").read_text()) == ("mine", "mine too\n")


def test_who_does_not_say_the_token_keeps_nobody_out(server: Server) -> None:
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}).encode()
    token = server.token.read_bytes().strip()
    with ExitStack() as crowd:
        silent = [
            crowd.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(authenticated_socket.MOST_STRANGERS + 10)
        ]
        for each in silent:
            each.connect(os.fspath(server.path))
            each.settimeout(SECONDS)
        with server.connection(token) as connection, connection.makefile("rb") as file:
            connection.sendall(hello + b"\n")
            assert json.loads(file.readline())["result"]["serverInfo"]["name"] == "holdfast"
        assert silent[0].recv(1) == b""  # who came first and said nothing is sent away for those who come later


def test_the_directory_of_the_socket_has_to_be_ours_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o750)
    with pytest.raises(RefusedError) as caught, authenticated_socket.listen_with_token(os.fsencode(shared / "sock")):
        pass
    assert caught.value.code == "open_directory"
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    (own / "file").write_text("mine")
    with pytest.raises(RefusedError) as caught, authenticated_socket.listen_with_token(os.fsencode(own / "file")):
        pass
    assert (own / "file").read_text() == "mine"
    long = own / ("d" * 100) / "sock"
    long.parent.mkdir(mode=0o700)
    with authenticated_socket.listen_with_token(os.fsencode(long)) as opened:
        assert stat.S_ISSOCK(os.lstat(long).st_mode)
        with authenticated_socket.connect(os.fsencode(long)):
            guest = opened.accept()
            assert guest is not None
            guest.close()


def test_where_nobody_listens_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [*INSTALLED, "mcp", "--connect", str(tmp_path / "no")], capture_output=True, check=False, text=True
    )
    assert done.returncode == 3
    assert "no server listens" in done.stderr

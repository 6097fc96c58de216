"""A private socket that answers: no client takes more of it than its share, nor anything of the others'."""

from __future__ import annotations

import json
import math
import os
import select
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.ipc import messages, private_socket, server
from holdfast.ipc.private_socket import SocketPeer
from holdfast.ipc.server import Client, ClientGroup, Limits
from holdfast.model.errors import FormatError, HoldfastError, NotFoundError, StorageError

from .served import NAME, Served, request, result, serving


def ended(connection: socket.socket) -> bool:
    """Whether the server has hung up; what it has said before is read away."""
    try:
        connection.settimeout(0)
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    finally:
        connection.settimeout(20)
    return True


def test_a_request_is_answered_however_it_comes(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.connect() as client:
        assert served.ask(client, "one") == "one"
        for number in request("two"):
            client.sendall(bytes([number]))
            served.serve()
        assert result(client) == "two"


@pytest.mark.parametrize("mask", [0, 0o177])
def test_the_socket_is_private_and_its_name_goes_with_it(tmp_path: Path, mask: int) -> None:
    (tmp_path / "socket").write_text("left by a dead process")
    before = os.umask(mask)
    try:
        with serving(tmp_path) as served:
            found = os.stat(tmp_path / "socket")
            assert stat.S_ISSOCK(found.st_mode)
            assert stat.S_IMODE(found.st_mode) == 0o600
            served.server.close()
            assert list(tmp_path.iterdir()) == []
    finally:
        os.umask(before)


def test_a_place_that_cannot_have_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere/socket"):
        Served(os.fsencode(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("raised", "found", "code"),
    [
        (NotFoundError("gone", code="no_such"), NotFoundError, "no_such"),
        (NotFoundError("gone", data={"what": object()}), NotFoundError, "not_found"),
        (OSError(28, "No space left on device"), HoldfastError, "storage"),
        (ZeroDivisionError("a mistake"), HoldfastError, "internal"),
        (RecursionError("too deep"), HoldfastError, "internal"),
    ],
)
def test_an_error_ends_one_request(tmp_path: Path, raised: Exception, found: type[HoldfastError], code: str) -> None:
    """I12: and no traceback goes to the client."""

    def fail(_client: Client, method: str) -> bytes:
        if method == "fail":
            raise raised
        return messages.encode_result(0)

    with serving(tmp_path) as served, served.connect() as client:
        served.perform = fail
        with pytest.raises(found) as caught:
            served.ask(client, "fail")
        assert caught.value.code == code
        assert "Traceback" not in caught.value.message
        assert served.ask(client) == 0


@pytest.mark.parametrize(
    "sent",
    [
        messages.frame(b""),
        messages.frame(b"garbage"),
        messages.frame(b"[" * 60_000),
        messages.frame(b"x" * 70_000)[:100],
        b'{"v":1,"op":"ping"}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 100_000,
        request() * 2,
        request() + b"x",
    ],
)
def test_what_is_no_request_gets_an_error_and_costs_the_others_nothing(tmp_path: Path, sent: bytes) -> None:
    """I12."""
    with serving(tmp_path) as served, served.connect() as client, served.connect() as other:
        client.sendall(sent)
        served.serve()
        with pytest.raises(FormatError):
            result(client)
        assert served.ask(other) == "do"
        assert served.asked == ["do"]


def test_what_is_too_long_is_not_read(tmp_path: Path) -> None:
    limits = Limits(request_bytes=1000)
    with serving(tmp_path, limits) as served, served.connect() as client:
        client.settimeout(0)
        assert client.send(messages.frame(b"x" * (1 << 26))) < 1 << 26
        served.serve()
        client.settimeout(20)
        with pytest.raises(FormatError, match="1,000 are allowed"):
            result(client)
        assert ended(client)


# Time -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", request()[:5], request()[:-1]])
def test_half_a_request_has_its_time_and_then_ends(tmp_path: Path, sent: bytes) -> None:
    with serving(tmp_path, Limits(request=10, idle=60)) as served, served.connect() as slow:
        slow.sendall(sent)
        served.serve()
        limit = 10 if sent else 60
        assert served.server.due_in() == limit
        for _ in range(limit - 1):
            served.clock.advance(1)
            if sent[1:]:
                served.serve()
        assert not ended(slow)
        assert served.server.due_in() == 1
        served.clock.advance(1)
        assert served.server.due_in() == 0
        served.serve()
        assert ended(slow)
        assert served.server.due_in() is None
        assert len(served.left) == 1


def test_a_request_that_comes_byte_by_byte_gets_no_more_time(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(request=10)) as served, served.connect() as slow:
        for number in request("x" * 100)[:10]:
            assert not ended(slow)
            slow.sendall(bytes([number]))
            served.serve()
            served.clock.advance(1)
        served.serve()
        assert ended(slow)
        assert served.asked == []


def test_an_answer_that_is_not_read_is_dropped_after_its_time(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(answer=60)) as served, served.connect() as deaf, served.connect() as other:
        served.perform = lambda *_: messages.encode_result("x" * (1 << 22))
        deaf.sendall(request())
        served.serve()
        deaf.recv(100)
        served.clock.advance(59)
        served.serve()
        assert not served.left
        served.perform = lambda *_: messages.encode_result(0)
        assert served.ask(other) == 0
        served.clock.advance(1)
        served.serve()
        assert served.left == served.clients[:1]
        assert ended(deaf)


def test_what_a_client_keeps_outlives_idleness_for_as_long_as_it_does(tmp_path: Path) -> None:
    def perform(client: Client, method: str) -> bytes:
        client.keeps = method == "keep"
        return messages.encode_result(0)

    with serving(tmp_path, Limits(idle=60)) as served, served.connect() as client:
        served.perform = perform
        served.ask(client, "keep")
        assert served.server.due_in() is None
        served.clock.advance(1000)
        served.ask(client, "let go")
        assert served.server.due_in() == 60
        served.ask(client, "keep")
        served.clock.advance(20)
        served.clients[-1].keeps = False  # as when another client ends what it keeps
        assert served.server.due_in() == 40
        client.sendall(request()[:3])
        served.serve()
        served.clients[-1].keeps = True
        assert served.server.due_in() == 10, "half a request has its time in any case"


# Answers that take their time, and those that are asked for in between ------------------------------------------------


def test_who_waits_for_an_answer_is_not_heard_and_may_wait_for_ever(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.connect() as client:
        served.perform = lambda *_: None
        client.sendall(request("one"))
        served.serve()
        client.sendall(request("two"))
        served.serve()
        assert served.asked == ["one"]
        assert served.server.due_in() is None
        served.clients[0].send(messages.encode_result(1))
        served.serve()
        assert result(client) == 1
        assert served.asked == ["one", "two"]


def test_who_hangs_up_while_it_waits_is_let_go(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.perform = lambda *_: None
        with served.connect() as client:
            client.sendall(request())
            served.serve()
            assert served.left == []
        served.serve()
        assert served.left == served.clients
        assert served.clients[0].is_gone
        served.clients[0].send(b"to no one")
        assert served.clients[0].group.unread == ClientGroup().unread


def test_others_are_answered_while_a_request_is_done(tmp_path: Path) -> None:
    """As when a hook asks the session whose command waits for it; however long that takes."""
    with serving(tmp_path) as served, served.connect() as outer, served.connect() as inner:

        def perform(_: Client, method: str) -> bytes:
            if method == "outer":
                inner.sendall(request("inner"))
                served.serve()
                served.clock.advance(1000)
                served.serve()
            return messages.encode_result(method)

        served.perform = perform
        assert served.ask(outer, "outer") == "outer"
        assert result(inner) == "inner"
        assert served.asked == ["outer", "inner"]
        assert [client.peer for client in served.left] == [served.clients[1].peer], "the idle one"


@pytest.mark.parametrize("does", ["hangs up", "asks again"])
def test_who_goes_while_its_request_is_done_is_let_go(tmp_path: Path, does: str) -> None:
    with serving(tmp_path) as served, served.connect() as client:

        def perform(*_: object) -> bytes:
            if does == "hangs up":
                client.close()
            else:
                client.sendall(request())
            served.serve()
            return messages.encode_result("x" * 5000)

        served.perform = perform
        client.sendall(request())
        served.serve()
        assert served.asked == ["do"]
        assert served.left == served.clients
        assert served.clients[0].group.unread == ClientGroup().unread


# Numbers --------------------------------------------------------------------------------------------------------------


def test_a_group_has_so_many_clients_and_another_has_its_own(tmp_path: Path) -> None:
    groups = [ClientGroup(clients=3), ClientGroup(clients=1)]
    chosen = 0
    with serving(tmp_path, group_of=lambda _: groups[chosen]) as served, ExitStack() as context:
        first = [context.enter_context(served.connect()) for _ in range(4)]
        assert [ended(client) for client in first] == [False, False, False, True]
        chosen = 1
        with served.connect() as other:
            assert served.ask(other) == "do"
        chosen = 0
        first[0].close()
        served.serve()
        assert served.ask(context.enter_context(served.connect())) == "do"
    assert [group.clients for group in groups] == [3, 1]


def test_answers_that_are_not_read_are_bounded_together(tmp_path: Path) -> None:
    group = ClientGroup(unread=5 << 20)
    with serving(tmp_path, group_of=lambda _: group) as served, ExitStack() as context:
        served.perform = lambda *_: messages.encode_result("x" * (3 << 20))
        deaf, other = (context.enter_context(served.connect()) for _ in range(2))
        deaf.sendall(request())
        served.serve()
        with pytest.raises(HoldfastError) as caught:
            served.ask(other)
        assert caught.value.code == "too_long"
        deaf.close()
        served.serve()
        assert group.unread == 5 << 20
        other.sendall(request())
        served.serve()
        assert served.clients[-1].outbox


def test_an_answer_too_long_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(answer_bytes=5000)) as served, served.connect() as client:
        served.perform = lambda *_: messages.encode_result("x" * 5000)
        with pytest.raises(HoldfastError) as caught:
            served.ask(client)
        assert caught.value.code == "too_long"


def test_another_user_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "peer_of", lambda _: SocketPeer(1, os.geteuid() + 1))
    with serving(tmp_path) as served, served.connect() as client:
        assert ended(client)
        assert served.left == []


# Descriptors ----------------------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("allowed", [0, 2])
@pytest.mark.parametrize("at_once", [True, False])
def test_so_many_descriptors_come_with_a_request_and_no_more(tmp_path: Path, allowed: int, at_once: bool) -> None:
    taken: list[str] = []

    def perform(client: Client, _: str) -> bytes:
        assert all(not os.get_inheritable(fd) for fd in client.descriptors)
        taken.append("".join(os.readlink(f"/proc/self/fd/{fd}")[-1] for fd in client.descriptors))
        return messages.encode_result(len(client.descriptors))

    for name in "abcd":
        (tmp_path / name).touch()
    with serving(tmp_path, Limits(descriptors=allowed)) as served, ExitStack() as context, served.connect() as client:
        served.perform = perform
        files = [context.enter_context(open(tmp_path / name)).fileno() for name in "abcd"]
        before = descriptors()
        for _ in range(2):
            if at_once:
                socket.send_fds(client, [request()], files)
            else:
                for number, fd in zip(request(), files, strict=False):
                    socket.send_fds(client, [bytes([number])], [fd])
                    served.serve()
                client.sendall(request()[len(files) :])
            served.serve()
            assert result(client) == allowed
            assert descriptors() == before
        assert taken == ["ab"[:allowed]] * 2


def test_descriptors_of_half_a_request_are_closed_with_it(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(descriptors=4)) as served, open(os.devnull) as file:
        before = descriptors()
        with served.connect() as client:
            socket.send_fds(client, [request()[:5]], [file.fileno()] * 4)
            served.serve()
        served.serve()
        assert descriptors() == before


# The end --------------------------------------------------------------------------------------------------------------


def test_who_waits_is_told_at_the_end_and_a_new_client_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.connect() as idle, served.connect() as waiting:
        served.perform = lambda *_: None
        waiting.sendall(request())
        served.serve()
        served.server.close()
        with pytest.raises(FileNotFoundError):
            private_socket.connect(served.folder, NAME)
        assert private_socket.try_connect(served.folder, NAME, 1) is None
        served.server.hang_up(messages.encode_error(NotFoundError("it ends")))
        for client in (idle, waiting):
            with pytest.raises(NotFoundError, match="it ends"):
                result(client)
            assert ended(client)
        assert len(served.left) == 2


def test_it_leaves_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    with serving(tmp_path) as served, served.connect() as client:
        served.ask(client)
    assert descriptors() == before


def test_one_descriptor_says_that_there_is_something_to_do(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert not select.select([served.server], [], [], 0)[0]
        with private_socket.connect(served.folder, NAME) as client:
            assert select.select([served.server], [], [], 0)[0]
            served.serve()
            assert not select.select([served.server], [], [], 0)[0]
            client.sendall(request())
            assert select.select([served.server], [], [], 0)[0]
            served.serve()
            assert json.loads(client.recv(1000)[messages.HEADER_BYTES :]) == {"result": "do"}


def test_limits_without_end(tmp_path: Path) -> None:
    limits = Limits(request=math.inf, answer=math.inf, idle=math.inf)
    with serving(tmp_path, limits) as served, served.connect() as client:
        client.sendall(request()[:4])
        served.serve()
        assert served.server.due_in() is None

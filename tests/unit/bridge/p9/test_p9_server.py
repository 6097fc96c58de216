"""A server and its client: requests that wait, clients that are hostile or hang up, and one that is not ours."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from holdfast.bridge.p9.byte_range_locks import ByteRangeLocks
from holdfast.bridge.p9.p9_server import P9Server
from holdfast.bridge.server import request_threads
from holdfast.testing.p9_client import REQUESTS, P9Client, encode_fields, encode_request, frame
from holdfast.undo.service import Thresholds
from holdfast.wire.p9 import protocol_constants as c
from holdfast.wire.p9.protocol_constants import NO_FID, RLERROR, Type

from ....waiting import wait_until
from .served import LIMIT, Line, RecordedTree, connected

if TYPE_CHECKING:
    from pathlib import Path

WRITE = 1
IN_FLIGHT = 64
"""So many requests of a client at a time, by default."""


# -- requests that wait -------------------------------------------------------------------------------------------


def test_others_are_answered_while_a_request_waits(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        root = client.attach()
        tree.host.may_change.clear()
        line.send(Type.MKDIR, 10, root, b"n", 0o755, os.getegid())
        assert tree.host.asked.acquire(timeout=LIMIT)
        assert client.readlink(client.walk(root, b"l")) == b"d/f"
        line.send(Type.UNLINKAT, 11, root, b"a", 0)
        tree.host.may_change.set()
        assert {line.receive()[:2], line.receive()[:2]} == {(Type.MKDIR, 10), (Type.UNLINKAT, 11)}
        assert sorted(os.listdir(tree.path)) == ["d", "l", "n"]


def test_a_request_that_waits_and_is_flushed_never_happened(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        root = client.attach()
        tree.host.may_change.clear()
        line.send(Type.MKDIR, 10, root, b"n", 0o755, os.getegid())
        assert tree.host.asked.acquire(timeout=LIMIT)
        line.send(Type.FLUSH, 11, 10)
        assert line.receive() == (Type.FLUSH, 11, ())
        tree.host.may_change.set()
        client.mkdir(root, b"other", gid=os.getegid())
        assert sorted(os.listdir(tree.path)) == ["a", "d", "l", "other"]


def test_a_flush_of_what_was_answered_is_answered(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        client.attach()
        line.send(Type.FLUSH, 11, 10)
        assert line.receive() == (Type.FLUSH, 11, ())


def test_a_new_version_waits_for_the_requests_of_the_old_one(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        root = client.attach()
        tree.host.may_change.clear()
        line.send(Type.MKDIR, 10, root, b"n", 0o755, os.getegid())
        assert tree.host.asked.acquire(timeout=LIMIT)
        again = P9Client(line.exchange)
        with pytest.raises(OSError, match="GETATTR"):
            again.stat(root)
        tree.host.may_change.set()
        again.stat(again.attach())
        assert sorted(os.listdir(tree.path)) == ["a", "d", "l"]


def test_a_request_that_waits_for_too_long_is_refused(tree: RecordedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_threads, "PATIENCE_SECONDS", 0.1)
    with connected(tree.directory) as (_, client):
        root = client.attach()
        tree.host.may_change.clear()
        with pytest.raises(BlockingIOError):
            client.mkdir(root, b"n")
        tree.host.may_change.set()


def test_a_safeguard_keeps_a_request_back_until_it_is_allowed(tree: RecordedTree) -> None:
    """I9."""
    tree.service.guard(Thresholds(deletes=1))
    with connected(tree.directory, lapsed=tree.service.lapse) as (line, client):
        root = client.attach()
        line.send(Type.UNLINKAT, 10, root, b"a", 0)
        wait_until(lambda: bool(tree.service.held()))
        assert client.stat(client.walk(root, b"a")).size == 10
        tree.service.answer(tree.service.held()[0].id, allow=True)
        assert line.receive() == (Type.UNLINKAT, 10, ())
        assert not (tree.path / "a").exists()


def test_a_safeguard_without_an_answer_refuses(tree: RecordedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9."""
    monkeypatch.setattr(request_threads, "PATIENCE_SECONDS", 0.1)
    lapsed: list[int] = []
    tree.service.guard(Thresholds(deletes=1))
    with connected(tree.directory, lapsed=lapsed.append) as (_, client):
        with pytest.raises(PermissionError):
            client.unlinkat(client.attach(), b"a")
        assert lapsed == [tree.service.held()[0].id]
        assert (tree.path / "a").exists()


def test_a_safeguard_is_told_that_a_flushed_request_lapses(tree: RecordedTree) -> None:
    """I9."""
    lapsed: list[int] = []
    tree.service.guard(Thresholds(deletes=1))
    with connected(tree.directory, lapsed=lapsed.append) as (line, client):
        root = client.attach()
        line.send(Type.UNLINKAT, 10, root, b"a", 0)
        wait_until(lambda: bool(tree.service.held()))
        line.send(Type.FLUSH, 11, 10)
        assert line.receive() == (Type.FLUSH, 11, ())
        assert lapsed == [tree.service.held()[0].id]
        assert (tree.path / "a").exists()


def test_a_flushed_request_is_refused_by_its_safeguard(tree: RecordedTree) -> None:
    """I9."""
    tree.service.guard(Thresholds(deletes=1))
    with connected(tree.directory, lapsed=tree.service.lapse) as (line, client):
        root = client.attach()
        line.send(Type.UNLINKAT, 10, root, b"a", 0)
        wait_until(lambda: bool(tree.service.held()))
        line.send(Type.FLUSH, 11, 10)
        reply = line.receive()
        if reply.tag == 10:  # it was refused before it was given up
            assert reply == (RLERROR, 10, (errno.EPERM,))
            reply = line.receive()
        assert reply == (Type.FLUSH, 11, ())
        assert (tree.path / "a").exists()


def test_requests_of_two_threads_at_once(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        root, gid = client.attach(), os.getegid()
        count = 300

        def speak(first: int) -> None:
            """Each uses tags and names of its own, and sends without waiting for what comes back."""
            for number in range(first, first + count):
                with sending:
                    line.send(Type.MKDIR, number, root, b"%d" % number, 0o755, gid)

        sending = threading.Lock()
        with ThreadPoolExecutor(2) as pool:
            threads = [pool.submit(speak, first) for first in (1000, 2000)]
            replies = [line.receive() for _ in range(2 * count)]
            for thread in threads:
                thread.result(LIMIT)
        assert {reply.type for reply in replies} == {Type.MKDIR}
        assert sorted(reply.tag for reply in replies) == [*range(1000, 1000 + count), *range(2000, 2000 + count)]
        assert len(os.listdir(tree.path)) == 3 + 2 * count


def test_two_clients_of_one_tree(tree: RecordedTree) -> None:
    locks = ByteRangeLocks()
    with (
        connected(tree.directory, locks=locks) as (_, one),
        connected(tree.directory, locks=locks) as (_, two),
    ):
        fids = [client.walk(client.attach(), b"a") for client in (one, two)]
        one.open(fids[0], 2)
        two.open(fids[1], 2)
        assert one.lock(fids[0], c.LOCK_WRITE) == c.LockStatus.SUCCESS
        assert two.lock(fids[1], c.LOCK_WRITE) == c.LockStatus.BLOCKED
        one.write(fids[0], 0, b"x")
        assert two.read(fids[1], 0, 2) == b"x1"


# -- clients that hang up, or are hung up on ----------------------------------------------------------------------


def test_a_client_hangs_up_with_requests_in_flight(tree: RecordedTree) -> None:
    """(That nothing is left, the fixture says.)"""
    with connected(tree.directory) as (line, client):
        root = client.attach()
        fid = client.walk(root, b"a")
        client.open(fid, WRITE)
        client.walk(root, b"d", b"e")
        client.open(client.walk(root, b"d"))
        tree.host.may_change.clear()
        for tag in range(10, 30):
            line.send(Type.LCREATE, tag, client.walk(root, b"d"), b"%d" % tag, 2, 0o644, os.getegid())
        for _ in range(20):
            assert tree.host.asked.acquire(timeout=LIMIT)
    tree.host.may_change.set()
    assert sorted(os.listdir(tree.path / "d")) == ["e", "f"]


def test_a_client_hangs_up_while_it_is_not_read_from(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        root = client.attach()
        tree.host.may_change.clear()
        for tag in range(100, 100 + IN_FLIGHT + 5):
            line.send(Type.MKDIR, tag, root, b"%d" % tag, 0o755, os.getegid())
        for _ in range(IN_FLIGHT):
            assert tree.host.asked.acquire(timeout=LIMIT)
    tree.host.may_change.set()
    assert sorted(os.listdir(tree.path)) == ["a", "d", "l"]


def test_more_requests_than_may_be_in_flight_are_answered_all_the_same(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        root = client.attach()
        tree.host.may_change.clear()
        tags = range(100, 100 + 3 * IN_FLIGHT)
        # (At once: a socket has room for few messages that are sent each by itself.)
        line.socket.sendall(
            b"".join(encode_request(Type.MKDIR, tag, root, b"%d" % tag, 0o755, os.getegid()) for tag in tags)
        )
        for _ in range(IN_FLIGHT):
            assert tree.host.asked.acquire(timeout=LIMIT)
        tree.host.may_change.set()
        replies = [line.receive() for _ in tags]
        assert {(reply.type, reply.tag) for reply in replies} == {(Type.MKDIR, tag) for tag in tags}


def test_a_server_is_stopped_with_requests_in_flight(tree: RecordedTree) -> None:
    ours, theirs = socket.socketpair()
    server = P9Server(theirs, tree.directory)
    server.start()
    line = Line(ours)
    client = P9Client(line.exchange)
    root = client.attach()
    client.open(client.walk(root, b"a"), WRITE)
    tree.host.may_change.clear()
    line.send(Type.MKDIR, 10, root, b"n", 0o755, os.getegid())
    assert tree.host.asked.acquire(timeout=LIMIT)
    assert not server.wait(0)
    assert server.stop(LIMIT)
    assert server.stop(LIMIT)
    assert line.is_hung_up_on()
    ours.close()
    tree.host.may_change.set()
    assert server.wait()


def test_a_server_that_was_not_started_is_stopped(tree: RecordedTree) -> None:
    ours, theirs = socket.socketpair()
    assert P9Server(theirs, tree.directory).stop()
    assert Line(ours).is_hung_up_on()
    ours.close()


def test_a_client_that_reads_no_replies_is_stopped_all_the_same(tree: RecordedTree) -> None:
    ours, theirs = socket.socketpair()
    server = P9Server(theirs, tree.directory)
    server.start()
    line = Line(ours)
    client = P9Client(line.exchange)
    fid = client.walk(client.attach(), b"a")
    client.open(fid, WRITE)
    ours.settimeout(0.5)
    flood = b"".join(encode_request(Type.GETATTR, tag, fid, 0) for tag in range(1000))

    def send() -> None:
        """Until neither side's buffers take any more."""
        while True:
            ours.sendall(flood)

    with pytest.raises(TimeoutError):
        send()
    assert server.stop(LIMIT)
    ours.close()


def test_requests_are_read_while_replies_are_not(tree: RecordedTree) -> None:
    """As from QEMU, which takes nothing from a stream while it waits to write to it."""
    with connected(tree.directory) as (line, client):
        fid = client.walk(client.attach(), b"a")
        client.open(fid, os.O_RDWR)
        data = os.urandom(1 << 15)
        line.send(Type.WRITE, 1, fid, 0, data)
        line.receive()
        reads, writes = range(100, 300), range(300, 500)
        sent = [encode_request(Type.READ, tag, fid, 0, len(data)) for tag in reads]
        sent += [encode_request(Type.WRITE, tag, fid, 0, data) for tag in writes]
        line.socket.sendall(b"".join(sent))
        replies = [line.receive() for _ in sent]
        assert [reply.tag for reply in replies] == [*reads, *writes]
        assert {reply.fields for reply in replies[: len(reads)]} == {(data,)}


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        frame(Type.CLUNK, 1, b"\0" * 70_000),
        os.urandom(100_000),
        encode_request(Type.READ, 5, 1, 0, 10) + b"\x06\0\0\0\0\0",
    ],
)
def test_what_is_no_message_is_hung_up_on(tree: RecordedTree, sent: bytes) -> None:
    with connected(tree.directory) as (line, client):
        root = client.attach()
        client.open(root)
        try:
            line.socket.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert line.is_hung_up_on()


def test_a_tag_that_is_in_flight_is_hung_up_on(tree: RecordedTree) -> None:
    with connected(tree.directory) as (line, client):
        root = client.attach()
        tree.host.may_change.clear()
        line.send(Type.MKDIR, 10, root, b"n", 0o755, os.getegid())
        assert tree.host.asked.acquire(timeout=LIMIT)
        line.send(Type.GETATTR, 10, root, 0)
        assert line.is_hung_up_on()
    tree.host.may_change.set()


# -- hostile clients ----------------------------------------------------------------------------------------------


def test_requests_that_make_no_sense_are_refused(tree: RecordedTree) -> None:
    outside = os.listdir(tree.path.parent)
    with connected(tree.directory) as (line, client):
        root = client.attach()
        file = client.walk(root, b"a")
        client.open(file, 2)
        path = client.walk(root, b"a")
        largest = (1 << 32) - 1
        for number, (kind, fields, expected) in enumerate(
            (
                (Type.READ, (file, 0, largest), errno.EINVAL),
                (Type.READ, (file, (1 << 64) - 1, 10), errno.EINVAL),
                (Type.READ, (path, 0, 10), errno.EBADF),
                (Type.READDIR, (file, 0, largest), errno.EINVAL),
                (Type.READDIR, (path, 0, 1000), errno.EBADF),
                (Type.WRITE, (file, (1 << 63) - 1, b"x"), errno.EINVAL),
                (Type.WRITE, (path, 0, b"x"), errno.EBADF),
                (Type.WALK, (root, 700, (b"d/f",)), errno.EINVAL),
                (Type.WALK, (root, 700, (b"",)), errno.EINVAL),
                (Type.WALK, (root, 700, (b"..", b"../..")), errno.EINVAL),
                (Type.WALK, (root, 700, (b"d\0",)), errno.EINVAL),
                (Type.WALK, (root, 700, (b"d",) * 17), errno.EINVAL),
                (Type.WALK, (root, NO_FID, ()), errno.EBADF),
                (Type.WALK, (root, file, ()), errno.EBADF),
                (Type.WALK, (999, 700, ()), errno.EBADF),
                (Type.WALK, (file, file, (b"x",)), errno.EBADF),
                (Type.MKDIR, (root, b"../out", 0o755, 0), errno.EINVAL),
                (Type.MKDIR, (root, b"..", 0o755, 0), errno.EINVAL),
                (Type.MKDIR, (root, b"x" * 256, 0o755, 0), errno.ENAMETOOLONG),
                (Type.SYMLINK, (root, b"a/b", b"x", 0), errno.EINVAL),
                (Type.RENAMEAT, (root, b"a", root, b".."), errno.EINVAL),
                (Type.RENAMEAT, (root, b"../a", root, b"b"), errno.EINVAL),
                (Type.UNLINKAT, (root, b"../log", c.AT_REMOVEDIR), errno.EINVAL),
                (Type.LINK, (root, 999, b"x"), errno.EBADF),
                (Type.XATTRCREATE, (path, b"user.x", largest, 0), errno.EINVAL),
                (Type.LOPEN, (file, 0), errno.EBADF),
                (Type.LOPEN, (path, 3), errno.EINVAL),
                (Type.LCREATE, (root, b"../x", 2, 0o644, 0), errno.EINVAL),
                (Type.FSYNC, (path, 0), errno.EBADF),
                (Type.MKNOD, (root, b"x", 0o170000, 0, 0, 0), errno.EINVAL),
                (Type.ATTACH, (root, NO_FID, b"", b"", 0), errno.EBADF),
                (Type.ATTACH, (800, file, b"", b"", 0), errno.EBADF),
            )
        ):
            line.send(kind, number, *fields)
            reply = line.receive()
            assert (reply.type, reply.tag) == (RLERROR, number), (kind, fields)
            assert errno.errorcode[reply.fields[0]] == errno.errorcode[expected], (kind, fields)
        assert client.read(file, 0, 10) == b"0123456789"
    assert os.listdir(tree.path.parent) == outside


def test_a_client_that_takes_all_fids_and_attributes_that_there_are(tree: RecordedTree) -> None:
    os.setxattr(tree.path / "a", "user.x", b"x" * 1000)
    tree.note_state()
    with connected(tree.directory, msize=1 << 16) as (line, client):
        root = client.attach()
        file = client.walk(root, b"a")
        taken = 0
        while True:
            line.send(Type.XATTRCREATE, 5, client.walk(file), b"user.y", c.XATTR_SIZE_MAX, 0)
            reply = line.receive()
            if reply.type == RLERROR:
                break
            taken += c.XATTR_SIZE_MAX
        assert (reply.fields, taken) == ((errno.ENFILE,), 1 << 22)
        with pytest.raises(OSError, match="XATTRWALK") as caught:
            client.get_xattr(file, b"user.x")
        assert caught.value.errno == errno.ENFILE


def test_any_bytes_in_messages(tree: RecordedTree) -> None:
    """Whatever is asked, each request is answered once, or the client is hung up on; and undo leads back."""
    chosen = random.Random(1)
    kinds = [int(kind) for kind in Type if kind not in (Type.VERSION, Type.FLUSH)]
    for _ in range(20):
        with connected(tree.directory) as (line, client):
            root = client.attach()
            fids = [root, 77]
            for way in ((b"a",), (b"d",), (b"d", b"f")):
                with contextlib.suppress(OSError):  # (It is gone, or another thing, by what was asked before.)
                    fids.append(client.walk(root, *way))
            names = [b"a", b"d", b"..", b"x", b"y", b"", b"f", b"user.z"]

            def value(letter: str, fids: list[int] = fids, names: list[bytes] = names) -> object:
                match letter:
                    case "s":
                        return chosen.choice(names)
                    case "n":
                        return tuple(chosen.choice(names) for _ in range(chosen.randrange(4)))
                    case "d":
                        return chosen.randbytes(chosen.randrange(20))
                    case "B":
                        return chosen.randrange(4)
                    case _:
                        return chosen.choice([*fids, 0, 1, 2, 300, chosen.randrange(1 << 31)])

            for tag in range(100):
                kind = chosen.choice(kinds)
                layout = REQUESTS[kind]
                body = encode_fields(layout, tuple(value(letter) for letter in layout))
                line.socket.sendall(frame(kind, tag, body))
                assert line.receive().tag == tag


# -- another client -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("diodls", path="/usr/sbin:/usr/bin") is None, reason="needs diod's clients")
def test_the_clients_of_diod(tree: RecordedTree, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(bytes(tmp_path / "s"))
        listener.listen()

        def run(*command: str) -> bytes:
            process = subprocess.Popen(
                [command[0], "-s", str(tmp_path / "s"), "-a", "/", *command[1:]],
                stdout=subprocess.PIPE,
                env={"PATH": "/usr/sbin:/usr/bin"},
            )
            server = P9Server(listener.accept()[0], tree.directory)
            server.start()
            output, _ = process.communicate(timeout=LIMIT)
            assert process.returncode == 0
            assert server.wait(LIMIT)
            return output

        assert sorted(run("diodls").split()) == [b"a", b"d", b"l"]
        assert b" 10 " in run("diodls", "-l", "a")
        assert run("diodcat", "d/f") == b"content"

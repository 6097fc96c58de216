"""A keeper serves the files of a virtual machine, and says which step a change of its guest belongs to."""

from __future__ import annotations

import binascii
import json
import os
import select
import socket
import struct
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.bridge.fuse.live_caches import BRIEFLY
from holdfast.engine.running import mount_service
from holdfast.engine.running.read_only_share import shared_read_only
from holdfast.model.errors import RefusedError
from holdfast.supervisor.control.keeper_port import JoinRequest
from holdfast.supervisor.keeper.keeper import Keeper
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.supervisor.launch.keeper_connection import join
from holdfast.testing.p9_client import P9Client
from holdfast.testing.vhost_user_frontend import Frontend, vring_event
from holdfast.undo.service import OFF, Thresholds
from holdfast.vfs.recorded.files import RecordedFile
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.vhost_user.protocol_constants import Request

from ....protocol.fuse import structures as c
from ....protocol.fuse.structures import request
from ....waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from holdfast.supervisor.control.remote_service import RemoteUndoService

LIMIT = 20.0


class Guest:
    """A guest, with its monitor, of which the keeper knows a process."""

    def __init__(self, settings: KeeperSettings, thresholds: Thresholds, run: str = "r") -> None:
        self.monitor = subprocess.Popen(["sleep", "600"])
        ours, theirs = socket.socketpair()
        port, self.port = socket.socketpair()
        self.port.settimeout(LIMIT)
        self.answers: list[bytes] = []
        """To what the keeper asks about processes, in their order; then each is the command's own."""
        self.reads = True
        self.listener = threading.Thread(target=self.answer_keeper)
        self.listener.start()
        asked = JoinRequest(run, self.monitor.pid, False, (b"machine",), settings.root, 0, thresholds, "virtiofs")
        with ours, port:
            self.keeper: RemoteUndoService = join(settings, asked, ours.fileno(), port=port.fileno())[0]
        self.frontend = Frontend(theirs, seconds=LIMIT)
        self.frontend.negotiate()
        self.frontend.start(0)
        self.queue = self.frontend.start(1)
        self.unique = 0
        assert self.ask(Opcode.INIT, bytes(c.InitIn(major=7, minor=38, max_readahead=1 << 17))) == 0

    def answer_keeper(self) -> None:
        with suppress(OSError):
            while (asked := self.port.recv(100)) and self.reads:
                answer = self.answers.pop(0) if self.answers else b'{"pid": %d, "top": 0}'
                if answer:
                    self.port.sendall(answer.replace(b"%d", asked.strip()) + b"\n")

    def send(self, opcode: int, body: bytes, thread: int, node: int = 1) -> None:
        self.unique += 1
        frame = bytearray(request(opcode, body, unique=self.unique, node=node))
        frame[32:36] = thread.to_bytes(4, "little")
        self.queue.add([bytes(frame)], [4096], indirect=True)
        self.frontend.kick(1)

    def answer(self) -> int:
        """The number of the error; 0: none."""
        return -int.from_bytes(self.reply()[4:8], "little", signed=True)

    def reply(self) -> bytes:
        while not (used := self.queue.take_used()):
            self.frontend.wait_for_call(1)
        return used[0].data

    def ask(self, opcode: int, body: bytes, thread: int = 4242) -> int:
        self.send(opcode, body, thread)
        return self.answer()

    def mkdir(self, name: bytes, thread: int = 4242) -> int:
        return self.ask(Opcode.MKDIR, bytes(c.MkDirIn(0o755, 0o22)) + name + b"\0", thread)

    def rmdir(self, name: bytes) -> int:
        return self.ask(Opcode.RMDIR, name + b"\0")

    def changed(self, step: int) -> list[bytes]:
        return [change.path for change in self.keeper.changes(step)]

    def close(self) -> None:
        self.frontend.close()
        self.port.shutdown(socket.SHUT_RDWR)
        self.listener.join()
        self.port.close()
        self.keeper.close()
        self.monitor.kill()
        self.monitor.wait()


@pytest.fixture(name="settings")
def _settings(tmp_path: Path) -> KeeperSettings:
    for name in ("tree", "log", "home"):
        (tmp_path / name).mkdir()
    return KeeperSettings(
        root=os.fsencode(tmp_path / "tree"),
        log=os.fsencode(tmp_path / "log"),
        forbidden=(os.fsencode(tmp_path / "home"),),
        server="holdfast.engine.running.mount_service",
    )


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Generator[None]:
    """Threads that answer the keeper end when that has; other tests count threads and descriptors."""
    before = threading.active_count()
    yield
    wait_until(lambda: threading.active_count() == before, "the end of all threads")


@contextmanager
def served(settings: KeeperSettings, thresholds: Thresholds = OFF) -> Generator[Guest]:
    keeper = Keeper(settings)
    thread = threading.Thread(target=keeper.serve, daemon=True)
    thread.start()
    guest = Guest(settings, thresholds)
    try:
        yield guest
    finally:
        guest.close()
        thread.join(LIMIT)
        assert not thread.is_alive(), "it ends with its last run"


def test_what_a_command_changes_is_its_step_and_what_comes_between_is_another(
    settings: KeeperSettings, tmp_path: Path
) -> None:
    with served(settings) as guest:
        step = guest.keeper.expect("r", [b"make", b"dirs"])
        assert guest.mkdir(b"made") == 0
        assert guest.mkdir(b"also") == 0
        done = guest.keeper.settle(step, 3)
        assert done.info is not None
        assert (done.info.id, done.info.paths, done.info.exit_code) == (step, 2, 3)
        assert guest.mkdir(b"between") == 0
        second = guest.keeper.expect("r", [b"rmdir", b"made"])
        assert guest.rmdir(b"made") == 0
        guest.keeper.settle(second, 0)
        assert guest.changed(step) == [b"also", b"made"]
        assert guest.changed(second) == [b"made"]
        (between,) = (one.id for one in guest.keeper.steps() if one.id not in (step, second))
        guest.keeper.undo([second])
        assert (tmp_path / "tree" / "made").is_dir()
        assert guest.changed(between) == [b"between"]
        guest.frontend.close()
        assert guest.keeper.leave().forgotten == 0


def test_a_command_begins_when_the_guest_has_forgotten_what_was_changed_from_here(settings: KeeperSettings) -> None:
    with served(settings) as guest:
        step = guest.keeper.expect("r", [b"mkdir", b"made"])
        assert guest.mkdir(b"made") == 0
        guest.keeper.settle(step, 0)
        before = time.monotonic()
        guest.keeper.undo([step])
        second = guest.keeper.expect("r", [b"ls"])
        assert time.monotonic() - before > BRIEFLY.seconds
        with pytest.raises(RefusedError, match="has not ended yet") as busy:
            guest.keeper.expect("r", [b"ls"])
        assert busy.value.code == "busy"
        # What a command finds in its way is said after the wait, too.
        guest.keeper.redo([step])
        with pytest.raises(RefusedError, match="has not ended yet"):
            guest.keeper.expect("r", [b"ls"])
        guest.keeper.settle(second, 0)


def test_a_machine_that_ends_within_a_request_keeps_no_other_waiting(
    settings: KeeperSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still being written is known as written to: its step is looked at once more."""
    monkeypatch.setattr(mount_service, "_END_SECONDS", 0.01)
    begun, go_on = threading.Event(), threading.Event()
    write = RecordedFile.write

    def late(*words: Any, **options: Any) -> int:
        begun.set()
        assert go_on.wait(LIMIT)
        return write(*words, **options)

    monkeypatch.setattr(RecordedFile, "write", late)
    keeper = Keeper(settings)
    thread = threading.Thread(target=keeper.serve, daemon=True)
    thread.start()
    ends, other = Guest(settings, OFF, "ends"), Guest(settings, OFF, "other")
    try:
        ends.send(Opcode.CREATE, struct.pack("=IIII", os.O_WRONLY, 0o644, 0, 0) + b"file\0", 1)
        made = ends.reply()
        (node,), (handle,) = struct.unpack_from("=Q", made, 16), struct.unpack_from("=Q", made, 16 + 128)
        ends.send(Opcode.WRITE, struct.pack("=QQIIQII", handle, 0, 4, 0, 0, 1, 0) + b"late", 1, node)
        assert begun.wait(LIMIT)
        written = (tmp_path / "tree" / "file").stat().st_ino
        ends.keeper.close()
        assert ends.monitor.wait(LIMIT) is not None
        assert other.mkdir(b"meanwhile") == 0
        assert written in (keeper._runs.held_for_writing(True) or ())
        go_on.set()
        wait_until(lambda: written not in (keeper._runs.held_for_writing(True) or ()), "the end of the request")
        assert (tmp_path / "tree" / "file").read_bytes() == b"late"
    finally:
        go_on.set()
        for guest in (ends, other):
            guest.close()
        thread.join(LIMIT)
        assert not thread.is_alive(), "it ends with its last run"


def made_by(top: int, *words: bytes) -> bytes:
    said = [binascii.b2a_base64(word, newline=False).decode() for word in words]
    return b'{"pid": %%d, "top": %d, "words": %s}' % (top, json.dumps(said).encode())


def test_each_child_of_the_command_makes_a_step_which_ends_with_it(settings: KeeperSettings, tmp_path: Path) -> None:
    with served(settings) as guest:
        guest.answers += [made_by(70, b"mkdir", b"a"), made_by(71, b"make"), made_by(71, b"make"), b'{"pid": %d}']
        assert guest.mkdir(b"a") == 0
        guest.port.sendall(b'{"ended": 70}\n')
        wait_until(lambda: guest.keeper.steps()[-1].state == "done", "the end of the first step")
        for thread, name in enumerate((b"b", b"c", b"d"), 1):
            assert guest.mkdir(name, thread) == 0
        found = {one.command: (one.state, guest.changed(one.id)) for one in guest.keeper.steps()}
        assert found == {
            (b"mkdir", b"a"): ("done", [b"a"]),
            (b"make",): ("open", [b"b", b"c"]),
            (): ("open", [b"d"]),
        }


@pytest.mark.parametrize(
    "said",
    [
        b"no JSON",
        b'{"pid": -1}',
        b'{"pid": %d, "words": [1]}',
        b"x" * (1 << 17),
        b'{"pid": %d, "top": 7, "words": ["\xc3\xa4"]}',
        b'{"pid": %d, "top": 7, "words": ["a"]}',
    ],
)
def test_a_guest_that_says_what_it_may_not_is_asked_no_more(settings: KeeperSettings, said: bytes) -> None:
    with served(settings) as guest:
        guest.answers += [said, made_by(70, b"late")]
        for thread, name in enumerate((b"a", b"b"), 1):
            assert guest.mkdir(name, thread) == 0
        (step,) = guest.keeper.steps()
        assert step.command == (b"machine",), "what cannot be told apart is the machine's"
        assert len(guest.answers) == 1


def test_a_guest_that_floods_is_asked_no_more(settings: KeeperSettings) -> None:
    with served(settings) as guest:
        with suppress(OSError):  # it is hung up on
            for _ in range(2000):
                guest.port.sendall(b'{"ended": 70}\n')
        assert guest.mkdir(b"made") == 0
        (step,) = guest.keeper.steps()
        assert step.command == (b"machine",)
        wait_until(lambda: guest.port.recv(1) == b"", "that it is hung up on")


def test_a_guest_that_reads_nothing_is_asked_no_more(settings: KeeperSettings) -> None:
    """What it answers all the same would be enough for the keeper to go on asking, until there is no room for more."""
    with served(settings) as guest:
        guest.reads = False
        with suppress(OSError):  # it is hung up on
            for thread in range(1, 100_000):
                guest.send(Opcode.MKDIR, bytes(c.MkDirIn(0o755, 0o22)) + b"%d\0" % thread, thread)
                while not guest.queue.take_used():
                    guest.port.sendall(b'{"pid": %d, "top": 0}\n' % thread)
                    select.select([], [], [], 0.002)
        guest.keeper.steps()  # it answers others
        assert guest.answer() == 0
        assert guest.mkdir(b"last") == 0


def test_a_monitor_that_hears_of_no_answer_keeps_no_other_waiting(settings: KeeperSettings) -> None:
    with served(settings) as guest:
        step = guest.keeper.expect("r", [b"mkdir"])
        full = os.eventfd(0, os.EFD_CLOEXEC)
        guest.frontend.command(vring_event(Request.SET_VRING_CALL, 1, full))
        os.eventfd_read(full)  # (signalled when it was set)
        os.eventfd_write(full, (1 << 64) - 2)
        guest.send(Opcode.MKDIR, bytes(c.MkDirIn(0o755, 0o22)) + b"made\0", 1)
        wait_until(lambda: bool(guest.queue.take_used()), "the answer")
        done = guest.keeper.settle(step, 0)
        os.close(full)
        assert done.info is not None
        assert done.info.paths == 1


def test_nothing_of_a_guest_makes_a_device(settings: KeeperSettings, tmp_path: Path) -> None:
    with served(settings) as guest:
        assert guest.ask(Opcode.MKNOD, bytes(c.MkNodIn(mode=0o60666, rdev=0x800)) + b"sda\0") == 1
        assert not os.listdir(tmp_path / "tree")
        assert guest.ask(Opcode.MKNOD, bytes(c.MkNodIn(mode=0o10644)) + b"fifo\0") == 0


def test_what_a_safeguard_holds_is_answered_when_a_person_has_said_so(settings: KeeperSettings, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "tree" / f"f{number}").write_text("kept")
    with served(settings, Thresholds(deletes=2)) as guest:
        step = guest.keeper.expect("r", [b"x"])
        assert guest.ask(Opcode.UNLINK, b"f0\0") == 0
        guest.send(Opcode.UNLINK, b"f1\0", 4242)
        wait_until(lambda: bool(guest.keeper.held()), "that it is held")
        (ticket,) = guest.keeper.held()
        assert ticket.step == step
        guest.keeper.answer(ticket.id, allow=False)
        assert guest.answer() == 1
        assert sorted(os.listdir(tmp_path / "tree")) == ["f0", "f1", "f2"]
        assert guest.keeper.settle(step, 1).denied


def exchange(connection: socket.socket, asked: bytes) -> bytes:
    connection.sendall(asked)
    length = connection.recv(4, socket.MSG_WAITALL)
    return length + connection.recv(int.from_bytes(length, "little") - 4, socket.MSG_WAITALL)


def test_a_guest_that_speaks_9p_is_served_likewise(settings: KeeperSettings, tmp_path: Path) -> None:
    keeper = Keeper(settings)
    thread = threading.Thread(target=keeper.serve, daemon=True)
    thread.start()
    monitor = subprocess.Popen(["sleep", "600"])
    ours, theirs = socket.socketpair()
    port, guest = socket.socketpair()
    asked = JoinRequest("r", monitor.pid, False, (b"machine",), settings.root, 0, OFF, "9p")
    with ours, port:
        remote = join(settings, asked, ours.fileno(), port=port.fileno())[0]
    try:
        with remote, theirs, guest:
            client = P9Client(lambda asked: exchange(theirs, asked))
            root = client.attach()
            step = remote.expect("r", [b"mkdir"])
            client.mkdir(root, b"made")
            done = remote.settle(step, 0)
            assert done.info is not None
            assert done.info.paths == 1
            remote.undo([step])
            assert not os.listdir(tmp_path / "tree")
    finally:
        monitor.kill()
        monitor.wait()
        thread.join(LIMIT)
    assert not thread.is_alive()


def test_what_a_machine_sees_read_only_is_refused_by_the_server(tmp_path: Path) -> None:
    (tmp_path / "shown" / "own").mkdir(parents=True)
    (tmp_path / "shown" / "f").write_text("content")
    root = os.open(tmp_path / "shown", os.O_PATH | os.O_DIRECTORY)
    ours, theirs = socket.socketpair()
    hidden = [os.fsencode(tmp_path / "shown" / "own")]
    with theirs, shared_read_only(root, ours, "9p", hidden):
        client = P9Client(lambda asked: exchange(theirs, asked))
        top = client.attach()
        listed = client.walk(top)
        client.open(listed)
        assert {entry.name for entry in client.list(listed)} - {b".", b".."} == {b"f"}
        file = client.walk(top, b"f")
        client.open(file)
        assert client.read(file, 0, 100) == b"content"
        for change in (
            lambda: client.mkdir(top, b"made"),
            lambda: client.unlinkat(top, b"f"),
            lambda: client.open(client.walk(top, b"f"), os.O_WRONLY),
            lambda: client.set_attributes(file, 1 << 3, size=0),
        ):
            with pytest.raises(OSError, match=r"\[Errno 30\]"):
                change()
    os.close(root)
    assert (tmp_path / "shown" / "f").read_text() == "content"

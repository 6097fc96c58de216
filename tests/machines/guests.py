"""Machines with a guest that answers, for tests."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from holdfast.bridge.fuse.live_caches import LiveCaches
from holdfast.bridge.fuse.served_file_system import ServedFileSystem
from holdfast.bridge.p9.p9_server import P9Server
from holdfast.bridge.server.loop import FuseServer
from holdfast.bridge.virtio.vhost_user_backend import VhostUserBackend
from holdfast.model.clock import SystemClock
from holdfast.processes.process_tree import hindered_seconds
from holdfast.sandbox.channel import Channel
from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.policy import OpenNetwork
from holdfast.sandbox.vm.machine import Machine
from holdfast.sandbox.vm.plan import Accelerator, BootPlan, GuestFile, GuestUser, MachinePlan, Share
from holdfast.testing.bridged import SingleStep
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.vfs.recorded.recorded_directory import RecordedDirectory

EMULATION = Accelerator("tcg")
MEMORY = 256 << 20
ANSWER_SECONDS = 400.0
USER = GuestUser("agent", os.getuid() or 1000, os.getgid() or 1000, b"/home/agent")
"""(The guest's root is another user than the host's: files that the one makes in a share are the other's.)"""


def plan(image: Image, folder: Path, **changes: object) -> MachinePlan:
    """A small machine, without anything of the host's."""
    log = folder / "log"
    log.mkdir(exist_ok=True)
    boot = BootPlan(USER, "guest-host", {"GREETING": "hello"}, (GuestFile(b"/home/agent/.given", b"given", 0o640),))
    made = MachinePlan(image, MEMORY, 1, boot, OpenNetwork(), bytes(log))
    return made._replace(**changes)


class Guest:
    """What runs commands in a machine."""

    def __init__(self, machine: Machine, *, first: int = 1) -> None:
        """``first`` is the number of its first command: a shim that was restored has heard of others."""
        self.machine = machine
        control = machine.control.dup()
        self._channel = Channel(control, control, start_seconds=ANSWER_SECONDS, greeted=first > 1)
        self._hindered = lambda: hindered_seconds(machine.pid)
        self._last = first - 1

    def run(self, command: str, *, cwd: bytes = b"/") -> tuple[int, str]:
        """Its exit code and all its output."""
        self._channel.await_shim(ANSWER_SECONDS, self._hindered)
        out: list[bytes] = []
        self._last += 1
        ended = self._channel.execute(self._last, command, cwd=cwd, on_output=lambda _, data: out.append(data))
        return ended.exit_code, b"".join(out).decode()

    def out(self, command: str) -> str:
        """The output of a command that succeeds."""
        code, text = self.run(command)
        assert code == 0, text
        return text

    def close(self) -> None:
        self._channel.close()


def compare_at_random(guest: Guest, tree: Path, *more: str, operations: int = 10_000, seed: int = 1) -> None:
    """Have the guest do operations at random on a file of a served directory, and compare what is read with what was
    written, there and here (`random_operations`).
    """
    program = Path(__file__).with_name("random_operations.py").read_text()
    guest.out(f"cat >/tmp/operations.py <<'END'\n{program}\nEND")
    words = f"python3 /tmp/operations.py at-random-{seed} {operations} {seed} {' '.join(more)}"
    code, said = guest.run(words, cwd=bytes(tree))
    assert code == 0, said
    assert said.split() == [hashlib.sha256((tree / f"at-random-{seed}").read_bytes()).hexdigest()]


@contextmanager
def running(made: MachinePlan) -> Generator[Guest]:
    """A machine whose guest has answered."""
    with Machine.start(made, EMULATION) as machine:
        guest = Guest(machine)
        try:
            assert guest.out("echo up") == "up\n"
        except BaseException as error:
            raise AssertionError(str(machine.failure())) from error
        try:
            yield guest
        finally:
            guest.close()


class Served:
    """A directory that is served to a machine; all that the guest does is one step."""

    def __init__(self, folder: Path, kind: Literal["virtiofs", "9p"] = "virtiofs") -> None:
        self.tree = folder / "tree"
        self.tree.mkdir()
        self.share = Share("work", bytes(self.tree), kind=kind)
        self._root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        self._log = UndoLog(bytes(folder / "undo"), self._root, SystemClock())
        self._service = LocalUndoService(self._log, intercepts=True)
        self._step = self._service.open("command", command=(b"guest",))
        self._threads: list[threading.Thread] = []

    def serve(self, connection: socket.socket) -> None:
        """Until the machine hangs up."""
        world = SingleStep(self._log, self._root, self._step)
        if self.share.kind == "9p":
            directory = RecordedDirectory(world, self._log.preimages, makes_devices=False)
            client = P9Server(connection, directory)
            client.start()

            def serve_9p() -> None:
                client.wait()
                directory.close()

            self._threads.append(threading.Thread(target=serve_9p))
            self._threads[-1].start()
            return
        device = VhostUserBackend(connection)

        def serve() -> None:
            while (transport := device.accept(ANSWER_SECONDS)) is not None:
                caches = LiveCaches(world, self._log.preimages, transport)
                served = ServedFileSystem(caches.directory, caches)
                server = FuseServer(transport, served)
                server.start()
                server.wait()
                server.stop()
                served.close()
                caches.close()
            device.close()

        self._threads.append(threading.Thread(target=serve))
        self._threads[-1].start()

    def undo(self) -> None:
        """Take back all that the guest has done, when its machine has ended."""
        for thread in self._threads:
            thread.join()
        if self._service.close(self._step, 0) is not None:  # (else it has changed nothing)
            self._service.undo([self._step])

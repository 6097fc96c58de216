"""What serves a machine's directory, whatever its guest does."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.engine.running import mount_service
from holdfast.engine.running.mount_service import ServedVirtiofs
from holdfast.testing.vhost_user_frontend import Frontend
from holdfast.wire.fuse.protocol_constants import Opcode

from ....protocol.fuse import structures as c
from ....protocol.fuse.structures import request
from ....waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 20.0


class SlowHost:
    """Of a directory that is read-only. Its log takes its time; and it counts how often it is asked who waits."""

    is_read_only = True
    hidden = ()

    def __init__(self, root_fd: int) -> None:
        self.root_fd = root_fd
        self.preimages = self
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.asked = 0

    def names_of(self, _found: os.stat_result) -> int:
        self.begun.set()
        assert self.go_on.wait(LIMIT)
        return 0

    @property
    def waiting(self) -> int:
        self.asked += 1
        return 0

    @property
    def interceptor(self) -> Any:
        raise NotImplementedError

    def step(self, _thread: int, /) -> int:
        raise NotImplementedError


def test_a_guest_that_does_not_come_to_rest_is_not_waited_for_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each child of a command that ends would keep the keeper from serving others, as often as the guest likes."""
    monkeypatch.setattr(mount_service, "_UNSETTLED_SECONDS", 1000.0)
    root = os.open(tmp_path, os.O_RDONLY)
    host = SlowHost(root)
    ours, theirs = socket.socketpair()
    served = ServedVirtiofs(ours.detach(), host)
    frontend = Frontend(theirs, seconds=LIMIT)
    frontend.negotiate()
    frontend.start(0)
    queue = frontend.start(1)
    frontend.transact(1, [bytes(request(Opcode.INIT, bytes(c.InitIn(major=7, minor=38)), unique=1))], [4096])
    host.begun.clear()
    host.go_on.clear()
    queue.add([bytes(request(Opcode.GETATTR, bytes(16), unique=2))], [4096])
    frontend.kick(1)
    assert host.begun.wait(LIMIT)

    def is_waited_for() -> bool:
        served.settle()
        return bool(host.asked)

    wait_until(is_waited_for, "that it is waited for, once")
    asked = host.asked
    served.settle()
    assert host.asked == asked
    host.go_on.set()
    frontend.close()
    assert served.close()
    os.close(root)

"""QEMU's monitor, as far as it needs no QEMU."""

from __future__ import annotations

import socket
import sys

import pytest

from holdfast.model.errors import ChannelError, UnsupportedError
from holdfast.model.extras import install_command
from holdfast.sandbox.vm.monitor import EventLoopThread, Monitor, require_library


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_library()
    monkeypatch.setitem(sys.modules, "qemu.qmp", None)
    with pytest.raises(UnsupportedError, match=r"qemu\.qmp") as error:
        require_library()
    assert error.value.hint == install_command("vm")


def test_a_qemu_that_is_gone_carries_nothing_out() -> None:
    thread = EventLoopThread("test")
    ours, its = socket.socketpair()
    monitor = Monitor(thread, ours)
    its.close()
    with pytest.raises(ChannelError, match="query-status"):
        monitor.execute("query-status")
    assert not monitor.is_connected()
    monitor.close()
    thread.stop()


def test_hanging_up_on_a_qemu_that_has_not_answered() -> None:
    thread = EventLoopThread("test")
    ours, its = socket.socketpair()
    with its:
        monitor = Monitor(thread, ours)
        assert not monitor.is_connected()
        monitor.close()
        assert its.recv(1) == b""
    thread.stop()

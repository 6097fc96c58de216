"""Where the kernel has no Landlock, no call that names a path is left to it that could change anything."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Generator
from pathlib import Path
from platform import machine
from typing import Any

import pytest

from holdfast.supervisor.confinement import landlock
from holdfast.supervisor.resolution import procfs
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.scripted_process import ScriptedProcess, StepSupervision

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or machine() not in ARCHITECTURES, reason="the supervisor does not support this machine"
)

CWD = (1 << 64) - 100
READING = struct.pack("QQQ", os.O_RDONLY, 0, 0)


@pytest.fixture(name="puppet")
def _puppet(tmp_path: Path) -> Generator[tuple[ScriptedProcess, StepSupervision]]:
    (tmp_path / "file").write_text("content")
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    nobody: Any = None  # nothing in the workspace is touched
    with ScriptedProcess(os.fsencode(tmp_path)) as puppet:
        yield puppet, StepSupervision(nobody, root, 1)
    os.close(root)


@pytest.fixture(name="without")
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)


@pytest.mark.usefixtures("without")
def test_devices_are_opened_by_the_keeper_and_the_rest_is_refused(
    puppet: tuple[ScriptedProcess, StepSupervision],
) -> None:
    process, world = puppet
    opened = process.supervised(world, "openat", CWD, b"/dev/null", os.O_RDWR, 0)
    assert (opened.error, opened.native) == (0, False)
    assert process.run("write", opened.value, b"gone") == 4
    refused = process.supervised(world, "openat", CWD, b"/proc/self/comm", os.O_WRONLY, 0)
    assert (refused.error, refused.native) == (errno.EACCES, False)
    assert not process.supervised(world, "openat2", CWD, b"file", READING, len(READING)).native


@pytest.mark.usefixtures("without")
def test_sockets_are_bound_by_the_keeper(puppet: tuple[ScriptedProcess, StepSupervision]) -> None:
    process, world = puppet
    with socket.socket(socket.AF_INET) as own:
        address = struct.pack("=H14x", socket.AF_INET)
        fd = process.supervised(world, "openat", CWD, b"/dev/null", os.O_RDWR, 0).value
        assert process.supervised(world, "bind", fd, address, len(address)).error == errno.ENOTSOCK
        theirs = process.take(own.fileno())
        bound = process.supervised(world, "bind", theirs, address, len(address))
        assert (bound.error, bound.native) == (0, False)
        assert own.getsockname()[1] != 0


@pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")
def test_with_it_they_are_left_to_the_kernel(puppet: tuple[ScriptedProcess, StepSupervision]) -> None:
    process, world = puppet
    assert process.supervised(world, "openat", CWD, b"/dev/null", os.O_RDWR, 0).native


def test_what_the_domain_does_not_forbid_is_not_left_to_the_kernel(
    puppet: tuple[ScriptedProcess, StepSupervision],
) -> None:
    """I7: a thread that races its own arguments would cut short what nobody has recorded."""
    process, world = puppet
    for access in (os.O_RDONLY, os.O_ACCMODE):
        cut = process.supervised(world, "openat", CWD, b"/proc/self/comm", access | os.O_TRUNC, 0)
        assert (cut.error, cut.native) == (errno.EACCES, False)
        assert not process.supervised(world, "openat", CWD, b"/dev/null", access | os.O_TRUNC, 0).native
    for path, flags in ((b"file", os.O_PATH), (b"/proc/self/comm", os.O_RDONLY), (b"/proc/self/comm", os.O_WRONLY)):
        how = struct.pack("QQQ", flags, 0, 0)
        asked = process.supervised(world, "openat2", CWD, path, how, len(how))
        assert (asked.error, asked.native) == (errno.ENOSYS, False)


@pytest.fixture(name="cutting")
def _cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system is mounted that asks no domain: there is one of these everywhere, which is taken for such a one."""
    monkeypatch.setattr(procfs, "_CUTTING", frozenset({b"proc"}))


@pytest.mark.usefixtures("cutting")
def test_no_truncation_is_left_to_a_kernel_that_may_ask_the_domain_too_late(
    puppet: tuple[ScriptedProcess, StepSupervision],
) -> None:
    process, world = puppet
    cut = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    opened = process.supervised(world, "openat", CWD, b"/dev/null", cut, 0o666)
    assert (opened.error, opened.native) == (0, False)
    assert process.run("write", opened.value, b"gone") == 4
    assert process.run("get_blocking", opened.value)
    refused = process.supervised(world, "openat", CWD, b"/proc/self/comm", cut, 0)
    assert (refused.error, refused.native) == (errno.EACCES, False)


@pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")
def test_truncation_is_left_to_other_kernels(
    puppet: tuple[ScriptedProcess, StepSupervision], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, world = puppet
    for types, native in ((frozenset[bytes](), True), (frozenset({b"proc"}), False)):
        monkeypatch.setattr(procfs, "_CUTTING", types)
        assert process.supervised(world, "openat", CWD, b"/dev/null", os.O_WRONLY | os.O_TRUNC, 0).native is native
        assert not types or process.supervised(world, "openat", CWD, b"/dev/null", os.O_WRONLY, 0).native


@pytest.mark.parametrize("setting", ["cutting", "without"])
def test_the_callers_own_terminal_is_opened_by_the_keeper(
    puppet: tuple[ScriptedProcess, StepSupervision], setting: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(setting)
    process, world = puppet
    cut = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    process.run("setsid")
    assert process.supervised(world, "openat", CWD, b"/dev/tty", cut, 0o666).error == errno.ENXIO
    ours, theirs = os.openpty()
    process.run("open", os.ttyname(theirs), os.O_RDWR)  # which becomes the terminal of its session
    opened = process.supervised(world, "openat", CWD, b"/dev/tty", cut, 0o666)
    assert (opened.error, opened.native) == (0, False)
    assert process.run("ttyname", opened.value) == os.ttyname(theirs)
    process.run("write", opened.value, b"told")
    assert os.read(ours, 10) == b"told"
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(("version", "words"), [(0, ("no Landlock", "signals")), (3, ("signals",)), (6, ())])
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, version: int, words: tuple[str, ...]) -> None:
    monkeypatch.setattr(landlock, "version", lambda: version)
    found = landlock.limitations()
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))

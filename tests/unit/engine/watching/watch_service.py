"""A watch service that saves nothing, and its place."""

from __future__ import annotations

import os
import socket
import stat
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.engine.opening.home import WATCH_SOCKET
from holdfast.engine.opening.watch_client import WatchClient, connect
from holdfast.engine.watching.service import WatchService, WatchSetup
from holdfast.engine.watching.watch_lock import hold_watch_lock
from holdfast.files.watch import open_watcher
from holdfast.ipc import messages
from holdfast.model.checkpoint import Checkpoint, Provenance
from holdfast.model.clock import SystemClock
from holdfast.model.command_results import CheckpointRequest, CheckpointResult, Status
from holdfast.model.entries import Change, Counts, Entry, NotCaptured
from holdfast.model.ids import CheckpointId, Hash, WorkspaceId
from holdfast.wire.watch_messages import WatchCall, encode_call

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.engine.watching.service import PeriodicTask
    from holdfast.files.tree import DirtyPaths, DirtySource

LIMIT = 20.0

RECORD = Checkpoint(
    id=CheckpointId("ab" * 12),
    workspace=WorkspaceId("cd" * 8),
    parent=None,
    root=Hash(bytes(range(16))),
    kind="manual",
    labels=("läbel", "zwei"),
    created_at=1_700_000_000_123_456,
    changes=Counts(1, 2, 3),
    total_files=4,
    total_bytes=5,
    new_blobs=6,
    stored_bytes=7,
    not_captured=1,
    provenance=Provenance("me", "why", "make"),
)

ENTRY = Entry(Hash(bytes(16)), 3, stat.S_IFREG | 0o644)

STATUS = Status(
    workspace=b"/w\xff\\",
    last_checkpoint=RECORD,
    changes=[Change(b"a\xff\n", None, ENTRY), Change(b"b", ENTRY, None)],
    not_captured=[NotCaptured(b"s\\x", "socket")],
    watching=True,
    unfinished_restore=CheckpointId("ef" * 12),
)


class FakeSaver:
    """Notes what it is asked, and takes the changes as a scan does."""

    def __init__(self, source: DirtySource) -> None:
        self.source = source
        self.requests: list[CheckpointRequest] = []
        self.taken: list[DirtyPaths] = []
        self.retentions = 0
        self.closed = 0
        self.fail: list[Exception] = []
        self.created = True
        self.status_answer = STATUS
        self.gate: threading.Event | None = None
        self.prepared: list[bytes] = []
        self.last_prepared = False
        self.prepare_fails: Exception | None = None

    def checkpoint(self, request: CheckpointRequest) -> CheckpointResult:
        if self.gate is not None:
            assert self.gate.wait(LIMIT)
        self.taken.append(self.source.drain())
        self.requests.append(request)
        if self.fail:
            raise self.fail.pop(0)
        made = RECORD._replace(kind=request.kind, labels=(request.label,), provenance=request.provenance)
        return CheckpointResult(made, self.created, STATUS.not_captured, 1.5, labelled=bool(request.label))

    def status(self) -> Status:
        self.taken.append(self.source.drain())
        if self.fail:
            raise self.fail.pop(0)
        return self.status_answer

    def prepare(self, paths: Sequence[bytes], *, last: bool) -> None:
        self.prepared.extend(paths)
        self.last_prepared = last
        if self.prepare_fails is not None:
            raise self.prepare_fails

    def retention(self) -> None:
        self.retentions += 1
        if self.fail:
            raise self.fail.pop(0)

    def close(self) -> None:
        self.closed += 1


class Nothing:
    """An exclusion of nothing, whose rules change when a test says so."""

    def __init__(self) -> None:
        self.changed = False

    def __call__(self, path: bytes) -> bool:
        return False

    def outside_changed(self) -> bool:
        changed, self.changed = self.changed, False
        return changed


class Running:
    """A service in a thread of its own."""

    def __init__(self, setup: WatchSetup, beside: PeriodicTask | None = None) -> None:
        self.savers: list[FakeSaver] = []
        self.setup = setup
        self.exclusion = Nothing()

        def open_saver(source: DirtySource) -> FakeSaver:
            self.savers.append(FakeSaver(source))
            return self.savers[0]

        self._claim = ExitStack()
        self._claim.enter_context(hold_watch_lock(setup.folder))
        watcher = open_watcher(setup.root, setup.backend, poll_interval=setup.poll_interval)
        self.service = WatchService(setup, watcher, self.exclusion, open_saver, SystemClock(), beside)
        self.saver = self.savers[0]
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._claim:
            self.service.run()

    def finish(self) -> None:
        self.service.stop()
        self.thread.join(LIMIT)
        assert not self.thread.is_alive()


@contextmanager
def running(setup: WatchSetup, beside: PeriodicTask | None = None) -> Generator[Running]:
    run = Running(setup, beside)
    run.thread.start()
    try:
        yield run
    finally:
        run.finish()
        assert run.saver.closed == 1
        assert not (Path(os.fsdecode(setup.folder)) / "watch.sock").exists()


def reach(setup: WatchSetup) -> WatchClient:
    watcher = connect(setup.folder, wait=LIMIT)
    assert watcher is not None
    return watcher


def raw(setup: WatchSetup) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(LIMIT)
    connection.connect(setup.folder + b"/" + WATCH_SOCKET)
    return connection


def request(operation: str) -> bytes:
    return messages.frame(encode_call(WatchCall(operation)))


def everything_read(connection: socket.socket) -> bytes:
    out = b""
    try:
        while piece := connection.recv(1 << 16):
            out += piece
    except ConnectionError:
        pass
    return out

"""The watch service and its clients: real sockets, a real tree, a saver that only notes what it is asked."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine import messages
from holdfast.engine.checkpoint import CheckpointResult, Request
from holdfast.engine.detaching import LOG, start_detached
from holdfast.engine.folder import WATCH_LOCK, WATCH_SOCKET
from holdfast.engine.listening import Limits, claim
from holdfast.engine.results import Status
from holdfast.engine.schedule import Pace
from holdfast.engine.watch_client import WatchClient, connect
from holdfast.engine.watching import Service, Setup, watch
from holdfast.files.watch import open_watcher
from holdfast.model.checkpoint import Checkpoint, Provenance
from holdfast.model.clock import SystemClock
from holdfast.model.entries import Change, Counts, Entry, NotCaptured
from holdfast.model.errors import FormatError, HoldfastError, LockedError, NotFoundError
from holdfast.model.ids import CheckpointId, Hash, WorkspaceId

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.files.dirty import Dirty, DirtySource

LIMIT = 20.0
RECORD = Checkpoint(
    id=CheckpointId("ab" * 12),
    workspace=WorkspaceId("cd" * 8),
    parent=None,
    root=Hash(bytes(range(16))),
    kind="manual",
    label="läbel",
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


def wait_until(condition: Callable[[], object], what: str = "the condition") -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not come"
        os.sched_yield()  # to the service, which is a thread of this process


class FakeSaver:
    """Notes what it is asked, and takes the changes as a scan does."""

    def __init__(self, source: DirtySource) -> None:
        self.source = source
        self.requests: list[Request] = []
        self.taken: list[Dirty] = []
        self.retentions = 0
        self.closed = 0
        self.fail: list[Exception] = []
        self.created = True
        self.status_answer = STATUS
        self.gate: threading.Event | None = None

    def checkpoint(self, request: Request) -> CheckpointResult:
        if self.gate is not None:
            assert self.gate.wait(LIMIT)
        self.taken.append(self.source.drain())
        self.requests.append(request)
        if self.fail:
            raise self.fail.pop(0)
        made = RECORD._replace(kind=request.kind, label=request.label, provenance=request.provenance)
        return CheckpointResult(made, self.created, STATUS.not_captured, 1.5, labelled=bool(request.label))

    def status(self) -> Status:
        self.taken.append(self.source.drain())
        if self.fail:
            raise self.fail.pop(0)
        return self.status_answer

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

    def __init__(self, setup: Setup) -> None:
        self.savers: list[FakeSaver] = []
        self.setup = setup
        self.exclusion = Nothing()

        def open_saver(source: DirtySource) -> FakeSaver:
            self.savers.append(FakeSaver(source))
            return self.savers[0]

        self._claim = ExitStack()
        self._claim.enter_context(claim(setup.folder))
        watcher = open_watcher(setup.root, setup.backend)
        self.service = Service(setup, watcher, self.exclusion, open_saver, SystemClock())
        self.saver = self.savers[0]
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._claim:
            self.service.run()

    def finish(self) -> None:
        self.service.stop()
        self.thread.join(LIMIT)
        assert not self.thread.is_alive()


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    root, folder = tmp_path / "root", tmp_path / "folder"
    root.mkdir()
    (root / "sub").mkdir()
    folder.mkdir(mode=0o700)
    # Nothing is saved by itself unless a test wants it.
    slow = Pace(debounce=1000, latest=1000)
    return Setup(os.fsencode(root), os.fsencode(folder), "inotify", slow, rest=0.0)


@contextmanager
def running(setup: Setup) -> Generator[Running]:
    run = Running(setup)
    run.thread.start()
    try:
        yield run
    finally:
        run.finish()
        assert run.saver.closed == 1
        assert not (Path(os.fsdecode(setup.folder)) / "watch.sock").exists()


def reach(setup: Setup) -> WatchClient:
    watcher = connect(setup.folder, wait=LIMIT)
    assert watcher is not None
    return watcher


def raw(setup: Setup) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(LIMIT)
    connection.connect(setup.folder + b"/" + WATCH_SOCKET)
    return connection


def everything_read(connection: socket.socket) -> bytes:
    out = b""
    try:
        while piece := connection.recv(1 << 16):
            out += piece
    except ConnectionError:
        pass
    return out


# -- calls and answers --------------------------------------------------------------------------------------------


def test_results_travel_whole(setup: Setup) -> None:
    request = Request("run", "a label", Provenance("agent", "because\n", "make -j"), full_hash=True)
    with running(setup) as run, reach(setup) as watcher:
        result = watcher.checkpoint(request)
        assert run.saver.requests == [request]
        assert result == CheckpointResult(
            RECORD._replace(kind="run", label="a label", provenance=request.provenance),
            created=True,
            not_captured=STATUS.not_captured,
            elapsed_ms=1.5,
            labelled=True,
        )
        assert watcher.status() == STATUS
        run.saver.status_answer = STATUS._replace(last_checkpoint=None, changes=[], unfinished_restore=None)
        assert watcher.status() == run.saver.status_answer


def test_ping_says_how_the_watcher_does(setup: Setup) -> None:
    with running(setup), reach(setup) as watcher:
        found = watcher.ping()
        assert (found.pid, found.root, found.backend) == (os.getpid(), os.fsdecode(setup.root), "inotify")
        assert found.unsaved  # nobody has looked at the tree yet
        assert not found.paused
        watcher.checkpoint(Request())
        assert not watcher.ping().unsaved


def test_an_error_comes_out_as_it_went_in(setup: Setup) -> None:
    with running(setup) as run, reach(setup) as watcher:
        run.saver.fail = [
            NotFoundError("no such thing", hint="look elsewhere", code="no_such"),
            ValueError("a mistake"),
        ]
        with pytest.raises(NotFoundError, match="no such thing") as caught:
            watcher.checkpoint(Request())
        assert (caught.value.hint, caught.value.code, caught.value.exit_code) == ("look elsewhere", "no_such", 3)
        with pytest.raises(HoldfastError, match="a mistake") as other:
            watcher.status()
        assert other.value.code == "internal"
        assert watcher.ping().pid


def test_a_failed_call_lets_everything_count_as_changed(setup: Setup) -> None:
    """It has taken changes that it made no use of: none may be lost."""
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(Request())
        watcher.checkpoint(Request())
        assert [dirty.everything for dirty in run.saver.taken] == [True, False]
        for ask in (lambda: watcher.checkpoint(Request()), watcher.status):
            run.saver.fail = [LockedError("busy")]
            with pytest.raises(LockedError):
                ask()
            assert watcher.ping().unsaved
            watcher.checkpoint(Request())
            assert run.saver.taken[-1].everything


def test_changes_reach_the_scan_that_comes_next(setup: Setup) -> None:
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(Request())
        (root / "sub/file").write_text("1")
        watcher.checkpoint(Request())
        assert run.saver.taken[-1].paths == {b"sub/file"}
        (root / "two").write_text("2")
        wait_until(lambda: watcher.ping().unsaved)
        (root / "three").write_text("3")
        watcher.status()
        assert run.saver.taken[-1].paths == {b"two", b"three"}


# -- saving by itself ---------------------------------------------------------------------------------------------


def test_saves_by_itself_when_something_has_changed(setup: Setup) -> None:
    setup = setup._replace(pace=Pace(debounce=0.01, latest=1))
    with running(setup) as run:
        wait_until(lambda: run.saver.requests, "the first checkpoint")
        assert run.saver.taken[0].everything
        (Path(os.fsdecode(setup.root)) / "sub/file").write_text("1")
        wait_until(lambda: any(b"sub/file" in dirty.paths for dirty in run.saver.taken), "the file")
        request = run.saver.requests[-1]
        assert request.kind == "auto"
        time.strptime(request.label, "auto-%Y-%m-%dT%H:%M:%SZ")
        with reach(setup) as watcher:
            wait_until(lambda: not watcher.ping().unsaved)
            assert watcher.ping().checkpoints == len(run.saver.requests)


def test_a_failure_is_tried_again_and_said(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    setup = setup._replace(pace=Pace(debounce=0, latest=0, first_retry=0.05, last_retry=0.05))
    run = Running(setup)
    run.saver.fail = [HoldfastError("disk full"), RuntimeError("a mistake"), HoldfastError("disk full")]
    run.thread.start()
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: len(run.saver.requests) >= 4, "the fourth attempt")
    with reach(setup) as watcher:
        wait_until(lambda: not watcher.ping().unsaved)
        assert watcher.ping().failure is None
    run.finish()
    assert all(dirty.everything for dirty in run.saver.taken)
    assert caplog.text.count("saving failed: disk full") == 2
    assert "a mistake" in caplog.text


def test_a_root_that_goes_and_comes_back(setup: Setup) -> None:
    setup = setup._replace(pace=Pace(debounce=0.01, latest=1, first_retry=0.01, last_retry=0.01))
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run:
        wait_until(lambda: run.saver.requests)
        (root / "sub").rmdir()
        root.rmdir()
        seen = len(run.saver.taken)
        wait_until(lambda: any(dirty.everything for dirty in run.saver.taken[seen:]))
        root.mkdir()
        seen = len(run.saver.taken)
        wait_until(lambda: any(dirty.everything for dirty in run.saver.taken[seen:]))
        (root / "back").touch()
        wait_until(lambda: any(b"back" in dirty.paths or dirty.everything for dirty in run.saver.taken[seen:]))


def test_unsaved_changes_are_saved_at_the_end(setup: Setup) -> None:
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(Request())
        (Path(os.fsdecode(setup.root)) / "late").touch()
        wait_until(lambda: watcher.ping().unsaved)
        watcher.stop()
        assert run.saver.requests[-1].kind == "auto"
        assert b"late" in run.saver.taken[-1].paths


def test_a_full_walk_now_and_then(setup: Setup) -> None:
    setup = setup._replace(pace=Pace(debounce=0, latest=0, per_hour=10_000), full_walk_interval=0.02)
    with running(setup) as run:
        wait_until(lambda: sum(dirty.everything for dirty in run.saver.taken) >= 4)


def test_rules_outside_of_the_tree_that_change_make_everything_count_as_changed(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(setup) as run, reach(setup) as watcher:
        watcher.checkpoint(Request())
        watcher.status()
        refreshed: list[bool] = []
        monkeypatch.setattr(run.service._watcher, "refresh", lambda: refreshed.append(True))
        run.exclusion.changed = True
        watcher.status()
        watcher.status()
        assert [dirty.everything for dirty in run.saver.taken] == [True, False, True, False]
        assert refreshed == [True]


def test_retention_now_and_then_and_its_failure_is_survived(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    setup = setup._replace(retention_interval=0.01)
    run = Running(setup)
    run.saver.fail = [HoldfastError("locked")]
    run.thread.start()
    wait_until(lambda: run.saver.retentions >= 3)
    run.finish()
    assert "retention failed: locked" in caplog.text


# -- pauses -------------------------------------------------------------------------------------------------------


def test_nothing_is_saved_during_a_pause(setup: Setup) -> None:
    setup = setup._replace(pace=Pace(debounce=0, latest=0))
    root = Path(os.fsdecode(setup.root))
    with running(setup) as run, reach(setup) as watcher:
        wait_until(lambda: run.saver.requests)
        with watcher.pause():
            done = len(run.saver.requests)
            (root / "during").touch()
            wait_until(lambda: watcher.ping().unsaved)
            assert watcher.ping().paused
            assert len(run.saver.requests) == done
            with reach(setup) as other:
                with pytest.raises(LockedError) as caught:
                    other.checkpoint(Request())
                assert caught.value.code == "paused"
                with other.pause():  # two at once: it goes on when both have ended
                    pass
                assert other.ping().paused
            watcher.checkpoint(Request())  # whoever paused may
        wait_until(lambda: not watcher.ping().paused)


def test_the_pause_of_a_client_that_dies_ends(setup: Setup) -> None:
    with running(setup), reach(setup) as watcher:
        connection = raw(setup)
        connection.sendall(messages.encode_call(messages.Call("pause")))
        assert json.loads(connection.recv(1000))["ok"]
        assert watcher.ping().paused
        connection.close()
        wait_until(lambda: not watcher.ping().paused)


def test_pausing_a_watcher_that_has_just_stopped(setup: Setup) -> None:
    with running(setup):
        watcher = reach(setup)
        other = reach(setup)
    with watcher, watcher.pause():
        pass
    with other, pytest.raises(HoldfastError) as caught:
        other.status()
    assert caught.value.code == "watcher_gone"


def test_a_pause_outlives_idleness(setup: Setup) -> None:
    setup = setup._replace(limits=Limits(idle=0.05))
    with running(setup):
        idle = raw(setup)
        with reach(setup) as watcher, watcher.pause():
            assert everything_read(idle) == b""  # hung up on, being idle
            idle.close()
            assert watcher.ping().paused


# -- clients that misbehave ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"garbage\n",
        b"\xff\xfe\n",
        b"[1]\n",
        b"{}\n",
        b'{"v":2,"op":"ping"}\n',
        b'{"v":1,"op":"explode"}\n',
        b'{"v":1,"op":["ping"]}\n',
        b'{"v":1,"op":"checkpoint","label":7}\n',
        b'{"v":1,"op":"checkpoint","kind":"other"}\n',
        b'{"v":1,"op":"checkpoint","kind":[]}\n',
        b'{"v":1,"op":"checkpoint","full_hash":1}\n',
        b"[" * 60_000 + b"\n",
        b'{"v":1,"op":"ping"}\n{"v":1,"op":"ping"}\n',
        b"x" * 200_000,
    ],
)
def test_garbage_gets_an_error_and_harms_nobody(setup: Setup, line: bytes) -> None:
    """I12."""
    with running(setup) as run:
        with raw(setup) as connection:
            try:
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
            except ConnectionError:
                pass  # it had enough before the end
            answer = everything_read(connection)
        if answer:
            body = json.loads(answer)
            assert body["ok"] is False
            assert body["error"]["type"] == "FormatError"
        else:
            assert len(line) > messages.MAX_CALL_BYTES  # reset, with part of the line unread
        with reach(setup) as watcher:
            assert watcher.ping().pid == os.getpid()
        assert run.saver.requests == []


def test_half_a_line_is_ended_after_a_while(setup: Setup) -> None:
    setup = setup._replace(limits=Limits(request=0.05))
    with running(setup), raw(setup) as slow:
        slow.sendall(b'{"v":1,')
        with reach(setup) as watcher:
            assert watcher.ping()
        assert everything_read(slow) == b""


def test_whoever_does_not_read_blocks_nobody(setup: Setup) -> None:
    """Bounded: the answer waits in memory for its time, then the connection ends."""
    setup = setup._replace(limits=Limits(answer=0.3))
    with running(setup) as run:
        many = [Change(b"%d" % number * 20, None, ENTRY) for number in range(30_000)]
        run.saver.status_answer = STATUS._replace(changes=many)
        deaf = raw(setup)
        deaf.sendall(messages.encode_call(messages.Call("status")))
        with reach(setup) as watcher:
            assert watcher.ping()
            assert watcher.status().changes == many  # a long answer arrives whole where it is read
        hung_up = select.poll()
        hung_up.register(deaf, 0)
        assert hung_up.poll(LIMIT * 1000)
        received = everything_read(deaf)
        assert len(received) < len(messages.encode_answer(messages.pack_status(run.saver.status_answer)))
        deaf.close()


def test_an_answer_too_long_is_refused(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_ANSWER_BYTES", 500)
    with running(setup), reach(setup) as watcher:
        with pytest.raises(HoldfastError) as caught:
            watcher.status()
        assert caught.value.code == "too_long"


def test_many_clients_at_once(setup: Setup) -> None:
    with running(setup) as run:
        answers: list[object] = []

        def ask() -> None:
            with reach(setup) as watcher:
                answers.append(watcher.checkpoint(Request()).checkpoint)

        threads = [threading.Thread(target=ask) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert len(answers) == len(run.saver.requests) == 30


def test_too_many_clients_are_turned_away(setup: Setup) -> None:
    setup = setup._replace(limits=Limits(clients=3))
    with running(setup), ExitStack() as open_ones:
        keep = [open_ones.enter_context(reach(setup)) for _ in range(3)]
        assert all(watcher.ping() for watcher in keep)
        with raw(setup) as fourth:
            assert everything_read(fourth) == b""
        keep[0].close()
        wait_until(lambda: answers(setup), "a free place")


def answers(setup: Setup) -> bool:
    with reach(setup) as watcher:
        try:
            return bool(watcher.ping())
        except HoldfastError:
            return False


def test_a_client_that_dies_before_its_answer(setup: Setup) -> None:
    with running(setup) as run:
        run.saver.gate = threading.Event()
        connection = raw(setup)
        connection.sendall(messages.encode_call(messages.Call("checkpoint", Request())))
        connection.close()
        run.saver.gate.set()
        with reach(setup) as watcher:
            assert watcher.ping()


def test_a_watcher_that_does_not_answer(setup: Setup) -> None:
    with running(setup) as run:
        run.saver.gate = threading.Event()
        watcher = connect(setup.folder, wait=0.05)
        assert watcher is not None
        with pytest.raises(LockedError, match=r"has not answered for 0\.05 s"):
            watcher.checkpoint(Request())
        run.saver.gate.set()


def test_a_request_too_long_is_not_sent() -> None:
    with pytest.raises(FormatError):
        messages.encode_call(messages.Call("checkpoint", Request("manual", "x" * 70_000)))


# -- its place ----------------------------------------------------------------------------------------------------


def test_the_socket_is_private(setup: Setup) -> None:
    umask = os.umask(0)
    try:
        with running(setup), reach(setup):
            about = os.stat(setup.folder + b"/" + WATCH_SOCKET)
            assert stat.S_IMODE(about.st_mode) == 0o600
            assert stat.S_IMODE(os.stat(setup.folder + b"/" + WATCH_LOCK).st_mode) == 0o600
    finally:
        os.umask(umask)


def test_no_watcher_is_none(setup: Setup) -> None:
    assert connect(setup.folder) is None
    assert connect(setup.folder + b"/nowhere") is None


def test_a_folder_with_a_long_path(setup: Setup) -> None:
    folder = os.fsdecode(setup.folder) + "/long" * 40
    os.makedirs(folder, mode=0o700)
    setup = setup._replace(folder=os.fsencode(folder))
    assert connect(setup.folder) is None
    with running(setup), reach(setup) as watcher:
        assert watcher.ping().pid == os.getpid()


def test_a_second_watcher_is_refused(setup: Setup) -> None:
    with running(setup), pytest.raises(LockedError, match=f"pid {os.getpid()}"):
        watch(setup, FakeSaver, Nothing(), SystemClock())
    with claim(setup.folder):  # and the place is free again
        pass


def test_what_a_dead_watcher_left_is_in_nobodys_way(setup: Setup) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(setup.folder + b"/" + WATCH_SOCKET)
    dead.close()
    Path(os.fsdecode(setup.folder + b"/" + WATCH_LOCK)).write_text("999999\n")
    assert connect(setup.folder) is None
    with running(setup), reach(setup) as watcher:
        assert watcher.ping().pid == os.getpid()


def test_stop_returns_when_all_is_closed(setup: Setup) -> None:
    run = Running(setup)
    run.thread.start()
    with reach(setup) as watcher:
        watcher.stop()
        assert run.saver.closed == 1
        assert connect(setup.folder) is None
    run.thread.join(LIMIT)
    with claim(setup.folder):
        pass


def test_a_saver_that_cannot_be_opened_leaves_nothing(setup: Setup) -> None:
    def broken(_: DirtySource) -> FakeSaver:
        raise HoldfastError("no store")

    with pytest.raises(HoldfastError, match="no store"):
        watch(setup, broken, Nothing(), SystemClock())
    assert connect(setup.folder) is None
    with claim(setup.folder):
        pass


# -- a process of its own -----------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_watching import FakeSaver, Nothing, Setup, Pace, watch, SystemClock
root, folder, out = (os.fsencode(text) for text in sys.argv[2:5])

class Noting(FakeSaver):
    def checkpoint(self, request):
        result = super().checkpoint(request)
        with open(out, "a") as file:
            print(request.kind, sorted(self.taken[-1].paths), file=file)
        return result
    def close(self):
        with open(out, "a") as file:
            print("closed", file=file)

print("watching", flush=True)
setup = Setup(root, folder, "inotify", Pace(debounce=1000, latest=1000), rest=0.0)
watch(setup, Noting, Nothing(), SystemClock())
"""


def command(setup: Setup, out: Path, program: str = PROGRAM) -> list[str]:
    here = str(Path(__file__).parent)
    return [sys.executable, "-c", program, here, os.fsdecode(setup.root), os.fsdecode(setup.folder), str(out)]


ENVIRON = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(holdfast.__path__[0]).parent)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_cleanly(setup: Setup, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    found = start_detached(command(setup, out), setup.folder, environ=ENVIRON)
    with reach(setup) as watcher:
        watcher.checkpoint(Request())
        (Path(os.fsdecode(setup.root)) / "late").touch()
        wait_until(lambda: watcher.ping().unsaved)
        for _ in range(3):  # some send it to the process and again to its group
            os.kill(found.pid, number)
        wait_until(lambda: out.read_text().endswith("closed\n"))
    assert out.read_text().splitlines() == ["manual []", "auto [b'late']", "closed"]
    wait_until(lambda: connect(setup.folder) is None)
    os.waitpid(found.pid, 0)


def test_detached_it_has_a_session_and_a_private_log(setup: Setup, tmp_path: Path) -> None:
    found = start_detached(command(setup, tmp_path / "out"), setup.folder, environ=ENVIRON)
    assert os.getsid(found.pid) == found.pid
    log = Path(os.fsdecode(setup.folder + b"/" + LOG))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.read_text() == "watching\n"
    with pytest.raises(LockedError, match=f"pid {found.pid}"):
        start_detached(command(setup, tmp_path / "out"), setup.folder, environ=ENVIRON)
    os.kill(found.pid, signal.SIGKILL)
    os.waitpid(found.pid, 0)
    assert connect(setup.folder) is None
    # A killed one leaves its socket and lock behind: the next takes their place.
    assert (Path(os.fsdecode(setup.folder)) / "watch.sock").exists()
    again = start_detached(command(setup, tmp_path / "out"), setup.folder, environ=ENVIRON)
    with reach(setup) as watcher:
        watcher.stop()
    os.waitpid(again.pid, 0)


def test_detached_it_says_why_it_could_not_start(setup: Setup, tmp_path: Path) -> None:
    failing = "import sys; print('the reason'); sys.exit(3)"
    with pytest.raises(HoldfastError, match=r"status 3: the reason"):
        start_detached(command(setup, tmp_path / "out", failing), setup.folder, environ=ENVIRON)
    silent = "import signal; signal.pause()"
    with pytest.raises(HoldfastError, match=r"did not answer within 0\.2 s"):
        start_detached(command(setup, tmp_path / "out", silent), setup.folder, limit=0.2, environ=ENVIRON)


def test_a_client_is_cheap_to_start() -> None:
    """Where no watcher is, asking for one loads nothing that takes time."""
    code = "import sys; from holdfast.engine.watch_client import connect; connect(b'/nowhere'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRON, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "holdfast.engine.messages" in loaded
    assert not loaded & {
        "socket",
        "json",
        "asyncio",
        "ctypes",
        "logging",
        "msgspec",
        "sqlite3",
        "holdfast.engine.watching",
    }

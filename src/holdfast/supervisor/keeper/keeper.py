"""The keeper of a workspace: one process that serves every supervised tree, and owns the undo log.

It is in a session of its own, so that no terminal stops it or hangs it up, and ends with the last tree. If it is
killed, every call that would reach it fails with ENOSYS: no unrecorded change can happen.

One thread serves requests and closes steps; in between, the receiving threads carry out calls, one at a time
(`holdfast.supervisor.keeper._call_dispatcher`). A second thread does undo and other slow work, one job after the other;
slow calls have threads of their own.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
import time
from contextlib import ExitStack, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from holdfast.files.git.configuration import GitUser
from holdfast.files.git.object_lookup import GitObjects
from holdfast.files.ignore.excluded_paths import ExcludedDirectories
from holdfast.files.ignore.rules import IgnoreSources
from holdfast.ipc.connection import Connection
from holdfast.ipc.messages import encode_error
from holdfast.ipc.port import encode_result
from holdfast.model.clock import SystemClock
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import FormatError, HeldError, HoldfastError, LockedError, NotFoundError, RefusedError
from holdfast.model.log import Log
from holdfast.processes.forked_process import allow_forks
from holdfast.supervisor.control.keeper_port import GONE, SUPERVISED
from holdfast.supervisor.control.keeper_server import LATER, KeeperServer
from holdfast.supervisor.keeper._background_thread import BackgroundThread
from holdfast.supervisor.keeper._call_dispatcher import DispatchLock, raise_priority, receive_calls
from holdfast.supervisor.keeper._held_notifier import HeldNotifier
from holdfast.supervisor.keeper._keeper_context import KeeperContext, ServedWorkspace
from holdfast.supervisor.keeper._step_lifecycle import StepLifecycle
from holdfast.supervisor.keeper._supervised_trees import SupervisedTrees
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.supervisor.keeper.mounted_trees import MountedTrees
from holdfast.supervisor.keeper.native_loop import native_loop
from holdfast.supervisor.keeper.stderr_log import log_to_stderr
from holdfast.supervisor.outsiders.outside_watcher import OutsideWatcher
from holdfast.supervisor.outsiders.recorded_paths import RecordedPaths
from holdfast.undo.journal.heartbeat import Heartbeat
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import BEAT_SECONDS, recover
from holdfast.undo.reports.step_views import undo_report
from holdfast.undo.reports.unreported_rollbacks import note_rollback
from holdfast.undo.safeguards.losses import Losses
from holdfast.undo.safeguards.tickets import Safeguards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.ipc.server import Client
    from holdfast.supervisor.keeper._supervised_trees import Member
    from holdfast.undo.journal.records import StepId
    from holdfast.undo.safeguards.losses import Rules
    from holdfast.undo.safeguards.open_step import OpenStep
    from holdfast.undo.service import StepInfo

_log = Log("holdfast.supervisor.keeper.keeper")  # as a program the module has another name

_AGAIN_SECONDS = 0.005
"""Until calls are tried again that wait for what no event says."""
_LOCK_SECONDS = 1.0
"""How long to wait for the log while another process has it."""
_SWITCH_SECONDS = 0.0005
"""How long the second thread may keep the first one waiting, at most."""


def _open_log_in_time(open_log: Callable[[], UndoLog]) -> UndoLog:
    """Open the log when no other command has it: commands that poll it have it for a moment each, and a new process for
    each attempt would lose against them. Raises `LockedError` if it is held for longer.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return open_log()
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_SECONDS)


class Keeper:
    """See the module."""

    def __init__(self, settings: KeeperSettings) -> None:
        """Open the log, finish what a killed keeper left, and open the socket.

        Raises `LockedError` if there is another keeper, and what `UndoLog` raises.
        """
        root_fd = os.open(settings.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        clock = SystemClock()
        safeguards = Safeguards(
            clock, losses=Losses(lambda: _rules(settings), GitObjects(os.path.realpath(settings.root)).hold)
        )
        safeguards.on_held = HeldNotifier(settings).notify
        least = Heartbeat(*settings.least)
        self._undo_log = _open_log_in_time(
            lambda: UndoLog(settings.log, root_fd, clock, safeguards, settings.limits, least=least, is_native=True)
        )
        recovered = recover(self._undo_log).rolled_back
        if recovered is not None and recovered.steps:
            note_rollback(settings.log, undo_report(self._undo_log.quarantine, [recovered]))
        self._service = LocalUndoService(self._undo_log, safeguards, intercepts=True, own=settings.forbidden)
        self._worker = BackgroundThread()
        self._epoll = select.epoll()
        self._epoll.register(self._worker.wake_fd, select.EPOLLIN)
        forbidden = tuple(_directory(path) for path in (settings.log, *settings.forbidden))
        recorder = self._undo_log.recorder
        self._steps = StepLifecycle(self._service, recorder, self._worker.do)
        workspace = ServedWorkspace(root_fd, forbidden, recorder, self._undo_log.preimages)
        native = native_loop(recorder)
        parts = KeeperContext(
            workspace, self._service, self._steps, self._worker, self._epoll, self._lapse, self._deny, native
        )
        self._mounted = MountedTrees(settings.server, parts)
        self._dispatch_lock = DispatchLock(
            lambda: self._service.is_quiet, self._epoll, None if native is None else native.turn
        )
        self._runs = SupervisedTrees(
            parts, self._mounted, lambda tree: receive_calls(tree, self._dispatch_lock, self.stop)
        )
        self._undo_log.writers = self._runs.held_for_writing
        self._outsiders = OutsideWatcher(
            self._service,
            RecordedPaths(recorder, root_fd, self._lives),
            os.path.realpath(settings.root),
            (settings.log, *settings.forbidden),
            self._runs.is_inside,
            self._runs.may_have_been_inside,
            blocks=settings.outside_blocks,
            backend=settings.watch,
        )
        self._undo_log.flush_foreign_edits = self._outsiders.settle
        recorder.on_contact = self._outsiders.settle_before
        self._pauses: dict[Client, ExitStack] = {}
        self._attended: dict[Client, StepId | None] = {}
        """Clients with the explicit step that ends with them; None: it is about to begin."""
        self._visitors: set[Client] = set()
        """Clients that the keeper must not end before they have hung up."""
        self._asked = 0
        """Requests that are not answered yet."""
        self._waiting: list[Callable[[], None]] = []
        """Held calls, to be tried again when a person may have answered."""
        self._due = False
        """The second thread has periodic work queued."""
        self._over = False
        self._begun = False
        self._control = KeeperServer(
            settings.log, self._epoll, clock, self._perform, self._end_client, self._runs.holds
        )

    # The serving thread -----------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve until the last tree is gone, or `stop`; finish all steps, and give up the log."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._worker.start()
        self._outsiders.start()
        others = self._epoll.fileno()
        runs = self._runs
        calls_ready, trees = runs.calls_ready, runs.trees
        service, dispatch_lock = self._service, self._dispatch_lock
        others_ready = select.poll()  # select() cannot handle descriptors above 1,023
        others_ready.register(others, select.POLLIN)
        due = again = 0.0
        while not self._over:
            if service.is_quiet:
                others_ready.poll(BEAT_SECONDS * 1000)
                ready = [others]
            else:
                seconds = _AGAIN_SECONDS if runs.has_retries else BEAT_SECONDS
                ready = [fd for fd, _ in calls_ready.poll(0 if dispatch_lock.has_calls else seconds * 1000)]
            with dispatch_lock:
                for fd in ready:
                    # The selector first: ended processes are forgotten before their numbers are reused.
                    if fd == others:
                        self._serve_others()
                    elif fd in trees:  # else it has just ended
                        self._runs.tree_ended(trees[fd])
                        self._end_if_alone()
                now = time.monotonic()
                if now >= again and not service.is_quiet:
                    again = now + _AGAIN_SECONDS
                    runs.try_again()
                if now >= due:
                    due = now + BEAT_SECONDS
                    self._tick(now)
        with dispatch_lock:
            self._runs.end()
        self._worker.end()
        self._outsiders.end()
        self._settle()
        self._control.close()
        self._undo_log.close()

    def stop(self) -> None:
        """End everything in an orderly way. From any thread, or a signal's handler."""
        self._over = True
        self._worker.wake()

    @property
    def is_quiet(self) -> bool:
        """Whether no call is served, as another process changes the tree."""
        return self._service.is_quiet

    def end_when_idle(self) -> None:
        """No run will join any more: end as soon as there is none. From any thread."""
        self._begun = True
        self._worker.wake()

    def _serve_others(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd == self._worker.wake_fd:
                self._worker.settle()
                self._runs.settle()
            elif self._control.owns(fd):
                self._control.serve(fd)
            elif self._runs.watches(fd):
                self._runs.ended(fd)
            # Otherwise an earlier event of this batch has closed it.

    def _tick(self, now: float) -> None:
        self._service.beat()
        if not self._due:
            # Rolling back a denied step may take long.
            self._due = True
            over = self._runs.ended_trees()
            self._worker.do(lambda: self._do_what_is_due(over))
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            self._worker.do(job)
        self._steps.close_quiet(now)
        self._runs.tick()
        self._end_if_alone()

    def _settle(self) -> None:
        if self._service.is_unsettled:
            # A tree ends before its last process has closed its files, which would count as written to for ever.
            self._runs.await_exits()
        try:
            self._service.settle()
        except HoldfastError as error:
            _log.warning("the undo log: %s", error)

    def _do_what_is_due(self, over: tuple[Member, ...]) -> None:
        try:
            if over or self._service.is_unsettled:
                self._outsiders.settle()  # others' writes are not the steps', and vice versa
                self._worker.post(lambda: self._runs.forget_ended(over))
            if held := self._service.held():
                with self._outsiders.pause():
                    self._service.tick()
                if self._service.held() != held:
                    self._mounted.forget()  # unanswered operations were rolled back
            else:
                self._service.tick()
        except HoldfastError as error:
            _log.warning("the undo log: %s", error)
        finally:
            self._due = False
            self._worker.post(self._runs.retry)

    def _end_if_alone(self) -> None:
        if self._begun and not (self._runs or self._asked or self._visitors):
            self._over = True

    # -- requests ------------------------------------------------------------------------------------------------

    def _perform(self, client: Client, method: str, arguments: tuple[Any, ...]) -> object:
        match method:
            case "join":
                self._runs.join(client, *arguments)
                self._begun = True
                return None
            case "leave":
                run = self._runs.leave(client)
                return self._ask(client, lambda: self._service.run_ending(run))
            case "visit":
                if self._over:
                    raise HoldfastError("the keeper is ending", code=GONE)
                self._visitors.add(client)
                return None
            case "pause":
                return self._ask(client, lambda: self._enter(client))
            case "resume":
                pause = self._pauses.pop(client, ExitStack())
                return self._ask(client, lambda: self._resume(pause))
            case "undo" | "redo":
                steps, force = arguments
                return self._change(client, lambda: getattr(self._service, method)(steps, force=force))
            case "foresee":
                steps, forward, force = arguments
                return self._ask(client, lambda: self._foresee(steps, forward=forward, force=force))
            case "answer":
                ticket, allow = arguments
                return self._change(client, lambda: self._service.answer(ticket, allow=allow), self._runs.retry)
            case "begin":
                run = self._run_of_client(client)
                if run:
                    self._runs.prepare_explicit_step(run)
                return self._ask(client, lambda: self._service.begin(*arguments, run=run or ""))
            case "begin_attended":
                self._attended[client] = None
                return self._ask(client, lambda: self._begin_attended(client, *arguments))
            case "begin_line":
                return self._runs.begin_line(*arguments)
            case "end_line":
                return self._runs.end_line(*arguments)
            case "commit":
                run = self._run_of_client(client)
                return self._ask(client, lambda: self._service.commit(*arguments, run=run))
            case "rollback":
                run = self._run_of_client(client)
                return self._change(client, lambda: self._service.rollback(*arguments, run=run))
            case "write_content":
                return self._write(client, *arguments)
            case "guard":
                return self._runs.guard(client, *arguments)
            case "processes":
                return self._runs.processes(*arguments)
            case "signal":
                return self._runs.signal(*arguments)
            case "serves":
                return self._runs.find(*arguments) is not None
            case "keep_channel":
                return self._runs.keep_channel(client, *arguments)
            case "pass_connection":
                return self._runs.pass_connection(client, *arguments)
            case "expect":
                return self._expect(client, *arguments)
            case "settle":
                step, code = arguments
                return self._ask(client, self._runs.settle_step(step, code))
            case "steps" | "barriers" | "going_on":
                return self._ask(client, lambda: self._list(method))
            case _:
                return self._ask(client, lambda: getattr(self._service, method)(*arguments))

    def _expect(self, client: Client, id_: str, command: list[bytes]) -> object:
        """Open a command's step, after its guest's kernel has dropped caches older than the last outside change: a
        guest cannot be notified, and the command would see old files.
        """
        run = self._runs.find(id_)
        if run is None or not (delay := self._mounted.stale_seconds(run)):
            return self._runs.expect(id_, command)

        def expect() -> None:
            self._asked -= 1
            if client.is_gone:
                self._release(client)
            else:
                try:
                    answer = self._expect(client, id_, command)
                    body = None if answer is LATER else encode_result(answer)
                except HoldfastError as error:
                    body = encode_error(error)
                if body is not None:
                    client.send(body)
            self._end_if_alone()

        self._asked += 1
        timer = threading.Timer(delay, self._worker.post, (expect,))
        timer.daemon = True
        timer.start()
        return LATER

    def _run_of_client(self, client: Client) -> str | None:
        """The run that asks; None if a process outside does. Raises `RefusedError` if it is neither."""
        if client.is_outside:
            return None
        run = self._runs.run_of(client.peer.pid)
        if not run:
            raise RefusedError("who asks is not outside, and of no run that is served here", code=SUPERVISED)
        return run

    def _write(self, client: Client, path: bytes, expected: bytes | None, run: str) -> object:
        if not client.descriptors:
            raise FormatError("write: the content comes as a descriptor")
        content = client.descriptors.pop(0)
        if not stat.S_ISREG(os.fstat(content).st_mode):
            os.close(content)
            raise FormatError("write: the content is no regular file")
        joined = self._runs.find(run)
        whose = ("", b"") if joined is None else (joined.id, joined.agents.directory)
        go_on = self._service.writing(path, content, expected, *whose)

        def write() -> StepInfo | None:
            try:
                with self._outsiders.pause():
                    info = go_on()
                self._mounted.forget()
            except HeldError:
                raise
            except BaseException:
                os.close(content)
                raise
            os.close(content)
            return info

        return self._ask(client, write, self._runs.retry)

    def _list(self, method: str) -> object:
        self._outsiders.settle()
        return getattr(self._service, method)()

    def _foresee(self, steps: Sequence[int], *, forward: bool, force: bool) -> object:
        self._outsiders.settle()  # as before every change of the tree
        return self._service.foresee(steps, forward=forward, force=force)

    def _change(self, client: Client, work: Callable[[], object], then: Callable[[], None] = lambda: None) -> object:
        """`_ask` for what changes the tree."""

        def change() -> object:
            with self._outsiders.pause():
                result = work()
            self._mounted.forget()
            return result

        return self._ask(client, change, then)

    def _ask(self, client: Client, work: Callable[[], object], then: Callable[[], None] = lambda: None) -> object:
        """Have ``work`` done on the second thread, and its result sent; ``then`` is called on this one."""
        context = copy_context()  # its log records belong to the request, too

        def job() -> None:
            try:
                body = encode_result(work())
            except HeldError:
                self._worker.post(lambda: self._waiting.append(lambda: context.run(job)))
                return
            except HoldfastError as error:
                body = encode_error(error)
            except Exception as error:  # noqa: BLE001 - one request fails, and not everything that runs
                _log.warning("a request failed by a mistake of Holdfast's own: %r", error)
                body = encode_error(HoldfastError(f"the keeper failed: {error!r}"))
            self._worker.post(lambda: deliver(body))

        def deliver(body: bytes) -> None:
            self._asked -= 1
            then()
            if client.is_gone:
                self._release(client)  # descriptors that it received after it had disconnected
            else:
                client.send(body)
            self._end_if_alone()

        self._asked += 1
        self._worker.do(lambda: context.run(job))
        return LATER

    def _lapse(self, ticket: int) -> None:
        """A held operation cannot wait any longer: its step is rolled back. From any thread."""
        self._take_back(lambda: self._service.lapse(ticket))

    def _deny(self, ticket: int) -> None:
        """A held operation is denied: its step is rolled back. From any thread."""

        def deny() -> None:
            with suppress(NotFoundError):  # it was answered meanwhile
                self._service.answer(ticket, allow=False)

        self._take_back(deny)

    def _take_back(self, work: Callable[[], None]) -> None:
        def take_back() -> None:
            with self._outsiders.pause():
                work()
            self._mounted.forget()
            self._worker.post(self._runs.retry)

        self._worker.do(take_back)

    def _lives(self, step: OpenStep) -> Callable[[], bool]:
        if step.reverses:
            return lambda: False
        if step.begin.kind == "command":
            return self._steps.is_alive(step.id)
        return lambda: bool(self._runs)

    def _end_client(self, client: Client) -> None:
        self._release(client)
        self._visitors.discard(client)
        self._runs.connection_lost(client)
        self._end_if_alone()

    def _release(self, client: Client) -> None:
        if (pause := self._pauses.pop(client, None)) is not None:
            self._worker.do(lambda: self._resume(pause))
        if client in self._attended:
            self._worker.do(lambda: self._end_attended(client))

    def _begin_attended(self, client: Client, label: str) -> StepId:
        step = self._attended[client] = self._service.begin(label)
        return step

    def _end_attended(self, client: Client) -> None:
        step = self._attended.pop(client, None)
        if step is None:
            return
        try:
            if self._service.commit_abandoned(step):
                _log.warning("step %d was committed: the process that had begun it is gone", step)
        except HoldfastError as error:
            _log.warning("the undo log: %s", error)

    def _enter(self, client: Client) -> None:
        pause = self._pauses.setdefault(client, ExitStack())
        self._outsiders.settle()  # what happened before is not the client's
        pause.enter_context(self._service.quiet())
        pause.enter_context(self._outsiders.pause())

    def _resume(self, pause: ExitStack) -> None:
        pause.close()
        self._mounted.forget()


def _rules(settings: KeeperSettings) -> Rules:
    """The present rules for whether checkpoints leave a path out. Those of the root, and from outside, are read at
    once.
    """
    root = os.path.realpath(settings.root)
    sources = IgnoreSources(root, user=GitUser(*settings.user), exclude=settings.exclude)
    excluded = ExcludedDirectories(root, sources, (settings.log, *settings.forbidden))
    excluded.leaves_out(b".")
    return excluded.leaves_out


def _directory(path: bytes) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def main(fd: int) -> int:
    """Be a keeper: read `KeeperSettings` from the socket ``fd``, answer there when ready, and serve."""
    import resource
    import socket

    starter = Connection(socket.socket(fileno=fd))
    settings = json_decoder(KeeperSettings).decode(starter.receive())
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # they come from a terminal
    raise_priority()
    os.umask(0o077)
    log_to_stderr(settings.log, settings.log_level)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        keeper = Keeper(settings)
    except HoldfastError as error:
        starter.send(encode_error(error))
        return error.exit_code
    except OSError as error:
        starter.send(encode_error(HoldfastError(f"the keeper cannot start: {error}")))
        return 1

    def stop(_number: int, _frame: object) -> None:
        keeper.stop()

    signal.signal(signal.SIGTERM, stop)
    starter.send(encode_result(None))
    _watch(starter, keeper)
    _log.info("keeper started", root=settings.root)
    keeper.serve()
    _log.info("keeper ended")
    return 0


def _watch(starter: Connection, keeper: Keeper) -> None:
    """If the process that started the keeper dies before a run has joined, there is nothing to keep."""

    def wait() -> None:
        starter.wait_for_end()
        keeper.end_when_idle()

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    allow_forks()
    sys.exit(main(int(sys.argv[1])))

"""The keeper of a workspace: one process that serves every supervised tree there is, and owns the undo log.

It is in a session of its own, so that no terminal stops it or hangs it up, and ends by itself when the last tree is
gone. If it is killed, every call that would reach it fails with ENOSYS: what it would not record cannot happen.

One thread serves calls and closes steps, as fast as it can. Undo and all else that is asked for is done on a second
one, one after the other; slow calls have threads of their own.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.clock import SystemClock
from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log
from holdfast.supervisor.control import LATER, Control
from holdfast.supervisor.descent import descendants
from holdfast.supervisor.messages import encode_error, encode_result
from holdfast.supervisor.notify import Listener
from holdfast.supervisor.operations import HANDLERS
from holdfast.supervisor.processes import Processes, Run
from holdfast.supervisor.serving import Tree, table
from holdfast.supervisor.stepping import Steps
from holdfast.undo.desk import Desk
from holdfast.undo.log import Limits, UndoLog
from holdfast.undo.recovery import BEAT_SECONDS, recover
from holdfast.undo.safeguards import OFF, Safeguards, Thresholds

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from holdfast.supervisor.control import Client

_log = Log(__name__)

_SWITCH_SECONDS = 0.0005
"""How long the second thread may keep the first one waiting, at most."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper has to know."""

    root: bytes
    log: bytes
    """The directory of the undo log, absolute."""
    forbidden: tuple[bytes, ...] = ()
    """Directories beside it that nothing inside may change anything beneath."""
    limits: Limits = Limits()
    thresholds: Thresholds = OFF


class Keeper:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        """Open the log, finish what a killed keeper left, and open the socket.

        Raises `LockedError` if there is another keeper, and what `UndoLog` raises.
        """
        self._root_fd = os.open(settings.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        clock = SystemClock()
        safeguards = Safeguards(clock, settings.thresholds)
        self._undo_log = UndoLog(settings.log, self._root_fd, clock, safeguards, settings.limits)
        recover(self._undo_log)
        self._desk = Desk(self._undo_log, safeguards, intercepts=True)
        self._forbidden = tuple(_directory(path) for path in (settings.log, *settings.forbidden))
        self._calls = table(os.uname().machine, HANDLERS)
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._processes = Processes(lambda pidfd: self._epoll.register(pidfd, select.EPOLLIN))
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._steps = Steps(self._desk, self._undo_log.recorder)
        self._trees: dict[int, Tree] = {}
        self._runs: dict[Client, Run] = {}
        self._pauses: dict[Client, ExitStack] = {}
        self._calls_ready = select.poll()
        self._calls_ready.register(self._epoll.fileno(), select.POLLIN)
        self._asked = 0
        """Requests that are not answered yet."""
        self._over = False
        self._begun = False
        self._control = Control(settings.log, self._epoll, self._perform, self._left, self._is_inside)

    # The serving thread -----------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve until the last tree is gone, or `stop`; finish all steps, and give up the log."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        # (Should this thread fail, nothing keeps the process, nor with it the log.)
        worker = threading.Thread(target=self._do_work, daemon=True)
        worker.start()
        others = self._epoll.fileno()
        trees = self._trees
        desk = self._desk
        due = 0.0
        while not self._over:
            if desk.is_quiet:
                select.select([others], [], [], BEAT_SECONDS)
                self._serve_others()
            else:
                for fd, events in self._calls_ready.poll(BEAT_SECONDS * 1000):
                    # (The selector comes first: who has ended is forgotten before its number comes again.)
                    if fd == others:
                        self._serve_others()
                    elif fd not in trees:
                        pass  # it went away meanwhile
                    elif events & select.POLLIN:
                        trees[fd].serve()
                    else:
                        self._tree_gone(trees[fd])
            if (now := time.monotonic()) >= due:
                due = now + BEAT_SECONDS
                self._tick(now)
        for tree in list(trees.values()):
            self._tree_gone(tree)
        self._work.put(None)
        worker.join()
        self._control.close()
        self._undo_log.close()

    def stop(self) -> None:
        """End everything in an orderly way. From any thread, or a signal's handler."""
        self._over = True
        self._wake()

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is served, as somebody else changes the tree."""
        return self._desk.is_quiet

    def let_go(self) -> None:
        """Nobody is about to join any more: end as soon as no run is there. From any thread."""
        self._begun = True
        self._wake()

    def _serve_others(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                while not self._done.empty():
                    self._done.get()()
                for tree in self._trees.values():
                    tree.settle()
            elif self._control.owns(fd):
                self._control.serve(fd)
            elif self._processes.watches(fd):
                self._process_ended(fd)
            # (Else it was closed by what came before it.)

    def _process_ended(self, pidfd: int) -> None:
        self._epoll.unregister(pidfd)
        group = self._processes.ended(pidfd)
        if group is not None:
            self._steps.close(group)

    def _tick(self, now: float) -> None:
        try:
            self._desk.tick()
            self._steps.close_quiet(now)
        except HoldfastError as error:
            _log.warning("the undo log: %s", error)
        self._processes.forget_threads()
        self._retry()
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        if self._begun and not (self._trees or self._runs or self._asked):
            self._over = True

    def _retry(self) -> None:
        if any(tree.held for tree in self._trees.values()):
            waiting = {ticket.id for ticket in self._desk.held()}
            for tree in self._trees.values():
                tree.retry(waiting)

    def _tree_gone(self, tree: Tree) -> None:
        self._calls_ready.unregister(tree.listener.fd)
        del self._trees[tree.listener.fd]
        tree.listener.close()
        self._see_ends(tree.run)
        self._steps.close_run(tree.run)
        self._end_if_alone()

    def _see_ends(self, run: Run) -> None:
        """Take notice of every process of the run that has ended by now."""
        ends = select.poll()
        for pidfd in self._processes.known(run):
            ends.register(pidfd, select.POLLIN)
        for pidfd, _ in ends.poll(0):
            self._process_ended(pidfd)

    # What is asked for ------------------------------------------------------------------------------------------

    def _perform(self, client: Client, method: str, arguments: tuple[Any, ...]) -> object:
        match method:
            case "join":
                self._join(client, *arguments)
                return None
            case "leave":
                run = self._runs.pop(client)
                self._see_ends(run)
                self._steps.close_run(run)
                return self._ask(client, lambda: None)
            case "quiet":
                return self._ask(client, lambda: self._enter(client))
            case "resume":
                return self._ask(client, self._pauses.pop(client, ExitStack()).close)
            case "undo" | "redo":
                steps, force = arguments
                return self._ask(client, lambda: getattr(self._desk, method)(steps, force=force))
            case "answer":
                ticket, allow = arguments
                return self._ask(client, lambda: self._desk.answer(ticket, allow=allow), self._retry)
            case _:
                return self._ask(client, lambda: getattr(self._desk, method)(*arguments))

    def _ask(self, client: Client, work: Callable[[], object], then: Callable[[], None] = lambda: None) -> object:
        """Have ``work`` done on the second thread, and its result sent; ``then`` is called on this one."""

        def job() -> None:
            try:
                frame = encode_result(work())
            except HoldfastError as error:
                frame = encode_error(error)
            except Exception as error:  # noqa: BLE001 - one request fails, and not everything that runs
                _log.warning("a request failed by a mistake of Holdfast's own: %r", error)
                frame = encode_error(HoldfastError(f"the keeper failed: {error!r}"))
            self._post(lambda: deliver(frame))

        def deliver(frame: bytes) -> None:
            self._asked -= 1
            then()
            if client.is_gone:
                self._release(client)  # of what it was given after it had hung up
            else:
                client.send(frame)
            self._end_if_alone()

        self._asked += 1
        self._work.put(job)
        return LATER

    def _join(
        self, client: Client, id_: str, agent: int, one_step: bool, command: list[bytes], directory: bytes
    ) -> None:
        if not client.fds or client in self._runs:
            raise HoldfastError("a run joins with the listener of its filter, and once")
        run = Run(id_, agent, one_step=one_step)
        run.agents.command, run.agents.directory = tuple(command), directory
        # Known from the start: a run that is one step goes on as long as its first process, whatever that does itself.
        self._processes.group(run, agent)
        listener = Listener(client.fds[0])
        del client.fds[0]
        tree = Tree(
            run,
            listener,
            self._calls,
            self._processes,
            self._steps,
            self._undo_log.recorder,
            self._root_fd,
            self._forbidden,
            self._wake,
        )
        self._trees[listener.fd] = tree
        self._runs[client] = run
        self._calls_ready.register(listener.fd, select.POLLIN)
        self._begun = True

    def _left(self, client: Client) -> None:
        self._release(client)
        if (run := self._runs.pop(client, None)) is not None:
            # Whoever looked after the tree was killed: without it, what is left of the tree is to end.
            for pid in (run.agent, *descendants(run.agent)):
                _kill(pid)
            for pidfd in self._processes.known(run):
                try:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for tree in [tree for tree in self._trees.values() if tree.run is run]:
                self._tree_gone(tree)
        self._end_if_alone()

    def _release(self, client: Client) -> None:
        if (pause := self._pauses.pop(client, None)) is not None:
            self._work.put(pause.close)

    def _enter(self, client: Client) -> None:
        pause = self._pauses.setdefault(client, ExitStack())
        pause.enter_context(self._desk.quiet())

    def _is_inside(self, pid: int) -> bool:
        # (One that we cannot see, or that is gone already, might be.)
        return not os.path.exists(f"/proc/{pid}") or any(
            pid == tree.run.agent or self._processes.is_below(tree.run, pid) for tree in self._trees.values()
        )

    # The second thread ------------------------------------------------------------------------------------------

    def _do_work(self) -> None:
        while (job := self._work.get()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - what follows has to be done all the same
                _log.warning("work on the undo log failed by a mistake of Holdfast's own: %r", error)
            self._wake()

    def _post(self, result: Callable[[], object]) -> None:
        self._done.put(result)
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)


def _directory(path: bytes) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main(fd: int) -> int:
    """Be a keeper: read `Settings` from the socket ``fd``, answer there when ready, and serve."""
    import resource
    import socket

    from holdfast.supervisor.messages import LENGTH

    starter = socket.socket(fileno=fd)
    (length,) = LENGTH.unpack(starter.recv(LENGTH.size, socket.MSG_WAITALL))
    settings = msgspec.msgpack.decode(starter.recv(length, socket.MSG_WAITALL), type=Settings)
    os.umask(0o077)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        keeper = Keeper(settings)
    except HoldfastError as error:
        starter.sendall(encode_error(error))
        return error.exit_code
    except OSError as error:
        starter.sendall(encode_error(HoldfastError(f"the keeper cannot start: {error}")))
        return 1

    def stop(_number: int, _frame: object) -> None:
        keeper.stop()

    signal.signal(signal.SIGTERM, stop)
    starter.sendall(encode_result(None))
    _watch(starter, keeper)
    keeper.serve()
    return 0


def _watch(starter: socket.socket, keeper: Keeper) -> None:
    """If whoever started the keeper dies before a run has joined, there is nothing to keep."""

    def wait() -> None:
        starter.recv(1)
        keeper.let_go()

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

"""Trees that are served by a mount instead of a filter: their changes come as requests from the kernel, or from a
virtual machine's kernel.

The module in `KeeperSettings.server` serves a mount, on threads of its own, by the device (or the machine's socket) and
a `MountHost`. Those threads ask here for the step of a process's change, and the thread that serves calls answers.
"""

from __future__ import annotations

import errno
import importlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Protocol

from holdfast.model.errors import HeldError, StorageError, UnsupportedError
from holdfast.model.log import Log
from holdfast.supervisor.keeper.guest_processes import GuestProcesses
from holdfast.supervisor.process_tree.members import descends_from, thread_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.ipc.server import Client
    from holdfast.supervisor.control.keeper_port import ServedBy
    from holdfast.supervisor.keeper._keeper_context import KeeperContext
    from holdfast.supervisor.process_tree.members import Processes, Run, StepGroup
    from holdfast.undo.journal.records import StepId

_log = Log(__name__)

_ANSWER_SECONDS = 2.0
"""A thread that serves a request waits this long for the serving thread, and then tries again: the serving thread may
itself wait for a read that this thread must answer (a process's memory can be a file in the mount).
"""


class ServedMount(Protocol):
    """A mounted tree that is served."""

    @property
    def over(self) -> int:
        """Readable when nothing is mounted any more."""
        ...

    def held_for_writing(self) -> frozenset[int]:
        """The inode numbers of files that are open for writing. From any thread."""
        ...

    def forget(self) -> None:
        """Anything may have changed: drop the kernel's caches. From any thread, at once."""
        ...

    def stale_seconds(self) -> float:
        """How long its kernel may still use data from before the last `forget`; 0 if it can be notified."""
        ...

    def settle(self) -> None:
        """Handle the closed files of ended processes, unless that takes longer than a moment."""
        ...

    def close(self) -> bool:
        """Stop answering: later requests fail. False if that takes longer; then call it again. Idempotent."""
        ...


class MountFactory(Protocol):
    """Begins to serve."""

    def __call__(self, device: int, host: MountHost, served_by: ServedBy) -> ServedMount:
        """Serve the mounted ``device``, and take it over. Raises `HoldfastError` or `OSError`, and does not take it."""
        ...


class MountHost:
    """A mount's port to its keeper: implements the bridge's port `BridgeHost`, and has the place of preimages."""

    def __init__(
        self,
        keeper: KeeperContext,
        run: Run,
        anchors: frozenset[int],
        processes: Processes,
        close_ended: Callable[[Run], None],
    ) -> None:
        """All processes of the run descend from the ``anchors``. ``close_ended``, for the serving thread, closes the
        steps of a run whose processes have ended by now.
        """
        self.root_fd, self.hidden, self.interceptor, self.preimages = keeper.workspace
        self.lapse = keeper.lapse
        self.is_read_only = False
        self._keeper = keeper
        self._run = run
        self._anchors = anchors
        self._processes = processes
        self._close_ended = close_ended
        self._groups: dict[int, StepGroup] = {}
        """Of threads that have asked, until `forget_threads`."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.waiting = 0
        """How many threads wait for the serving one now."""

    def step(self, tid: int, /) -> StepId:
        """The present step for a thread's mutations; from any thread but the serving one.

        Raises `HeldError` while nothing may change, `PermissionError` if the thread may change nothing any more,
        `StorageError`.
        """
        if self._over.is_set():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        keeper = self._keeper
        if keeper.service.is_quiet:
            raise HeldError(0, "another process changes the tree")
        group = self._known_group(tid)
        if group is not None and group.step and self._is_plain(group) and not keeper.selector.poll(0, 1):
            # The serving thread's work may be the end of another step.
            return group.step
        question = _StepQuestion(lambda: self._find(tid, group))
        with self._lock:
            self.waiting += 1
        try:
            keeper.worker.post(question.answer)
            return question.wait()
        finally:
            with self._lock:
                self.waiting -= 1

    def _known_group(self, tid: int) -> StepGroup | None:
        return self._groups.get(tid)

    def _is_plain(self, group: StepGroup) -> bool:
        """Whether its step is its own, as nearly always."""
        explicit = self._keeper.service.explicit_step(self._run.id)
        return not (group.ambient or group.explicit or group.barred or explicit is not None)

    def _find(self, tid: int, group: StepGroup | None) -> StepId:
        # Processes that ended before the request have made their changes, so their results are examined first.
        self._close_ended(self._run)
        if group is None:
            group = self._group(tid)
        step = self._keeper.steps.step_of(group)
        self._groups[tid] = group
        return step

    def _group(self, tid: int) -> StepGroup:
        if not self._processes.knows(tid) and not descends_from(thread_group(tid), self._anchors.__contains__):
            # An outside process came by way of ``/proc``, a namespace or a descriptor. It is not part of the run, and
            # does not end with it.
            return self._run.ambient
        return self._processes.group(self._run, tid)

    def forget_threads(self) -> None:
        """To be called a few times a second; see `Processes.forget_threads`."""
        self._groups.clear()

    def end(self) -> None:
        """Nothing may be changed any more. From any thread."""
        self._over.set()


class MachineHost(MountHost):
    """The port of a virtual machine's file system. A change belongs to the expected command of the run, or without one
    to the command that the guest names.
    """

    def __init__(
        self,
        keeper: KeeperContext,
        run: Run,
        anchors: frozenset[int],
        processes: Processes,
        close_ended: Callable[[Run], None],
        *,
        port: socket.socket,
        ended: Callable[[StepGroup], None],
    ) -> None:
        """See `MountHost`. ``port`` is taken over; ``ended``, for the serving thread, closes the step of a group of
        which nothing is left.
        """
        super().__init__(keeper, run, anchors, processes, close_ended)
        self._guest = GuestProcesses(port, run, lambda group: keeper.worker.post(lambda: ended(group)))

    def _known_group(self, tid: int) -> StepGroup:
        # Without a number: 9P, or writeback by the guest's kernel.
        return self._run.awaited or (self._guest.group(tid) if tid else self._run.agents)

    def forget_threads(self) -> None:
        """See `MountHost.forget_threads`."""
        self._guest.forget_threads()

    def end(self) -> None:
        """See `MountHost.end`."""
        super().end()
        self._guest.close()


class _StepQuestion:
    """Asks the serving thread which step a change belongs to."""

    def __init__(self, find: Callable[[], StepId]) -> None:
        self._find = find
        self._step: StepId = 0
        self._error: Exception | None = None
        self._answered = threading.Event()
        self._given_up = False

    def answer(self) -> None:
        """By the serving thread."""
        if self._given_up:
            return
        try:
            self._step = self._find()
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked
            self._error = error
        self._answered.set()

    def wait(self) -> StepId:
        """By the thread that asks."""
        if not self._answered.wait(_ANSWER_SECONDS):
            self._given_up = True
            raise HeldError(0, "the keeper has not said yet which step the change belongs to")
        if self._error is not None:
            raise self._error
        return self._step


class MountedTree:
    """One tree that is served by a mount."""

    def __init__(self, run: Run, client: Client, host: MountHost, mount: ServedMount, anchors: frozenset[int]) -> None:
        self.run = run
        self.client = client
        """The connection that the mount lasts as long as."""
        self.host = host
        self.mount = mount
        self.anchors = anchors
        """Processes that all of the tree descend from."""


class MountedTrees:
    """All of them. For the serving thread, unless a method says otherwise."""

    def __init__(self, server: str, keeper: KeeperContext) -> None:
        """``server`` is `KeeperSettings.server`."""
        self._server = server
        self._keeper = keeper
        self._trees: dict[int, MountedTree] = {}
        """By the descriptor that reports their end. (Replaced, never changed, for other threads.)"""
        self._closing: tuple[ServedMount, ...] = ()
        """Mounts with work in progress. (Replaced likewise, with the lock.)"""
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[MountedTree]:
        """From any thread."""
        return iter(tuple(self._trees.values()))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._trees)

    def serve(
        self,
        run: Run,
        client: Client,
        device: int,
        processes: Processes,
        close_ended: Callable[[Run], None],
        served_by: ServedBy = "mount",
        group_ended: Callable[[StepGroup], None] = lambda _group: None,
    ) -> None:
        """Serve a run's mount, whose ``device`` is taken over in any case; see `MountHost` and `MachineHost`. Raises
        `HoldfastError`.
        """
        if served_by == "mount":
            anchors = frozenset((run.agent, client.peer.pid))
            host = MountHost(self._keeper, run, anchors, processes, close_ended)
        else:  # a guest has no process here, and the joining process acts for a person
            anchors = frozenset((run.agent,))
            port = socket.socket(fileno=client.descriptors.pop(0))
            host = MachineHost(self._keeper, run, anchors, processes, close_ended, port=port, ended=group_ended)
        try:
            if not self._server:
                raise UnsupportedError(
                    "the keeper that this workspace has serves no mounts", hint="try again when what it runs has ended"
                )
            mounting: MountFactory = importlib.import_module(self._server).serve
            mount = mounting(device, host, served_by)
        except BaseException as error:
            host.end()
            os.close(device)
            if isinstance(error, OSError):
                raise StorageError(f"the mount cannot be served: {error.strerror}") from error
            raise
        self._trees = self._trees | {mount.over: MountedTree(run, client, host, mount, anchors)}
        self._keeper.selector.register(mount.over, 1)

    def watches(self, fd: int) -> bool:
        """Whether a descriptor that the selector named says that a mount is over."""
        return fd in self._trees

    def ended_tree(self, fd: int) -> MountedTree:
        """The tree whose end the descriptor reports."""
        return self._trees[fd]

    def tree_of(self, client: Client) -> MountedTree | None:
        """The tree that joined by this connection."""
        return next((tree for tree in self if tree.client is client), None)

    def end(self, tree: MountedTree) -> None:
        """Serve one no longer: requests that still come fail."""
        tree.host.end()
        self._keeper.selector.unregister(tree.mount.over)
        self._trees = {fd: each for fd, each in self._trees.items() if each is not tree}
        self._close(tree.mount)

    def _close(self, mount: ServedMount) -> None:
        """From any thread: work in progress ends by itself, and others are served meanwhile."""
        is_closed = mount.close()
        with self._lock:
            others = tuple(each for each in self._closing if each is not mount)
            self._closing = others if is_closed else (*others, mount)
        if not is_closed:
            self._keeper.worker.do(lambda: self._close(mount))

    def settle(self, run: Run) -> None:
        """See `ServedMount.settle`, of a run's mount, if it has one."""
        for tree in self:
            if tree.run is run:
                tree.mount.settle()

    def stale_seconds(self, run: Run) -> float:
        """See `ServedMount.stale_seconds`, of a run's mount, if it has one."""
        return max((tree.mount.stale_seconds() for tree in self if tree.run is run), default=0.0)

    def held_for_writing(self) -> frozenset[int]:
        """Files that are open for writing in any mount. From any thread."""
        mounts = (*(tree.mount for tree in self), *self._closing)
        return frozenset[int]().union(*(mount.held_for_writing() for mount in mounts))

    def forget(self) -> None:
        """Anything may have been changed in all of them. From any thread."""
        for tree in self:
            tree.mount.forget()

    def tick(self) -> None:
        """Do periodic work, a few times a second."""
        for tree in self:
            tree.host.forget_threads()

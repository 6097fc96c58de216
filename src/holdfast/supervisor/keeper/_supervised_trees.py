"""The trees that a keeper serves: they join and end here, with their processes and their steps."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from holdfast.model.errors import FormatError, HoldfastError, NotFoundError, RefusedError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.processes.process_tree import descendants, signal_all
from holdfast.supervisor.confinement.seccomp_notify import Listener
from holdfast.supervisor.keeper._call_dispatcher import SupervisedTree, TreeDescriptors, handler_table
from holdfast.supervisor.keeper._inherited_fds import record_inherited
from holdfast.supervisor.operations import HANDLERS
from holdfast.supervisor.process_tree.members import (
    Processes,
    Run,
    command_of,
    descends_from,
    is_asked_to_end,
    parent_of,
    thread_group,
)
from holdfast.supervisor.process_tree.writable_inodes import inodes_held_for_writing
from holdfast.supervisor.resolution.directory_cache import DIRECTORIES
from holdfast.supervisor.resolution.procfs import is_below
from holdfast.supervisor.resolution.territory import ReadOnly, absolute, is_deleted
from holdfast.supervisor.syscalls.caller_access import CallerAccess, DirectAccess
from holdfast.undo.service import ProcessInfo, strictest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.ipc.server import Client
    from holdfast.supervisor.control.keeper_port import JoinRequest
    from holdfast.supervisor.keeper._keeper_context import KeeperContext
    from holdfast.supervisor.keeper.mounted_trees import MountedTree, MountedTrees
    from holdfast.supervisor.process_tree.members import StepGroup
    from holdfast.supervisor.syscalls.caller_access import Freezer
    from holdfast.undo.journal.records import StepId
    from holdfast.undo.service import StepOutcome, Thresholds

_log = Log(__name__)

_JOINS_WITH = 2
_KILLED_SECONDS = 5.0
_OPEN_FILES = 10_000
"""Examining so many takes about a tenth of a second, in which no call changes anything."""

Member: TypeAlias = "SupervisedTree | MountedTree"


class SupervisedTrees:
    """See the module. For the serving thread."""

    def __init__(self, keeper: KeeperContext, mounted: MountedTrees, receive: Callable[[SupervisedTree], None]) -> None:
        """Descriptors of processes are registered with the keeper's selector. ``receive`` begins to receive the calls
        of a tree.
        """
        self.trees: dict[int, SupervisedTree] = {}
        """By their listener."""
        self.calls_ready = select.poll()
        """Every listener is registered here, for its end alone, and the keeper's selector."""
        self.calls_ready.register(keeper.selector.fileno(), select.POLLIN)
        self._runs: dict[Client, Run] = {}
        self._channels: dict[str, socket.socket] = {}
        """By run, over what its agent takes connections in."""
        self._frozen: dict[StepId, dict[Run, Freezer]] = {}
        self._spared: dict[str, frozenset[int]] = {}
        """For each run, the processes that existed when one of them opened the run's explicit step: they go on while
        the step is held, as long as they change nothing. The process that made the held request must be able to report
        it, and to cancel it.
        """
        self._keeper = keeper
        self._service = keeper.service
        self._steps = keeper.steps
        self._permission = DirectAccess()
        self._mounted = mounted
        self._receive = receive
        self._gone: tuple[Member, ...] = ()
        """Ended trees whose processes may still be needed: see `ended_trees`. (Replaced, never changed: threads read
        it.)
        """
        self._calls = handler_table(os.uname().machine, HANDLERS)
        self._processes = Processes(lambda pidfd: keeper.selector.register(pidfd, select.EPOLLIN))

    def __bool__(self) -> bool:
        """Whether there is any run or tree to serve."""
        return bool(self.trees or self._mounted or self._runs)

    @property
    def _members(self) -> Sequence[Member]:
        """All that are served. From any thread."""
        return (*list(self.trees.values()), *self._mounted)

    def join(self, client: Client, request: JoinRequest) -> None:
        """Serve the tree whose descriptors came with the request; see `RemoteUndoService.join`."""
        agent = request.agent
        if len(client.descriptors) != _JOINS_WITH + request.read_only or client in self._runs:
            raise HoldfastError("a run joins with the listener of its filter and a socket of its parent's, and once")
        self._check_apart(client.descriptors[_JOINS_WITH:])
        run = Run(request.run, agent, one_step=request.one_step)
        run.agents.command, run.agents.directory = request.command, request.directory
        run.thresholds = request.thresholds
        # Known from the start: a run that is one step lasts as long as its first process, whether or not that acts.
        try:
            self._processes.group(run, agent)
        except OSError as error:
            raise HoldfastError(
                "this workspace supervises as many processes as it can", hint="end some of its runs"
            ) from error
        if request.served_by == "filter":
            self._serve_calls(client, run)
        else:
            device = client.descriptors.pop(0)
            self._mounted.serve(
                run, client, device, self._processes, self._close_ended, request.served_by, self._group_ended
            )
        self._runs[client] = run
        self._guard()
        run.handed_in = record_inherited(agent, self._keeper.workspace, lambda: self._steps.step_of(run.agents))
        _log.info("run joined", run=run.id, agent=agent)

    def _serve_calls(self, client: Client, run: Run) -> None:
        waiting, parent, *kept = client.descriptors
        listener = Listener(waiting)
        client.descriptors.clear()
        access = CallerAccess(socket.socket(fileno=parent), self._permission)
        descriptors = TreeDescriptors(listener, access, tuple(map(ReadOnly, kept)))
        tree = SupervisedTree(self._keeper, run, descriptors, self._processes, self._calls, self._hold)
        tree.anchors = frozenset((run.agent, client.peer.pid))
        self.trees[listener.fd] = tree
        self.calls_ready.register(listener.fd, 0)
        self._receive(tree)

    def _check_apart(self, directories: Sequence[int]) -> None:
        """Raise `RefusedError` unless each is a directory that is neither in the workspace nor a parent of it: undo
        would change the one, and the other would block every change.
        """
        root = absolute(self._keeper.workspace.root_fd)
        for fd in directories:
            path = absolute(fd)
            if not stat.S_ISDIR(os.fstat(fd).st_mode) or is_deleted(fd, path):
                raise RefusedError(f"{display(path)} is no directory, or not any more", code="not_a_directory")
            if is_below(root, (path.rstrip(b"/"),)) or is_below(path, (root.rstrip(b"/"),)):
                raise RefusedError(
                    f"{display(path)} cannot be read-only: it and the workspace {display(root)} lie in each other",
                    hint="name directories that are apart",
                )

    def find(self, id_: str) -> Run | None:
        """The run of this id, if it has joined and not left."""
        return next((run for run in self._runs.values() if run.id == id_), None)

    def guard(self, client: Client, id_: str, thresholds: Thresholds) -> None:
        """See `RemoteUndoService.guard`."""
        joined = next((joined for joined, run in self._runs.items() if run.id == id_), None)
        if joined is None:
            raise NotFoundError(f"no run {id_} is served here")
        if not _is_above(client.peer.pid, joined.peer.pid):
            raise RefusedError(f"the run {id_} was started by another process, which alone changes its safeguards")
        self._runs[joined].thresholds = thresholds
        self._guard()

    def _guard(self) -> None:
        """A run's limits count until its last process has ended, so that its background processes are guarded too."""
        present = {*self._runs.values(), *(tree.run for tree in self._members)}
        self._service.guard(strictest(run.thresholds for run in present), [run.id for run in present])

    def run_of(self, pid: int) -> str:
        """The id of the run that a process belongs to, if known; empty if there is none."""
        trees = self._members
        found = next((tree.run.id for tree in trees if self._is_of(tree.run, pid)), "")
        while not found and (pid := parent_of(pid)) > 1:
            # Unnoticed orphans are below the parent of their tree.
            found = next((tree.run.id for tree in trees if pid in tree.anchors), "")
        return found

    def prepare_explicit_step(self, id_: str) -> None:
        """A process of the run is about to open an explicit step. Raises `RefusedError` while it may not."""
        tree = next((tree for tree in self._members if tree.run.id == id_), None)
        if tree is not None and not self._service.explicit_steps(id_):
            self._steps.split_line(tree.run)
            self._spared[id_] = frozenset(self._processes.living_processes(tree.run))

    def keep_channel(self, client: Client, id_: str) -> int:
        """See `RemoteUndoService.open_channel`."""
        run = self._joined(id_)
        channel = socket.socket(fileno=_only_descriptor(client))
        channel.setblocking(False)
        self._close_channel(run)
        self._channels[id_] = channel
        return run.agent

    def pass_connection(self, client: Client, id_: str) -> int:
        """See `RemoteUndoService.connect_agent`."""
        run, channel = self._joined(id_), self._channels.get(id_)
        connection = _only_descriptor(client)
        try:
            if channel is None:
                raise NotFoundError(f"the run {id_} takes no connections in")
            socket.send_fds(channel, [b"\0"], [connection])
        except BlockingIOError:
            raise StorageError(
                "the process that starts the session's commands takes no more connections",
                hint="try again later",
                code="busy",
            ) from None
        except OSError as error:
            raise NotFoundError(f"the run {id_} takes no more connections in: {error.strerror}") from error
        finally:
            os.close(connection)
        return run.agent

    def expect(self, id_: str, command: list[bytes]) -> StepId:
        """See `RemoteUndoService.expect`."""
        return self._steps.expect(self._joined(id_), tuple(command))

    def settle_step(self, step: StepId, exit_code: int | None) -> Callable[[], StepOutcome]:
        """See `RunService.settle`: earlier requests to a mount belong to the step."""
        run = self._steps.run_expecting(step)
        if run is not None:
            self._mounted.settle(run)
        return self._steps.settle(step, exit_code)

    def begin_line(self, label: str, id_: str) -> None:
        """See `RemoteUndoService.begin_line`."""
        run = self._joined(id_)
        self._steps.prepare_line(run)
        self._processes.begin_line(run, (label.encode("utf-8", "surrogateescape"),))

    def end_line(self, id_: str, exit_code: int) -> None:
        """See `RemoteUndoService.end_line`."""
        self._steps.end_line(self._joined(id_), exit_code)

    def _joined(self, id_: str) -> Run:
        if (run := self.find(id_)) is None:
            raise NotFoundError(f"no run {id_} is served here")
        return run

    def leave(self, client: Client) -> str:
        """The run's agent has ended; the rest of its tree is served until it ends too. Returns the run's id."""
        run = self._runs.pop(client, None)
        if run is None:
            raise NotFoundError("no run came by this connection, or it has left", code="no_run")
        _log.info("run left", run=run.id)
        self._spared.pop(run.id, None)
        self._close_channel(run)
        self._close_ended(run)
        self._steps.close_run(run)
        self._guard()
        return run.id

    def connection_lost(self, client: Client) -> None:
        """The connection has ended. A tree that joined by it and has not left must end; a mount ends in any case: the
        process that watches its users holds the connection as long as there are any.
        """
        run = self._runs.pop(client, None)
        if run is not None:
            self._close_channel(run)
            self._kill(run)  # its launcher or its parent was killed
            for tree in [tree for tree in self.trees.values() if tree.run is run]:
                self.tree_ended(tree)
        if (mounted := self._mounted.tree_of(client)) is not None:
            self._unmounted(mounted)
        if run is not None:
            self._steps.close_run(run)
            self._guard()

    def _close_channel(self, run: Run) -> None:
        channel = self._channels.pop(run.id, None)
        if channel is not None:
            channel.close()

    def tree_ended(self, tree: SupervisedTree) -> None:
        """The tree's last process has ended, or all its processes must end."""
        DIRECTORIES.forget()
        self.calls_ready.unregister(tree.listener.fd)
        self._gone += (tree,)  # first, since other threads read it
        del self.trees[tree.listener.fd]
        tree.close()
        self._is_over(tree)

    def _unmounted(self, tree: MountedTree) -> None:
        self._gone += (tree,)
        self._mounted.end(tree)
        self._is_over(tree)

    def _is_over(self, tree: Member) -> None:
        self._close_ended(tree.run)
        if tree.run not in self._runs.values():
            # Otherwise it leaves in a moment: a process releases its filter before its exit is visible.
            self._steps.close_run(tree.run)
            self._guard()

    def ended_trees(self) -> tuple[Member, ...]:
        """Ended trees, with all their observed processes, which make no more changes.

        A listener ends before the last process has closed its files, and their writes are reported even later. So a
        process stays known as a tree's until all reports were handled, and then `forget_ended` is called.
        """
        return tuple(tree for tree in self._gone if not self._processes.pidfds(tree.run))

    def forget_ended(self, trees: tuple[Member, ...]) -> None:
        """All that these have changed has been taken notice of: the numbers of their processes say nothing any more."""
        self._gone = tuple(tree for tree in self._gone if tree not in trees)

    def end(self) -> None:
        """End every tree, and close all steps."""
        for tree in list(self.trees.values()):
            # Writes through a descriptor after its step was closed would belong to no step.
            self._kill(tree.run)
            self.tree_ended(tree)
        for tree in self._mounted:
            self._kill(tree.run)
            self._unmounted(tree)
        for run in self._runs.values():
            self._steps.close_run(run)
        self._steps.close_last()
        self.retry()

    def processes(self, id_: str) -> list[ProcessInfo]:
        """The living processes of a run, including those without changes, and unnoticed orphans, which are children
        of the tree's parent.
        """
        found: dict[int, StepId] = {}
        for tree in self._members:
            if tree.run.id == id_:
                found |= {tgid: group.step for tgid, group in self._processes.living_groups(tree.run)}
                # The keeper may also be below a parent that has started it. The agent's number may be another process's
                # by now.
                others = descendants(*(tree.anchors - {tree.run.agent}), spare=(os.getpid(),))
                found |= {tgid: 0 for tgid in others if tgid not in found}
        return [ProcessInfo(pid=tgid, command=command_of(tgid), step=step) for tgid, step in found.items()]

    def signal(self, id_: str, number: int) -> int:
        """Send a signal (0: none) to every process of a run, and to no other; the number of its processes."""
        if number:
            numbers = (number, signal.SIGCONT) if number == signal.SIGTERM else (number,)
            signal_all(lambda: [process.pid for process in self.processes(id_)], numbers)
        return len(self.processes(id_))

    def await_exits(self) -> None:
        """Wait until the processes of trees that are gone have closed their files, which is the last that they do; not
        for ever, as `_kill`.
        """
        _wait_for([pidfd for tree in self._gone for pidfd in self._processes.pidfds(tree.run)])

    def _kill(self, run: Run) -> None:
        """Kill the processes of a run, and wait until they are gone; not for ever: one may hang in the kernel."""
        signal_all(lambda: self._processes.living_processes(run), (signal.SIGKILL,))
        pidfds = self._processes.pidfds(run)
        for pidfd in pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for tree in self._mounted:
            if tree.run is run:
                tree.host.end()  # if its request waits for a person, it cannot die before the answer
        _wait_for(pidfds)

    def watches(self, fd: int) -> bool:
        """Whether the descriptor that the selector named is a process's, or a mount's."""
        return self._processes.watches(fd) or self._mounted.watches(fd)

    def ended(self, fd: int) -> None:
        """A process has ended, or a mount is gone."""
        if self._mounted.watches(fd):
            self._unmounted(self._mounted.ended_tree(fd))
        else:
            self._process_ended(fd)

    def _process_ended(self, pidfd: int) -> None:
        self._keeper.selector.unregister(pidfd)
        group = self._processes.ended(pidfd)
        if group is not None:
            self._group_ended(group)

    def _group_ended(self, group: StepGroup) -> None:
        self._mounted.settle(group.run)
        self._steps.close(group)

    def holds(self, pid: int) -> bool:
        """Whether a process belongs to a tree, or looks after one. One that we cannot see, or that is gone already,
        might; and so might one whose ancestors end faster than they can be looked at.
        """
        return not os.path.exists(f"/proc/{pid}") or self._is_inside(pid, self._members) is not False

    def _is_of(self, run: Run, pid: int) -> bool:
        return pid == run.agent or self._processes.is_below(run, pid)

    def is_inside(self, pid: int) -> bool:
        """Whether a process belongs to a tree, or is a tree's parent, including `ended_trees`. From any thread."""
        return self._is_inside(pid, (*self._gone, *self._members)) is True

    def may_have_been_inside(self, pid: int) -> bool:
        """Whether a process that has ended may have belonged to a tree. From any thread.

        Not one that a signal ended before it made any call that is received: it may only have written to a descriptor
        that it had inherited.
        """
        # The calls of trees that are served by a mount, their ends included, are not received.
        trees = (*self._gone, *self._members)
        return bool(self._mounted) or self._processes.was_known(pid) or any(pid in tree.anchors for tree in trees)

    def _is_inside(self, pid: int, trees: Iterable[Member]) -> bool | None:
        """As `is_inside`; None if it is unknown."""
        anchors, own, found = frozenset[int]().union(*(tree.anchors for tree in trees)), os.getpid(), 0

        def is_end(each: int) -> bool:
            nonlocal found
            found = each
            return each in anchors or self._processes.is_known(each) or each == own != pid

        inside = descends_from(pid, is_end)
        # The keeper's own children are outside, even if the keeper is below a tree's parent.
        return False if inside and found == own else inside

    def held_for_writing(self, thorough: bool) -> frozenset[int] | None:
        """See `UndoLog.writers`."""
        mounted = tuple(tree.run for tree in self._mounted)
        # Files in a mount need no search, which the mount itself would have to answer.
        found = inodes_held_for_writing(
            lambda: self._processes.tgids_except(mounted), None if thorough else _OPEN_FILES
        )
        if found is None:
            return None
        # Descriptors from before the mount bypass it.
        handed_in = (run.handed_in for run in mounted if self._processes.is_known(run.agent))
        return found.union(self._mounted.held_for_writing(), *handed_in)

    def settle(self) -> None:
        """Take over what the threads of slow calls have left."""
        for tree in self.trees.values():
            tree.settle()

    def retry(self) -> None:
        """Continue calls that no longer wait for a person, and the processes that made them."""
        if any(tree.held for tree in self.trees.values()):
            waiting = {ticket.id for ticket in self._service.held()}
            for tree in self.trees.values():
                tree.retry(waiting)
        if self._frozen:
            asked = {ticket.step for ticket in self._service.held()}  # including those that just continued
            for step in [step for step in self._frozen if step not in asked]:
                for freezer in self._frozen.pop(step).values():
                    freezer.release()

    @property
    def has_retries(self) -> bool:
        """Whether `try_again` has anything to do."""
        return any(tree.later for tree in self.trees.values())

    def try_again(self) -> None:
        """Try calls anew that wait for what no event says."""
        for tree in self.trees.values():
            tree.retry_later_calls()

    def tick(self) -> None:
        """Do periodic work, a few times a second."""
        self._processes.forget_threads()
        self._mounted.tick()
        DIRECTORIES.forget()
        for tree in self.trees.values():
            tree.release_directories()
        self.retry()
        try:
            for tree in self._mounted:
                # No event reports a new process here: those that are seen in time stay in their group.
                for _ in self._processes.living_groups(tree.run):
                    pass
            self._look_after_held()
        except OSError as error:
            # There may be more processes than descriptors for them: missed ones are searched again.
            _log.warning("not all processes can be looked at: %s", error.strerror)

    def _hold(self, tree: SupervisedTree, ticket: int, tid: int) -> None:
        """A call waits for a person: all that its step consists of is to wait."""
        for info in self._service.held():
            if info.id == ticket:
                if info.step not in self._frozen:
                    self._frozen[info.step] = {}
                    self._freeze_all(info.step)
                elif thread_group(tid) not in self._spared_of(info.step):
                    self._freeze(info.step, tree, [tid])

    def _freeze_all(self, step: StepId) -> set[int]:
        """Stop every process of the step; returns them."""
        spared, stopped = self._spared_of(step), set[int]()
        for tree in self.trees.values():
            found = ((tgid, group) for tgid, group in self._processes.living_groups(tree.run) if tgid not in spared)
            of_step = [tgid for tgid, group in found if self._steps.is_of(group, step)]
            if of_step:
                self._freeze(step, tree, of_step)
                stopped.update(of_step)
        return stopped

    def _look_after_held(self) -> None:
        """Stop new processes of held steps, and deny an operation if a process of it was sent a signal to end (Ctrl-C),
        which it can follow only then. A stopped process receives no signal, and only a fatal one interrupts a waiting
        call.
        """
        for info in self._service.held() if self._frozen else ():
            if info.step in self._frozen:
                waiting = self._freeze_all(info.step)
                for tree in self.trees.values():
                    waiting.update(thread_group(call.tid) for ticket, call in tree.held if ticket == info.id)
                if any(map(is_asked_to_end, waiting)):
                    _log.info("an operation that waits for a person was interrupted", step_id=info.step, ticket=info.id)
                    self._keeper.deny(info.id)

    def _spared_of(self, step: StepId) -> frozenset[int]:
        for run, spared in self._spared.items():
            if step in self._service.explicit_steps(run):
                return spared
        return frozenset()

    def _freeze(self, step: StepId, tree: SupervisedTree, processes: list[int]) -> None:
        freezers = self._frozen[step]
        freezer = freezers.get(tree.run) or tree.access.freezer()
        if freezer is not None:  # otherwise it is tried again in a moment
            freezers[tree.run] = freezer
            freezer.add(processes)

    def _close_ended(self, run: Run) -> None:
        """Take notice of every process of the run that has ended by now."""
        ends = select.poll()
        for pidfd in self._processes.pidfds(run):
            ends.register(pidfd, select.POLLIN)
        for pidfd, _ in ends.poll(0):
            self._process_ended(pidfd)


def _is_above(pid: int, other: int) -> bool:
    """Whether a process is another one, or started it, or what started that."""
    while other > 1 and other != pid:
        other = parent_of(other)
    return other == pid > 0  # 0: gone, or invisible


def _only_descriptor(client: Client) -> int:
    if len(client.descriptors) != 1:
        raise FormatError("one socket comes with this request")
    return client.descriptors.pop()


def _wait_for(pidfds: Iterable[int]) -> None:
    """Wait until the processes have ended, for a time."""
    ends, waiting = select.poll(), set(pidfds)
    for pidfd in waiting:
        ends.register(pidfd, select.POLLIN)
    deadline = time.monotonic() + _KILLED_SECONDS
    while waiting and (left := deadline - time.monotonic()) > 0:
        for pidfd, _ in ends.poll(left * 1000):
            ends.unregister(pidfd)
            waiting.discard(pidfd)

"""Runs a command under supervision, as if it ran natively.

The launcher starts the parent of the tree (`holdfast.supervisor.launch.tree_parent`), which starts the command and, if
there is none yet, the workspace's keeper. A signal to the launcher alone is passed to the command; one to the whole
process group, as from the terminal, reaches the command directly, which the parent notices. If the launcher or the
keeper is killed, the tree ends.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.model import errors
from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.processes import forked_process
from holdfast.processes.process_tree import become_subreaper, children, end_descendants
from holdfast.supervisor.confinement.filter_shim import arguments
from holdfast.supervisor.launch._parent_messages import (
    ANSWER,
    RELAYED,
    LaunchReport,
    LaunchRequest,
    receive_message,
    send_message,
)
from holdfast.undo.service import OFF

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
    from holdfast.supervisor.launch.sandbox_port import Sandbox
    from holdfast.undo.service import RunEnding, Thresholds

_CAP_SYS_PTRACE = 19
_ADMINS_ONLY = 2
_TOGETHER_SECONDS = 0.01
_KEEPER_SECONDS = 1.0


class SupervisedCommand(NamedTuple):
    """The command, and its conditions."""

    words: Sequence[bytes]
    called: Sequence[bytes] = ()
    """The command in steps; empty: ``words``."""
    directory: bytes | None = None
    """Where it runs; None: where this process does."""
    environment: Mapping[bytes, bytes] | None = None
    """None: this process's own."""
    run: str = ""
    """The id of the run that it is."""
    one_step: bool = False
    """All that it changes is one step."""
    fails_whole: bool = False
    """If it fails, its background processes end with it (SIGTERM, and then SIGKILL)."""
    ends_whole: bool = False
    """The same however it ends."""
    read_only: Sequence[int] = ()
    """Directories that it may not change, with their contents; see `RemoteUndoService.join`."""
    inherited: Sequence[int] = ()
    """Descriptors that it gets under the same numbers, and this process loses. Not with a box."""
    thresholds: Thresholds = OFF
    """The limits at which a person is asked; see `RemoteUndoService.guard`."""


def supervise(
    command: SupervisedCommand,
    settings: KeeperSettings,
    *,
    box: Sandbox | None = None,
    entry: Callable[[int], Sequence[bytes]] | None = None,
    parted: Callable[[RunEnding], object] = lambda _parting: None,
    meanwhile: AbstractContextManager[object] | None = None,
) -> int:
    """Run ``command`` until it ends, and return its exit code; if a signal ended it, 128 and its number.

    When it returns, all steps of the run are finished. Background processes go on, supervised. Without a ``box`` the
    command is an ordinary child. ``parted`` is called with the keeper's report at the run's end. ``meanwhile`` is
    entered before the command begins, and left after its end: it may start threads, which must not exist earlier, since
    the parent may be a fork of this process.

    With an ``entry``, the command sees the workspace only by a mount, which `KeeperSettings.server` serves, without a
    filter. ``entry`` receives a channel's descriptor, and returns the program to execute: it makes the mount, sends its
    device through the channel, and then continues as `filter_shim.enter`. It excludes ``box`` and ``read_only``.

    Raises `UnsupportedError` where the kernel cannot supervise, `LockedError` if another process has the undo log, and
    the errors of opening it.
    """
    order = LaunchRequest(
        command=tuple(command.words),
        called=tuple(command.called),
        directory=os.getcwdb() if command.directory is None else command.directory,
        environment=dict(os.environb if command.environment is None else command.environment),
        run=command.run,
        one_step=command.one_step,
        fails_whole=command.fails_whole,
        ends_whole=command.ends_whole,
        settings=settings,
        read_only=tuple(command.read_only),
        inherited=tuple(command.inherited),
        closed=(settings.root, *(os.readlink(b"/proc/self/fd/%d" % fd) for fd in command.read_only)),
        thresholds=command.thresholds,
        mounted=entry is not None,
    )
    if entry is None:
        require_tracing(yama_scope(), effective_capabilities())
        require_calls()
    mine = children()
    was_subreaper = become_subreaper()
    try:
        with ExitStack() as context:
            ours, its = (context.enter_context(end) for end in socket.socketpair())
            channel_ends = context.enter_context(ExitStack())
            passed = [*order.read_only, *order.inherited]
            if entry is not None:
                channel, shim = _channel(channel_ends)
                order = msgspec.structs.replace(order, box=tuple(entry(shim)), channel=channel, shim=shim)
            elif box is not None:
                order = _boxed(order, box, context, *_channel(channel_ends))
            if order.box:
                passed += [order.channel, order.shim, *order.descriptors]
            with _signals(ours) as relay:
                # Signals before the parent can note them wait there until it has its order.
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, () if relay is None else RELAYED)
                try:
                    # In our process group, for the terminal's signals, and with our standard streams.
                    parent = forked_process.start("holdfast.supervisor.launch.tree_parent", its.fileno(), passed=passed)
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                for given in (*order.inherited, its.detach()):
                    os.close(given)
                channel_ends.close()  # open here, it would hide the early end of a box from the parent
                if meanwhile is not None:
                    context.enter_context(meanwhile)
                with suppress(OSError):  # it was killed already, as the code below finds
                    numbers = tuple(map(int, blocked))
                    send_message(ours, msgspec.structs.replace(order, blocked=numbers, relays=relay is not None))
                return _follow(ours, parent, mine, relay, parted)
    finally:
        become_subreaper(wanted=was_subreaper)


def _boxed(order: LaunchRequest, box: Sandbox, context: ExitStack, channel: int, shim: int) -> LaunchRequest:
    command = arguments(shim, order.closed, order.command, guarded=order.thresholds.asks)
    prepared = context.enter_context(
        box.prepare(command, directory=order.directory, environment=order.environment, keep=[shim])
    )
    return msgspec.structs.replace(
        order,
        environment=dict(prepared.environment),
        box=tuple(prepared.arguments),
        descriptors=tuple(prepared.descriptors),
        channel=channel,
        shim=shim,
    )


def _channel(context: ExitStack) -> tuple[int, int]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, shim = (context.enter_context(end).fileno() for end in ends)
    return channel, shim


def require_tracing(scope: int, capabilities: int) -> None:
    """Raise `UnsupportedError` if Yama (``Documentation/admin-guide/LSM/Yama.rst``), at this ``ptrace_scope``, keeps
    processes with these effective ``capabilities`` from reading the arguments of calls, be they ancestors of who makes
    them (`holdfast.supervisor.launch._caller_access_server`).
    """
    if scope >= _ADMINS_ONLY and (scope > _ADMINS_ONLY or not capabilities >> _CAP_SYS_PTRACE & 1):
        raise UnsupportedError(
            f"the kernel lets no process look at others, not even its children (kernel.yama.ptrace_scope is {scope})",
            hint="`sudo sysctl kernel.yama.ptrace_scope=1` lets processes look at their "
            "children, which is enough; or run it as root"
            if scope <= _ADMINS_ONLY
            else "that holds until the next start of the system; `holdfast watch` saves without supervision",
        )


def require_calls() -> None:
    """Raise `UnsupportedError` where a filter that this process inherited refuses calls that the keeper makes to carry
    out changes, as the filter of a Docker container does. Changes would fail there one by one (EPERM).
    """
    import ctypes

    from holdfast.supervisor.syscalls.caller_access import SYS_PIDFD_GETFD

    libc = ctypes.CDLL(None, use_errno=True)
    # (Where they are allowed, neither does anything: there are no flags, and -1 is no process.)
    is_refused = libc.unshare(0) != 0
    libc.syscall(SYS_PIDFD_GETFD, -1, 0, 0)
    if is_refused or ctypes.get_errno() != errno.EBADF:
        raise UnsupportedError(
            "a filter of system calls, such as a container's, refuses unshare or pidfd_getfd, which recording needs",
            hint="Docker's ends with `--security-opt seccomp=unconfined`; `holdfast watch` saves without supervision",
        )


def yama_scope() -> int:
    """Which processes may look at which (``kernel.yama.ptrace_scope``): 0, any of the same user, without Yama."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", "rb") as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def effective_capabilities() -> int:
    """The effective capabilities of this process, a bit each."""
    with open("/proc/self/status", "rb") as file:
        return next(int(line[7:], 16) for line in file if line.startswith(b"CapEff:"))


def _follow(
    parent_socket: socket.socket,
    parent: int,
    mine: set[int],
    relay: _Relay | None,
    parted: Callable[[RunEnding], object],
) -> int:
    keeper = 0
    while (report := _next_report(parent_socket, relay)) is not None:
        match report.kind:
            case "started":
                keeper = report.pid
            case "stopped":
                # Until the command has stopped, it may read input that is typed for the shell.
                _stop_with(report.pid)
            case "asked":
                if relay is not None:
                    relay.pass_on()
                with suppress(OSError):
                    parent_socket.send(ANSWER)
            case "failed":
                forked_process.wait(parent)
                kind = next((kind for kind in _kinds() if kind.code == report.code), HoldfastError)
                raise kind(report.message, hint=report.hint, code=report.code)
            case "ended":
                if not report.stays:  # else it watches the remaining processes
                    forked_process.wait(parent)
                parted(report.parting)
                code = os.waitstatus_to_exitcode(report.status)
                return code if code >= 0 else 128 - code
    was_killed = forked_process.wait(parent) < 0
    end_descendants({keeper, *mine})
    if was_killed and not _has_failed(keeper):
        raise HoldfastError(
            "the run was ended: the process that looked after it was killed",
            hint="its changes until then are recorded; `holdfast undo` takes them back",
            code="parent_gone",
        )
    raise HoldfastError(
        "the run was ended: its keeper was killed",
        hint="its open step is rolled back when the undo log is used next; `holdfast redo --step` "
        "brings it forward, `holdfast steps` names it",
        code="keeper_gone",
    )


def _has_failed(keeper: int) -> bool:
    """Whether a keeper, whose parent has been killed, was killed as well, or has ended by a mistake. One that another
    process has started (0) is for that one to look after.
    """
    if not keeper:
        return False
    try:
        # Killed at the same time, it may take a moment longer to end. A keeper that others use goes on.
        with open(os.pidfd_open(keeper), "rb", buffering=0) as process:
            select.select([process], [], [], _KEEPER_SECONDS)
        found = os.waitid(os.P_PID, keeper, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ProcessLookupError, ChildProcessError):
        return True  # the parent itself has seen its end
    return found is not None and (found.si_code != os.CLD_EXITED or found.si_status != 0)


def _kinds() -> list[type[HoldfastError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HoldfastError)]


def _stop_with(command: int) -> None:
    """Stop as the command has, so that the shell sees it; unless both were stopped, and continued, together."""
    for _ in range(2):
        # A signal to a process group reaches its members one by one: we may have been continued before the command.
        time.sleep(_TOGETHER_SECONDS)
        try:
            with open(f"/proc/{command}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
        except OSError:
            return  # it has ended
        if state != b"T":
            return
    os.kill(os.getpid(), signal.SIGSTOP)


def _next_report(parent_socket: socket.socket, relay: _Relay | None) -> LaunchReport | None:
    if relay is not None:
        relay.until_readable()
    return receive_message(parent_socket, LaunchReport)


class _Relay:
    """Tells the parent of a tree which signals this process gets.

    By a descriptor: where a signal comes right before a call that waits for the parent, a handler of Python's would be
    executed only after that.
    """

    def __init__(
        self, parent_socket: socket.socket, awake: socket.socket, numbers: Collection[int], others: int
    ) -> None:
        """``awake`` delivers the numbers of signals as they come; those not in ``numbers`` are written to the
        descriptor ``others``, unless it is negative.
        """
        self._parent_socket = parent_socket
        self._awake = awake
        self._numbers = numbers
        self._others = others

    def pass_on(self) -> None:
        """Tell of all that have come until now."""
        with suppress(BlockingIOError):
            while got := self._awake.recv(4096):
                with suppress(OSError):  # the parent is gone
                    self._parent_socket.sendall(bytes(number for number in got if number in self._numbers))
                if self._others >= 0:
                    with suppress(OSError):
                        os.write(self._others, bytes(number for number in got if number not in self._numbers))

    def until_readable(self) -> None:
        """Pass on signals as they come, until the parent has sent a message, or is gone."""
        waiting = select.poll()
        for each in (self._parent_socket, self._awake):
            waiting.register(each, select.POLLIN)
        while self._parent_socket.fileno() not in {fd for fd, _ in waiting.poll()}:
            self.pass_on()


@contextmanager
def _signals(parent_socket: socket.socket) -> Generator[_Relay | None]:
    """Take signals for the length of the block; the yielded object reports them to the parent. Only a process's first
    thread gets signals: for others it is None.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    found = ((number, signal.getsignal(number)) for number in RELAYED)
    # Keep a disposition that nohup, or code outside of Python, has set.
    before = {number: handler for number, handler in found if handler not in (signal.SIG_IGN, None)}
    awake, wake = socket.socketpair()
    with awake, wake:
        awake.setblocking(False)
        wake.setblocking(False)
        others = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in before:
            signal.signal(number, _notice)
        try:
            yield _Relay(parent_socket, awake, before.keys(), others)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(others)


def _notice(_number: int, _frame: object) -> None:
    """The wake-up descriptor says it."""


def main() -> int:
    """``python -m holdfast.supervisor.launch.supervised_run --log DIR --root DIR [--one-step] [--read-only DIR] --
    COMMAND…``, for trying it out.
    """
    import argparse

    from holdfast.supervisor.keeper.keeper_settings import KeeperSettings

    parser = argparse.ArgumentParser(prog="holdfast.supervisor.launch.supervised_run")
    parser.add_argument("--log", required=True, type=os.fsencode)
    parser.add_argument("--root", required=True, type=os.fsencode)
    parser.add_argument("--one-step", action="store_true")
    parser.add_argument("--read-only", action="append", default=[], type=os.fsencode)
    parser.add_argument("--watch", choices=("auto", "fanotify", "inotify"), default="auto")
    parser.add_argument("command", nargs="+", type=os.fsencode)
    given = parser.parse_args()
    settings = KeeperSettings(root=os.path.realpath(given.root), log=os.path.realpath(given.log), watch=given.watch)
    read_only = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in given.read_only]
    try:
        command = SupervisedCommand(given.command, one_step=given.one_step, read_only=read_only)
        return supervise(command, settings)
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error.message}\n")
        return error.exit_code


if __name__ == "__main__":
    forked_process.allow_forks()
    sys.exit(main())

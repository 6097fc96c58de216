"""The parent of a supervised tree: it starts the command under the filter, and watches the tree to its end.

This small process is between the launcher and the tree, so that no death leaves a tree unattended, and an ancestor of
its processes may read their memory (`holdfast.supervisor.launch._caller_access_server`). Orphans of the tree become its
children (it is a subreaper). It ends the tree if the launcher or the keeper dies; if it is killed itself, the launcher
does (`holdfast.supervisor.launch.supervised_run`). The command stays in the launcher's process group: stopping,
continuing, interrupting and hanging up affect all of them together, and job control in the starting shell works as for
a direct child.

A signal to the whole group reaches the command directly, and also the launcher and this process, which ignore it. A
signal to only one of these two is passed on: each reports the signals that it got.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.processes.forked_process import allow_forks
from holdfast.processes.process_tree import (
    GRACE_SECONDS,
    become_subreaper,
    descendants,
    end_descendants,
    end_in_order,
    reap_orphans,
)
from holdfast.supervisor.confinement.filter_shim import CANNOT_EXECUTE, GO, enter
from holdfast.supervisor.control.keeper_port import JoinRequest
from holdfast.supervisor.launch._parent_messages import (
    RELAYED,
    LaunchReport,
    LaunchRequest,
    receive_message,
    send_message,
)
from holdfast.supervisor.launch.keeper_connection import join, preload_keeper

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.supervisor.control.remote_service import RemoteUndoService

_CREDENTIALS = struct.Struct("3i")
_FD = struct.Struct("i")
_TOGETHER_SECONDS = 0.05
"""Signals of one number that come to the launcher and to this process within this time are one: `timeout` signals the
launcher, and then the whole group.
"""
_ENDING = frozenset(map(int, (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)))
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)


class _Parent:
    def __init__(self, launcher: socket.socket, order: LaunchRequest) -> None:
        self._launcher = launcher
        self._order = order
        self._keeper = 0
        """Its process, if it was started for this run."""
        self._child = 0
        self._agent = -1
        """The command itself, as a pidfd: in a box, our child only waits for it."""
        self._agent_number = 0
        self._ignored = [
            number
            for number in signal.valid_signals()
            if number not in _PYTHONS_OWN and signal.getsignal(number) is signal.SIG_IGN
        ]
        self._early: list[int] = []
        """Signals that came before the command's process existed."""
        self._noted: dict[int, _NotedSignals] = {}
        """Signals of which it is not known yet which processes have got them."""
        self._asked: tuple[int, ...] = ()
        """The signals that the launcher is asked about."""
        self._has_stopped = False
        """The launcher may have stopped as the command has."""

    def run(self) -> None:
        """See the module."""
        for number in (signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)
        awake, wake = socket.socketpair()
        for end in (awake, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *RELAYED.difference(self._ignored)):
            signal.signal(number, _notice)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._order.blocked)
        try:
            listener, agent = self._start(awake)
        except _EndedError as error:
            self._tell(LaunchReport(kind="ended", status=error.status))
            return
        remote, self._keeper = self._join(listener, agent)
        os.close(listener)
        self._tell(LaunchReport(kind="started", pid=self._keeper))
        self._pass_on_early(awake)
        with suppress(OSError):  # it was killed already
            self._channel.send(GO)
        status = self._look_after(remote, awake)
        stays = False
        if status is not None:
            self._say_what_failed()
            if self._order.ends_whole or (status and self._order.fails_whole):
                end_in_order(GRACE_SECONDS, self._spared)  # still served, so its last changes are recorded
            parting = remote.leave()
            stays = bool(descendants(os.getpid(), spare=self._spared))
            if self._has_stopped:  # killed while stopped: no other process continues the launcher then
                with suppress(ProcessLookupError):
                    os.kill(os.getppid(), signal.SIGCONT)
            # The launcher, which should get the report, was killed at the same moment.
            stays = self._tell(LaunchReport(kind="ended", status=status, stays=stays, parting=parting)) and stays
        if stays:
            self._look_after_rest(remote, awake)
        else:
            end_descendants(self._spared)
        signal.set_wakeup_fd(-1)  # the socket is about to be closed, and the keeper may end at the same moment

    def _join(self, listener: int, agent: int) -> tuple[RemoteUndoService, int]:
        order = self._order
        request = JoinRequest(
            run=order.run,
            agent=agent,
            one_step=order.one_step,
            command=order.called or order.command,
            directory=order.directory,
            read_only=len(order.read_only),
            thresholds=order.thresholds,
            served_by="mount" if order.mounted else "filter",
        )
        return join(order.settings, request, listener, order.read_only)

    @property
    def _spared(self) -> tuple[int, ...]:
        return (self._keeper,) if self._keeper else ()

    def _tell(self, report: LaunchReport) -> bool:
        """Tell the launcher; False if it is gone."""
        try:
            send_message(self._launcher, report)
        except OSError:
            return False
        return True

    # The command ------------------------------------------------------------------------------------------------

    def _start(self, awake: socket.socket) -> tuple[int, int]:
        """Start the child that becomes the command, which waits for `GO` under the filter. Its listener and number."""
        order = self._order
        if order.box:
            shim, self._channel = order.shim, socket.socket(fileno=order.channel)
        else:
            self._channel, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            shim = its.detach()
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, RELAYED)  # the child would note them in our place
        self._child = os.fork()  # it enters the filter before its program: no `processes.child`
        if not self._child:
            self._channel.close()
            self._launcher.close()  # if this process is killed, the launcher must notice at once
            self._become_command(shim)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for fd in (*order.inherited, shim):
            os.close(fd)
        preload_keeper(order.settings.log)
        message, ancillary = self._first_report(awake)
        if socket.SCM_RIGHTS not in ancillary:
            status = 0 if message else os.waitpid(self._child, 0)[1]
            if os.WIFSIGNALED(status):
                raise _EndedError(status)
            what = "served by a mount" if self._order.mounted else "supervised"
            raise UnsupportedError(f"the command cannot be {what} here: {message.decode() or 'its box has ended'}")
        agent, _, _ = _CREDENTIALS.unpack(ancillary[socket.SCM_CREDENTIALS])
        self._agent, self._agent_number = os.pidfd_open(agent), agent
        (served,), *listeners = _FD.iter_unpack(ancillary[socket.SCM_RIGHTS])
        for (listener,) in listeners:
            from holdfast.supervisor.launch._target_limits import begin_answering

            begin_answering(listener, lambda: self._spared)
        return served, agent

    def _first_report(self, awake: socket.socket) -> tuple[bytes, dict[int, bytes]]:
        """The shim's report, with its descriptors; nothing if our child ends without one.

        Raises `_EndedError` if the launcher is gone, or if no report comes within `GRACE_SECONDS` after a signal to
        end, which the program that makes a box ignores. The rest of the tree is killed then.
        """
        room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(2 * _FD.size)
        channel, launcher = self._channel.fileno(), self._launcher.fileno()
        due, status = None, int(signal.SIGTERM)
        waiting = select.poll()
        # The channel alone is not enough: other processes may have copies of its other end.
        with open(os.pidfd_open(self._child), "rb", buffering=0) as child:
            for fd in (channel, child.fileno(), awake.fileno(), launcher):
                waiting.register(fd, select.POLLIN)
            while due is None or time.monotonic() < due:
                left = None if due is None else max(due - time.monotonic(), 0) * 1000 + 1
                ready = {fd for fd, _ in waiting.poll(left)}
                if ready & {channel, child.fileno()}:  # it may have reported and ended after the channel was read
                    with suppress(BlockingIOError, ConnectionResetError):
                        flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                        message, found, _, _ = self._channel.recvmsg(4096, room, flags)
                        if message:
                            return message, {kind: data for _, kind, data in found}
                if child.fileno() in ready:
                    return b"", {}
                if channel in ready:
                    waiting.unregister(channel)
                if awake.fileno() in ready:
                    self._early += awake.recv(4096)
                if launcher in ready:
                    numbers = _read(self._launcher)
                    if not numbers:
                        break
                    self._early += numbers
                if due is None and self._order.relays and (asked := _ENDING.intersection(self._early)):
                    due, status = time.monotonic() + GRACE_SECONDS, min(asked)
        end_descendants()
        raise _EndedError(status)

    def _become_command(self, channel: int) -> NoReturn:
        order = self._order
        try:
            for number in signal.valid_signals():
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(number, signal.SIG_IGN if number in self._ignored else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, order.blocked)
            if order.box:
                for fd in (channel, *order.descriptors):
                    os.set_inheritable(fd, True)
                os.execve(order.box[0], order.box, order.environment)  # noqa: S606
            for fd in order.inherited:
                os.set_inheritable(fd, True)
            os.chdir(order.directory)
            os.environb.clear()
            os.environb.update(order.environment)
            enter(channel, order.closed, order.command, guarded=order.thresholds.asks)
        except Exception as error:  # noqa: BLE001 - nothing above may go on in this process
            os.write(channel, str(error).encode("utf-8", "replace")[:1000])
        finally:
            os._exit(CANNOT_EXECUTE)

    def _say_what_failed(self) -> None:
        """The shim's last word, if the command could not be executed."""
        try:
            said = self._channel.recv(16, socket.MSG_DONTWAIT)
        except OSError:
            return
        if said.isdigit():
            name = os.fsdecode(self._order.command[0])
            text = f"holdfast: cannot run {name}: {os.strerror(int(said))}\n"
            os.write(2, text.encode("utf-8", "surrogateescape"))

    # Until the end ----------------------------------------------------------------------------------------------

    def _look_after(self, remote: RemoteUndoService, awake: socket.socket) -> int | None:
        """Wait for the command; returns its status, or None if the launcher or the keeper is gone."""
        waiting = select.poll()
        for fd in (self._launcher.fileno(), remote.fileno(), awake.fileno()):
            waiting.register(fd, select.POLLIN)
        while (status := self._wait()) is None:
            for fd, _ in waiting.poll(self._undecided()):
                if fd == remote.fileno():
                    return None
                if fd == awake.fileno():
                    self._note(awake.recv(4096), is_own=True)
                elif numbers := _read(self._launcher):
                    self._note(numbers, is_own=False)
                else:
                    return None
        return status

    def _wait(self) -> int | None:
        reap_orphans({self._child, *self._spared})
        found = os.waitid(os.P_PID, self._child, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        pid, status = os.waitpid(self._child, os.WNOHANG | os.WUNTRACED)
        if not pid or (os.WIFSTOPPED(status) and found.si_code == os.CLD_TRAPPED):
            return None  # A traced process stops while a person is asked, which the launcher need not follow.
        if os.WIFSTOPPED(status):
            self._stopped(os.WSTOPSIG(status))
            return None
        return status

    def _stopped(self, number: int) -> None:
        if os.getsid(0) == os.getppid() and number != signal.SIGSTOP:
            # No shell above the launcher could continue it; without us, the kernel would not have stopped the command
            # either.
            os.kill(self._child, signal.SIGCONT)
            signal.pidfd_send_signal(self._agent, signal.SIGCONT)
        else:
            self._has_stopped = True
            self._tell(LaunchReport(kind="stopped", pid=self._child))

    def _note(self, numbers: Iterable[int], *, is_own: bool) -> None:
        """Signals have come, to this process or to the launcher, or (0) the launcher has said all that it got."""
        for number in numbers:
            if number in RELAYED and self._order.relays:
                noted = self._noted.setdefault(number, _NotedSignals())
                noted.ours, noted.its = noted.ours or is_own, noted.its or not is_own
            elif not number:
                asked, self._asked = self._asked, ()
                for each in asked:
                    noted = self._noted.pop(each)
                    if not (noted.ours and noted.its) or self._is_apart():
                        self._pass_on(each)

    def _undecided(self) -> float | None:
        """Ask the launcher about signals that are due. How many milliseconds there are until the next is."""
        if self._asked or not self._noted:
            return None
        now = time.monotonic()
        self._asked = tuple(number for number, noted in self._noted.items() if noted.due <= now)
        if self._asked:
            # It may get the signal later than we did, or may not have run yet.
            self._tell(LaunchReport(kind="asked"))
            return None
        return (min(noted.due for noted in self._noted.values()) - now) * 1000 + 1

    def _is_apart(self) -> bool:
        """Whether the command has left the group that it was started in."""
        try:
            return os.getpgid(self._agent_number) != os.getpgrp()
        except ProcessLookupError:
            return False

    def _pass_on_early(self, awake: socket.socket) -> None:
        """Pass on all that has come until now: the command waits to begin, and may have been started after it came."""
        for source in (awake, self._launcher):
            with suppress(BlockingIOError):
                self._early += _read(source, socket.MSG_DONTWAIT)
        if self._order.relays:
            for number in RELAYED.intersection(self._early):
                self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        try:
            if number == signal.SIGCONT:
                self._continue(os.getpgid(self._child))
            else:
                signal.pidfd_send_signal(self._agent, number)
        except ProcessLookupError:
            pass

    def _continue(self, group: int) -> None:
        # Not the group at once: the launcher is in it, and would pass the signal on again, without end.
        for pid in descendants(os.getpid(), spare=self._spared):
            try:
                if os.getpgid(pid) == group:
                    os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass

    def _look_after_rest(self, remote: RemoteUndoService, awake: socket.socket) -> None:
        """Look after what lives on when the command has ended: out of the terminal's way, until it has ended too."""
        self._launcher.close()
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in range(3):
            os.dup2(null, fd)
        waiting = select.poll()
        for fd in (remote.fileno(), awake.fileno()):
            waiting.register(fd, select.POLLIN)
        while descendants(os.getpid(), spare=self._spared):
            for fd, _ in waiting.poll():
                if fd == remote.fileno():
                    end_descendants(self._spared)
                    return
                awake.recv(4096)
                reap_orphans(set(self._spared))


class _NotedSignals:
    """Who has got a signal, since a moment ago."""

    def __init__(self) -> None:
        self.due = time.monotonic() + _TOGETHER_SECONDS
        self.ours = False
        self.its = False


class _EndedError(Exception):
    """A signal has ended the command before it began."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def _read(source: socket.socket, flags: int = 0) -> bytes:
    """The received message; empty if the other side is gone."""
    try:
        return source.recv(4096, flags)
    except ConnectionResetError:
        return b""


def _notice(_number: int, _frame: object) -> None:
    """The wake-up descriptor says it."""


def main(fd: int) -> int:
    """Be the parent of a tree: ``fd`` is the socket that brings the `LaunchRequest`."""
    launcher = socket.socket(fileno=fd)
    launcher.set_inheritable(False)
    order = receive_message(launcher, LaunchRequest)
    if order is None:
        return 1
    for fd in (*order.read_only, *order.inherited):
        os.set_inheritable(fd, False)
    become_subreaper()
    parent = _Parent(launcher, order)
    try:
        parent.run()
    except HoldfastError as error:
        report = LaunchReport(kind="failed", message=error.message, code=error.code, hint=error.hint)
        send_message(launcher, report)
        end_descendants()
        return error.exit_code
    return 0


if __name__ == "__main__":
    allow_forks()
    sys.exit(main(int(sys.argv[1])))

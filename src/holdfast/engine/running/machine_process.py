"""The process of a session's virtual machine: it starts the machine, and runs commands there until a request to end it.
It outlives the process that started it.

Only the workspace's keeper sends it connections, over a socket (``SOCK_SEQPACKET``), with the requests and answers of
`holdfast.sandbox.command_starter`. While a command runs, each byte is the number of a signal for it; for SIGTERM and
SIGKILL the guest's shim ends all of its processes. ``{"stop": true}`` ends the machine; the connection closes after
that. The client opens and closes steps.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.undo_log import log_directory
from holdfast.engine.running.machine import MachineCommand, prepare_machine, run_in_machine
from holdfast.engine.running.run import configured_thresholds, keeper_settings
from holdfast.model.errors import ChannelError, HoldfastError, UsageError, unexpected
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display
from holdfast.processes.module_process import ProcessOutcome, failed_outcome
from holdfast.sandbox.command_starter import Client, receive
from holdfast.sandbox.terminal_command import pass_on_streams
from holdfast.supervisor.control.remote_service import visit
from holdfast.supervisor.keeper.stderr_log import log_to_stderr
from holdfast.wire.control_channel import StepCompleted, exec_request

if TYPE_CHECKING:
    from holdfast.model.log import Level
    from holdfast.sandbox.channel import Channel, RemoteCommand
    from holdfast.sandbox.vm.machine import Machine

_LOG = Log(__name__)
_ENDING: Final = (signal.SIGTERM, signal.SIGKILL)
_NO_COMMAND: Final = 127


class MachineOrder(NamedTuple):
    """The order for such a process."""

    home: bytes
    root: bytes
    """The workspace's."""
    run: str
    log_level: Level

    def encode(self) -> bytes:
        """As it is given to the process."""
        return json.dumps({**self._asdict(), "home": display(self.home), "root": display(self.root)}).encode()


def _decoded(given: bytes) -> MachineOrder:
    fields: dict[str, Any] = json.loads(given)
    for name in ("home", "root"):
        fields[name] = parse_display(fields[name])
    return MachineOrder(**fields)


class GuestCommands:
    """Has commands run in a machine that is up, each for the connection that asks for it."""

    def __init__(self, channel: Channel, over: int) -> None:
        """``over``, an eventfd(2), is written to when a client asks for the machine's end."""
        self._channel = channel
        self._over = over
        self.waiting: list[int] = []
        """Connections that wait for the machine's end: they close with this process, and not before."""
        self._numbers = count(1)

    def attend(self, client: Client) -> None:
        """Serve a client until it disconnects; on a thread of its own."""
        with suppress(OSError, ValueError):
            client.tell(ready=1)
            client.connection.settimeout(None)
            while (asked := client.receive()) is not None:
                request, streams = asked
                client.connection.settimeout(None)
                try:
                    if "stop" in request:
                        self.waiting.append(client.connection.detach())
                        os.eventfd_write(self._over, 1)
                        return
                    if "leave" in request:
                        client.tell(stays=1)
                    else:
                        self._run(client, request, streams)
                finally:
                    for fd in streams:
                        os.close(fd)
        client.connection.close()

    def _run(self, client: Client, request: dict[str, Any], streams: list[int]) -> None:
        stdin, stdout, stderr = streams
        words = [word.encode("utf-8", "surrogateescape") for word in request["words"]]
        asked = exec_request(next(self._numbers), words, cwd=b"/", env={}, stdin=True)
        try:
            with self._channel.begin(asked) as command:
                client.tell(pid=1)
                signals, signalled = socket.socketpair()
                signals.setblocking(False)
                with signals, signalled:
                    threading.Thread(target=_hear, args=(client, command, signalled), daemon=True).start()
                    ended = pass_on_streams(command, (stdin, stdout, stderr), signals)
                    client.connection.shutdown(socket.SHUT_RD)
        except UsageError:
            client.tell(error=errno.E2BIG)  # no system could run it: it exceeds the limit of arguments
            return
        except ChannelError as error:
            _LOG.warning("a command was lost: %s", error.message)
            raise ConnectionError from error
        client.tell(status=(ended.exit_code if isinstance(ended, StepCompleted) else _NO_COMMAND) << 8)


def _hear(client: Client, command: RemoteCommand, signalled: socket.socket) -> None:
    """Pass on the signals that a client sends to its command, which is ended when the client is gone."""
    with suppress(OSError, ChannelError):
        while numbers := client.connection.recv(64):
            if any(number in _ENDING for number in numbers):
                command.cancel()
            else:
                signalled.sendall(numbers)
        if not command.is_over:
            command.cancel()


def _serve(order: MachineOrder, log: bytes, channel: Channel, machine: Machine) -> int:
    """Say that the machine is up, and have commands run until it is to end, or has ended (`ChannelError`)."""
    connections, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    keeper = visit(log)
    if keeper is None:
        raise _keeper_gone()
    with keeper, other:
        keeper.open_channel(order.run, other)
    _report(ProcessOutcome())
    over = os.eventfd(0, os.EFD_CLOEXEC)
    signal.signal(signal.SIGTERM, lambda _number, _frame: os.eventfd_write(over, 1))
    guest = GuestCommands(channel, over)
    waiting = select.poll()
    for end in (connections.fileno(), over, machine.fileno()):
        waiting.register(end, select.POLLIN)
    while True:
        ready = {fd for fd, _ in waiting.poll()}
        if over in ready:
            return 0
        if machine.fileno() in ready:
            raise ChannelError("the machine has ended", code="shim_gone")
        _, descriptors = receive(connections, 1, 1)
        for fd in descriptors:
            client = Client(socket.socket(fileno=fd))
            threading.Thread(target=guest.attend, args=(client,), daemon=True).start()
        if not descriptors:
            raise _keeper_gone()


def _keeper_gone() -> HoldfastError:
    return HoldfastError("the keeper of the undo log has ended", code="keeper_gone")


def _report(outcome: ProcessOutcome) -> None:
    """Tell the process that has started this one, once. Raises `OSError` where that is gone: nothing knows of us."""
    os.write(1, outcome.encode())
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 1)
    os.close(null)


def _have_machine(order: MachineOrder) -> None:
    opener = Opener(home=order.home, lenient=True)
    try:
        context = opener.open(order.root)
        log_to_stderr(log_directory(context), order.log_level)
        isolation = context.settings.isolation._replace(level="vm")
        prepared = prepare_machine(context, isolation, context.workspace.path)
        settings = keeper_settings(context, log_directory(context), context.settings.undo.outside)
        thresholds = configured_thresholds(context.settings.safeguard, guard=False)
    finally:
        opener.close()
    command = MachineCommand((), os.path.realpath(order.root), {}, order.run, thresholds)
    run_in_machine(
        prepared,
        command,
        settings,
        parted=lambda _ending: None,
        serve=lambda channel, machine: _serve(order, settings.log, channel, machine),
    )


def main() -> int:
    """Be such a process."""
    order = _decoded(sys.stdin.buffer.read())
    try:
        _have_machine(order)
    except Exception as error:  # noqa: BLE001 - who has started it is told
        _LOG.exception("the machine of a session has failed", run=order.run)
        with suppress(OSError):
            _report(failed_outcome(error if isinstance(error, HoldfastError) else unexpected(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The virtual machine of a session, which runs all its commands, each as a step.

It lives until a request to end it, whether or not the session is open, in a process of its own
(`holdfast.engine.running.machine_process`), which accepts connections as the first process of a session's tree does.
"""

from __future__ import annotations

import os
import select
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from holdfast.engine.history.outside_policy import check_policy, remember_policy
from holdfast.engine.opening.current_run import forbid_inside_run
from holdfast.engine.running.machine_process import MachineOrder
from holdfast.engine.running.run import new_run_id, prepare_to_record
from holdfast.engine.running.session_tree import Connection, SessionTree, TreeCommand, noted_run
from holdfast.model.errors import HoldfastError, MachineError, NotFoundError, StorageError
from holdfast.model.log import Log, child_level
from holdfast.processes.helper_process import start_module
from holdfast.processes.module_process import decode_outcome
from holdfast.supervisor.control.remote_service import visit
from holdfast.supervisor.keeper.stderr_log import open_log

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Iterable, Sequence

    from holdfast.engine.running.child_start import ChildStart
    from holdfast.supervisor.control.remote_service import RemoteUndoService

_LOG = Log(__name__)
_PROCESS: Final = "holdfast.engine.running.machine_process"
_END_SECONDS: Final = 60.0
_OUTPUT_SECONDS: Final = 300.0
_MOST_OUTPUT: Final = 1 << 24


class _GuestCommand(TreeCommand):
    """A command in a machine: no process of it is on this host."""

    _lost = (
        "the command was lost with its virtual machine; its changes are recorded, or rolled back when the undo log is "
        "used next (`holdfast steps` lists them)"
    )

    def __init__(self, connection: GuestConnection, keeper: RemoteUndoService, step: int) -> None:
        super().__init__(connection, keeper, step, 0)
        self._guest = connection

    def signal(self, number: int) -> None:
        """See `TreeCommand.signal`; for a signal that ends it, the machine ends all of its processes."""
        self._guest.signal(number)

    def group_lives(self) -> bool:
        """See `TreeCommand.group_lives`: the machine says that it has ended when all of it has."""
        return False

    def _kill(self) -> None:
        """Nothing to do: it ended with its machine."""


class GuestConnection(Connection):
    """To the process that has the machine."""

    def is_believed(self, pid: int) -> bool:
        """See `Connection.is_believed`."""
        return pid > 0

    def signal(self, number: int) -> None:
        """For the command that was started. Nothing happens if that has ended."""
        with suppress(OSError):
            self._socket.send(bytes([number]))

    def stop(self) -> None:
        """End the machine, and wait for that."""
        self._socket.settimeout(_END_SECONDS)
        if self._send({"stop": True}, ()):
            with suppress(OSError):
                self._socket.recv(1)


class SessionMachine(SessionTree):
    """The machine of one session, which this process has open. None runs until a command is started."""

    is_machine = True

    @contextmanager
    def serving(self, start: ChildStart) -> Generator[ChildStart]:
        """See `SessionTree.serving`; from inside a machine no questions can be asked. Raises as `open`."""
        self.open()
        yield start._replace(run=self.run, undo_log=self.undo_log)

    def output(self, words: Sequence[bytes]) -> bytes:
        """The output of one of our own commands, without changes, in the machine. Raises `MachineError`."""
        keeper = visit(self.undo_log)
        connection = None
        if keeper is not None:
            with keeper:
                connection = self._connected(keeper)
        if connection is None:
            raise _gone()
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            with open(read, "rb", buffering=0) as pipe:
                if not connection.start(words, b"/", {}, (null, write, null)):
                    raise _gone()
                os.close(write)
                write = -1
                return _read(pipe.fileno())
        finally:
            connection.close()
            for fd in (null, write):
                if fd >= 0:
                    os.close(fd)

    def _launch(self) -> None:
        """Start a machine. Raises what `holdfast.engine.running.machine.run_in_machine` does."""
        context = self._context
        forbid_inside_run(context, "another run")
        context.renew_settings()
        outside = context.settings.undo.outside
        check_policy(outside)
        log, _ = prepare_to_record(context, None)
        self.run, self.undo_log = new_run_id(context.random), os.path.realpath(log)
        remember_policy(context, self.run, outside)
        self._write_note()
        notes = open_log(self.undo_log)
        try:
            process = start_module(_PROCESS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=notes)
        except OSError as error:
            raise StorageError(
                f"the virtual machine cannot be started: {error.strerror}", code="cannot_start"
            ) from error
        finally:
            os.close(notes)
        process.returncode = 0  # it goes on without us
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin as told, process.stdout as said:
            told.write(MachineOrder(context.home, context.workspace.path, self.run, child_level()).encode())
            told.close()
            outcome = said.read()
        if (error := decode_outcome(outcome).error) is not None:
            raise error
        if not self._found():
            raise _gone()

    def _connection(self, connected: socket.socket, agent: int) -> Connection:
        return GuestConnection(connected, agent)

    def _command(self, connection: Connection, keeper: RemoteUndoService, step: int, pid: int) -> TreeCommand:
        del pid
        assert isinstance(connection, GuestConnection)
        return _GuestCommand(connection, keeper, step)

    def close(self) -> None:
        """Release it; it continues."""
        self._forget()


def stop_machine(note: bytes, logs: Iterable[bytes]) -> bool:
    """End the machine that is noted at the path ``note``, and is recorded in one of ``logs``; whether there was one."""
    run, stopped = noted_run(note), False
    for log in logs if run else ():
        keeper = visit(os.path.realpath(log))
        if keeper is None:
            continue
        with keeper, suppress(NotFoundError):
            connection = GuestConnection(*keeper.connect_agent(run))
            try:
                if connection.is_ready():
                    connection.stop()
                    stopped = True
            finally:
                connection.close()
    with suppress(FileNotFoundError):
        os.unlink(note)
    return stopped


def _read(pipe: int) -> bytes:
    """All that comes. Raises `MachineError` if it does not come in time."""
    found = bytearray()
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while len(found) < _MOST_OUTPUT:
        if not poll.poll(_OUTPUT_SECONDS * 1000):
            raise MachineError("the virtual machine does not answer", code="vm_hung")
        piece = os.read(pipe, 1 << 16)
        if not piece:
            break
        found += piece
    return bytes(found)


def _gone() -> HoldfastError:
    return MachineError("the virtual machine of the session has ended", code="vm_crashed")

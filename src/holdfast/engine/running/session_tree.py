"""The supervised process tree of a session, in which all its commands run, each as a step.

Its first process, `holdfast.sandbox.command_starter`, starts them. The tree lives as long as the session is open, and
then as long as background processes of its commands run. The next holder of the session continues with it, so that a
command may signal and inspect earlier ones' background processes. It is a run without checkpoints of its own. Only its
keeper connects a process to it, and only one that proves that it runs in no tree: what it has a command do here is
recorded here alone.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import socket
from contextlib import ExitStack, closing, contextmanager, suppress
from struct import Struct
from typing import TYPE_CHECKING, Annotated

import msgspec

from holdfast.engine.opening.current_run import RUN_VARIABLE
from holdfast.engine.running._checkpoint_server import CheckpointServer, warn_of_no_checkpoints
from holdfast.engine.running.child_start import ChildStart
from holdfast.engine.running.recorded_command import prepare_launch
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import display, under
from holdfast.processes import forked_process
from holdfast.processes.child_environment import inherited_environment
from holdfast.processes.helper_process import program_words
from holdfast.processes.process_tree import signal_group
from holdfast.supervisor.control.remote_service import visit
from holdfast.supervisor.keeper.stderr_log import open_log
from holdfast.supervisor.launch import launcher_process
from holdfast.supervisor.launch.launcher_process import LaunchFile

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any

    from holdfast.engine.opening.context import Context
    from holdfast.supervisor.control.remote_service import RemoteUndoService

_LOG = Log(__name__)
_LENGTH = Struct(">I")
_ANSWER_SECONDS = 30.0
_END_SECONDS = 10.0
_MOST_BYTES = 4096
"""Of an answer."""
_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 22)]
"""A number in an answer: of a process, of an error, a status."""


class TreeCommand:
    """A command that was started in a tree, and its step."""

    _lost = (
        "the command was ended, because a process of its supervision was killed; its changes are recorded, or rolled "
        "back when the undo log is used next (`holdfast steps` lists them)"
    )

    def __init__(self, connection: Connection, keeper: RemoteUndoService, step: int, pid: int) -> None:
        self._connection = connection
        self._keeper = keeper
        self._step = step
        self._code: int | None = None
        self.denied = False
        """A safeguard denied one of its operations; known at its end."""
        self.pid = pid
        """Its process, process group and session id (setsid(2)); 0 if it is no process of this host."""
        self._changes = select.epoll()
        self._changes.register(connection, select.EPOLLIN)
        self._process = -1
        with suppress(OSError):  # it has ended, and the tree reports how
            self._process = os.pidfd_open(pid)
            self._changes.register(self._process, select.EPOLLIN)

    def fileno(self) -> int:
        """Can be read when it has ended."""
        return self._changes.fileno()

    def exit_code(self) -> int | None:
        """How it ended, a signal as minus its number; None while it runs. If its tree is lost, it is killed; so is a
        tree that does not say how it ended (as a command of it has stopped what would).
        """
        if self._code is None and (self._connection.is_readable() or self._changes.poll(0)):
            said = self._connection.receive()
            if said is None:
                self._kill()
                _LOG.warning(self._lost)
            self._code = _exit_code((said or {}).get("status", signal.SIGKILL))
        return self._code

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        signal_group(self.pid, number)

    def group_lives(self) -> bool:
        """Whether anything of its process group lives."""
        from holdfast.sandbox.shim import group_lives

        return group_lives(self.pid)

    def _kill(self) -> None:
        """All of its group, unless it has ended: then its number may be another's."""
        if self._process >= 0 and not _can_be_read(self._process):
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Wait for its end; later changes are not its step's."""
        while self.exit_code() is None:
            self._changes.poll()
        with self._keeper, suppress(HoldfastError):  # the next user of the log notices a lost keeper
            self.denied = self._keeper.settle(self._step, self._code).denied
        self._connection.close()
        self._changes.close()
        if self._process >= 0:
            os.close(self._process)


class SessionTree:
    """The tree of one session, which this process has open. Nothing runs until a command is started; for one thread."""

    is_machine = False

    def __init__(self, context: Context, note: bytes) -> None:
        """``note`` is the path of the file, in a private directory, that says which run it is."""
        self._context = context
        self._note = note
        self._root = os.path.realpath(context.workspace.path)
        self._kept: Connection | None = None
        self._launcher = 0
        self.run = ""
        """Its run, once a command was started."""
        self.undo_log = b""
        """The real path of the undo log's directory: it holds the files that commands remove."""

    def open(self) -> None:
        """Use the living tree, or start one. Raises as `holdfast.engine.running.run.run`."""
        if self._kept is not None and not self._kept.has_ended() and self._is_served():
            return
        self._forget()
        if not self._found():
            self._launch()

    @contextmanager
    def serving(self, start: ChildStart) -> Generator[ChildStart]:
        """For the length of the block, ``start`` with its connection for requests. Raises as `open`."""
        self.open()
        with ExitStack() as stack:
            server = None
            try:
                server = stack.enter_context(CheckpointServer(self._context, self.run))
            except HoldfastError as error:
                warn_of_no_checkpoints(error)
            yield start._replace(run=self.run, undo_log=self.undo_log, server=server)

    def start(self, start: ChildStart, called: Sequence[bytes], streams: tuple[int, int, int]) -> TreeCommand:
        """Start a command, whose step says that ``called`` was run. Raises `OSError` if it cannot be started,
        `RefusedError` for a file of the workspace among its ``streams`` that it could write to unseen, and as `open`.
        """
        for stream in streams:
            path = os.readlink(b"/proc/self/fd/%d" % stream)
            if under(path, self._root) and fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_ACCMODE:
                raise RefusedError(
                    f"{display(path)} is open for writing: it cannot be the standard input of a recorded command",
                    hint="open it read-only, or let the command open it",
                    code="writable_input",
                )
        for again in (False, True):
            if again or self._kept is None:
                self.open()
            keeper = visit(self.undo_log)
            if keeper is None:
                self._forget()
                continue
            step = connection = None
            try:
                connection = self._connected(keeper)
                if connection is not None:
                    step = self._expect(keeper, called)
                    environment = {**start.environment, RUN_VARIABLE: self.run.encode()}
                    pid = connection.start(start.words, start.directory, environment, streams)
                    if pid:
                        return self._command(connection, keeper, step, pid)
                self._forget()  # it has just ended
            except BaseException:
                _give_up(keeper, step, connection)
                raise
            _give_up(keeper, step, connection)
        raise _gone()

    def _expect(self, keeper: RemoteUndoService, called: Sequence[bytes]) -> int:
        try:
            return keeper.expect(self.run, called)
        except RefusedError as error:
            if error.code != "busy":
                raise
        # This process holds the session, so the former holder was killed, and that command with it.
        for step in keeper.steps():
            if step.run == self.run and step.state == "open":
                with suppress(NotFoundError):
                    keeper.settle(step.id, None)
        return keeper.expect(self.run, called)

    def close(self) -> None:
        """Release the tree, which ends unless processes of it run on."""
        if self._kept is not None:
            stays = self._kept.leave()
            self._forget()
            if not stays:
                with suppress(FileNotFoundError):
                    os.unlink(self._note)
                self._wait_for_launcher()

    def _is_served(self) -> bool:
        keeper = visit(self.undo_log)
        if keeper is None:
            return False
        with keeper:
            return keeper.serves(self.run)

    def _found(self) -> bool:
        """Whether there is a tree, which goes on with us."""
        from holdfast.engine.opening.undo_log import log_directory

        self.run = noted_run(self._note)
        if not self.run:
            return False
        self.undo_log = os.path.realpath(log_directory(self._context))
        keeper = visit(self.undo_log)
        if keeper is None:
            return False
        with keeper:
            self._kept, self._launcher = self._connected(keeper), 0
        return self._kept is not None

    def _connected(self, keeper: RemoteUndoService) -> Connection | None:
        try:
            connection = self._connection(*keeper.connect_agent(self.run))
        except NotFoundError:
            return None
        if not connection.is_ready():
            connection.close()
            return None
        return connection

    def _connection(self, connected: socket.socket, agent: int) -> Connection:
        return Connection(connected, agent)

    def _command(self, connection: Connection, keeper: RemoteUndoService, step: int, pid: int) -> TreeCommand:
        return TreeCommand(connection, keeper, step, pid)

    def _launch(self) -> None:
        channel, agents = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with channel, agents:
            words = tuple(map(os.fsencode, program_words(_STARTER, str(agents.fileno()))))
            surroundings = inherited_environment(os.environb)
            starter = ChildStart(words, b"/", surroundings, (agents.fileno(),))
            launch = prepare_launch(self._context, starter, one_step=False)
            own, other = socket.socketpair()
            # The first connection keeps the tree alive until its keeper can connect us.
            with LaunchFile(launch) as file, closing(Connection(own)) as first, other:
                socket.send_fds(channel, [b"\0"], [other.fileno()])
                self._start_launcher(file, agents.fileno(), launch.settings.log)
                # From now on only the tree has them open: when it ends, they answer nothing.
                other.close()
                agents.close()
                if not first.is_ready():
                    self._wait_for_launcher()
                    outcome = file.outcome()
                    raise (outcome and outcome.error) or _gone()
                self.run, self.undo_log = launch.run, os.path.realpath(launch.settings.log)
                self._write_note()
                with ExitStack() as stack:
                    keeper = visit(self.undo_log)
                    if keeper is not None:
                        stack.enter_context(keeper).open_channel(self.run, channel)
                        self._kept = self._connected(keeper)
                if self._kept is None:
                    raise _gone()

    def _write_note(self) -> None:
        """Before any command is started in the tree."""
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._note)
            with open(self._note, "xb", opener=_privately) as file:
                file.write(self.run.encode())
        except OSError as error:
            raise StorageError(f"cannot write {display(self._note)}: {error.strerror}") from error

    def _start_launcher(self, file: LaunchFile, channel: int, log: bytes) -> None:
        null, notes = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), open_log(log)
        try:
            self._launcher = forked_process.start(
                launcher_process.__name__, file.fd, passed=[channel], streams=(null, null, notes), own_session=True
            )
        except OSError as error:
            raise StorageError(
                f"the process that starts commands cannot be started: {error.strerror}", code="cannot_start"
            ) from error
        finally:
            os.close(null)
            os.close(notes)

    def _wait_for_launcher(self) -> None:
        """If it is ours: it ends when its tree has."""
        launcher, self._launcher = self._launcher, 0
        if launcher:
            with suppress(OSError), open(os.pidfd_open(launcher), "rb", buffering=0) as process:
                poll = select.poll()
                poll.register(process, select.POLLIN)
                poll.poll(_END_SECONDS * 1000)
            with suppress(ChildProcessError):
                os.waitpid(launcher, os.WNOHANG)

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept = None


_STARTER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "sandbox", "command_starter.py"
)


def _gone() -> HoldfastError:
    return HoldfastError(
        "the process that starts the session's commands was killed, or ended at once", code="launcher_gone"
    )


def _give_up(keeper: RemoteUndoService, step: int | None, connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
    with keeper, suppress(HoldfastError):
        if step is not None:
            keeper.settle(step, None)


def is_command_starter(command: Sequence[bytes]) -> bool:
    """Whether this command line is that of the first process of a session's tree."""
    return os.fsencode(_STARTER) in command


def noted_run(note: bytes) -> str:
    """The noted run; empty without one. ``note`` as in `SessionTree`."""
    try:
        # Never block on another file type, such as a pipe that another process has put there.
        with open(note, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
            return (file.read(64) or b"").decode("ascii", "replace")
    except OSError:
        return ""


def _privately(path: str | bytes, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class Connection:
    """To a `holdfast.sandbox.command_starter`, which is in the tree and not believed more than its commands are."""

    def __init__(self, connected: socket.socket, agent: int = 0) -> None:
        """``agent`` is the starter's process, if that is known."""
        connected.settimeout(_ANSWER_SECONDS)
        self._socket = connected
        self._rest = b""
        self._agent = agent
        self._process = -1
        if agent:
            with suppress(OSError):
                self._process = os.pidfd_open(agent)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def is_ready(self) -> bool:
        """Wait for the first message; False if there is none."""
        return self.receive() is not None

    def is_readable(self) -> bool:
        return b"\n" in self._rest or _can_be_read(self._socket.fileno())

    def has_ended(self) -> bool:
        """Whether the other side is gone; for a connection that waits for nothing."""
        return self.is_readable()

    def start(
        self, words: Sequence[bytes], directory: bytes, environment: dict[bytes, bytes], streams: tuple[int, int, int]
    ) -> int:
        """Start a command; its number, 0 if the other side is gone and has started nothing.

        Raises `OSError`, and `HoldfastError` where it was killed meanwhile: then the command may have begun.
        """
        asked = {
            "words": [_text(word) for word in words],
            "directory": _text(directory),
            "environment": {_text(name): _text(value) for name, value in environment.items()},
            "umask": _umask(),
        }
        if not self._send(asked, streams):
            return 0
        said = self.receive() or {}
        if "error" in said:
            number = said["error"]
            raise OSError(number, os.strerror(number))
        pid = said.get("pid", 0)
        if not self.is_believed(pid):
            raise HoldfastError(
                "the process that starts the session's commands was killed or "
                "does not answer; this command may have begun",
                hint="`holdfast steps` shows its changes",
                code="launcher_gone",
            )
        return pid

    def is_believed(self, pid: int) -> bool:
        """Whether a command can have this number."""
        return pid > 0 and _parent_of(pid) in (None, self._agent)  # None: it has ended

    def leave(self) -> bool:
        """Whether the tree stays when this connection is closed."""
        said = self.receive() if self._send({"leave": True}, ()) else None
        return said is not None and bool(said.get("stays"))

    def _send(self, asked: dict[str, Any], descriptors: Sequence[int]) -> bool:
        body = json.dumps(asked).encode()
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._socket.sendmsg([_LENGTH.pack(len(body))], ancillary)
            self._socket.sendall(body)
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, int] | None:
        """The next answer; None if the other side is gone, or sends an invalid message. One that says nothing for
        `_ANSWER_SECONDS` is killed: a command of its tree may have stopped it, and the tree would stay for ever.
        """
        try:
            while b"\n" not in self._rest:
                piece = self._socket.recv(_MOST_BYTES)
                if not piece or len(self._rest) > _MOST_BYTES:
                    return None
                self._rest += piece
            line, _, self._rest = self._rest.partition(b"\n")
            return json_decoder(dict[str, _Number]).decode(line)
        except TimeoutError:
            if self._process >= 0:
                with suppress(OSError):
                    signal.pidfd_send_signal(self._process, signal.SIGKILL)
            return None
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _umask() -> int:
    """The umask of this process, which the tree's starter may not share. umask(2) returns it only by setting it, which
    would change it for other threads.
    """
    with open("/proc/self/status", "rb") as file:
        return next(int(line[6:], 8) for line in file if line.startswith(b"Umask:"))


def _can_be_read(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _exit_code(status: int) -> int:
    try:
        return os.waitstatus_to_exitcode(status)
    except ValueError:  # no process ends so
        return -signal.SIGKILL


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[1])
    except OSError:
        return None

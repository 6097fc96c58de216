"""The undo log of a workspace that has a keeper, for all other processes: `UndoService` over the keeper's socket."""

from __future__ import annotations

import socket
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self

from holdfast.files.linux.private_socket import address
from holdfast.model.errors import HoldfastError, StorageError, UsageError
from holdfast.model.paths import KEEPER_SOCKET
from holdfast.supervisor.control._unsupervised_proof import make_proof
from holdfast.supervisor.control.frames import (
    GONE,
    LENGTH,
    MAX_ANSWER_BYTES,
    MOST_READ_ONLY,
    SUPERVISED,
    WITH_PROOF,
    decode_answer,
    encode_request,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.supervisor.control.frames import JoinRequest
    from holdfast.undo.journal.records import StepId
    from holdfast.undo.service import (
        BarrierInfo,
        ConflictInfo,
        LogLimits,
        PathChange,
        ProcessInfo,
        RunEnding,
        StepInfo,
        StepOutcome,
        Thresholds,
        TicketInfo,
        UndoReport,
        UnfinishedStep,
    )


def connect(log: bytes) -> RemoteUndoService | None:
    """The keeper of the undo log in the directory ``log``; None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(log, KEEPER_SOCKET) as path:
            connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise StorageError(f"the keeper cannot be reached: {error.strerror}") from error
    return RemoteUndoService(connection, log)


def visit(log: bytes) -> RemoteUndoService | None:
    """`connect`, and the keeper does not end before this connection does; None if it was about to end.

    From inside of a tree it is only `connect`: the keeper does not end before its trees do.
    """
    keeper = connect(log)
    if keeper is None:
        return None
    try:
        keeper.visit()
    except HoldfastError as error:
        if error.code == SUPERVISED:
            return keeper
        keeper.close()
        if error.code != GONE:
            raise
        return None
    return keeper


class RemoteUndoService:
    """A connection to a keeper; implements `UndoService`. For one thread at a time.

    Every method raises what it raised there, and `HoldfastError` with the code `GONE` if the keeper ends.
    """

    def __init__(self, connection: socket.socket, log: bytes) -> None:
        """Take the connection to the keeper of the log in the directory ``log`` over."""
        self._socket = connection
        self._log = log

    def __enter__(self) -> Self:
        """Return itself; leaving closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Hang up; what this connection holds ends."""
        self._socket.close()

    def fileno(self) -> int:
        """For waiting until the keeper ends."""
        return self._socket.fileno()

    def steps(self) -> Sequence[StepInfo]:
        """See `UndoService.steps`."""
        return self._ask("steps")

    def changes(self, step: StepId) -> Sequence[PathChange]:
        """See `UndoService.changes`."""
        return self._ask("changes", step)

    def conflicts(self, step: StepId) -> Sequence[ConflictInfo]:
        """See `UndoService.conflicts`."""
        return self._ask("conflicts", step)

    def connected(self, step: StepId) -> Sequence[StepId]:
        """See `UndoService.connected`."""
        return self._ask("connected", step)

    def check_connected(self, steps: Sequence[StepId]) -> None:
        """See `UndoService.check_connected`."""
        return self._ask("check_connected", list(steps))

    def written_late(self) -> Sequence[tuple[StepId, bytes]]:
        """See `UndoService.written_late`."""
        return self._ask("written_late")

    def mixed_since(self, at: int, seq: int | None) -> Sequence[tuple[StepId, bytes]]:
        """See `UndoService.mixed_since`."""
        return self._ask("mixed_since", at, seq)

    def going_on(self) -> Sequence[UnfinishedStep]:
        """See `UndoService.going_on`."""
        return self._ask("going_on")

    def processes(self, run: str) -> Sequence[ProcessInfo]:
        """See `UndoService.processes`."""
        return self._ask("processes", run)

    def signal(self, run: str, number: int) -> int:
        """See `UndoService.signal`."""
        return self._ask("signal", run, number)

    def forgotten(self) -> Sequence[str]:
        """See `UndoService.forgotten`."""
        return self._ask("forgotten")

    def undo(self, steps: Sequence[StepId], *, force: bool = False) -> UndoReport:
        """See `UndoService.undo`."""
        return self._ask("undo", list(steps), force)

    def foresee(self, steps: Sequence[StepId], *, forward: bool = False) -> None:
        """See `UndoService.foresee`."""
        return self._ask("foresee", list(steps), forward)

    def redo(self, steps: Sequence[StepId], *, force: bool = False) -> UndoReport:
        """See `UndoService.redo`."""
        return self._ask("redo", list(steps), force)

    def note_contents(self, step: StepId, contents: Sequence[tuple[bytes, bytes]]) -> None:
        """See `UndoService.note_contents`."""
        return self._ask("note_contents", step, list(contents))

    def unnoted(self) -> Sequence[StepId]:
        """See `UndoService.unnoted`."""
        return self._ask("unnoted")

    def left_files(self, step: StepId) -> Sequence[bytes]:
        """See `UndoService.left_files`."""
        return self._ask("left_files", step)

    def brought_back(self, paths: Sequence[tuple[bytes, bytes | None]]) -> None:
        """See `UndoService.brought_back`."""
        return self._ask("brought_back", list(paths))

    def still_brought(self, paths: Sequence[bytes]) -> Sequence[bytes]:
        """See `UndoService.still_brought`."""
        return self._ask("still_brought", list(paths))

    def begin(self, label: str) -> StepId:
        """See `UndoService.begin`."""
        return self._ask("begin", label)

    def commit(self, step: StepId) -> StepInfo:
        """See `UndoService.commit`."""
        return self._ask("commit", step)

    def rollback(self, step: StepId) -> UndoReport:
        """See `UndoService.rollback`."""
        return self._ask("rollback", step)

    def write(self, path: bytes, content: int, *, expected: bytes | None = None, run: str = "") -> StepInfo | None:
        """See `UndoService.write`."""
        return self._ask("write", path, expected, run, descriptors=[content])

    def serves(self, run: str) -> bool:
        """Whether a run of this id has joined, and has not left."""
        return self._ask("serves", run)

    def expect(self, run: str, command: Sequence[bytes]) -> StepId:
        """Open the step of the command that the agent of a run is about to start: the next new child of its own.

        Raises `NotFoundError` if no such run has joined, `RefusedError` if another command is expected.
        """
        return self._ask("expect", run, list(command))

    def settle(self, step: StepId, exit_code: int | None) -> StepOutcome:
        """A step that was expected is over, when its operations in flight are.

        What its processes change from now on is another step. ``exit_code`` counts if the keeper does not know better.
        """
        return self._ask("settle", step, exit_code)

    def guard(self, run: str, thresholds: Thresholds) -> None:
        """Change when a person is asked on behalf of a run. The strictest of what all runs ask for holds.

        Raises `NotFoundError` if no such run has joined, `RefusedError` unless the run was started by this process.
        """
        self._ask("guard", run, thresholds)

    def thresholds(self) -> Thresholds:
        """See `UndoService.thresholds`."""
        return self._ask("thresholds")

    def limits(self) -> LogLimits:
        """See `UndoService.limits`."""
        return self._ask("limits")

    def configure(self, limits: LogLimits) -> None:
        """See `UndoService.configure`."""
        self._ask("configure", limits)

    def barriers(self) -> Sequence[BarrierInfo]:
        """See `UndoService.barriers`."""
        return self._ask("barriers")

    def held(self) -> Sequence[TicketInfo]:
        """See `UndoService.held`."""
        return self._ask("held")

    def answer(self, ticket: int, *, allow: bool) -> TicketInfo:
        """See `UndoService.answer`."""
        return self._ask("answer", ticket, allow)

    @contextmanager
    def quiet(self) -> Generator[None]:
        """See `UndoService.quiet`. It ends with this connection as well."""
        self._ask("quiet")
        try:
            yield
        finally:
            try:
                self._ask("resume")
            except HoldfastError as error:
                # Without a keeper no supervised process can change anything either, until the next keeper.
                if error.code != GONE:
                    raise

    def discard(self) -> int:
        """See `UndoService.discard`."""
        return self._ask("discard")

    def join(self, request: JoinRequest, descriptors: Sequence[int]) -> None:
        """Have the keeper serve a tree. The run lasts until the tree is gone or this connection ends without a `leave`,
        which ends the tree.

        The ``descriptors`` are borrowed: the listener of the tree's filter (or the device of its mount), a socket on
        which the tree's parent answers (`holdfast.supervisor.launch._caller_access_server`), and the read-only
        directories, at most `MOST_READ_ONLY`. These lie outside of the workspace, and not around it either; a call that
        would change one, or anything beneath, fails with EROFS. Raises `RefusedError` if one is no directory or does
        not lie there, `UsageError` if they are too many.

        ``request.thresholds`` counts until nothing of the tree is left; see `guard`.
        """
        if request.read_only > MOST_READ_ONLY:
            raise UsageError(f"at most {MOST_READ_ONLY} directories are read-only for one run, not {request.read_only}")
        self._ask("join", *request, descriptors=descriptors)

    def leave(self) -> RunEnding:
        """The agent has ended: returns when all steps of the run are finished. What lives on is served until it ends,
        and what it changes from now on makes new steps.
        """
        return self._ask("leave")

    def visit(self) -> None:
        """The keeper does not end before this connection does, unless it is told to."""
        self._ask("visit")

    def _ask(self, method: str, *arguments: object, descriptors: Sequence[int] = ()) -> Any:
        try:
            frame = encode_request(method, *arguments)
            with make_proof(self._log) if method in WITH_PROOF else nullcontext([]) as proof:
                if sent := [*proof, *descriptors]:
                    socket.send_fds(self._socket, [frame[:1]], sent)
                    frame = frame[1:]
            self._socket.sendall(frame)
            (length,) = LENGTH.unpack(self._read(LENGTH.size))
            if length > MAX_ANSWER_BYTES:
                raise HoldfastError("the keeper's answer is too long", code="too_long")
            body = self._read(length)
        except OSError as error:
            raise HoldfastError("the keeper ended before it answered", code=GONE) from error
        return decode_answer(method, body)

    def _read(self, length: int) -> bytes:
        body = bytearray()
        while len(body) < length:
            piece = self._socket.recv(min(length - len(body), 1 << 20))
            if not piece:
                raise ConnectionResetError
            body += piece
        return bytes(body)

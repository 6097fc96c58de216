"""The undo log of a workspace that has a keeper, for all other processes: `UndoService` over the keeper's socket."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self

from holdfast.ipc import private_socket
from holdfast.ipc.connection import Connection
from holdfast.ipc.port import remote
from holdfast.model.errors import HoldfastError, StorageError, UsageError
from holdfast.model.paths import KEEPER_SOCKET
from holdfast.supervisor.control._unsupervised_proof import make_proof
from holdfast.supervisor.control.keeper_port import (
    GONE,
    MAX_ANSWER_BYTES,
    MOST_READ_ONLY,
    PORT,
    SUPERVISED,
    WITH_PROOF,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Sequence

    from holdfast.supervisor.control.keeper_port import JoinRequest, RunService
    from holdfast.undo.service import StepInfo, UndoService

    class _Remote(UndoService, RunService):
        pass
else:
    _Remote = remote(PORT)


def connect(log: bytes) -> RemoteUndoService | None:
    """The keeper of the undo log in the directory ``log``; None if there is none."""
    try:
        connection = private_socket.connect(log, KEEPER_SOCKET)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise StorageError(f"the keeper cannot be reached: {error.strerror}") from error
    return RemoteUndoService(connection, log)  # pyright: ignore[reportAbstractUsage] - made of the port


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


class RemoteUndoService(_Remote):
    """A connection to a keeper; implements `UndoService` and `RunService`. For one thread at a time.

    Every method raises the keeper's errors, and `HoldfastError` with the code `GONE` if the keeper ends.
    """

    def __init__(self, connection: socket.socket, log: bytes) -> None:
        """Take the connection to the keeper of the log in the directory ``log`` over."""
        self._connection = Connection(connection, MAX_ANSWER_BYTES)
        self._log = log

    def __enter__(self) -> Self:
        """Return itself; leaving closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Disconnect; the connection's pause or run ends."""
        self._connection.close()

    def fileno(self) -> int:
        """For waiting until the keeper ends."""
        return self._connection.fileno()

    def write(self, path: bytes, content: int, *, expected: bytes | None = None, run: str = "") -> StepInfo | None:
        """See `UndoService.write`."""
        return self._ask("write_content", [path, expected, run], [content])

    @contextmanager
    def quiet(self) -> Generator[None]:
        """See `UndoService.quiet`. It also ends with this connection."""
        self.pause()
        try:
            yield
        finally:
            try:
                self.resume()
            except HoldfastError as error:
                # Without a keeper no supervised process can change anything either, until the next keeper.
                if error.code != GONE:
                    raise

    def join_run(self, request: JoinRequest, descriptors: Sequence[int]) -> None:
        """Let the keeper serve a tree. The run lasts until the tree has ended, or this connection ends without a
        `leave`, which ends the tree.

        The ``descriptors`` are borrowed: the listener of the tree's filter (or the device of its mount), a socket on
        which the tree's parent answers (`holdfast.supervisor.launch._caller_access_server`), and the read-only
        directories, at most `MOST_READ_ONLY`. They are neither in the workspace nor its parents; a call that would
        change one, or its contents, fails with EROFS. Raises `RefusedError` if one is no such directory, `UsageError`
        if there are too many.

        ``request.thresholds`` counts until the tree's last process has ended; see `guard`.
        """
        if request.read_only > MOST_READ_ONLY:
            raise UsageError(f"at most {MOST_READ_ONLY} directories are read-only for one run, not {request.read_only}")
        self._ask("join", [request], descriptors)

    def open_channel(self, run: str, channel: socket.socket) -> int:
        """Have the keeper pass on by ``channel`` (``SOCK_SEQPACKET``; borrowed) what `connect_agent` asks for. Returns
        the number of the run's first process, which has the other end. Raises `NotFoundError` if no such run has
        joined, or it has left.
        """
        return self._ask("keep_channel", [run], [channel.fileno()])

    def connect_agent(self, run: str) -> tuple[socket.socket, int]:
        """A connection to the first process of a run, and that process's number.

        The process may end before it accepts the connection, which ends then. Raises `NotFoundError` if no such run has
        joined, it has left, or has no channel, and `StorageError` if the process does not accept it.
        """
        import socket

        own, other = socket.socketpair()
        with other:
            try:
                return own, self._ask("pass_connection", [run], [other.fileno()])
            except BaseException:
                own.close()
                raise

    def _ask(self, method: str, arguments: list[Any], descriptors: Sequence[int] = ()) -> Any:
        try:
            body = PORT.encode_request(method, arguments)
            with make_proof(self._log) if method in WITH_PROOF else nullcontext([]) as proof:
                answer = self._connection.ask(body, [*proof, *descriptors])
        except OSError as error:
            raise HoldfastError("the keeper ended before it answered", code=GONE) from error
        return PORT.decode_answer(method, answer)

"""Requests to the process that has a session open: see `holdfast.engine.sessions.holder.request_server`."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast.engine.opening.current_run import RUN_VARIABLE
from holdfast.engine.sessions.holder.lock import socket_name
from holdfast.engine.sessions.holder.request_server import LATER
from holdfast.engine.sessions.identifiers import HOOK_VARIABLE
from holdfast.ipc import messages, private_socket
from holdfast.ipc.connection import Connection
from holdfast.model.decoders import converted
from holdfast.model.errors import FormatError, HoldfastError, LockedError, RefusedError
from holdfast.model.paths import parse_display
from holdfast.model.session_results import ForkResult
from holdfast.model.session_types import SessionHash, SessionId, SessionRef
from holdfast.wire.session_requests import (
    MAX_ANSWER_BYTES,
    BranchRequest,
    ForkRequest,
    PingRequest,
    RemoveBranchRequest,
    SaveRequest,
    SessionCall,
    ShareRequest,
    encode_call,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from holdfast.engine.sessions.session import Session
    from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
    from holdfast.model.session_types import SessionCheckpoint
    from holdfast.store.catalog.session_records import SessionRecord
    from holdfast.wire.session_requests import SessionRequest

_CONNECT_SECONDS = 1.0
_WORK_SECONDS = 600.0
"""Time for the work, once a process answers: a fork of a large directory is slow."""
_GONE = "holder_gone"


class RemoteSession:
    """A session that another process has open, and answers for. Use it as a context manager.

    Requests raise `LockedError` with the code ``later`` if that process released the session before it began the work.
    They raise it with another code without an answer in time, or if the process was killed: then the result is unknown.
    """

    def __init__(
        self, connection: socket.socket, lock: bytes, record: SessionRecord, tiers: SessionCheckpointTiers, agent: str
    ) -> None:
        self._connection = Connection(connection, MAX_ANSWER_BYTES)
        self._lock = lock
        self._record = record
        self._tiers = tiers
        self._agent = agent
        self.shared = record.shared
        """Other agents that may use it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Harmless a second time."""
        self._connection.close()

    @property
    def id(self) -> SessionId:
        """Its name."""
        return self._record.id

    @property
    def owner(self) -> str:
        """Its owner."""
        return self._record.owner

    def ping(self, seconds: float) -> bool:
        """Whether it answers within ``seconds``; False also where it says: not now."""
        try:
            self.ask(PingRequest(), seconds)
        except HoldfastError as error:
            if error.code in (LATER, _GONE):
                return False
            raise
        return True

    def load(self, name: str) -> SessionCheckpoint:
        """A state of it by its hash, as an answer names one."""
        return self._tiers.load(SessionHash(name))

    def ask(self, ask: SessionRequest, seconds: float = _WORK_SECONDS) -> dict[str, Any]:
        """Send a request; its answer. Raises the errors of the other process; see the class for others."""
        call = SessionCall(ask=ask, agent=self._agent, hook=os.environ.get(HOOK_VARIABLE, "")[:100])
        with ExitStack() as stack:
            proofs: list[int] = []
            try:
                proofs.append(os.open(self._lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
                stack.callback(os.close, proofs[0])
            except OSError as error:
                run = os.environb.get(RUN_VARIABLE, b"").decode("ascii", "replace")[:100]
                if not run:
                    raise RefusedError(
                        f"the session {self.id} is open in another process, which "
                        f"cannot be reached from here: {error.strerror}",
                        hint="do it from another terminal",
                        code="inside_run",
                    ) from None
                call = msgspec.structs.replace(call, run=run)
            try:
                answer = self._connection.ask(encode_call(call), proofs, seconds)
            except TimeoutError:
                raise self._too_slow(seconds) from None
            except ConnectionError:
                raise self._gone() from None
        return messages.decode_result(answer)

    def _too_slow(self, seconds: float) -> HoldfastError:
        return LockedError(
            f"the session {self.id} is open in another process ({self._connection.peer.pid}), which has not answered "
            f"for {seconds:g} s",
            hint="it is busy: try again later",
            code="session_busy",
        )

    def _gone(self) -> HoldfastError:
        return LockedError(
            f"the process that had the session {self.id} open ended before it answered",
            hint="check whether the command has taken effect, and try again",
            code=_GONE,
        )


def connect(
    lock: bytes, record: SessionRecord, tiers: SessionCheckpointTiers, agent: str, seconds: float
) -> RemoteSession | None:
    """The process that has a session open, if one answers within ``seconds``.

    Raises its refusal: `RefusedError`, or `LockedError` if it does not answer.
    """
    folder, name = os.path.dirname(lock), socket_name(record.id)
    connection = private_socket.try_connect(folder, name, _CONNECT_SECONDS)
    if connection is None:
        return None
    if not private_socket.peer_of(connection).may_speak:
        connection.close()
        return None
    asking = RemoteSession(connection, lock, record, tiers, agent)
    try:
        if asking.ping(seconds):
            return asking
    except BaseException:
        asking.close()
        raise
    asking.close()
    return None


_T = TypeVar("_T")


class ReachableSession:
    """A session for requests that are possible at any time: this process holds it, or asks the process that has it
    open.

    That process may release it at any moment. The next holder does the work that it has not begun. Use it as a context
    manager.
    """

    def __init__(self, reach: Callable[[float], Session | RemoteSession], seconds: float) -> None:
        """``reach(until)`` returns the session, and waits for it at most until that time (`time.monotonic`), which is
        ``seconds`` after a request.
        """
        self._reach = reach
        self._seconds = seconds
        self._found: Session | RemoteSession = reach(time.monotonic() + seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release it, or hang up. Harmless a second time."""
        self._found.close()

    @property
    def id(self) -> SessionId:
        """Its name."""
        return self._found.id

    @property
    def owner(self) -> str:
        """Its owner."""
        return self._found.owner

    @property
    def shared(self) -> tuple[str, ...]:
        """Other agents that may use it."""
        return self._found.shared

    def checkpoint(self, message: str = "") -> SessionCheckpoint:
        """See `Session.checkpoint`. Where a command runs: the shell as it was before that, the files as they are."""
        return self._do(lambda session: session.checkpoint(message), SaveRequest(message=message), _checkpoint)

    def save_resting(self) -> SessionCheckpoint:
        """Save the state if anything has happened since the last time; the newest one. Raises `RefusedError` (code
        ``session_running``) while a command runs.
        """
        return self._do(lambda session: session.save_resting(), SaveRequest(automatic=True, resting=True), _checkpoint)

    def branch(self, name: str, *, message: str = "") -> SessionRef:
        """See `Session.branch`."""
        return self._do(
            lambda session: session.branch(name, message=message), BranchRequest(name=name, message=message), _ref
        )

    def remove_branch(self, name: str) -> SessionRef:
        """See `Session.remove_branch`."""
        return self._do(lambda session: session.remove_branch(name), RemoveBranchRequest(name=name), _ref)

    def fork(
        self,
        id: str | None = None,  # noqa: A002 - the field's own name
        *,
        checkpoint: str | None = None,
        with_ignored: bool = False,
        provider: str | None = None,
        on_branch: str = "",
    ) -> ForkResult:
        """See `Session.fork`."""
        return self._do(
            lambda session: session.fork(
                id, checkpoint=checkpoint, with_ignored=with_ignored, provider=provider, on_branch=on_branch
            ),
            ForkRequest(
                id=id,
                checkpoint=checkpoint,
                with_ignored=with_ignored,
                provider=provider,
                on_branch=on_branch or None,
            ),
            _fork_result,
        )

    def share(self, agent: str) -> None:
        """See `Session.share`."""
        self._do(lambda session: session.share(agent), ShareRequest(name=agent), _take_shared)

    def unshare(self, agent: str) -> None:
        """See `Session.unshare`."""
        self._do(lambda session: session.unshare(agent), ShareRequest(name=agent, remove=True), _take_shared)

    def _do(
        self,
        work: Callable[[Session], _T],
        ask: SessionRequest,
        read: Callable[[RemoteSession, dict[str, Any]], _T],
    ) -> _T:
        """Do ``work`` with the session, or ``ask`` the process that has it open and ``read`` the answer."""
        until = time.monotonic() + self._seconds
        while True:
            try:
                if isinstance(self._found, RemoteSession):
                    return read(self._found, self._found.ask(ask))
                return work(self._found)
            except LockedError as error:
                if error.code != LATER:
                    raise
            self._found.close()
            self._found = self._reach(until)


def _checkpoint(remote: RemoteSession, said: dict[str, Any]) -> SessionCheckpoint:
    return remote.load(str(said.get("checkpoint")))


def _ref(_: RemoteSession, said: dict[str, Any]) -> SessionRef:
    try:
        return converted(said.get("ref"), SessionRef)
    except msgspec.ValidationError as error:
        raise FormatError(f"ref: {error}") from None


def _fork_result(remote: RemoteSession, said: dict[str, Any]) -> ForkResult:
    try:
        return ForkResult(
            SessionId(str(said["id"])),
            parse_display(str(said["root"])),
            SessionHash(str(said["fork_point"])),
            _ref(remote, said),
            str(said["provider"]),
            said["mode"],
        )
    except KeyError as error:
        raise FormatError(f"the answer lacks {error}") from None


def _take_shared(remote: RemoteSession, said: dict[str, Any]) -> None:
    remote.shared = tuple(said["shared"])

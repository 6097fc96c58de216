"""The holder's end of a session's private socket, for requests while the session is open.

The holder answers on the thread that uses the session, while it waits: for a command, for the next line at a terminal,
for a hook. A supervised process cannot open the session's lock for writing: it may only send requests that add to the
session, and only from a command or a hook of the session.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.engine.sessions.holder.lock import socket_name
from holdfast.engine.sessions.identifiers import check_may_use
from holdfast.ipc import messages
from holdfast.ipc.server import Limits, Server
from holdfast.model.errors import HoldfastError, LockedError, RefusedError
from holdfast.model.paths import display
from holdfast.wire.session_requests import (
    ADDING,
    MAX_ANSWER_BYTES,
    MAX_CALL_BYTES,
    BranchRequest,
    ForkRequest,
    PingRequest,
    RemoveBranchRequest,
    SaveRequest,
    ShareRequest,
    decode_call,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.engine.running.child_start import ChildStart
    from holdfast.engine.sessions.session import Session
    from holdfast.ipc.server import Client
    from holdfast.model.session_types import SessionRef
    from holdfast.wire.session_requests import SessionCall


_LIMITS = Limits(request_bytes=MAX_CALL_BYTES, answer_bytes=MAX_ANSWER_BYTES, descriptors=1)

LATER = "later"
"""The code of the error that says: not now, ask again."""


class Served(Protocol):
    """Answers requests on a thread that waits."""

    def fileno(self) -> int:
        """A descriptor that is readable when `serve` has work."""
        ...

    def serve(self) -> None:
        """Do the requested work."""
        ...


@contextmanager
def servers_for(door: RequestServer | None, start: ChildStart) -> Generator[Sequence[Served]]:
    """For the length of the block, in which ``start`` was started for a session: all that it may ask."""
    with nullcontext() if door is None or not start.run else door.run(start.run):
        yield [server for server in (door, start.server) if server is not None]


class RequestServer:
    """Answers requests to one session. For the thread that uses the session; only the requested work blocks."""

    def __init__(self, session: Session, lock: bytes) -> None:
        """``lock`` is the session's lock, which this process holds. Raises `StorageError`."""
        self._session = session
        self._lock = lock
        self._hook = ""
        self._runs: set[str] = set()
        self._interrupted = False
        self._server = Server(
            os.path.dirname(lock), socket_name(session.id), session.context.clock, self._answer, limits=_LIMITS
        )

    def fileno(self) -> int:
        """A descriptor that is readable when `serve` has work."""
        return self._server.fileno()

    def serve(self) -> None:
        """Do the requested work. Raises `KeyboardInterrupt` if there was one meanwhile."""
        self._server.serve()
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def close(self) -> None:
        """Stop answering, and remove the socket. Clients whose request was not begun get an error."""
        self._server.close()
        what = f"the session {self._session.id} has just been closed"
        self._server.hang_up(messages.encode_error(LockedError(what, code=LATER)))

    @property
    def in_hook(self) -> bool:
        """Whether a hook runs: its requests run no hooks, which could otherwise recurse without end."""
        return bool(self._hook)

    @contextmanager
    def hook(self) -> Generator[str]:
        """While it is entered only what a hook asks for is done; it is known by this word."""
        self._hook = os.urandom(8).hex()
        try:
            yield self._hook
        finally:
            self._hook = ""

    @contextmanager
    def run(self, run: str) -> Generator[None]:
        """While it is entered, what belongs to this run may ask for what adds to the session."""
        self._runs.add(run)
        try:
            yield
        finally:
            self._runs.remove(run)

    def _answer(self, client: Client, body: bytes) -> bytes:
        call = decode_call(body)
        if not (call.run and call.run in self._runs and isinstance(call.ask, ADDING)):
            self._check_outside(client)
        try:
            return messages.encode_result(self._perform(call))
        except KeyboardInterrupt:
            self._interrupted = True
            raise HoldfastError("it was interrupted there", code="cancelled") from None

    def _check_outside(self, client: Client) -> None:
        """Raise `RefusedError` unless the client may write in the home: has the session's lock open for that."""
        for fd in client.descriptors:
            try:
                ours, mode = os.stat(self._lock, follow_symlinks=False), fcntl.fcntl(fd, fcntl.F_GETFL)
                if os.path.samestat(os.fstat(fd), ours) and not mode & os.O_PATH and mode & os.O_ACCMODE:
                    return
            except OSError:
                continue
        raise RefusedError(
            f"the session {self._session.id} does not do that for a supervised process",
            hint="do it from another terminal; a session's own commands may ask "
            "only for a checkpoint, a branch or a fork",
            code="inside_run",
        )

    def _perform(self, call: SessionCall) -> dict[str, Any]:
        if self._hook and call.hook != self._hook:
            raise LockedError(f"a hook of the session {self._session.id} runs", code=LATER)
        check_may_use(self._session.record, call.agent)
        session, ask = self._session, call.ask
        if isinstance(ask, PingRequest):
            return {}
        with session.asked_by(call.agent):
            if isinstance(ask, SaveRequest):
                if ask.resting:
                    session.refuse_running()
                point = session.checkpoint(ask.message, kind="auto" if ask.automatic else "manual")
                return {"checkpoint": point.hash}
            if isinstance(ask, BranchRequest):
                return _ref(session.branch(ask.name, message=ask.message))
            if isinstance(ask, RemoveBranchRequest):
                return _ref(session.remove_branch(ask.name))
            if isinstance(ask, ForkRequest):
                made = session.fork(
                    ask.id,
                    checkpoint=ask.checkpoint,
                    with_ignored=ask.with_ignored,
                    provider=ask.provider,
                    on_branch=ask.on_branch or "",
                )
                return {**made._asdict(), "root": display(made.root), **_ref(made.ref)}
            return {"shared": list(_shared(session, ask))}


def _shared(session: Session, ask: ShareRequest) -> tuple[str, ...]:
    if ask.remove:
        session.unshare(ask.name)
    else:
        session.share(ask.name)
    return session.shared


def _ref(ref: SessionRef) -> dict[str, Any]:
    return {"ref": msgspec.to_builtins(ref)}

"""The launcher's end of `holdfast.engine.opening.current_run`: it takes the checkpoints that what runs asks for."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

from holdfast.engine.history.checkpoint import create_checkpoint
from holdfast.engine.opening.current_run import run_socket
from holdfast.ipc import messages
from holdfast.ipc.server import Limits, Server
from holdfast.model.errors import HoldfastError, RefusedError
from holdfast.model.log import Log
from holdfast.wire import watch_messages

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.engine.opening.context import Context
    from holdfast.ipc.server import Client

_LOG = Log(__name__)
_LIMITS = Limits(request_bytes=watch_messages.MAX_CALL_BYTES, answer_bytes=watch_messages.MAX_ANSWER_BYTES)


class CheckpointServer:
    """Takes the checkpoints that processes of one run ask for. Use it as a context manager; for one thread."""

    def __init__(self, context: Context, run: str) -> None:
        """Raises `StorageError`."""
        self._context = context
        self._server = Server(context.folder, run_socket(run), context.clock, self._answer, limits=_LIMITS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Answer no more, and remove the socket."""
        self._server.close()
        self._server.hang_up()

    def fileno(self) -> int:
        """A descriptor that is readable when `serve` has work."""
        return self._server.fileno()

    def due_in(self) -> float | None:
        """Seconds until `serve` has work in any case."""
        return self._server.due_in()

    def serve(self) -> None:
        """Do the requested work."""
        self._server.serve()

    def _answer(self, _client: Client, body: bytes) -> bytes:
        return messages.encode_result(self._perform(watch_messages.decode_call(body)))

    def _perform(self, call: watch_messages.WatchCall) -> watch_messages.Json:
        if call.request is None:
            raise RefusedError(f"the launcher of a run takes checkpoints only: {call.operation}", code="inside_run")
        kind = "auto" if call.request.kind == "auto" else "manual"
        return watch_messages.pack_result(create_checkpoint(self._context, call.request._replace(kind=kind)))


@contextmanager
def serve_checkpoints(context: Context, run: str) -> Generator[None]:
    """For the length of the block, take checkpoints that processes of the run ask for, on a thread.

    No other thread may use the context meanwhile.
    """
    with ExitStack() as undo:
        try:
            server = undo.enter_context(CheckpointServer(context, run))
            wake, waker = (undo.enter_context(end) for end in socket.socketpair())
            thread = threading.Thread(target=_serve, args=(server, wake), daemon=True)
            thread.start()
            undo.callback(thread.join)
            undo.callback(waker.send, b"x")
        except (HoldfastError, RuntimeError) as error:
            warn_of_no_checkpoints(error)
        yield


def warn_of_no_checkpoints(error: Exception) -> None:
    """Tell that processes of a run cannot take checkpoints."""
    _LOG.warning("commands cannot take checkpoints: %s", error)


def _serve(server: CheckpointServer, wake: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(wake, selectors.EVENT_READ)
        selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(server.due_in()):
                if key.fileobj is wake:
                    return
            server.serve()

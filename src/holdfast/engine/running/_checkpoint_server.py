"""The launcher's end of `holdfast.engine.opening.current_run`: it takes the checkpoints that what runs asks for."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

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


@contextmanager
def serve_checkpoints(context: Context, run: str) -> Generator[None]:
    """For the length of the block, take checkpoints that processes of the run ask for, on a thread.

    No other thread may use the context meanwhile.
    """
    with ExitStack() as undo:
        try:
            server = undo.enter_context(_Server(context, run))
            thread = threading.Thread(target=server.serve, daemon=True)
            thread.start()
            undo.callback(thread.join)
            undo.callback(server.stop)
        except (HoldfastError, RuntimeError) as error:
            _LOG.warning("what runs cannot take checkpoints: %s", error)
        yield


class _Server:
    def __init__(self, context: Context, run: str) -> None:
        self._context = context
        with ExitStack() as undo:
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake, self._waker = (undo.enter_context(end) for end in socket.socketpair())
            self._selector.register(self._wake, selectors.EVENT_READ)
            self._server = Server(context.folder, run_socket(run), context.clock, self._answer, limits=_LIMITS)
            undo.callback(self._server.hang_up)
            undo.callback(self._server.close)
            self._selector.register(self._server, selectors.EVENT_READ)
            self._undo = undo.pop_all()

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def stop(self) -> None:
        self._waker.send(b"x")

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self._server.due_in()):
                if key.fileobj is self._wake:
                    return
            self._server.serve()

    def _answer(self, _client: Client, body: bytes) -> bytes:
        return messages.encode_result(self._perform(watch_messages.decode_call(body)))

    def _perform(self, call: watch_messages.WatchCall) -> watch_messages.Json:
        if call.request is None:
            raise RefusedError(f"the launcher of a run takes checkpoints only: {call.operation}", code="inside_run")
        kind = "auto" if call.request.kind == "auto" else "manual"
        return watch_messages.pack_result(create_checkpoint(self._context, call.request._replace(kind=kind)))

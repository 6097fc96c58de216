"""QEMU's monitor, by the library ``qemu.qmp``, and the thread on which all that comes from QEMU is taken in.

The library is asynchronous; the rest of Holdfast is not. So one thread has the event loop of one machine, and other
threads ask it. QEMU need not have answered yet when this begins: it does so when the back ends of its directories have
answered it, which may be started later.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from holdfast.model.errors import ChannelError, UnsupportedError
from holdfast.model.log import Log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from qemu.qmp import QMPClient

_LOG = Log(__name__)
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 10.0
"""For a command, from when QEMU listens; it answers in milliseconds."""


def require_library() -> None:
    """Raise `UnsupportedError` if ``qemu.qmp`` is not there."""
    try:
        import_module("qemu.qmp")
    except ImportError as error:
        from holdfast.model.extras import install_command

        raise UnsupportedError(
            "the library qemu.qmp is not installed, which virtual machines need", hint=install_command("vm")
        ) from error
    import logging

    # Its log records are also raised; without any handler, Python would print them.
    logger = logging.getLogger("qemu.qmp")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


class EventLoopThread:
    """A thread with an event loop, for as long as a machine lives."""

    def __init__(self, name: str) -> None:
        """It runs at once."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def call(self, function: Callable[[], Any], seconds: float | None = None) -> Any:
        """Call it on the thread, and return or raise its result."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result(seconds)

    def run(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Run it on the thread to its end, for so long at most. Raises `TimeoutError`."""
        waiting = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return waiting.result(seconds)
        except TimeoutError:
            waiting.cancel()
            raise

    def stop(self) -> None:
        """End the thread and the loop, with all that waits in it."""

        def end() -> None:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            gathered = asyncio.gather(*tasks, return_exceptions=True)
            gathered.add_done_callback(lambda _: self.loop.stop())

        self.loop.call_soon_threadsafe(end)
        self._thread.join()


class Monitor:
    """The control of a running QEMU."""

    def __init__(self, thread: EventLoopThread, connection: socket.socket) -> None:
        """Take over our end of the monitor's socket, and connect as soon as QEMU is ready."""
        self._thread = thread
        self._client: QMPClient | None = None
        self._connected: Future[None] = Future()
        self.shutdown_reason = ""
        """Why QEMU says that the machine has ended, in its words: ``guest-shutdown``, ``guest-reset``, …"""
        self._connecting: asyncio.Task[None] = thread.call(lambda: thread.loop.create_task(self._connect(connection)))

    async def _connect(self, connection: socket.socket) -> None:
        from qemu.qmp import EventListener, Message, QMPClient

        def note(event: Message) -> bool:
            data = cast("dict[str, object]", event.get("data", {}))
            self.shutdown_reason = str(data.get("reason", ""))
            return False  # no task waits for the event, so it need not be queued

        try:
            client = QMPClient("holdfast")
            client.register_listener(EventListener(names="SHUTDOWN", event_filter=note))
            await client.connect(connection)
        except BaseException as error:
            # The first command raises it.
            self._connected.set_exception(ConnectionError(str(error) or type(error).__name__))
            connection.close()
            if isinstance(error, Exception):
                return
            raise
        self._client = client
        self._connected.set_result(None)

    def is_connected(self) -> bool:
        """Whether QEMU has answered. It does not before all its directories are served."""
        return self._connected.done() and self._connected.exception() is None

    def wait_for_end(self, seconds: float) -> None:
        """Wait until all that an ended QEMU has said was taken in."""
        from qemu.qmp import Runstate

        async def wait() -> None:
            while self._client is not None and self._client.runstate is Runstate.RUNNING:
                await asyncio.sleep(_LOOK_SECONDS)

        try:
            self._connected.result(seconds)
            self._thread.run(wait(), seconds)
        except Exception as error:  # noqa: BLE001 - what has not come by now is not waited for
            _LOG.debug("the end of a machine's monitor: %s", error)

    def execute(self, command: str, arguments: dict[str, object] | None = None, *, fd: int | None = None) -> Any:
        """Execute a command of QEMU, and return the answer. With ``fd``, a descriptor is sent along.

        Raises `ChannelError` if QEMU refuses, does not answer or has ended.
        """
        from qemu.qmp import QMPError

        try:
            self._connected.result(_PATIENCE_SECONDS)
            return self._thread.run(self._execute(command, arguments, fd), _PATIENCE_SECONDS)
        except TimeoutError as error:
            raise ChannelError(f"QEMU does not answer to {command}") from error
        except (QMPError, OSError, EOFError, RuntimeError) as error:
            raise ChannelError(f"QEMU does not carry out {command}: {error}") from error

    async def _execute(self, command: str, arguments: dict[str, object] | None, fd: int | None) -> object:
        assert self._client is not None
        if fd is not None:
            self._client.send_fd_scm(fd)
        return await self._client.execute(command, arguments)

    def close(self) -> None:
        """Hang up; QEMU goes on."""

        async def hang_up() -> None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
            if self._client is not None:
                await self._client.disconnect()

        try:
            self._thread.run(hang_up(), _PATIENCE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the other side has hung up, in whatever way
            _LOG.debug("hanging up a machine's monitor: %s", error)

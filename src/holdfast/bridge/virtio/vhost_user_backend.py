"""The back end of a virtio-fs device: one connection of a monitor, which shares its guest's memory and rings.

A guest mounts, and may mount again after a reboot: each time it begins with INIT. `VhostUserBackend.accept` gives a
transport for each. None of them notices a paused machine or moved rings.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.bridge.server.transport import ClosedTransportError
from holdfast.bridge.virtio._guest_rings import Ring, SharedMemory, check_event, let_go, signal, write_reply
from holdfast.ipc import private_socket
from holdfast.model.errors import FormatError
from holdfast.model.log import Log
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.vhost_user import messages
from holdfast.wire.vhost_user.messages import HEADER_BYTES, decode_header
from holdfast.wire.vhost_user.protocol_constants import MAX_DESCRIPTORS, Request
from holdfast.wire.vhost_user.session import Device, Session
from holdfast.wire.virtio.filesystem_device import FIRST_REQUEST_QUEUE

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.bridge.server.transport import Reply
    from holdfast.bridge.virtio._guest_rings import Taken
    from holdfast.wire.vhost_user.messages import Body
    from holdfast.wire.vhost_user.session import Vring

_LOG = Log(__name__)
LARGEST_REQUEST: Final = (1 << 20) + (1 << 17)
"""Size of a write, with its header and the largest attribute beside it; a guest that sends more has broken its ring."""
_ONCE: Final = select.EPOLLIN | select.EPOLLET
_EVENTS: Final = (Request.SET_VRING_KICK, Request.SET_VRING_CALL, Request.SET_VRING_ERR)
_LET_GO_SECONDS: Final = 0.05
_DRAIN_SECONDS: Final = 1.0
"""Time that a stopping ring waits for its taken requests. Requests held by a safeguard are answered when the ring
resumes: the machine is paused meanwhile.
"""


class VhostUserBackend:
    """Serves one front end until that hangs up, or `close`. All input from the front end and the guest is treated as
    hostile: an error ends this connection, or stops a ring of it.
    """

    def __init__(self, connection: socket.socket, *, request_queues: int = 1) -> None:
        """Takes over ``connection``."""
        self._socket = connection
        connection.setblocking(True)
        self._session = Session(Device(vrings=FIRST_REQUEST_QUEUE + request_queues))
        self._shared = SharedMemory()
        self._rings: dict[int, Ring] = {}
        """The running rings, by index."""
        self._running: tuple[Ring, ...] = ()
        """The same, in order of priority."""
        self._stopped: dict[int, Ring] = {}
        """The stopped rings, which may resume."""
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        """No event is closed that `let_go` reads."""
        self._drained = threading.Condition(self._lock)
        self._is_draining = False
        self._poll = select.epoll()
        # (Edge-triggered, without a read: a read would be one more system call for each request.)
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._nudge, _ONCE)
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._over, select.EPOLLIN)
        self._is_over = False
        self._in_flight: dict[int, Taken] = {}
        """By what the guest calls them."""
        self._first: Taken | None = None
        """The INIT that the next transport begins with."""
        self._thread = threading.Thread(target=self._listen, name="holdfast-vhost-user", daemon=True)
        self._thread.start()

    def accept(self, timeout: float | None = None) -> VirtioTransport | None:
        """The transport of the guest's next mount, once it begins; only when the one before is served no more. None if
        the front end has hung up, or ``timeout`` seconds have passed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._first is None and (taken := self._take()) is not None:
                    if taken.opcode == Opcode.INIT:
                        self._first = taken
                    else:
                        self._answer(taken, replies.error(taken.unique, errno.ENOTCONN))
                if self._first is not None:
                    first, self._first = self._first, None
                    return VirtioTransport(self, first)
                if self._is_over:
                    return None
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            with self._lock:
                has_more = self._request_kicks()
            if not has_more:
                self._poll.poll(left)

    def close(self) -> None:
        """Hang up, and wait until no thread answers; only when no transport is served any more."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the front end has hung up
        while self._thread.is_alive():
            self._thread.join(_LET_GO_SECONDS)
            self.let_go()
        self._poll.close()
        os.close(self._nudge)
        os.close(self._over)

    # -- for transports -------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """End the wait of any thread for the front end to read an event counter at its limit. (The thread has the lock
        meanwhile, so no descriptor changes.)
        """
        with self._closing:
            for vring in self._session.vrings:
                for descriptor in (vring.call, vring.error):
                    if descriptor is not None:
                        let_go(descriptor)

    def watch(self, event: int) -> None:
        """Have `wait` return when an event is signalled."""
        self._poll.register(event, select.EPOLLIN)

    def unwatch(self, event: int) -> None:
        """The opposite."""
        self._poll.unregister(event)

    def wait(self) -> None:
        """See `Receiver.wait`."""
        with self._lock:
            has_more = self._request_kicks()
        if not has_more:
            self._poll.poll()

    def receive(self, *, is_agreed: bool) -> Taken | None:
        """The next request; None if there is none now. Raises `ClosedTransportError` once the front end has hung up,
        and where the guest begins anew: with another INIT although the terms are agreed upon.
        """
        with self._lock:
            if self._first is not None:
                raise ClosedTransportError
            taken = self._take()
            if taken is None:
                if self._is_over:
                    raise ClosedTransportError
                return None
            if is_agreed and taken.opcode == Opcode.INIT:
                self._first = taken
                raise ClosedTransportError
            return taken

    def reply(self, unique: int, reply: Reply) -> None:
        """See `Transport.reply`."""
        is_short = reply is None or isinstance(reply, bytes)
        with self._lock:
            taken = self._in_flight.get(unique)
            if taken is None:
                return  # its ring was given up
            if taken.ring.is_stopped:
                self._answer(taken, reply)
                return
            if is_short:
                self._give_back(taken, write_reply(taken.chain, reply))
                return
        # (The lock is not held during a long copy.)
        written = write_reply(taken.chain, reply)
        with self._lock:
            if self._in_flight.get(unique) is not taken:
                return
            if taken.ring.is_stopped:
                self._answer(taken, reply)
            else:
                self._give_back(taken, written)

    def is_quiet(self) -> bool:
        """See `Transport.is_quiet`. (A front end or a guest can make a thread hold the lock: then it is not quiet, and
        the caller must not wait for either.)
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not any(ring.has_more() for ring in self._rings.values())
        finally:
            self._lock.release()

    # -- requests. All of it needs the lock ---------------------------------------------------------------------------

    def _take(self) -> Taken | None:
        for ring in self._running:
            taken = ring.take()
            if taken is None:
                continue
            if taken.unique not in self._in_flight:
                self._in_flight[taken.unique] = taken
                return taken
            # Only one of the two could be answered: a guest's kernel gives no number twice. (No further request is
            # taken here: a guest that refills its ring with such requests would hold the lock for ever.)
            ring.answer(taken.chain, replies.error(taken.unique, errno.EINVAL))
            return None
        return None

    def _request_kicks(self) -> bool:
        """Have `_poll` tell of the next request. Whether there is one already."""
        for ring in self._running:  # noqa: SIM110 - a generator for each request would cost more
            if ring.request_kicks():
                return True
        return False

    def _give_back(self, taken: Taken, written: int) -> None:
        del self._in_flight[taken.unique]
        taken.ring.give_back(taken.chain, written)
        if self._is_draining:
            self._drained.notify_all()

    def _answer(self, taken: Taken, reply: Reply) -> None:
        del self._in_flight[taken.unique]
        taken.ring.answer(taken.chain, reply)

    # -- the front end ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while self._answer_message():
                pass
        except (OSError, FormatError) as error:
            _LOG.warning("a virtual machine's file system ends: %s", error)
        except Exception:  # noqa: BLE001 - the front end has to learn that it is not answered any more
            _LOG.exception("a virtual machine's file system ends by a mistake of Holdfast's own")
        finally:
            while not self._lock.acquire(timeout=_LET_GO_SECONDS):
                self.let_go()
            try:
                self._give_up()
                self._session.close()
                self._close_released()
                self._shared.replace(())
                self._is_over = True
            finally:
                self._lock.release()
            os.eventfd_write(self._over, 1)
            self._socket.close()

    def _answer_message(self) -> bool:
        """Answer a message; False if no further one comes. Raises `FormatError` for one that cannot be refused."""
        data, descriptors = private_socket.receive(self._socket, HEADER_BYTES, MAX_DESCRIPTORS)
        if not data:
            return False
        try:
            header = decode_header(data + self._read(HEADER_BYTES - len(data)))
            payload = self._read(header.payload_bytes)
            if header.request in _EVENTS:
                for descriptor in descriptors:
                    check_event(descriptor)
            with self._lock:
                body = self._session.receive(header, payload, descriptors)
        except BaseException as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if not isinstance(error, FormatError):
                raise
            return self._refuse(data, error)
        with self._lock:
            try:
                self._carry_out(body)
            except FormatError as error:
                return self._refuse(data, error)
            self._close_released()
            self._start_rings()
            reply = self._session.reply(header, body)
        if reply is not None:
            self._socket.sendall(reply)
        return True

    def _refuse(self, data: bytes, error: FormatError) -> bool:
        reply = self._session.refusal(decode_header(data)) if len(data) == HEADER_BYTES else None
        if reply is None:
            raise error
        _LOG.warning("a virtual machine's monitor asks for what cannot be: %s", error.message)
        self._socket.sendall(reply)
        return True

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("it hung up within a message")
            data += piece
        return data

    def _carry_out(self, body: Body) -> None:
        match body:
            case messages.SetMemTable(regions, descriptors):
                self._shared.replace(zip(regions, descriptors, strict=True))
                self._remap()
            case messages.AddMemRegion(region, descriptor):
                self._shared.add(region, descriptor)
                self._remap()
            case messages.RemoveMemRegion(region):
                self._shared.remove(region)
                self._remap()
            case messages.GetVringBase(index):
                self._stop(index, drains=True)
            case messages.SetVringKick(index) | messages.SetVringEnable(index, False):
                self._stop(index)
            case messages.ResetDevice() | messages.ResetOwner() | messages.SetStatus(0):
                self._give_up()
            case messages.SetVringCall(_, int(descriptor)):
                # An answer may have come before there was anything to tell of it.
                signal(descriptor)
            case _:
                pass

    def _remap(self) -> None:
        for ring in self._rings.values():
            ring.remap(self._shared.memory)

    def _start_rings(self) -> None:
        """Start the rings that should run and do not yet."""
        features = self._session.features
        for vring in self._session.vrings:
            if vring.is_running and vring.index not in self._rings and features is not None:
                try:
                    ring = self._ring(vring, features)
                except FormatError as error:
                    _LOG.warning("a guest's file system does not start: vring %d: %s", vring.index, error.message)
                    continue
                self._rings[vring.index] = ring
                self._running = tuple(self._rings[index] for index in sorted(self._rings))
                self._poll.register(ring.kick, _ONCE)
                os.eventfd_write(self._nudge, 1)

    def _ring(self, vring: Vring, features: int) -> Ring:
        stopped = self._stopped.pop(vring.index, None)
        if stopped is not None:
            if stopped.in_flight and vring.base == stopped.position:
                try:
                    stopped.resume(self._shared.memory, features)
                except FormatError:
                    pass  # the guest has begun anew
                else:
                    return stopped
            self._forget(stopped)
        return Ring(vring, self._shared.memory, features, LARGEST_REQUEST)

    def _stop(self, index: int, *, drains: bool = False) -> None:
        ring = self._rings.pop(index, None)
        if ring is None:
            return
        self._running = tuple(self._rings[index] for index in sorted(self._rings))
        self._poll.unregister(ring.kick)
        if drains:
            self._is_draining = True
            self._drained.wait_for(lambda: not ring.in_flight, _DRAIN_SECONDS)
            self._is_draining = False
        ring.stop()
        self._stopped[index] = ring

    def _give_up(self) -> None:
        """Wait for none of the taken requests any more."""
        for index in tuple(self._rings):
            self._stop(index)
        for ring in self._stopped.values():
            self._forget(ring)
        self._stopped.clear()

    def _forget(self, ring: Ring) -> None:
        self._in_flight = {unique: taken for unique, taken in self._in_flight.items() if taken.ring is not ring}

    def _close_released(self) -> None:
        with self._closing:
            for descriptor in self._session.released:
                os.close(descriptor)
            self._session.released.clear()


class VirtioTransport:
    """`Transport` of one mount in a guest."""

    def __init__(self, backend: VhostUserBackend, first: Taken) -> None:
        """``first`` is the request that it begins with."""
        self.is_local: Final = False
        self.notifies: Final = False
        self.backing_device: Final = None
        self._backend = backend
        self._first: Taken | None = first
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        backend.watch(self._woken)

    @contextmanager
    def receiver(self, limit: int) -> Generator[_VirtioReceiver]:
        """See `Transport`. (Each chain is copied out of the guest's memory, so a thread needs nothing more.)"""
        del limit
        first, self._first = self._first, None
        yield _VirtioReceiver(self._backend, first)

    def reply(self, unique: int, reply: Reply) -> None:
        """See `Transport`."""
        self._backend.reply(unique, reply)

    def notify(self, notification: bytes) -> None:
        """See `Transport`: there is no way to."""

    def is_quiet(self) -> bool:
        """See `Transport`."""
        return self._backend.is_quiet()

    def wake(self) -> None:
        """See `Transport`."""
        os.eventfd_write(self._woken, 1)
        self._backend.let_go()

    def close(self) -> None:
        """See `Transport`."""
        self._backend.unwatch(self._woken)
        os.close(self._woken)


class _VirtioReceiver:
    """`Receiver` of a mount in a guest."""

    __slots__ = ("_backend", "_first", "_is_agreed")

    def __init__(self, backend: VhostUserBackend, first: Taken | None) -> None:
        """``first`` is what a mount begins with, for the receiver by which the terms are agreed upon."""
        self._backend = backend
        self._first = first
        self._is_agreed = first is None

    def wait(self) -> None:
        """See `Receiver`."""
        if self._first is None:
            self._backend.wait()

    def take(self) -> memoryview | None:
        """See `Receiver`."""
        taken, self._first = self._first, None
        if taken is None:
            taken = self._backend.receive(is_agreed=self._is_agreed)
        return None if taken is None else memoryview(taken.chain.readable)

"""The smallest back end: it answers every request with what it was asked. No more than what the protocol needs."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
from collections.abc import Generator
from threading import Thread

from holdfast.model.errors import FormatError
from holdfast.wire.vhost_user import messages
from holdfast.wire.vhost_user.messages import HEADER_BYTES, Body, MemoryRegion, decode_header
from holdfast.wire.vhost_user.protocol_constants import MAX_DESCRIPTORS
from holdfast.wire.vhost_user.session import Device, Session
from holdfast.wire.virtio.guest_memory import GuestMemory, MappedRegion
from holdfast.wire.virtio.split_queue import SplitQueue, fill

MAX_REQUEST = 1 << 20


class EchoBackend:
    """Serves one front end in a thread of its own until that has gone, or says what cannot be answered."""

    def __init__(self, device: Device) -> None:
        self.frontend_end, self._socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.session = Session(device)
        self.answered = 0
        self.calls = 0
        self.broken: set[int] = set()
        self.failure: BaseException | None = None
        self._mapped: dict[tuple[int, int, int], MappedRegion] = {}
        self._queues: dict[int, SplitQueue] = {}
        self._thread = Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        """Wait until it has ended; what went wrong in it is raised here."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with self._socket:
                self._serve()
        except ConnectionError:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self.session.close()
            self._close_released()

    def _serve(self) -> None:
        while True:
            kicks = {vring.kick: vring.index for vring in self.session.vrings if vring.kick is not None}
            requests = self._socket.fileno()
            ready, _, _ = select.select([requests, *kicks], [], [])
            for descriptor in ready:
                if descriptor != requests:
                    os.eventfd_read(descriptor)
                    self._process(kicks[descriptor])
            if requests in ready and not self._answer():
                return

    def _answer(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._socket, HEADER_BYTES, MAX_DESCRIPTORS)
        if not data:
            return False
        try:
            header = decode_header(data + self._read(HEADER_BYTES - len(data)))
            payload = self._read(header.payload_bytes)
        except FormatError:
            self._close(descriptors)
            return False
        try:
            body = self.session.receive(header, payload, descriptors)
        except FormatError:
            self._close(descriptors)
            reply = self.session.refusal(header)
            if reply is None:
                return False
        else:
            self._carry_out(body)
            self._close_released()
            reply = self.session.reply(header, body)
        if reply is not None:
            self._socket.sendall(reply)
        return True

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data

    def _carry_out(self, body: Body) -> None:
        match body:
            case messages.SetMemTable(regions, descriptors):
                self._mapped.clear()
                for region, descriptor in zip(regions, descriptors, strict=True):
                    self._map(region, descriptor)
                self._remap()
            case messages.AddMemRegion(region, descriptor):
                self._map(region, descriptor)
                self._remap()
            case messages.RemoveMemRegion(region):
                del self._mapped[region[:3]]
                self._remap()
            case messages.GetVringBase(index):
                queue = self._queues.pop(index, None)
                if queue is not None:
                    self.session.vrings[index].base = queue.position
            case messages.SetVringCall(_, int(descriptor)):
                os.eventfd_write(descriptor, 1)
            case messages.SetVringKick(index) | messages.SetVringEnable(index):
                self._process(index)
            case _:
                pass

    def _map(self, region: MemoryRegion, descriptor: int) -> None:
        mapping = mmap.mmap(descriptor, region.mapping_offset + region.size)
        os.close(descriptor)
        view = memoryview(mapping)[region.mapping_offset :]
        self._mapped[region[:3]] = MappedRegion(region.guest_address, region.user_address, view)

    def _remap(self) -> None:
        self._memory = GuestMemory(self._mapped.values())
        for index, queue in self._queues.items():
            with self._marking_broken(index):
                queue.remap(self._memory)

    def _process(self, index: int) -> None:
        vring = self.session.vrings[index]
        if not vring.is_running or index in self.broken:
            return
        with self._marking_broken(index):
            queue = self._queues.get(index)
            if queue is None:
                layout, features = vring.layout, self.session.features
                assert layout is not None
                assert features is not None
                queue = self._queues[index] = SplitQueue(
                    self._memory, layout, features, max_readable=MAX_REQUEST, position=vring.base
                )
            while True:
                queue.suppress_kicks()
                while (chain := queue.pop()) is not None:
                    queue.push(chain.head, fill(chain.writable, chain.readable))
                    self.answered += 1
                    if queue.wants_call() and vring.call is not None:
                        os.eventfd_write(vring.call, 1)
                        self.calls += 1
                if not queue.request_kicks():
                    return

    @contextlib.contextmanager
    def _marking_broken(self, index: int) -> Generator[None]:
        try:
            yield
        except FormatError:
            self.broken.add(index)
            error = self.session.vrings[index].error
            if error is not None:
                os.eventfd_write(error, 1)

    def _close_released(self) -> None:
        self._close(self.session.released)
        self.session.released.clear()

    @staticmethod
    def _close(descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

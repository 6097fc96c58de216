"""I12: whatever comes over a private socket is a message, or an error that says what is wrong; and nothing hangs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.ipc import messages, private_socket
from holdfast.ipc.connection import Connection
from holdfast.ipc.port import Port
from holdfast.ipc.server import Limits, Server
from holdfast.model.errors import FormatError, HoldfastError
from holdfast.testing.clocks import ManualClock

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=9,
)
ERRORS = st.dictionaries(st.sampled_from(["type", "code", "message", "hint", "data", "more"]), JSON)
BODIES = st.one_of(
    st.binary(max_size=100),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.tuples(st.sampled_from(["do", "go"]) | JSON, st.lists(JSON, max_size=4) | JSON).map(
        lambda value: json.dumps(value).encode()
    ),
    st.fixed_dictionaries({}, optional={"result": JSON, "error": ERRORS | JSON}).map(
        lambda value: json.dumps(value).encode()
    ),
)
LIMIT = 1 << 12
FRAMES = st.one_of(
    st.binary(max_size=100),
    BODIES.map(messages.frame),
    st.builds(
        lambda magic, length, body: magic + struct.pack("<I", length) + body,
        st.sampled_from([messages.MAGIC, b"HFM2", b'{"v"']),
        st.sampled_from([0, 1, LIMIT - 1, LIMIT, LIMIT + 1, 2**31, 2**32 - 1]),
        BODIES,
    ),
)


class Pair(NamedTuple):
    name: bytes
    number: int


class Other(Protocol):
    def do(self, pairs: Sequence[Pair], *, force: bool = False) -> Pair: ...

    def go(self, text: str, more: dict[str, float | None]) -> int: ...


PORT = Port(Other)


@given(BODIES)
@settings(max_examples=1000, deadline=None)
@example(b"[" * 200_000)
@example(b'{"result":' * 200_000)
@example(b'["do",[[' + b"[" * 200_000)
def test_any_body(body: bytes) -> None:
    for decode in (
        messages.decode_request,
        messages.decode_result,
        PORT.decode_request,
        lambda body: PORT.decode_answer("do", body),
    ):
        try:
            decode(body)
        except HoldfastError as error:
            messages.encode_error(error)


@given(ERRORS, st.text(), st.text() | st.none(), st.text())
@settings(deadline=None)
def test_any_error_travels(data: dict[str, object], message: str, hint: str | None, code: str) -> None:
    try:
        PORT.decode_answer("do", messages.encode_error(HoldfastError(message, hint=hint, code=code, data=data)))
    except HoldfastError as found:
        assert found.message or not message


@given(st.binary(max_size=12), st.integers(0, 1 << 32))
def test_any_header(header: bytes, most: int) -> None:
    if len(header) < messages.HEADER_BYTES:
        return
    try:
        assert messages.body_bytes(header, most) <= most
    except FormatError:
        pass


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
@settings(max_examples=300, deadline=None)
def test_any_client(tmp_path_factory, frames: list[bytes], data: st.DataObject) -> None:
    """In pieces of any size, with descriptors anywhere: the next client is served, and nothing is left open."""
    folder = os.fsencode(tmp_path_factory.mktemp("served"))
    before = len(os.listdir("/proc/self/fd"))
    limits = Limits(request_bytes=LIMIT, answer_bytes=LIMIT, descriptors=1)
    server = Server(
        folder,
        b"s",
        ManualClock(),
        lambda _, body: messages.encode_result(PORT.decode_request(body)[0]),
        limits=limits,
    )

    def serve() -> None:
        while select.select([server], [], [], 0)[0]:
            server.serve()

    with contextlib.ExitStack() as context:
        context.callback(server.hang_up)
        context.callback(server.close)
        client = context.enter_context(private_socket.connect(folder, b"s", 20))
        null = context.enter_context(open(os.devnull))
        sent = b"".join(frames)
        with contextlib.suppress(ConnectionError):
            while sent:
                size = data.draw(st.integers(1, len(sent)))
                passed = [null.fileno()] * data.draw(st.integers(0, 2))
                socket.send_fds(client, [sent[:size]], passed)
                sent = sent[size:]
                serve()
        with private_socket.connect(folder, b"s", 20) as other:
            other.sendall(messages.frame(PORT.encode_request("go", ["x", {}])))
            serve()
            assert messages.decode_result(other.recv(100)[messages.HEADER_BYTES :]) == "go"
    assert len(os.listdir("/proc/self/fd")) == before
    Path(os.fsdecode(folder)).rmdir()


@given(FRAMES)
@settings(max_examples=300, deadline=None)
def test_any_server(said: bytes) -> None:
    ours, its = socket.socketpair()
    with its, Connection(ours, LIMIT) as connection:
        its.sendall(said)
        its.shutdown(socket.SHUT_WR)
        try:
            messages.decode_result(connection.ask(b"x", seconds=20))
        except (HoldfastError, ConnectionError):
            pass

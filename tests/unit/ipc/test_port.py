"""A port over a connection: the types of its signatures hold on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pytest

from holdfast.ipc.messages import encode_error
from holdfast.ipc.port import Port, encode_result, remote
from holdfast.model.errors import FormatError, NotFoundError


class Pair(NamedTuple):
    name: bytes
    number: int


class Other(Protocol):
    def first(self, pairs: Sequence[Pair], *, force: bool = False) -> Pair: ...

    def second(self, text: str = "t", other: int | None = None) -> None: ...

    def local(self) -> object: ...


PORT = Port(Other, without=("local",))


class Calls(remote(PORT)):
    def __init__(self) -> None:
        self.asked: list[tuple[str, list[Any]]] = []

    def _ask(self, method: str, arguments: list[Any]) -> None:
        self.asked.append((method, arguments))


def test_arguments_are_sent_in_the_order_of_the_signature() -> None:
    calls = Calls()
    calls.first([], force=True)
    calls.first(())
    calls.second(other=3)
    calls.second("x", 4)
    assert calls.asked == [
        ("first", [[], True]),
        ("first", [(), False]),
        ("second", ["t", 3]),
        ("second", ["x", 4]),
    ]
    assert not hasattr(calls, "local")
    with pytest.raises(TypeError):
        calls.second("x", 4, 5)
    with pytest.raises(TypeError):
        calls.second(unknown=5)
    with pytest.raises(TypeError):
        calls.first()


def test_values_come_out_with_their_types() -> None:
    pairs = [Pair(b"\xff", 1)]
    assert PORT.decode_request(PORT.encode_request("first", [pairs, True])) == ("first", (pairs, True))
    found = PORT.decode_answer("first", encode_result(pairs[0]))
    assert (type(found), found) == (Pair, pairs[0])
    assert PORT.decode_answer("second", encode_result(None)) is None
    with pytest.raises(NotFoundError, match="no"):
        PORT.decode_answer("first", encode_error(NotFoundError("no")))


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b'["first"]', b'["first",[]]', b'["first",[[],true,1]]', b'["first",[[["%%",1]],true]]'),
        *(b'["local",[]]', b'["\xff",[]]', b'["second",["\xff",1]]', b"[" * 100_000, b'["first",' + b"[" * 100_000),
    ],
)
def test_what_is_no_request_is_named(body: bytes) -> None:
    """I12."""
    with pytest.raises(FormatError, match=r"first|second|request"):
        PORT.decode_request(body)


@pytest.mark.parametrize("body", [b"", b"7", b'{"result":7}', b'{"result":"\xff"}', b'{"error":7}', b"[" * 100_000])
def test_what_is_no_answer_is_named(body: bytes) -> None:
    with pytest.raises(FormatError, match="the answer to first"):
        PORT.decode_answer("first", body)


def test_a_text_that_is_not_utf_8_is_not_sent() -> None:
    with pytest.raises(FormatError, match="not UTF-8"):
        PORT.encode_request("second", ["\ud800", None])

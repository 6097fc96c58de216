"""Frames between a keeper and those who ask it: what goes in comes out, and garbage is named."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.model.errors import FormatError, HeldError, HoldfastError, LockedError, NotFoundError
from holdfast.supervisor.control.frames import (
    LENGTH,
    SIGNATURES,
    decode_answer,
    decode_request,
    encode_error,
    encode_request,
    encode_result,
)
from holdfast.undo.service import OFF, UndoReport, UndoService


def body(frame: bytes) -> bytes:
    (length,) = LENGTH.unpack_from(frame)
    assert len(frame) == LENGTH.size + length
    return frame[LENGTH.size :]


def test_every_method_of_the_service_goes_over_the_socket() -> None:
    methods = {name for name in vars(UndoService) if not name.startswith("_")}
    assert methods <= SIGNATURES.keys()


def test_requests_and_results_come_out_as_they_went_in() -> None:
    assert decode_request(body(encode_request("undo", [3, -1], True))) == ("undo", ([3, -1], True))
    command = (b"a\xff", b"")
    assert decode_request(body(encode_request("join", "r", 7, False, command, b"/x", 2, OFF, False)))[1][3] == command
    report = UndoReport(steps=(1,), paths=2, conflicts=())
    assert decode_answer("undo", body(encode_result(report))) == report
    assert decode_answer("quiet", body(encode_result(None))) is None


@pytest.mark.parametrize(
    "error", [NotFoundError("no", hint="look"), LockedError("locked"), HoldfastError("x", code="y")]
)
def test_errors_are_raised_again_as_what_they_were(error: HoldfastError) -> None:
    with pytest.raises(type(error)) as caught:
        decode_answer("steps", body(encode_error(error)))
    found = caught.value
    assert (type(found), found.message, found.hint, found.code) == (type(error), error.message, error.hint, error.code)


def test_an_error_that_cannot_be_made_again_keeps_its_code() -> None:
    with pytest.raises(HoldfastError) as caught:
        decode_answer("steps", body(encode_error(HeldError(3, "waits"))))
    assert caught.value.code == "held"


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("nothing", []),
        ("undo", []),
        ("undo", ["x", True]),
        ("undo", [[1], True, 2]),
        ("changes", [b"x"]),
        ("steps", [1]),
        ("join", ["r", 7, False, [b"x"], b"/x"]),  # (as an earlier version might ask)
    ],
)
def test_a_wrong_request_is_named(method: str, arguments: list[object]) -> None:
    with pytest.raises(FormatError, match=method):
        decode_request(msgspec.msgpack.encode((method, arguments)))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
@example(b"\x92\xa1\xff\x90")  # no UTF-8
def test_garbage_is_no_message(data: bytes) -> None:
    """I12: a typed error or a value, whatever comes."""
    for decode in (decode_request, lambda data: decode_answer("steps", data)):
        try:
            decode(data)
        except HoldfastError:
            pass


def test_nesting_has_an_end() -> None:
    for deep in (b"\x91" * 100_000, b"\x92\xa5steps" + b"\x91" * 100_000):
        with pytest.raises(FormatError):
            decode_request(deep)

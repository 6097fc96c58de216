"""What a keeper is asked: what goes in comes out, and garbage is named."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.ipc.messages import encode_error
from holdfast.ipc.port import encode_result
from holdfast.model.errors import FormatError, HeldError, HoldfastError, LockedError, NotFoundError
from holdfast.supervisor.control.keeper_port import PORT, JoinRequest
from holdfast.undo.service import OFF, UndoReport, UndoService


def test_every_method_of_the_service_goes_over_the_socket() -> None:
    methods = {name for name in vars(UndoService) if not name.startswith("_")}
    assert methods - PORT.methods.keys() == {"quiet", "write"}


def test_requests_and_results_come_out_as_they_went_in() -> None:
    assert PORT.decode_request(PORT.encode_request("undo", [[3, -1], True])) == ("undo", ([3, -1], True))
    join = JoinRequest("r", 7, False, (b"a\xff", b""), b"/x", 2, OFF, "filter")
    assert PORT.decode_request(PORT.encode_request("join", [join])) == ("join", (join,))
    report = UndoReport(steps=(1,), paths=2, conflicts=())
    assert PORT.decode_answer("undo", encode_result(report)) == report
    assert PORT.decode_answer("pause", encode_result(None)) is None


@pytest.mark.parametrize(
    "error", [NotFoundError("no", hint="look"), LockedError("locked"), HoldfastError("x", code="y")]
)
def test_errors_are_raised_again_as_what_they_were(error: HoldfastError) -> None:
    with pytest.raises(type(error)) as caught:
        PORT.decode_answer("steps", encode_error(error))
    found = caught.value
    assert (type(found), found.message, found.hint, found.code) == (type(error), error.message, error.hint, error.code)


def test_an_error_that_cannot_be_made_again_keeps_its_code() -> None:
    with pytest.raises(HoldfastError) as caught:
        PORT.decode_answer("steps", encode_error(HeldError(3, "waits")))
    assert caught.value.code == "held"


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("nothing", []),
        ("undo", []),
        ("undo", ["x", True]),
        ("undo", [[1], True, 2]),
        ("changes", ["x"]),
        ("steps", [1]),
        ("join", [["r", 7, False, [b"x"], b"/x"]]),  # (as an earlier version might ask)
    ],
)
def test_a_wrong_request_is_named(method: str, arguments: list[object]) -> None:
    with pytest.raises(FormatError, match=method):
        PORT.decode_request(msgspec.json.encode((method, arguments)))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
@example(b'["\xff",[]]')  # no UTF-8
def test_garbage_is_no_message(data: bytes) -> None:
    """I12: a typed error or a value, whatever comes."""
    for decode in (PORT.decode_request, lambda data: PORT.decode_answer("steps", data)):
        try:
            decode(data)
        except HoldfastError:
            pass


def test_nesting_has_an_end() -> None:
    for deep in (b"[" * 100_000, b'["steps",' + b"[" * 100_000):
        with pytest.raises(FormatError):
            PORT.decode_request(deep)

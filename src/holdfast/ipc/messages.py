"""Requests and answers between two processes of Holdfast. Pure: no I/O.

A frame is ``HFM1``, the length of its body (u32, little-endian), and the body: one JSON value in UTF-8. A request is
``[method, [argument, …]]``, an answer ``{"result": …}`` or ``{"error": {"type", "code", "message", "hint", "data"}}``.
The first four bytes change with the protocol. A peer of another version gets an error that says so.

The module of each method defines its arguments and results: by hand where a short command would have to load msgspec
for it, otherwise by the signatures of a port (`holdfast.ipc.port`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.model.errors import FormatError, HoldfastError, rebuilt

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = b"HFM1"
_HEADER: Final = struct.Struct("<4sI")
HEADER_BYTES: Final = _HEADER.size


def frame(body: bytes) -> bytes:
    """The body with its header."""
    return _HEADER.pack(MAGIC, len(body)) + body


def body_bytes(header: bytes | bytearray, most: int) -> int:
    """The length of the body after the header. Raises `FormatError` if it is no header, or that is above ``most``."""
    magic, length = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise FormatError(
            "the other process speaks another protocol",
            hint="it is of another version of Holdfast: end it, and start it again",
        )
    if length > most:
        raise FormatError(f"a message of {length:,} bytes, and {most:,} are allowed")
    return length


def encode_request(method: str, arguments: Sequence[object] = ()) -> bytes:
    """The body of a request. ``arguments`` are JSON values."""
    return _encode([method, arguments])


def decode_request(body: bytes) -> tuple[str, list[Any]]:
    """The inverse of `encode_request`. Raises `FormatError`."""
    value = _decode(body)
    if isinstance(value, list) and len(found := cast("list[Any]", value)) == 2:
        method, arguments = found
        if isinstance(method, str) and isinstance(arguments, list):
            return method, cast("list[Any]", arguments)
    raise FormatError("a request is a method and its arguments")


def encode_result(result: object = None) -> bytes:
    """The body of an answer. ``result`` is a JSON value."""
    return _encode({"result": result})


def decode_result(body: bytes) -> Any:
    """The result. Raises the error that the answer holds instead; `FormatError` if it is no answer."""
    value = _decode(body)
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        if isinstance(details := found.get("error"), dict):
            raise rebuild(cast("dict[str, Any]", details))
        if "result" in found:
            return found["result"]
    raise FormatError("an answer is a result or an error")


def encode_error(error: HoldfastError) -> bytes:
    """The body of an answer that raises ``error`` on the other side. It never fails."""
    import json

    details = {name: getattr(error, name) for name in ("code", "message", "hint", "data")}
    answer = {"error": {"type": type(error).__name__, **details}}
    # (An error may contain a path that is not UTF-8, and any object in its data.)
    return json.dumps(answer, ensure_ascii=False, default=repr).encode("utf-8", "replace")


def rebuild(details: dict[str, Any]) -> HoldfastError:
    """The error in an answer of `encode_error`. If fields are missing or no text, a general error remains."""
    hint, data = details.get("hint"), details.get("data")
    return rebuilt(
        str(details.get("type")),
        str(details.get("message")),
        hint=None if hint is None else str(hint),
        code=str(details.get("code", HoldfastError.code)),
        data=cast("dict[str, object]", data) if isinstance(data, dict) else None,
    )


def _encode(value: object) -> bytes:
    import json  # (short commands that contact no other process do without)

    try:
        return json.dumps(value, separators=(",", ":")).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise FormatError(f"this cannot be sent: {error}") from error


def _decode(body: bytes) -> Any:
    import json

    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a message is JSON in UTF-8: {error}") from error

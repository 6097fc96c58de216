"""Typed decoders, for types that two threads may be the first to decode.

msgspec (0.22) describes a struct to itself when that is decoded first, and shows the unfinished description to other
threads: the one that decodes the same struct meanwhile crashes. So it is always made here, by one thread at a time.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar, overload

import msgspec

_T = TypeVar("_T")
_turn: Final = threading.RLock()
_json: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_msgpack: Final[dict[Any, msgspec.msgpack.Decoder[Any]]] = {}


@overload
def json_decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]: ...
@overload
def json_decoder(kind: object) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """What decodes JSON to a ``kind``, the same each time: any thread may use it."""
    found = _json.get(kind)
    if found is None:
        with _turn:
            found = _json[kind] = msgspec.json.Decoder(kind)
    return found


@overload
def msgpack_decoder(kind: type[_T]) -> msgspec.msgpack.Decoder[_T]: ...
@overload
def msgpack_decoder(kind: object) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """The same for MessagePack."""
    found = _msgpack.get(kind)
    if found is None:
        with _turn:
            found = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return found


@overload
def converted(found: object, kind: type[_T], *, strict: bool = True) -> _T: ...
@overload
def converted(found: object, kind: object, *, strict: bool = True) -> Any: ...
def converted(found: object, kind: Any, *, strict: bool = True) -> Any:
    """`msgspec.convert`."""
    json_decoder(kind)  # (describes it)
    return msgspec.convert(found, kind, strict=strict)

"""Typed decoders, made so that two threads cannot be the first to decode one type.

msgspec (0.22) builds a description of a struct at its first decoding, and other threads can see it unfinished: a thread
that decodes the same struct meanwhile crashes. So this module builds it, in one thread at a time.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_D = TypeVar("_D")
_turn: Final = threading.RLock()
# A forked child must inherit neither an unfinished description nor a lock that its holder cannot release.
os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)
_json: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_msgpack: Final[dict[Any, msgspec.msgpack.Decoder[Any]]] = {}


@overload
def json_decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]: ...
@overload
def json_decoder(kind: object) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of JSON to a ``kind``, cached: any thread may use it."""
    return _made(_json, kind, msgspec.json.Decoder)


@overload
def msgpack_decoder(kind: type[_T]) -> msgspec.msgpack.Decoder[_T]: ...
@overload
def msgpack_decoder(kind: object) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """The same for MessagePack."""
    return _made(_msgpack, kind, msgspec.msgpack.Decoder)


def _made(known: dict[Any, _D], kind: Any, make: Callable[[Any], _D]) -> _D:
    found = known.get(kind)
    if found is None:
        with _turn:
            found = known[kind] = make(kind)
    return found


@overload
def converted(found: object, kind: type[_T], *, strict: bool = True) -> _T: ...
@overload
def converted(found: object, kind: object, *, strict: bool = True) -> Any: ...
def converted(found: object, kind: Any, *, strict: bool = True) -> Any:
    """`msgspec.convert`."""
    json_decoder(kind)  # (describes it)
    return msgspec.convert(found, kind, strict=strict)

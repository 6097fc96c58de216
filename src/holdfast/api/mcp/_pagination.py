"""Long answers in pages: a cursor says after what the next one begins, so that pages hold while things change."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from holdfast.model.decoders import json_decoder
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
Key = TypeVar("Key", int, str)

MAX_CURSOR: Final = 8192

Kind = Literal["entries", "bytes", "steps", "changes", "checkpoints", "files", "resources", "sessions"]


class _Cursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: Kind
    after: int | str


_decoder = json_decoder(_Cursor)


def encode_cursor(kind: Kind, after: int | str) -> str:
    """An opaque text that `decode_cursor` turns back."""
    return base64.urlsafe_b64encode(msgspec.json.encode(_Cursor(kind, after))).decode()


def decode_cursor(kind: Kind, given: str | None, of: type[Key]) -> Key | None:
    """The key inside a cursor of this kind; None without a cursor. Raises `UsageError` for a foreign cursor."""
    if given is None:
        return None
    try:
        if len(given) > MAX_CURSOR:
            raise ValueError("too long")
        found = _decoder.decode(base64.b64decode(given.encode("ascii"), b"-_", validate=True))
    except (ValueError, msgspec.MsgspecError):
        found = None
    if found is None or found.kind != kind or not isinstance(found.after, of):
        raise UsageError("the cursor is none of this list", hint="begin again without one", code="bad_cursor")
    return found.after


def page(
    items: Sequence[T], key: Callable[[T], Key], kind: Kind, given: str | None, of: type[Key], limit: int
) -> tuple[Sequence[T], str | None]:
    """The items after the one of the cursor ``given``, ``limit`` at most, and the cursor of the next page.

    Raises `UsageError` if the item that the cursor names is gone.
    """
    start = 0
    last = decode_cursor(kind, given, of)
    if last is not None:
        found = next((number for number, item in enumerate(items) if key(item) == last), None)
        if found is None:
            raise UsageError("what the cursor names is gone", hint="begin again without one", code="bad_cursor")
        start = found + 1
    shown = items[start : start + limit]
    more = start + limit < len(items)
    return shown, encode_cursor(kind, key(shown[-1])) if more and shown else None

"""How values of Python become PostgreSQL's and back, so that rows are the same that SQLite gives."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8Dumper, NumericBinaryLoader
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader, TextLoader

from holdfast.store.postgresql._dialect import escape, unescape

if TYPE_CHECKING:
    from psycopg.abc import Buffer


_BYTEA: Final = 17
_BYTEA_ARRAY: Final = 1001
_ARRAY_HEAD: Final = Struct(">iiIii")


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(escape(obj))


class _TextLoader(TextLoader):
    def load(self, data: Buffer) -> str | bytes:
        return _unescaped(super().load(data))


class _TextBinaryLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> str | bytes:
        return _unescaped(super().load(data))


class _NumericLoader(Loader):
    """A sum of whole numbers is one, though PostgreSQL has a separate type for it."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class _NumericBinaryLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> int | float:
        number = NumericBinaryLoader(self.oid, self.connection).load(data)
        whole = int(number)
        return whole if whole == number else float(number)


class _TruthLoader(Loader):
    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


class _TruthBinaryLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"\1")


class Hashes(list[bytes]):
    """An array of byte strings as a parameter: psycopg's own way of sending a list looks at each of them."""


class _HashesDumper(Dumper):
    format = Format.BINARY
    oid = _BYTEA_ARRAY

    def dump(self, obj: Hashes) -> Buffer | None:
        # One dimension, no NULLs, the type, how many, the first index; then each with its length before it.
        head = _ARRAY_HEAD.pack(1, 0, _BYTEA, len(obj), 1) if obj else _ARRAY_HEAD.pack(0, 0, _BYTEA, 0, 0)[:12]
        return head + b"".join([len(one).to_bytes(4, "big") + one for one in obj])


class ValueAdapters:
    """An adaptation context of psycopg, for `psycopg.connect`."""

    connection = None

    def __init__(self) -> None:
        found = AdaptersMap(psycopg.adapters)
        # One type for whole numbers of any size: else one statement would be planned for each.
        found.register_dumper(int, Int8Dumper)
        found.register_dumper(str, _TextDumper)
        found.register_dumper(Hashes, _HashesDumper)
        for loader in (_TextLoader, _TextBinaryLoader):
            found.register_loader("text", loader)
        for loader in (_NumericLoader, _NumericBinaryLoader):
            found.register_loader("numeric", loader)
        for loader in (_TruthLoader, _TruthBinaryLoader):
            found.register_loader("bool", loader)
        self.adapters = found


def _unescaped(text: str | bytes) -> str | bytes:
    return unescape(text) if isinstance(text, str) else text

"""The addresses of the pages, and the values in them: paths are bytes, so they are quoted byte by byte."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

from holdfast.model.errors import UsageError


class Query:
    """The query of an address, or a form. Of a repeated name the last value counts; an empty one is missing."""

    def __init__(self, raw: bytes) -> None:
        self._values: dict[str, bytes] = {}
        self._all: dict[str, list[bytes]] = {}
        for pair in raw.split(b"&"):
            name, _, value = pair.partition(b"=")
            key = unquote_to_bytes(name).decode("utf-8", "replace")
            self._values[key] = unquote_to_bytes(value.replace(b"+", b" "))
            self._all.setdefault(key, []).append(self._values[key])

    def texts(self, name: str) -> list[str]:
        """All values of a name, in order."""
        return [value.decode("utf-8", "replace").strip() for value in self._all.get(name, ())]

    def path(self, name: str) -> bytes:
        """A path."""
        return self._values.get(name, b"").strip(b"/")

    def text(self, name: str) -> str:
        """A text; invalid UTF-8 becomes lone surrogates, which no name or id has."""
        return self._values.get(name, b"").decode("utf-8", "replace").strip()

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of ``choices``: the first if it is not said. Raises `UsageError` for another one."""
        found = self.text(name) or choices[0]
        if found not in choices:
            raise UsageError(f"{name} is one of {', '.join(filter(None, choices))}, not {found!r}")
        return found

    def number(self, name: str, default: int, most: int) -> int:
        """A whole number from 0 to ``most``. Raises `UsageError`."""
        found = self.text(name)
        if not found:
            return default
        if not found.isascii() or not found.isdigit() or len(found) > 9 or int(found) > most:
            raise UsageError(f"{name} is a whole number up to {most}, not {found!r}")
        return int(found)


class Addresses(NamedTuple):
    """Makes addresses of pages below ``base``."""

    base: str
    """The path that all pages have in common, without a slash at its end."""

    def page(self, name: str, /, **query: str | bytes | int | None) -> str:
        """The address of a page; empty values and None are left out."""
        said = [f"{key.rstrip('_')}={_quoted(value)}" for key, value in query.items() if value not in (None, "", b"")]
        return f"{self.base}/{name}{'?' + '&'.join(said) if said else ''}"


def _quoted(value: str | bytes | int | None) -> str:
    return quote_from_bytes(value, safe="/") if isinstance(value, bytes) else quote(str(value), safe="/:,;")

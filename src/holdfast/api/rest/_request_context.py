"""A request as handlers see it, and the helpers that they share."""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from holdfast.api import _truncated_results as truncated_results
from holdfast.model.errors import UsageError
from holdfast.model.paths import parse_display

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.api.rest._app import Server
    from holdfast.api.rest._authorization import Principal
    from holdfast.api.rest._store_pool import OpenedStore
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.content import Progress
    from holdfast.store.catalog.export_rows import ExportRow

T = TypeVar("T")
MOST_SHOWN: Final = 1000
"""Items of a list in an answer that has no pages."""


class RawAnswer(NamedTuple):
    """An answer that is no JSON: bytes, in pieces that are read one by one."""

    pieces: Iterator[bytes]
    size: int
    headers: dict[str, str]


class RequestCall(NamedTuple):
    """One request. ``again``: an earlier attempt was cut short, and its progress is unknown.

    ``key`` identifies a request that must be done once; it has the same key in every attempt.
    """

    server: Server
    principal: Principal
    store: OpenedStore
    request_id: str
    again: bool = False
    key: str | None = None

    @property
    def tenant(self) -> str:
        """The tenant that owns the exports."""
        return self.principal.tenant

    def export(self, name: str) -> ExportRow:
        """The export with this name; raises `NotFoundError` for one that the token is not for, too."""
        return self.store.exports.get(self.principal.check_export(name))

    def workspace(self, name: str) -> Workspace:
        """The workspace of the export with this name, likewise; raises if it cannot be opened."""
        return self.store.exports.open(self.export(name))

    def happened(self, export: str, event: str, /, **data: Any) -> None:
        """Publish an event of the export."""
        self.server.happened(self.tenant, export, event, data)

    def progress(self, export: str, operation: str) -> Progress:
        """Publishes the progress of an operation to the export's listeners."""
        return self.server.hub.progress(self.tenant, export, operation, self.request_id)


def path_of(text: str) -> bytes:
    """A path in a workspace, in the form of results. The engine refuses invalid ones."""
    return parse_display(text)


def host_path(text: str) -> bytes:
    """A path of this machine, as results show it."""
    return os.fsencode(parse_display(text))


def page(items: Sequence[T], limit: int, key: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """The part of ``items`` that is wanted, of which there are up to one more than that, and how to go on."""
    shown = items[:limit]
    return shown, encode_cursor(key(shown[-1])) if len(items) > len(shown) else None


def encode_cursor(after: str) -> str:
    """A cursor: opaque to clients."""
    return base64.urlsafe_b64encode(after.encode()).decode().rstrip("=")


def decode_cursor(text: str) -> str:
    """The argument of `encode_cursor`; empty for the beginning. Raises `UsageError`."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise UsageError("this is no cursor of mine", hint="send next_cursor of the last answer") from error


def cut(value: Mapping[str, Any], *names: str) -> Any:
    """``value`` with at most `MOST_SHOWN` items in its lists ``names``, and how long they are in ``totals``."""
    return truncated_results.cut(value, *names, most=MOST_SHOWN)


def set_value(value: T | msgspec.UnsetType) -> T | None:
    """``value``, if it was given."""
    return None if isinstance(value, msgspec.UnsetType) else value

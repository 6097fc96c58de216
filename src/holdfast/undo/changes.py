"""What a step did to each path, from its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.model.paths import under
from holdfast.undo.records import Content, Link, Make, Meta, Move, Put, Remove
from holdfast.undo.service import PathChange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.undo.records import Mutation


@dataclass(slots=True)
class _Entry:
    origin: bytes | None
    """Where it was before the step; None if it was nowhere."""
    is_written: bool = False


def changes(records: Iterable[Mutation], *, backward: bool = False) -> list[PathChange]:
    """One for each path, sorted; ``backward``: the records reverse what is asked for."""
    now: dict[bytes, _Entry] = {}
    gone: set[bytes] = set()
    for record in records:
        _follow(record, now, gone)
    found: list[PathChange] = []
    for path, entry in now.items():
        found += _change(path, entry, gone, backward=backward)
    word: Literal["added", "deleted"] = "added" if backward else "deleted"
    sources = {entry.origin for entry in now.values()}
    found += [PathChange(path=path, change=word) for path in gone if path not in now and path not in sources]
    return sorted(found, key=lambda change: change.path)


def _follow(record: Mutation, now: dict[bytes, _Entry], gone: set[bytes]) -> None:
    match record:
        case Make() | Link() | Put():
            now[record.path] = _Entry(None)
        case Remove():
            _lose(record.path, now, gone)
        case Content():
            now.setdefault(record.path, _Entry(record.path)).is_written = True
        case Meta():
            now.setdefault(record.path, _Entry(record.path))
        case Move():
            moved = _take(now, record.path)
            swapped = _take(now, record.target) if record.exchanged else {}
            if record.replaced is not None and not record.exchanged:
                _lose(record.target, now, gone)
            now.update({record.target + path[len(record.path) :]: entry for path, entry in moved.items()})
            now.update({record.path + path[len(record.target) :]: entry for path, entry in swapped.items()})
        case _:
            pass


def _lose(path: bytes, now: dict[bytes, _Entry], gone: set[bytes]) -> None:
    entry = now.pop(path, None) or _Entry(path)
    if entry.origin is not None:
        gone.add(entry.origin)


def _take(now: dict[bytes, _Entry], top: bytes) -> dict[bytes, _Entry]:
    """Take what is known at and below ``top`` out of ``now``."""
    taken = {path: now.pop(path) for path in [path for path in now if under(path, top)]}
    taken.setdefault(top, _Entry(top))
    return taken


def _change(path: bytes, entry: _Entry, gone: set[bytes], *, backward: bool) -> list[PathChange]:
    if entry.origin is None:
        if path in gone:
            return [PathChange(path=path, change="modified")]
        return [PathChange(path=path, change="deleted" if backward else "added")]
    if entry.origin != path:
        source, target = (path, entry.origin) if backward else (entry.origin, path)
        return [PathChange(path=target, change="renamed", source=source)]
    return [PathChange(path=path, change="modified" if entry.is_written else "metadata")]

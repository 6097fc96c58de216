"""What a step did to each path, from its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

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
    is_described: bool = False


_Tree: TypeAlias = dict[bytes, _Entry]


def changes(records: Iterable[Mutation], *, backward: bool = False) -> list[PathChange]:
    """One for each path, sorted; ``backward``: the records reverse what is asked for."""
    now: _Tree = {}
    gone: set[bytes] = set()
    for record in records:
        _follow(record, now, gone)
    sources = {entry.origin for entry in now.values()}
    found = [
        change
        for path, entry in now.items()
        if (change := _change(path, entry, now, gone, sources, backward=backward)) is not None
    ]
    word: Literal["added", "deleted"] = "added" if backward else "deleted"
    found += [PathChange(path=path, change=word) for path in gone if path not in now and path not in sources]
    return sorted(found, key=lambda change: change.path)


def _follow(record: Mutation, now: _Tree, gone: set[bytes]) -> None:
    match record:
        case Make() | Link() | Put():
            now[record.path] = _Entry(None)
        case Remove():
            _lose(record.path, now, gone)
        case Content():
            now.setdefault(record.path, _Entry(_origin(record.path, now))).is_written = True
        case Meta():
            now.setdefault(record.path, _Entry(_origin(record.path, now))).is_described = True
        case Move():
            moved = _take(now, record.path)
            swapped = _take(now, record.target) if record.exchanged else {}
            if record.replaced is not None and not record.exchanged:
                _lose(record.target, now, gone)
            now.update({record.target + path[len(record.path) :]: entry for path, entry in moved.items()})
            now.update({record.path + path[len(record.target) :]: entry for path, entry in swapped.items()})
        case _:
            pass


def _lose(path: bytes, now: _Tree, gone: set[bytes]) -> None:
    entry = now.pop(path, None) or _Entry(_origin(path, now))
    if entry.origin is not None:
        gone.add(entry.origin)


def _take(now: _Tree, top: bytes) -> _Tree:
    """Take what is known at and below ``top`` out of ``now``."""
    origin = _origin(top, now)
    taken = {path: now.pop(path) for path in [path for path in now if under(path, top)]}
    taken.setdefault(top, _Entry(origin))
    return taken


def _origin(path: bytes, now: _Tree) -> bytes:
    """Where ``path``, of which nothing else is known, was before the step: it has moved with what it lies in."""
    at = path.rfind(b"/")
    while at > 0:
        above = now.get(path[:at])
        if above is not None and above.origin is not None:
            return above.origin + path[at:]
        at = path.rfind(b"/", 0, at)
    return path


def _change(
    path: bytes,
    entry: _Entry,
    now: _Tree,
    gone: set[bytes],
    sources: set[bytes | None],
    *,
    backward: bool,
) -> PathChange | None:
    if entry.origin is None:
        if path in gone:
            return PathChange(path=path, change="modified")
        if backward and path in sources:
            return None  # what was replaced by a rename, which is told
        return PathChange(path=path, change="deleted" if backward else "added")
    if entry.origin != _origin(path, now):
        source, target = (path, entry.origin) if backward else (entry.origin, path)
        return PathChange(path=target, change="renamed", source=source)
    if not entry.is_written and not entry.is_described:
        return None
    there = entry.origin if backward else path
    return PathChange(path=there, change="modified" if entry.is_written else "metadata")

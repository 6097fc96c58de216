"""The changes of a step by path, from its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.undo.journal.path_tree import PathTree
from holdfast.undo.journal.records import Content, KeepMethod, Link, Make, Meta, Move, PutBack, Remove
from holdfast.undo.service import PathChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.undo.journal.records import Mutation


class _Body(msgspec.Struct):
    """The changes of an object; all its known names share them."""

    is_written: bool = False
    is_described: bool = False


class _Entry(msgspec.Struct):
    origin: bytes | None
    """Where it was before the step; None if it was nowhere."""
    body: _Body = msgspec.field(default_factory=_Body)


_Tree: TypeAlias = PathTree[_Entry]


class _PathOutcome(NamedTuple):
    """The path of an object before and after; None: it did not exist."""

    before: bytes | None
    after: bytes | None
    is_written: bool = False
    is_described: bool = False


def path_changes(records: Iterable[Mutation], *, backward: bool = False) -> list[PathChange]:
    """The changes of the object at each path, sorted; ``backward``: the records are the reversal of the changes.

    A path has two if an object was renamed to or from it: this, and the change of the former or present object there.
    """
    now = _Tree()
    gone: set[bytes] = set()
    for record in records:
        _follow(record, now, gone)
    ways = [
        *(_PathOutcome(one.origin, path, one.body.is_written, one.body.is_described) for path, one in now.items()),
        *(_PathOutcome(path, None) for path in gone),
    ]
    if backward:
        ways = [way._replace(before=way.after, after=way.before) for way in ways]
    return sorted(_to_path_changes(ways), key=lambda change: (change.path, change.change))


def _follow(record: Mutation, now: _Tree, gone: set[bytes]) -> None:
    match record:
        case Link() if record.source:
            now[record.path] = _Entry(None, _at(record.source, now).body)
        case Make() | Link() | PutBack():
            now[record.path] = _Entry(None)
        case Remove():
            if record.keeping.how is KeepMethod.RELATED:
                _at(record.keeping.content, now).body = _at(record.path, now).body
            _lose(record.path, now, gone)
        case Content():
            _at(record.path, now).body.is_written = True
        case Meta():
            _at(record.path, now).body.is_described = True
        case Move():
            is_tree = record.type == "d" or record.exchanged
            moved = _take(now, record.path, is_tree=is_tree)
            swapped = _take(now, record.target, is_tree=True) if record.exchanged else {}
            if record.replaced is not None and not record.exchanged:
                _lose(record.target, now, gone)
            for path, entry in moved.items():
                now[record.target + path[len(record.path) :]] = entry
            for path, entry in swapped.items():
                now[record.path + path[len(record.target) :]] = entry
        case _:
            pass


def _at(path: bytes, now: _Tree) -> _Entry:
    """The object at the path, which is known from now on."""
    if path not in now:
        now[path] = _Entry(_origin(path, now))
    return now[path]


def _lose(path: bytes, now: _Tree, gone: set[bytes]) -> None:
    entry = now.pop(path, None) or _Entry(_origin(path, now))
    if entry.origin is not None:
        gone.add(entry.origin)


def _take(now: _Tree, top: bytes, *, is_tree: bool) -> dict[bytes, _Entry]:
    """Remove the known objects at and (``is_tree``) below ``top`` from ``now``."""
    origin = _origin(top, now)
    if is_tree:
        taken = now.take(top)
    else:
        taken = {top: now.pop(top)} if top in now else {}
    taken.setdefault(top, _Entry(origin))
    return taken


def _origin(path: bytes, now: _Tree) -> bytes:
    """The path before the step of ``path``, of which no more is known: it has moved with its parent directories."""
    return _carried(path, lambda above: None if (entry := now.get(above)) is None else entry.origin)


def _carried(path: bytes, origin: Callable[[bytes], bytes | None]) -> bytes:
    """The former path of the object at ``path`` if only a parent moved; ``origin`` returns the parent's."""
    at = path.rfind(b"/")
    while at > 0:
        if (above := origin(path[:at])) is not None:
            return above + path[at:]
        at = path.rfind(b"/", 0, at)
    return path


def _to_path_changes(ways: Sequence[_PathOutcome]) -> Iterator[PathChange]:
    origins = {way.after: way.before for way in ways if way.after is not None}
    lost = {way.before for way in ways if way.after is None}
    made_anew: set[bytes] = set()
    for way in ways:
        if way.after is None:
            continue
        path, carried = way.after, _carried(way.after, origins.get)
        if way.before is None and carried in lost:
            made_anew.add(carried)
            yield PathChange(path=path, change="modified")
        elif way.before is None:
            yield PathChange(path=path, change="added")
        elif way.before != carried:
            yield PathChange(path=path, change="renamed", source=way.before)
        elif way.is_written or way.is_described:
            yield PathChange(path=path, change="modified" if way.is_written else "metadata")
    for way in ways:
        if way.after is None and way.before is not None and way.before not in made_anew:
            yield PathChange(path=way.before, change="deleted")

"""The footprint of a step's records: the final places of its objects, its overlap with other steps, and the new objects
that stand for old ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.undo.journal.path_tree import PathTree
from holdfast.undo.journal.records import (
    Content,
    KeepMethod,
    Link,
    Made,
    Make,
    Meta,
    Move,
    Mutation,
    PutBack,
    Remove,
    Touch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Keeping

T = TypeVar("T")


def objects_by_path(records: Sequence[Mutation], *, others: bool = False) -> dict[bytes, Identity | None]:
    """Which object the step left at each path that it touched; None where it left nothing.

    Directories that it only changed names in are not among them. ``others``: also where the records say of an object
    that it has another name.
    """
    made = _made(records)
    found = PathTree["Identity | None"]()
    for record in records:
        if others:
            for path, object_ in _other_name(record).items():
                found[path] = object_
        _follow(found, record, made)
    return found


def renamed_directories(records: Sequence[Mutation]) -> frozenset[bytes]:
    """The directories in which the records changed names, by their later paths; without removed ones."""
    made = _made(records)
    touched: set[Identity | None] = set()
    changed: set[Identity | None] = set()
    found = PathTree["Identity | None"]()
    for record in records:
        if isinstance(record, Touch):
            found[record.path] = record.identity
            touched.add(record.identity)
        elif isinstance(record, (Remove, Make, Link, PutBack, Move)):
            # A failed call leaves only its touch record.
            names = (record.path, record.target) if isinstance(record, Move) else (record.path,)
            changed.update(found.get(name.rpartition(b"/")[0]) for name in names)
        _follow(found, record, made)
    touched &= changed
    return frozenset(path for path, object_ in found.items() if object_ in touched)


def touched_before(
    records: Sequence[Mutation], edits: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[bytes, Identity | None]]:
    """Of the ``edits``, which are sequence numbers with paths (the root's: anything), those of what the step had
    touched by then: the paths, and which object it had left there.
    """
    made = _made(records)
    found = PathTree["Identity | None"]()
    at = 0
    for seq, path in sorted(edits):
        while at < len(records) and records[at].seq < seq:
            _follow(found, records[at], made)
            at += 1
        if not path:
            yield from found.items()
        elif path in found:
            yield path, found[path]


def changed_before(records: Sequence[Mutation], edits: Iterable[tuple[int, Identity]]) -> frozenset[Identity]:
    """Of the ``edits``, which are sequence numbers with objects, the objects that the step had by then written to,
    described or made: to reverse that would take the edit back.
    """
    began: dict[Identity, int] = {}
    for record in records:
        if isinstance(record, (Content, Meta, Made)):
            began.setdefault(record.identity, record.seq)
    return frozenset(object_ for seq, object_ in edits if began.get(object_, seq) < seq)


def first_contacts(records: Iterable[Mutation], aliases: Aliases) -> dict[bytes, int]:
    """For each path, the sequence number of the step's first contact: with it, with a path below it, or with an object
    that it found there, by any name. Other paths are unknown.
    """
    named: dict[bytes, int] = {}
    objects: dict[Identity, int] = {}
    at: dict[bytes, set[Identity]] = {}
    makes: dict[int, bytes] = {}
    for record in records:
        paths: list[bytes] = []
        held: list[Identity] = []
        if isinstance(record, Made):
            paths.append(makes.get(record.make, b""))
        else:
            paths += [record.path, *_other_name(record)]
        if isinstance(record, Make):
            makes[record.seq] = record.path
        else:
            held.append(aliases.now(record.identity))
        if isinstance(record, Move):
            paths.append(record.target)
            held += [] if record.replaced is None else [aliases.now(record.replaced.identity)]
        for each in held:
            objects.setdefault(each, record.seq)
        for path in paths:
            named.setdefault(path, record.seq)
            at.setdefault(path, set()).update(held)
    found: dict[bytes, int] = {}
    for path, seq in named.items():
        first = min((seq, *(objects[each] for each in at[path])))
        while found.get(path, first + 1) > first:
            found[path] = first
            path = path.rpartition(b"/")[0]
    return found


def last_paths(records: Iterable[Mutation]) -> dict[Identity, bytes]:
    """The last path in the records of each object that they wrote to, changed or made."""
    makes: dict[int, bytes] = {}
    found: dict[Identity, bytes] = {}
    for record in records:
        match record:
            case Make():
                makes[record.seq] = record.path
            case Made():
                found[record.identity] = makes.get(record.make, b"")
            case Content() | Meta():
                found[record.identity] = record.path
            case _:
                pass
    return found


def filled_paths(records: Iterable[Mutation]) -> frozenset[bytes]:
    """Paths that were empty until the step put an object there."""
    known: set[bytes] = set()
    found: set[bytes] = set()
    for record in records:
        match record:
            case Make() | Link() | PutBack():
                found.update({record.path} - known)
                known.add(record.path)
            case Move():
                if record.replaced is None:
                    found.update({record.target} - known)
                known.update((record.path, record.target))
            case Remove() | Content() | Meta():
                known.add(record.path)
            case Made() | Touch():
                pass
    return frozenset(found)


def _follow(found: PathTree[Identity | None], record: Mutation, made: Mapping[int, Identity]) -> None:
    # By `isinstance`, most frequent type first: a step may have a million records, and this runs often.
    if isinstance(record, Remove):
        found[record.path] = None
    elif isinstance(record, (Made, Touch)):
        pass
    elif isinstance(record, Make):
        found[record.path] = made.get(record.seq)
    elif isinstance(record, Move):
        _move(found, record)
    else:
        found[record.path] = record.identity


def _other_name(record: Mutation) -> dict[bytes, Identity]:
    match record:
        case Link() if record.source:
            return {record.source: record.identity}
        case Remove(keeping=kept) if kept.how is KeepMethod.RELATED:
            return {kept.content: record.identity}
        case _:
            return {}


def _move(found: PathTree[Identity | None], record: Move) -> None:
    came: dict[bytes, Identity | None] = {}
    if record.type == "d" or record.exchanged:
        came = _taken(found, record.path, record.target)
        if record.exchanged:
            came |= _taken(found, record.target, record.path)
    found.pop(record.target, None)
    for path, object_ in came.items():
        found[path] = object_
    found[record.path] = record.replaced.identity if record.exchanged and record.replaced else None
    found[record.target] = record.identity


def _taken(found: PathTree[Identity | None], old: bytes, new: bytes) -> dict[bytes, Identity | None]:
    """Remove everything at and below ``old`` from ``found``, and return it with paths below ``new``."""
    return {new + path[len(old) :]: object_ for path, object_ in found.take(old).items() if path != old}


def kept_preimages(records: Iterable[Mutation]) -> Iterator[tuple[Keeping, Identity]]:
    """The preimage of each record, and its object."""
    for record in records:
        match record:
            case Remove() | Content():
                yield record.keeping, record.identity
            case Move(replaced=lost) if lost is not None:
                yield lost.keeping, lost.identity
            case _:
                pass


class DirectoryMoves:
    """The directories that records have moved or exchanged, and when."""

    def __init__(self, records: Iterable[Mutation]) -> None:
        self._last: dict[bytes, int] = {}
        for record in records:
            if isinstance(record, Move) and (record.type == "d" or record.exchanged):
                self._last[record.path] = self._last[record.target] = record.seq

    def __bool__(self) -> bool:
        return bool(self._last)

    def above(self, path: bytes) -> int:
        """The sequence number at which a directory above the path was moved there or away last; 0 if none was."""
        return max((self._last.get(above, 0) for above in _above(path)), default=0) if self._last else 0


class Footprint(NamedTuple):
    """All that the undoing of a step depends on."""

    paths: frozenset[bytes]
    trees: frozenset[bytes]
    """Directories that it made, moved or removed: all below them depends on that."""
    objects: Mapping[Identity, bytes]
    """With a path of each, as far as the records tell."""

    def meets(self, other: Footprint) -> bytes | None:
        """A path that both have in common; None if there is none."""
        for path in self.paths & other.paths:
            return path
        for one, two in ((self, other), (other, self)):
            for path in two.paths if one.trees else ():
                if any(above in one.trees for above in _above(path)):
                    return path
        shared = self.objects.keys() & other.objects.keys()
        return min((self.objects[object_] for object_ in shared), default=None)


class FootprintIndex(Generic[T]):
    """Finds, among very many, those whose `Footprint` may meet another one."""

    def __init__(self) -> None:
        self._at: dict[bytes, list[T]] = {}
        """By each path."""
        self._below: dict[bytes, list[T]] = {}
        """By each directory that a path of theirs lies in."""
        self._trees: dict[bytes, list[T]] = {}
        self._of: dict[Identity, list[T]] = {}

    def __bool__(self) -> bool:
        """Whether any of them reaches a path."""
        return bool(self._at or self._trees or self._of)

    def add(self, one: T, its: Footprint) -> None:
        """Add another one, with its footprint."""
        for path in its.paths:
            self._at.setdefault(path, []).append(one)
        for path in its.trees:
            self._trees.setdefault(path, []).append(one)
        for above in {above for path in its.paths for above in _above(path)}:
            self._below.setdefault(above, []).append(one)
        for object_ in its.objects:
            self._of.setdefault(object_, []).append(one)

    def find_meeting(self, reach_: Footprint) -> Iterator[T]:
        """All that meet it, some of them several times."""
        above = {above for path in reach_.paths for above in _above(path)}
        for known, paths in ((self._at, reach_.paths), (self._trees, above), (self._below, reach_.trees)):
            for path in paths:
                yield from known.get(path, ())
        for object_ in reach_.objects:
            yield from self._of.get(object_, ())


def footprint_of(records: Iterable[Mutation], aliases: Aliases | None = None) -> Footprint:
    """The dependencies of the records; ``aliases`` replace old objects by their present ones."""
    paths: set[bytes] = set()
    trees: set[bytes] = set()
    objects: dict[Identity, bytes] = {}
    makes: dict[int, bytes] = {}
    for record in records:
        match record:
            case Touch():
                continue
            case Made():
                objects[record.identity] = makes.get(record.make, b"")
                continue
            case Make() | PutBack() | Remove() | Link():
                places: tuple[bytes, ...] = (record.path,)
                is_tree = record.type == "d"
            case Move():
                places = (record.path, record.target)
                is_tree = record.type == "d" or record.exchanged
            case Content() | Meta():
                places, is_tree = (record.path,), False
        paths.update(places)
        if is_tree:
            trees.update(places)
        if isinstance(record, Make):
            makes[record.seq] = record.path
        else:
            objects[record.identity] = places[-1]
        if isinstance(record, Move) and record.replaced is not None:
            objects[record.replaced.identity] = record.target
    if aliases:
        objects = {aliases.now(object_): path for object_, path in objects.items()}
    return Footprint(frozenset(paths), frozenset(trees), objects)


def _above(path: bytes) -> Iterator[bytes]:
    at = path.rfind(b"/")
    while at > 0:
        yield path[:at]
        at = path.rfind(b"/", 0, at)


def _made(records: Iterable[Mutation]) -> dict[int, Identity]:
    return {record.make: record.identity for record in records if isinstance(record, Made)}


class Aliases:
    """The new objects that stand for objects which were made anew when they were restored: the records still have the
    old identity. For one thread at a time.
    """

    def __init__(self) -> None:
        self._new: dict[Identity, Identity] = {}

    def add(self, old: Identity, new: Identity) -> None:
        """``new`` stands for ``old`` from now on, and for all that ``old`` stood for. If both are the same object,
        it stands for itself again.
        """
        self._new.pop(new, None)  # it exists again
        if old != new:
            self._new[old] = new

    def now(self, object_: Identity) -> Identity:
        """The present object for one in the records; itself if it was never made anew."""
        while (new := self._new.get(object_)) is not None:
            object_ = new
        return object_

    def all(self, objects: Iterable[Identity]) -> frozenset[Identity]:
        """The present objects."""
        return frozenset(map(self.now, objects)) if self._new else frozenset(objects)

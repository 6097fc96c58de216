"""What has lost a name in a step, and lives on by others.

Nothing that the step left at a path tells of such an object, and still the reversal of the step may write to it: what
others have done to it by one of its other names, in the tree or outside of it, is seen only by looking at it (I8).
"""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.files.metadata import read_xattrs, read_xattrs_at, through
from holdfast.undo.interceptor import Place
from holdfast.undo.other_links import OtherLinks
from holdfast.undo.preimages import place_of
from holdfast.undo.records import How, Move, Remove
from holdfast.undo.signatures import describe, signature_of
from holdfast.undo.traces import named, whereabouts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from holdfast.files.handle import Identity
    from holdfast.undo.directories import Directories
    from holdfast.undo.log import UndoLog
    from holdfast.undo.records import Keeping, Mutation, Signature

KEPT = frozenset((How.MOVED, How.LINKED))
"""How the log has the object itself."""


class Survivor(NamedTuple):
    """One such object."""

    object: Identity
    path: bytes
    """The name that it lost last."""
    is_changed: bool
    """The records also say that it was written to, or described."""
    now: Signature
    place: Callable[[], Place]
    """Where it can be read, as far as that is known."""


def survivors(
    log: UndoLog, directories: Directories, records: Sequence[Mutation], shared: Collection[int] | None = None
) -> Iterator[Survivor]:
    """What lost a name by the records, was not left at another path by them, and lives on.

    ``shared`` are the numbers of the preimages that may have other names (None: all): of what the records did not also
    change, no others are looked at.
    """
    lost = {object_: (path, keeping) for path, keeping, object_ in lost_names(records)}
    if not lost:
        return
    aliases = log.recorder.aliases
    there = aliases.all(object_ for object_ in whereabouts(records).values() if object_ is not None)
    changed = aliases.all(named(records))
    elsewhere: OtherLinks | None = None
    for object_, (path, keeping) in lost.items():
        now = aliases.now(object_)
        if now in there:
            continue
        if keeping.how in KEPT:
            if shared is not None and now not in changed and keeping.number not in shared:
                continue
            found = log.preimages.look(keeping.number)
            if found is not None and found.st_nlink > 1:
                place = Place(log.preimages.fd, place_of(keeping.number), b"")
                xattrs = partial(read_xattrs_at, place.dir_fd, place.name)
                seen = signature_of(found, directories.device, xattrs)
                yield Survivor(object_, path, now in changed, seen, partial(_same, place))
        elif keeping.shared or keeping.how is How.RELATED:
            elsewhere = elsewhere or OtherLinks(directories, aliases, records, wanted=frozenset(lost))
            with closing(elsewhere.descriptors(path, object_)) as descriptors:
                for fd in descriptors:
                    found, xattrs = os.fstat(fd), partial(read_xattrs, fd)
                    seen = signature_of(found, directories.device, xattrs)
                    # (It had one name more, and may get it back: then the ctime says nothing.)
                    seen = msgspec.structs.replace(seen, names=seen.names + 1, described=describe(found, xattrs))
                    name = os.fsencode(os.readlink(through(fd)))  # (which may be wrong by then: it is only compared)
                    yield Survivor(object_, path, now in changed, seen, partial(_same, Place(-1, name, b"")))
                    break


def lost_names(records: Sequence[Mutation]) -> Iterator[tuple[bytes, Keeping, Identity]]:
    """The names that the records have taken from objects, how each is kept, and the object; no directories."""
    for record in records:
        match record:
            case Remove() if record.type != "d":
                yield record.path, record.keeping, record.identity
            case Move(replaced=replaced) if replaced is not None and replaced.type != "d" and not record.exchanged:
                yield record.target, replaced.keeping, replaced.identity
            case _:
                pass


def _same(place: Place) -> Place:
    return place

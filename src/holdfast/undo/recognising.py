"""What a step left, known again by its content where somebody has put it back.

An edit by hand that is taken back by a checkpoint leaves the file as the step had left it, but as another object with
other times. Whoever saves the tree tells the hashes of what steps left; where type, permissions and content are those,
what is there stands for what the step left, as if nobody had ever changed it.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.handle import identity
from holdfast.undo.carrying import in_order
from holdfast.undo.signatures import content_at, is_described, is_left, signature
from holdfast.undo.traces import whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.files.handle import Identity
    from holdfast.undo.directories import Directories
    from holdfast.undo.log import UndoLog
    from holdfast.undo.records import Signature, StepId
    from holdfast.undo.sealed import Sealed


def note_contents(log: UndoLog, step: StepId, contents: Iterable[tuple[bytes, bytes]]) -> None:
    """Remember the hashes of what a finished step left, as far as it is there untouched.

    ``contents`` are paths with hashes that were computed after the step had ended: so they are of what it left, if
    nobody has changed that by now.
    Raises `StorageError`, `NotFoundError`.
    """
    sealed = log.read(step)
    left = dict(sealed.head.left)
    noted: list[tuple[bytes, bytes]] = []
    with log.looking() as directories:
        for path, hash_ in contents:
            was = left.get(path)
            if was is not None and is_left(directories, path, was):
                noted.append((path, hash_))
    log.write(msgspec.structs.replace(sealed, head=msgspec.structs.replace(sealed.head, contents=tuple(noted))))


def recognise(log: UndoLog, steps: Sequence[Sealed]) -> list[Sealed]:
    """Take what is there now for what the steps left, where it is the same; returns them with what they then say.

    The steps are to be reversed together, and only all of their records together say what they left where: what one of
    them has left by its own may have been moved or replaced by another one. Nor is it known again where another step,
    that is not undone, began later and changed the same path. Raises `StorageError`.
    """
    places = whereabouts(in_order(steps))
    chosen = {one.head.id for one in steps}
    later: dict[bytes, int] = {}
    for head in sorted(log.heads.values(), key=lambda head: head.first):
        if head.id not in chosen and head.state != "undone":
            later |= dict.fromkeys((path for path, _ in head.left), head.first)
    return [_recognise(log, one, places, later) for one in steps]


def _recognise(
    log: UndoLog, sealed: Sealed, places: Mapping[bytes, Identity | None], later: Mapping[bytes, int]
) -> Sealed:
    head = sealed.head
    left, noted = dict(head.left), dict(head.contents)
    aliases: list[tuple[Identity, Identity]] = []
    again: list[bytes] = []
    with log.looking() as directories:
        for path, object_ in whereabouts(sealed.records).items():
            was = left.get(path)
            if was is None or object_ is None or places.get(path) != object_ or later.get(path, 0) > head.first:
                continue
            now = signature(directories, path)
            if now is None or now.mode != was.mode or not is_described(was.described, now.described):
                continue
            # (The number of a directory that was removed is given to the next one at once, and its times say nothing.)
            if not stat.S_ISDIR(now.mode) and is_left(directories, path, was):
                continue
            old = log.recorder.aliases.now(object_)
            new = _known_again(directories, path, now, noted.get(path))
            if new is not None and new != old:
                left[path] = now
                again.append(path)
                aliases.append((old, new))
    if not aliases:
        return sealed
    known = msgspec.structs.replace(head, left=tuple(sorted(left.items())), aliases=(*head.aliases, *aliases))
    result = msgspec.structs.replace(sealed, head=known)
    log.write(result)
    log.recorder.known.note((path, left[path]) for path in again)
    for old, new in aliases:
        log.recorder.aliases.add(old, new)
    return result


def _known_again(directories: Directories, path: bytes, now: Signature, noted: bytes | None) -> Identity | None:
    """The object at the path, if it is a directory or has the content that was noted, and is left alone meanwhile."""
    try:
        place = directories.place(path)
        if not stat.S_ISDIR(now.mode):
            if noted is None:
                return None
            if content_at(place) != noted:
                return None
        object_ = identity(place.dir_fd, place.name)
    except OSError:
        return None
    return object_ if signature(directories, path) == now else None

"""Recognises a step's result by its content after it was restored.

A restore that reverses an edit makes the file as the step had left it, but as another object with other times. A
checkpoint records the hashes of steps' results. A file with the same type, permissions and content then counts as the
step's unchanged result. A restore records its files, too: they are no edits by others.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.linux.file_handle import identity
from holdfast.model.errors import IntegrityError
from holdfast.undo.completion.late_writes import awaited_writes, edited_since, is_unchanged
from holdfast.undo.journal.records import Content, KeepMethod, Meta
from holdfast.undo.journal.step_footprint import DirectoryMoves, footprint_of, kept_preimages, objects_by_path
from holdfast.undo.reversal.durable_reversal import ordered_records
from holdfast.undo.tree.signatures import content_at, described_at, is_as_left, is_described, signature, with_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Signature, StepId
    from holdfast.undo.journal.step_file import SealedStep
    from holdfast.undo.log import UndoLog
    from holdfast.undo.tree.rooted_directories import Directories


def note_contents(log: UndoLog, step: StepId, contents: Iterable[tuple[bytes, bytes]]) -> None:
    """Record the hashes of a finished step's results, as far as they are unchanged.

    ``contents`` are paths with hashes that were computed after the step's end: so they are of its results, unless these
    have changed by now. Blocks mutations only briefly. Raises `StorageError`, `NotFoundError`.
    """
    sealed = log.read(step)
    left = dict(sealed.head.left)
    noted = dict.fromkeys(sealed.head.contents)  # an edited result is recognised when it returns
    waiting, edited = awaited_writes(log, step), edited_since(log, sealed.head)
    with log.open_directories() as directories:
        for path, hash_ in contents:
            was = left.get(path)
            if was is None:
                continue
            if is_as_left(directories, path, was) or (
                # One of the states that remaining writers give it.
                path in waiting and is_unchanged(signature(directories, path), waiting[path], path, edited)
            ):
                noted[path, hash_] = None
    head = msgspec.structs.replace(sealed.head, contents=tuple(noted), noted=True)
    with log.recorder.gate:
        if log.heads.get(step) == sealed.head:  # else it was reversed meanwhile, and its results must be recorded anew
            log.write(msgspec.structs.replace(sealed, head=head))


def brought_back(log: UndoLog, paths: Mapping[bytes, bytes | None]) -> None:
    """Holdfast has restored these paths from a checkpoint: files and links with these hashes, or nothing.

    If that equals a step's result, it counts as the result from now on; otherwise it is at least no edit by others.
    Raises `StorageError`.
    """
    within = paths.keys() | {parent for path in paths for parent in _above(path)}
    newest: dict[bytes, StepId] = {}
    for head in sorted(log.heads.values(), key=lambda head: head.left_at):
        newest |= dict.fromkeys((path for path, _ in head.left if path in within), head.id)
    last: dict[StepId, set[bytes]] = {}
    for path, step in newest.items():
        last.setdefault(step, set()).add(path)
    for step in sorted(last, key=lambda step: log.heads[step].left_at, reverse=True):
        with suppress(IntegrityError):  # of a step that is damaged nothing can be known again
            _note_restored(log, step, last[step], paths)


def still_brought(log: UndoLog, paths: Iterable[bytes]) -> list[bytes]:
    """See `UndoService.still_brought`. The gate is held."""
    brought: dict[bytes, Signature | None] = {}
    for head in sorted(log.heads.values(), key=lambda head: head.left_at):
        for path, _ in head.left:
            brought.pop(path, None)
        brought |= dict(head.brought)
    with log.open_directories() as directories:
        return [path for path in paths if path in brought and is_as_left(directories, path, brought[path])]


def _note_restored(log: UndoLog, step: StepId, within: Set[bytes], paths: Mapping[bytes, bytes | None]) -> None:
    """`brought_back` for paths ``within``, where this step was the last with a result."""
    (sealed,) = adopt_matching(log, [log.read(step)], within)
    brought = dict(sealed.head.brought)
    with log.open_directories() as directories:
        for path, left in sealed.head.left:
            if path not in within:
                continue
            now = signature(directories, path)
            if now == left:
                brought.pop(path, None)
            # A directory comes and goes with its entries.
            elif _is_restored(directories, path, now, paths[path]) if path in paths else _is_way(now):
                brought[path] = now
    head = msgspec.structs.replace(sealed.head, brought=tuple(brought.items()))
    if head != sealed.head:
        log.write(msgspec.structs.replace(sealed, head=head))
        log.recorder.last_state.note_restored(head.brought)


def _above(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:length]) for length in range(1, len(parts))]


def _is_way(now: Signature | None) -> bool:
    return now is None or stat.S_ISDIR(now.mode)


def _is_restored(directories: Directories, path: bytes, now: Signature | None, hash_: bytes | None) -> bool:
    """Whether it is unchanged since, also by a process that could write to it before it was looked at."""
    if now is None or hash_ is None:
        return now is None and hash_ is None
    try:
        return content_at(directories.place(path)) == hash_ and signature(directories, path) == now
    except OSError:
        return False


def adopt_matching(
    log: UndoLog, steps: Sequence[SealedStep], within: Set[bytes] | None = None, *, keep: bool = True
) -> list[SealedStep]:
    """Accept present objects as the steps' results where they are equal; returns the steps with the new results.

    The steps will be reversed together, and only all their records together give the final results: one step's own
    result may have been moved or replaced by another. A result is not accepted where another step that is not undone
    began later and changed the same path, or is still running. ``within``: only at these paths. ``keep``: record it in
    the log. Raises `StorageError`.
    """
    places = objects_by_path(ordered_records(steps))
    chosen = {one.head.id for one in steps}
    later: dict[bytes, int] = {}
    others = [head for head in log.heads.values() if head.id not in chosen and head.state != "undone"]
    for head in sorted(others, key=lambda head: head.first):
        later |= dict.fromkeys((path for path, _ in head.left), head.first)
    going_on = [
        opened
        for opened in (*log.recorder.open_steps, *log.unsealed.values())
        if opened.id not in chosen and not opened.reverses
    ]
    for opened in going_on:
        later |= dict.fromkeys(objects_by_path(opened.records), log.recorder.seq)
    moves = DirectoryMoves(record for opened in going_on for record in opened.records)

    @cache
    def own() -> Set[Identity]:
        records = (record for opened in going_on for record in opened.records)
        return footprint_of((*ordered_records(steps), *records)).objects.keys()

    # If one of them has moved a parent directory, the path has that directory's entries.
    places = {path: object_ for path, object_ in places.items() if not moves.above(path)}
    found: list[SealedStep] = []
    for one in steps:
        # Includes a step that was redone, and was not done when this one began.
        back = [head for head in others if head.was_undone_at(one.head.first)]
        since = later | {path: head.acted for head in back for path, _ in head.left}
        found.append(_recognise(log, one, places, own, since, within, keep=keep))
    return found


def _recognise(
    log: UndoLog,
    sealed: SealedStep,
    places: Mapping[bytes, Identity | None],
    own: Callable[[], Set[Identity]],
    later: Mapping[bytes, int],
    within: Set[bytes] | None,
    *,
    keep: bool,
) -> SealedStep:
    head = sealed.head
    left = dict(head.left)
    noted: dict[bytes, set[bytes]] = {}
    for path, hash_ in head.contents:
        noted.setdefault(path, set()).add(hash_)
    written = {record.identity for record in sealed.records if isinstance(record, (Content, Meta))}
    aliases: list[tuple[Identity, Identity]] = []
    again: list[bytes] = []
    with log.open_directories() as directories:
        for path, object_ in objects_by_path(sealed.records).items():
            was = left.get(path)
            if within is not None and path not in within:
                continue
            if was is None or object_ is None or places.get(path) != object_ or later.get(path, 0) > head.first:
                continue
            now = signature(directories, path)
            if now is None or now.mode != was.mode or not _is_described(directories, path, was, now):
                continue
            # A new directory reuses the number of a removed one at once, and its times prove nothing.
            if not stat.S_ISDIR(now.mode) and is_as_left(directories, path, was):
                continue
            old = log.recorder.aliases.now(object_)
            hashes = {*noted.get(path, ()), was.check} - {b""}
            new = _find_same_content(directories, path, now, hashes)
            if new is None or (new == old and stat.S_ISDIR(now.mode)):
                continue
            if new != old and ((was.names > 1 and object_ in written) or new in own()):
                # An object that the step wrote to may live on under another name, where it would stay unreversed. And
                # an object that a step moved here cannot stand for another one.
                continue
            left[path] = now
            again.append(path)
            if new != old:
                aliases.append((old, new))
        others = dict.fromkeys(head.others)
        for was, now, old, new in _find_relinked(log, directories, sealed, places, later, within):
            others = dict.fromkeys(now if one == was else one for one in others)
            aliases.append((old, new))
    if not again and not aliases:
        return sealed
    known = msgspec.structs.replace(
        head, left=tuple(sorted(left.items())), others=tuple(others), aliases=(*head.aliases, *aliases)
    )
    result = msgspec.structs.replace(sealed, head=known)
    if not keep:
        return result
    log.write(result)
    log.recorder.last_state.note((path, left[path]) for path in again)
    for old, new in aliases:
        log.recorder.aliases.add(old, new)
    return result


def _is_described(directories: Directories, path: bytes, was: Signature, now: Signature) -> bool:
    """Whether owner and attributes are as they were left, where that is known."""
    if was.described is None:
        return True
    try:
        # The signature of an object that had several names, and has one now, lacks owner and attributes.
        return is_described(was.described, now.described or described_at(directories.place(path)))
    except OSError:
        return False


def _find_relinked(
    log: UndoLog,
    directories: Directories,
    sealed: SealedStep,
    places: Mapping[bytes, Identity | None],
    later: Mapping[bytes, int],
    within: Set[bytes] | None,
) -> Iterator[tuple[Signature, Signature, Identity, Identity]]:
    """Files from which the step only took a name, and that are other objects by now at a path where the records have
    another of their names: the result (`StepHead.others`), the present signature, the old object and the new one.
    """
    as_left = [one for one in sealed.head.others if one.check]
    if not as_left:
        return
    own = objects_by_path(sealed.records)
    lost = {object_ for kept, object_ in kept_preimages(sealed.records) if kept.how is KeepMethod.RELATED} - set(
        own.values()
    )
    for path, object_ in objects_by_path(sealed.records, others=True).items():
        if object_ is None or object_ not in lost or places.get(path, object_) != object_:
            continue
        if (within is not None and path not in within) or later.get(path, 0) > sealed.head.first:
            continue
        now, place = signature(directories, path), partial(directories.place, path)
        old = log.recorder.aliases.now(object_)
        try:
            new = identity(place().dir_fd, place().name)
            if now is None or new == old:
                continue
            # It has one name less than in the result, and may get that back.
            now = msgspec.structs.replace(now, names=now.names + 1, described=described_at(place()))
            now = with_hash(place, now)
        except OSError:
            continue
        for was in as_left:
            is_alike = (was.mode, was.size, was.check) == (now.mode, now.size, now.check)
            if is_alike and is_described(was.described, now.described):
                yield was, now, old, new
                break


def _find_same_content(
    directories: Directories, path: bytes, now: Signature, noted: Collection[bytes]
) -> Identity | None:
    """The object at the path, if it is a directory or has a recorded content, and nothing writes to it meanwhile."""
    try:
        place = directories.place(path)
        if not stat.S_ISDIR(now.mode) and (not noted or content_at(place) not in noted):
            return None
        object_ = identity(place.dir_fd, place.name)
    except OSError:
        return None
    return object_ if signature(directories, path) == now else None

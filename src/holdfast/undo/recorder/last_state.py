"""The last results of steps, so that a step that finds another state knows that others have changed it.

An undo of that step restores the state that it found, which must not count as an earlier step's result. So the edit is
recorded at the first touch, as a barrier (`holdfast.undo.journal.barriers`).
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.files.linux.metadata import read_xattrs, read_xattrs_at
from holdfast.files.linux.syscalls import birth_time_at
from holdfast.undo.tree.signatures import NO_XATTRS, is_same, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast._hot import Log
    from holdfast.undo.interceptor import Place
    from holdfast.undo.journal.records import ForeignEdit, ObjectKey, Signature, StepId
    from holdfast.undo.journal.step_file import StepHead


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class LastState:
    """See the module. For one thread at a time: the recorder's gate is held."""

    def __init__(self, device: int, native: Log | None = None) -> None:
        """``device`` is that of the workspace's root. ``native`` receives the times of results on the root's file
        system, and the paths of all results.
        """
        self._device = device
        self._objects: dict[ObjectKey, tuple[bytes, Signature]] = (
            {} if native is None else _Told(lambda key, left: _tell_object(native, key, left))
        )
        """Where an object was left, and as what."""
        self._places: dict[bytes, Signature] = (
            {} if native is None else _Told(lambda path, left: _tell_place(native, path, left))
        )
        self._reported: set[ObjectKey] = set()
        """Objects that were reported as different from the result at their path."""
        self._restored: dict[bytes, Signature | None] = {}
        """Objects that a checkpoint has restored to a path since a step left a result there."""

    def key(self, found: os.stat_result) -> ObjectKey:
        """The `Signature.key` of the found object."""
        device = found.st_dev
        return 0 if device == self._device else device, found.st_ino

    def note(self, left: Iterable[tuple[bytes, Signature | None]], others: Iterable[Signature] = ()) -> None:
        """A step left ``left``, and ``others`` (see `StepHead.others`): each by the order in which they left it."""
        for path, found in left:
            self._restored.pop(path, None)
            if found is None:
                self._places.pop(path, None)
                continue
            self._places[path] = found
            if found.inode:
                self._objects[found.key] = path, found
                self._reported.discard(found.key)
        for found in others:
            if (known := self._objects.get(found.key)) is not None:
                self._objects[found.key] = known[0], found
                self._reported.discard(found.key)

    def forget(self, left: Iterable[tuple[bytes, Signature]]) -> None:
        """Supervised processes keep writing to these: their later state is unknown."""
        linked: set[ObjectKey] = set()
        for path, found in left:
            self._places.pop(path, None)
            self._objects.pop(found.key, None)
            if found.names > 1:
                linked.add(found.key)
        self.forget_objects(linked)  # they may be results under other names

    def forget_objects(self, keys: Iterable[ObjectKey]) -> None:
        """`forget`, of what lives on by other names."""
        chosen = frozenset(keys)
        if not chosen:
            return
        for key in chosen:
            self._objects.pop(key, None)
        for path in [path for path, found in self._places.items() if found.key in chosen]:
            del self._places[path]

    def forget_places(self, paths: Iterable[bytes]) -> None:
        """A step has removed the results at these paths."""
        for path in paths:
            self._places.pop(path, None)

    def add_hashes(self, left: Iterable[tuple[bytes, Signature | None]], others: Iterable[Signature] = ()) -> None:
        """Add the hashes of some of the results."""
        for path, found in left:
            if found is not None and found.check:
                known = self._objects.get(found.key)
                if known is not None and known[1].ctime == found.ctime:
                    self._objects[found.key] = path, found
        for found in others:
            known = self._objects.get(found.key)
            if found.check and known is not None and known[1].ctime == found.ctime:
                self._objects[found.key] = known[0], found

    def note_restored(self, paths: Iterable[tuple[bytes, Signature | None]]) -> None:
        """Holdfast has brought to paths what a checkpoint holds, which looks so: that is no edit by others."""
        for path, now in paths:
            self._restored[path] = now
            left = self._places.get(path)
            known = None if left is None or left.names > 1 else self._objects.get(left.key)
            if left is not None and known is not None and known[0] == path and (now is None or now.key != left.key):
                del self._objects[left.key]  # it is gone: its inode number may come again

    def is_restored(self, place: Place, found: os.stat_result | None) -> bool:
        """Whether Holdfast itself has restored the object there."""
        if place.path not in self._restored:
            return False
        now = self._restored[place.path]
        if now is None or found is None:
            return now is None and found is None
        return (now.key, now.mode, now.ctime) == (self.key(found), found.st_mode, found.st_ctime_ns)

    def note_reported(self, paths: Iterable[bytes]) -> None:
        """Barriers name these now, for what steps have left there until here: no further barrier need name them for
        that.
        """
        for path in paths:
            left = self._places.get(path)
            if left is not None and (known := self._objects.get(left.key)) is not None and known[0] == path:
                self._reported.add(left.key)

    def last_signature(self, key: ObjectKey) -> Signature | None:
        """As what the object was left; None if no step has to do with it, or it was forgotten."""
        known = self._objects.get(key)
        return None if known is None else known[1]

    def foreign_paths(self, place: Place, found: os.stat_result | None, fd: int = -1) -> tuple[bytes, ...]:
        """The paths concerned, if the object at a place (open as ``fd``, if given), or its absence, differs from a
        step's result.

        The same object is recognised at every place, a replacement only in the same directory.
        """
        if found is not None and (known := self._objects.get(self.key(found))) is not None:
            path, left = known
            if left.ctime == found.st_ctime_ns or self._is_same(left, found, place, fd):
                return ()
            is_told = left.key in self._reported or _is_younger(left, place, fd)
            return tuple(sorted({place.path} if is_told else {path, place.path}))
        left = self._places.get(place.path)
        if left is None:
            return ()
        if found is not None and left.inode == found.st_ino and self._is_same(left, found, place, fd):
            return ()  # the same on a device that has got another number
        # Others' changes are foreign at every place. Otherwise another parent means that a directory was moved; with
        # the object alone, that is unknown.
        is_there = not left.parent or place.dir_fd < 0 or left.parent == os.fstat(place.dir_fd).st_ino
        return (place.path,) if is_there else ()

    def _is_same(self, left: Signature, found: os.stat_result, place: Place, fd: int) -> bool:
        xattrs = partial(read_xattrs_at, place.dir_fd, place.name) if fd < 0 else partial(read_xattrs, fd)
        return is_same(left, signature_of(found, self._device, xattrs), lambda: place)

    def signature_at(self, path: bytes) -> Signature | None:
        """The result of a step at a path that is empty now, or is about to be."""
        return self._places.get(path)


class _Told(dict[_Key, _Value]):
    """A mapping that reports each change: the value of a key now, or None."""

    def __init__(self, tell: Callable[[_Key, _Value | None], object]) -> None:
        super().__init__()
        self._tell = tell

    def __setitem__(self, key: _Key, value: _Value) -> None:
        super().__setitem__(key, value)
        self._tell(key, value)

    def __delitem__(self, key: _Key) -> None:
        super().__delitem__(key)
        self._tell(key, None)

    def pop(self, key: _Key, default: _Value | None = None) -> _Value | None:  # type: ignore[override]
        """As in a dict, and with a default."""
        if key in self:
            default = self[key]
            del self[key]
        return default


def _tell_object(native: Log, key: ObjectKey, left: tuple[bytes, Signature] | None) -> None:
    device, inode = key
    if device:
        return  # objects on another file system are never changed natively
    if left is None:
        native.drop_object(inode)
    else:
        native.note_object(inode, left[1].ctime or _state(left[1]))


def _state(left: Signature) -> int:
    """A number that distinguishes an object whose ctime says nothing, such as a directory, from others: mode, owner and
    group in one negative number (as in ``native/operate.c``); 0, which no object has, if more must be compared.
    """
    described = left.described
    if described is None or described.uid >> 24 or described.gid >> 22 or described.attributes not in (b"", NO_XATTRS):
        return 0
    return -1 - (left.mode | described.uid << 16 | described.gid << 40)


def _tell_place(native: Log, path: bytes, left: Signature | None) -> None:
    (native.drop_place if left is None else native.note_place)(path)


def _is_younger(left: Signature, place: Place, fd: int) -> bool:
    """Whether the object at the place (open as ``fd``, if given) is another than the result: numbers of deleted objects
    are reused.
    """
    try:
        born = birth_time_at(place.dir_fd, place.name) if fd < 0 else birth_time_at(fd, b"")
    except OSError:
        return False
    return born is not None and 0 < left.ctime < born


def load_last_state(known: LastState, heads: Mapping[StepId, StepHead], barriers: Iterable[ForeignEdit]) -> None:
    """Let ``known`` have its values from before the log was closed: the results of steps, and the reported edits.

    The time at which a step found an edit is not kept: it counts where no step can have left a result meanwhile.
    """
    found = [(heads[one.finder], one.paths) for one in barriers if one.finder is not None and one.finder in heads]
    found.sort(key=lambda one: one[0].first, reverse=True)
    ended = 0
    for head in sorted(heads.values(), key=lambda head: head.left_at):
        while found and found[-1][0].first <= head.left_at:
            finder, paths = found.pop()
            if ended < finder.first:
                known.note_reported(paths)
        known.note(head.left, head.others)
        known.note_restored(head.brought)
        ended = max(ended, head.last, head.looked_at)

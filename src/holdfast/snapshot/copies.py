"""Where a provider keeps whole copies of a workspace, which have to lie on its file system: in the home, or, where that
is on another one, in the workspace.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.errors import UnsupportedError
from holdfast.model.paths import COPIES_IN_TREE, display
from holdfast.snapshot.private import make_private
from holdfast.snapshot.repositories import end_keeping_apart, keep_apart

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.snapshot.ledger import Entry, Ledger
    from holdfast.snapshot.place import Place
    from holdfast.snapshot.port import Mode

IN_TREE_NOTE = f"the home is on another file system: copies lie in the workspace, in {COPIES_IN_TREE.decode()}"
"""For people."""


class Copies:
    """The directories in which copies are made, each copy named by its token."""

    def __init__(self, place: Place, ledger: Ledger, fits: Callable[[bytes], bool], lacking: str) -> None:
        """``fits`` tells whether a copy can be made in a directory that is there; it raises `OSError`. ``lacking`` says
        what it is that neither of them can do: a clause.
        """
        self._place = place
        self._ledger = ledger
        self._fits = fits
        self._lacking = lacking

    def beside(self) -> bool:
        """Whether they can lie in the home. Raises `OSError`."""
        return self._fits(self._place.nearest())

    def inside(self) -> bool:
        """Whether they can lie in the workspace. Raises `OSError`."""
        return self._fits(self._place.root)

    def path_for(self, entry: Entry) -> bytes:
        """Where the copy for the entry is to be. Raises `UnsupportedError` if nowhere, `OSError`."""
        if self.beside():
            return os.path.join(self._in_home(), entry.token.encode())
        if self.inside():
            return os.path.join(self._in_tree(), entry.token.encode())
        raise UnsupportedError(
            f"the file system of {display(self._place.root)} {self._lacking}",
            hint="`holdfast doctor` says which providers of snapshots can be used",
        )

    def make_room(self, path: bytes) -> None:
        """Make the directory that ``path``, of an entry in the ledger, is to lie in. Raises `OSError`."""
        with self._ledger.lock_shared():
            make_private(os.path.dirname(path))
            keep_apart(os.path.dirname(path))

    def tidy(self) -> None:
        """Remove the directories, if nothing is in them any more."""
        for directory in (self._in_home(), self._in_tree()):
            end_keeping_apart(directory)
        for directory in (self._in_home(), self._in_tree(), os.path.dirname(self._in_tree())):
            with suppress(OSError):  # it is not there, or there are other things in it
                os.rmdir(directory)

    def _in_home(self) -> bytes:
        return os.path.join(self._place.state, b"copies")

    def _in_tree(self) -> bytes:
        return os.path.join(self._place.root, COPIES_IN_TREE)


class InCopies(ABC):
    """What techniques have in common that make whole copies in directories of their own: see `Technique`."""

    modes: tuple[Mode, ...] = ("worktree", "in-place")

    def __init__(self, place: Place, ledger: Ledger, lacking: str) -> None:
        """``lacking`` as `Copies` has it."""
        self._place = place
        self._copies = Copies(place, ledger, self._fits, lacking)

    @abstractmethod
    def _fits(self, directory: bytes) -> bool:
        """Whether a copy can be made in a directory that is there. Raises `OSError`."""

    @abstractmethod
    def _copy(self, source: bytes, target: bytes, *, read_only: bool) -> None:
        """Make ``target`` a copy of ``source``, durably; ``read_only``: to be looked at alone. Raises `OSError`."""

    def plan(self, entry: Entry, origin: Entry | None) -> Entry:
        """See `Technique.plan`."""
        del origin
        return msgspec.structs.replace(entry, path=display(self._copies.path_for(entry)))

    def workspace(self, entry: Entry, base: Entry | None) -> Entry:
        """See `Technique.workspace`."""
        return self._take(self._place.root if base is None else place_of(base), entry, read_only=False)

    def view(self, entry: Entry, snapshot: Entry) -> Entry:
        """See `Technique.view`."""
        return self._take(place_of(snapshot), entry, read_only=True)

    def where_to_work(self, entry: Entry) -> bytes:
        """See `Technique.where_to_work`."""
        return place_of(entry)

    def enter(self, entry: Entry) -> tuple[bytes, ...]:
        """See `Technique.enter`."""
        del entry
        return ()

    def resume(self, entry: Entry) -> None:
        """See `Technique.resume`: a directory stays."""
        del entry

    def tidy(self) -> None:
        """See `Technique.tidy`."""
        self._copies.tidy()

    def _take(self, source: bytes, entry: Entry, *, read_only: bool) -> Entry:
        target = place_of(entry)
        self._copies.make_room(target)
        self._copy(source, target, read_only=read_only)
        return entry


def place_of(entry: Entry) -> bytes:
    """The directory that was made for an entry, which is none in place."""
    place = entry.place
    assert place is not None, "only in place there is none"
    return place

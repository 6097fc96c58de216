"""Where a provider keeps whole copies of a workspace, which have to lie on its file system: in the home, or, where that
is on another one, in the workspace.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.model.errors import UnsupportedError
from holdfast.model.paths import COPIES_IN_TREE, display
from holdfast.snapshot.copied_repositories import end_keeping_apart, keep_apart
from holdfast.snapshot.private_directories import make_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.snapshot.ledger import Ledger, LedgerEntry
    from holdfast.snapshot.provider_context import ProviderContext

IN_TREE_NOTE = f"the home is on another file system: copies lie in the workspace, in {COPIES_IN_TREE.decode()}"
"""For people."""


class CopyLocation:
    """The directories in which copies are made, each copy named by its token."""

    def __init__(self, context: ProviderContext, ledger: Ledger, fits: Callable[[bytes], bool], lacking: str) -> None:
        """``fits`` tells whether a copy can be made in an existing directory; it raises `OSError`. ``lacking`` names
        the missing feature of the two places: a clause.
        """
        self._context = context
        self._ledger = ledger
        self._fits = fits
        self._lacking = lacking

    def beside(self) -> bool:
        """Whether they can be in the home. Raises `OSError`."""
        return self._fits(self._context.nearest())

    def inside(self) -> bool:
        """Whether they can be in the workspace. Raises `OSError`."""
        return self._fits(self._context.root)

    def path_for(self, entry: LedgerEntry) -> bytes:
        """The path for the entry's copy. Raises `UnsupportedError` if there is none, `OSError`."""
        if self.beside():
            return os.path.join(self._in_home(), entry.token.encode())
        if self.inside():
            return os.path.join(self._in_tree(), entry.token.encode())
        raise UnsupportedError(
            f"the file system of {display(self._context.root)} {self._lacking}",
            hint="`holdfast doctor` says which providers of snapshots can be used",
        )

    def make_room(self, path: bytes) -> None:
        """Make the directory that ``path``, of an entry in the ledger, is to lie in. Raises `OSError`."""
        with self._ledger.lock_shared():
            make_private(os.path.dirname(path))
            keep_apart(os.path.dirname(path))

    def remove_empty(self) -> None:
        """Remove the directories, if nothing is in them any more."""
        for directory in (self._in_home(), self._in_tree()):
            end_keeping_apart(directory)
        for directory in (self._in_home(), self._in_tree(), os.path.dirname(self._in_tree())):
            with suppress(OSError):  # it is not there, or there are other things in it
                os.rmdir(directory)

    def _in_home(self) -> bytes:
        return os.path.join(self._context.state, b"copies")

    def _in_tree(self) -> bytes:
        return os.path.join(self._context.root, COPIES_IN_TREE)

"""The context of every provider, and the handling of its own directory."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from holdfast.files.protected_directories import find_protected
from holdfast.model.clock import SystemClock
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import COPIES_IN_TREE
from holdfast.snapshot.copied_repositories import find_git_links
from holdfast.snapshot.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.protected_directories import ProtectedDirectories
    from holdfast.model.clock import Clock
    from holdfast.snapshot.copied_repositories import GitLinks


class ProviderContext(NamedTuple):
    """The workspace and session of a provider, and the place of its results."""

    root: bytes
    """The workspace's root: absolute, without links."""
    state: bytes
    """The provider's own directory in the home, for this workspace. It is made (0700) when it is needed."""
    session: str
    """1 to 64 letters, digits, ``_``, ``-``, and ``.`` between others."""
    clock: Clock = SystemClock()
    random: Callable[[int], bytes] = secrets.token_bytes
    timeout: float = 30.0
    """How many seconds to wait for another process."""
    own: tuple[bytes, ...] = ()
    """Real paths of Holdfast's own files, beside ``state``: no copy includes them, where they are in the workspace."""
    looked: dict[tuple[bytes, tuple[bytes, ...]], GitLinks] | None = None
    """The results of `git_links`, shared while several providers examine one workspace."""
    most_bytes: int = 0
    """The limit for a copy without shared blocks; 0: none."""

    def ledger(self) -> Ledger:
        """The session's ledger. Raises `UsageError` if no session can be called so."""
        return Ledger(self.state, self.session, clock=self.clock, random=self.random, timeout=self.timeout)

    def nearest(self) -> bytes:
        """The state directory, or what of the way to it is there."""
        path = self.state
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        return path

    def git_links(self, source: bytes, *, anew: bool = True) -> GitLinks:
        """The targets of Git's files in ``source``: see `copied_repositories.find_git_links`. Without ``anew``, another
        provider's recent result is enough.
        """
        without = self.without(source)
        found = None if anew or self.looked is None else self.looked.get((source, without))
        if found is None:
            found = find_git_links(source, without)
            if self.looked is not None:
                self.looked[source, without] = found
        return found

    def without(self, source: bytes) -> tuple[bytes, ...]:
        """Paths in ``source`` that a copy must leave out (I14); they need not exist."""
        top = source.rstrip(b"/") + b"/"
        own = {self.state, *self.own}
        return (os.path.dirname(COPIES_IN_TREE), *sorted(path[len(top) :] for path in own if path.startswith(top)))

    def own_in(self, source: bytes) -> ProtectedDirectories:
        """The present directories of `without`."""
        return find_protected(os.path.join(source, path) for path in self.without(source))

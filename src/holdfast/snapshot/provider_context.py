"""What every provider is made with, and what every one of them does with the directory that is its own."""

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
    """For which workspace and session a provider is, and where it keeps what it makes."""

    root: bytes
    """The workspace's root: absolute, without links."""
    state: bytes
    """A directory in the home that is the provider's own, for this workspace. It is made (0700) when it is needed."""
    session: str
    """1 to 64 letters, digits, ``_``, ``-``, and ``.`` between others."""
    clock: Clock = SystemClock()
    random: Callable[[int], bytes] = secrets.token_bytes
    timeout: float = 30.0
    """How many seconds to wait for another process."""
    own: tuple[bytes, ...] = ()
    """What is Holdfast's own beside ``state``, as real paths: where they lie in the workspace, no copy holds them."""
    looked: dict[tuple[bytes, tuple[bytes, ...]], GitLinks] | None = None
    """What `git_links` has said while several providers look at one workspace: theirs in common, for that long."""
    most_bytes: int = 0
    """A copy that shares no blocks is made of no more than this; 0: of any."""

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
        """Where what belongs to Git in ``source`` leads: see `copied_repositories.find_git_links`. Unless it is to be
        looked at ``anew``, what another provider has found just now will do.
        """
        without = self.without(source)
        found = None if anew or self.looked is None else self.looked.get((source, without))
        if found is None:
            found = find_git_links(source, without)
            if self.looked is not None:
                self.looked[source, without] = found
        return found

    def without(self, source: bytes) -> tuple[bytes, ...]:
        """What a copy of ``source`` may not hold (I14): paths in there, which need not lead to anything."""
        top = source.rstrip(b"/") + b"/"
        own = {self.state, *self.own}
        return (os.path.dirname(COPIES_IN_TREE), *sorted(path[len(top) :] for path in own if path.startswith(top)))

    def own_in(self, source: bytes) -> ProtectedDirectories:
        """What `without` names, as it is now."""
        return find_protected(os.path.join(source, path) for path in self.without(source))

"""The entries of manifests, and the differences between manifests."""

from __future__ import annotations

import stat

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from holdfast.model.ids import Hash

SYMLINK_MODE = stat.S_IFLNK
"""The mode of every symbolic link entry; its content is the target, its size the target's length."""


class Entry(NamedTuple):
    """One file or symbolic link. A manifest maps its path to it.

    ``mode`` is ``S_IFREG`` with the 0777 permission bits, or exactly `SYMLINK_MODE`.
    """

    hash: Hash
    size: int
    mode: int

    @property
    def is_symlink(self) -> bool:
        """True for a symbolic link."""
        return self.mode == SYMLINK_MODE

    @property
    def permissions(self) -> int:
        """The 0777 bits; 0777 for a symbolic link, as the kernel shows it."""
        return 0o777 if self.mode == SYMLINK_MODE else self.mode & 0o777


def file_entry(hash: Hash, size: int, permissions: int) -> Entry:  # noqa: A002 - the field's own name
    """The entry of a regular file with the given permission bits (masked to 0777)."""
    return Entry(hash, size, stat.S_IFREG | (permissions & 0o777))


def symlink_entry(hash: Hash, size: int) -> Entry:  # noqa: A002 - the field's own name
    """The entry of a symbolic link whose target has the given hash and length."""
    return Entry(hash, size, SYMLINK_MODE)


def is_entry_mode(mode: int) -> bool:
    """True if ``mode`` is one that an `Entry` may carry."""
    return mode == SYMLINK_MODE or (stat.S_ISREG(mode) and not mode & ~(stat.S_IFREG | 0o777))


class Change(NamedTuple):
    """The difference of one path."""

    path: bytes
    before: Entry | None
    after: Entry | None

    @property
    def status(self) -> Literal["A", "D", "T", "M"]:
        """``A`` added, ``D`` deleted, ``T`` the type differs, ``M`` content or permissions differ."""
        if self.before is None:
            return "A"
        if self.after is None:
            return "D"
        return "T" if self.before.is_symlink != self.after.is_symlink else "M"


def after_of(change: Change) -> Entry:
    """The entry after a change that is known to be no deletion."""
    assert change.after is not None
    return change.after


class Counts(NamedTuple):
    """Numbers of paths. Changes of type are modifications."""

    added: int = 0
    modified: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.added + self.modified + self.deleted


def count_changes(changes: Sequence[Change]) -> Counts:
    """The counts of ``changes``."""
    added = sum(1 for change in changes if change.before is None)
    deleted = sum(1 for change in changes if change.after is None)
    return Counts(added, len(changes) - added - deleted, deleted)


def compose(first: list[Change], second: list[Change]) -> list[Change]:
    """The changeset that leads where ``first`` and then ``second`` lead; both and the result sorted by path.

    A path that ends as it began is in none. ``second`` must start where ``first`` ends.
    """
    merged = {change.path: change for change in first}
    for change in second:
        earlier = merged.get(change.path)
        before = change.before if earlier is None else earlier.before
        if before == change.after:
            merged.pop(change.path, None)
        else:
            merged[change.path] = Change(change.path, before, change.after)
    return [merged[path] for path in sorted(merged)]


class NotCaptured(NamedTuple):
    """A path that a checkpoint does not hold, and why. Such as ``socket``, ``too large: …``, ``unreadable: …``."""

    path: bytes
    reason: str

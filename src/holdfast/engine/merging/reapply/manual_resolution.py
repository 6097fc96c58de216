"""A person's resolution of an overlapping file: the differences to look at, and the check of the decision.

A decision is valid for the shown versions: a merge that ends with open overlaps records what it shows, and a resolution
for another version is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.diffs import git_patch
from holdfast.model.content import whole
from holdfast.model.entries import Entry
from holdfast.model.errors import RefusedError, UsageError
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.engine.merging.stacked_plan import Overlap, Resolution
    from holdfast.engine.opening.context import Context


def check(one: Overlap, resolution: Resolution, shown: str | None, max_bytes: int) -> None:
    """Raise `RefusedError` (``stale``, ``not_shown``) for a decision about other versions than the present ones, and
    `UsageError` if it is impossible for the file.
    """
    name = display(one.path)
    if shown_version(one.path, resolution.version or shown) != one.version:
        raise RefusedError(
            f"{name} has changed since it was looked at; the resolution was not taken",
            hint="run it without resolutions to see the new state",
            code="stale",
        )
    if one.why == "in_the_way":
        raise UsageError(
            f"{name} is a file on one side and a directory on the other",
            hint="rename one of them, there or here, and merge again",
        )
    if resolution.prefer is None and resolution.content is not None:
        if len(resolution.content) > max_bytes:
            raise UsageError(f"the resolution of {name} has more bytes than merge.max_bytes, {max_bytes}")
        if _mode(one) is None:
            raise UsageError(
                f"{name} cannot get new content: the sides differ in {one.why}",
                hint="--keep PATH takes the version here, --take PATH the fork's",
            )


def shown_version(path: bytes, version: str | None) -> str:
    """``version``, for which the file was decided. Raises `RefusedError` (code ``not_shown``) if that is not known."""
    if version is None:
        raise RefusedError(
            f"{display(path)} was not shown yet, so a resolution could miss its changes",
            hint="run it without resolutions to see the changes of both sides; then give the resolution",
            code="not_shown",
        )
    return version


def resolved_entry(one: Overlap, resolution: Resolution) -> Entry | None:
    """The file's entry after a resolution that provides its content."""
    if resolution.content is None:
        return None
    mode = _mode(one)
    assert mode is not None, "check has read that"
    return Entry(hash_bytes(resolution.content), len(resolution.content), mode)


def _mode(one: Overlap) -> int | None:
    """The mode of new content; production's where permissions are what both have changed."""
    regular = [side for side in (one.production, one.fork) if side is not None and not side.is_symlink]
    return one.mode if one.is_applicable else regular[0].mode if regular else None


def differences(context: Context, one: Overlap) -> tuple[str, str]:
    """The changes of production and of the fork in the file, as hunks of unified diffs; empty if it is no text or too
    large to show.
    """
    return _hunks(context, one.base, one.production), _hunks(context, one.base, one.fork)


_MOST_SHOWN = 1 << 20


def _hunks(context: Context, before: Entry | None, after: Entry | None) -> str:
    sides = [side for side in (before, after) if side is not None]
    if any(side.size > _MOST_SHOWN for side in sides):
        return ""
    one, other = (b"" if side is None else whole(next(context.store.reader.fetch((side,)))) for side in (before, after))
    if git_patch.is_binary(one) or git_patch.is_binary(other):
        return ""
    return b"".join(git_patch.hunks(one, other)).decode("utf-8", "replace")

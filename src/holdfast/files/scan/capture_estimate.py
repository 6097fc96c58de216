"""Estimates the amount to capture without reading a file: for a warning before a huge capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.files.ignore.excluded_paths import list_directory
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from holdfast.files.ignore.rules import DirectoryRules

_BIGGEST = 5


class CaptureEstimate(NamedTuple):
    """The minimum that a first checkpoint would capture."""

    files: int
    bytes: int
    complete: bool
    """False if the counting ended at the limit: there is more."""
    biggest: list[tuple[bytes, int, int]]
    """The directories right below the root that hold most, biggest first: path, files, bytes."""


def estimate(
    root: bytes, outer: DirectoryRules, *, max_files: int, max_bytes: int, reserved: frozenset[bytes] = frozenset()
) -> CaptureEstimate:
    """Count files and bytes below ``root`` under the ignore rules, with the given ``outer`` part; not in ``reserved``
    directories (see `ReservedPaths.paths`).

    Ends as soon as more than twice ``max_files`` files or ``max_bytes`` bytes were found; it goes through directories
    level by level, so that it knows the biggest even then. Unreadable or vanished entries are left out.
    """
    totals: dict[bytes, list[int]] = {}
    files = size = 0
    level: list[tuple[bytes, DirectoryRules]] = [(b"", outer)]
    complete = True
    while level and complete:
        below: list[tuple[bytes, DirectoryRules]] = []
        for path, above in level:
            if files > 2 * max_files or size > 2 * max_bytes:
                complete = False
                break
            found = _directory(root, path, above, reserved)
            if found is None:
                continue
            number, taken, rules, inner = found
            files += number
            size += taken
            if path:
                total = totals.setdefault(path.partition(b"/")[0], [0, 0])
                total[0] += number
                total[1] += taken
            below += [(each, rules) for each in inner]
        level = below
    biggest = [(path, number, taken) for path, (number, taken) in totals.items()]
    biggest.sort(key=lambda found: found[1] / (max_files or 1) + found[2] / (max_bytes or 1), reverse=True)
    return CaptureEstimate(files, size, complete, biggest[:_BIGGEST])


def _directory(
    root: bytes, path: bytes, above: DirectoryRules, reserved: frozenset[bytes]
) -> tuple[int, int, DirectoryRules, list[bytes]] | None:
    """Files and bytes right in a directory, its rules, and the directories in it."""
    if path in reserved:
        return None
    number = taken = 0
    below: list[bytes] = []
    try:
        with list_directory(root, path, above) as (rules, items):
            for item in items:
                if item.excluded:
                    continue
                if item.is_directory:
                    below.append(item.path)
                else:
                    number += 1
                    taken += item.entry.stat(follow_symlinks=False).st_size
    except OSError:
        return None
    return number, taken, rules, below

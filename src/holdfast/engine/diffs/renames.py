"""Finds renamed files: a deleted and an added file with the same or similar content.

The measure of similarity is Git's (``diffcore-delta.c``): content is cut into chunks at line ends, at the latest
after 64 bytes; two files share the bytes of the chunks they have in common, and the similarity is that many bytes
over the size of the larger file.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from heapq import nsmallest
from typing import TYPE_CHECKING, TypeVar

from holdfast.model.command_results import Renamed
from holdfast.model.content import SMALL_BLOB_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.model.entries import Change, Entry

    Read = Callable[[Sequence[Entry]], list[bytes | None]]

_Rank = TypeVar("_Rank")

MINIMUM_SIMILARITY = 50
"""Percent; less alike than this is a deletion and an addition."""

MAX_READ_BYTES = 64 << 20
"""How much content is read in search of similar files, at most; what lies beyond is compared by hash alone."""

_CHUNK = 64
_CANDIDATES = 8
_MAX_STEPS = 1_000_000
_MAX_TIED_PAIRS = 1 << 14


def detect(changes: Sequence[Change], read: Read, *, limit: int = 400) -> tuple[list[Change], list[Renamed]]:
    """Split ``changes`` into the renames among them and the others.

    Only regular files pair with regular files, an empty one only with one of its own name. Equal content pairs
    first (of several candidates those with the most similar paths), then content that is at least
    `MINIMUM_SIMILARITY` percent alike: files with a name that is unique among the deleted and among the added
    first, then the best pairs of the likely ones.

    ``read`` returns the content of entries, None for one that it cannot or will not read. It is called only if at most
    ``limit`` files are left on each side, only for files up to 1 MiB, and for at most `MAX_READ_BYTES` in all. Both
    answers are sorted by path; equal input gives equal output.
    """
    deleted = {
        c.path: c.before for c in changes if c.after is None and c.before is not None and not c.before.is_symlink
    }
    added = {c.path: c.after for c in changes if c.before is None and c.after is not None and not c.after.is_symlink}
    if not deleted or not added:
        return list(changes), []
    pairs: dict[bytes, tuple[bytes, int]] = {}
    for source, target in _same_content(deleted, added):
        pairs[target] = (source, 100)
    sources = _remaining(deleted, {source for source, _ in pairs.values()})
    targets = _remaining(added, pairs)
    if sources and targets and len(sources) <= limit and len(targets) <= limit:
        for source, target, similarity in _similar_content(sources, targets, read):
            pairs[target] = (source, similarity)
    gone = {source for source, _ in pairs.values()}
    rest = [change for change in changes if change.path not in gone and change.path not in pairs]
    renamed = [
        Renamed(source, target, deleted[source], added[target], similarity)
        for target, (source, similarity) in sorted(pairs.items())
    ]
    return rest, renamed


def similarity(before: bytes, after: bytes) -> int:
    """Percent of the larger content that both share, rounded down; 100 only for equal content."""
    if before == after:
        return 100
    return _percent(_shared(_chunks(before), _chunks(after)), len(before), len(after))


def _name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def _remaining(entries: dict[bytes, Entry], taken: Iterable[bytes]) -> dict[bytes, Entry]:
    used = set(taken)
    return {path: entry for path, entry in entries.items() if path not in used and 0 < entry.size <= SMALL_BLOB_BYTES}


def _same_content(deleted: dict[bytes, Entry], added: dict[bytes, Entry]) -> list[tuple[bytes, bytes]]:
    by_content: dict[tuple[bytes, int], list[bytes]] = defaultdict(list)
    for path, entry in deleted.items():
        by_content[entry.hash, entry.size].append(path)
    groups: dict[tuple[bytes, int], list[bytes]] = defaultdict(list)
    for path, entry in added.items():
        if (entry.hash, entry.size) in by_content:
            groups[entry.hash, entry.size].append(path)
    pairs: list[tuple[bytes, bytes]] = []
    for content, targets in groups.items():
        sources = by_content[content]
        pairs += _closest_names(sources, targets, same_name=content[1] == 0)
    return pairs


def _closest_names(sources: list[bytes], targets: list[bytes], *, same_name: bool) -> list[tuple[bytes, bytes]]:
    """Pair paths one to one, the most alike first."""
    if len(sources) == len(targets) == 1 and not same_name:
        return [(sources[0], targets[0])]
    if len(sources) * len(targets) > _MAX_TIED_PAIRS:
        return _closest_names_of_many(sources, targets, same_name=same_name)
    ranked = sorted(
        (_unlikeness(source, target), source, target)
        for source in sources
        for target in targets
        if not same_name or _name(source) == _name(target)
    )
    return [(source, target) for _, source, target in _take(ranked)]


def _closest_names_of_many(sources: list[bytes], targets: list[bytes], *, same_name: bool) -> list[tuple[bytes, bytes]]:
    """As `_closest_names`, without looking at every pair: same last names in the order of the paths, then the rest."""
    waiting: dict[bytes, list[bytes]] = defaultdict(list)
    for source in sorted(sources, reverse=True):
        waiting[_name(source)].append(source)
    pairs: list[tuple[bytes, bytes]] = []
    unpaired: list[bytes] = []
    for target in sorted(targets):
        candidates = waiting.get(_name(target))
        if candidates:
            pairs.append((candidates.pop(), target))
        else:
            unpaired.append(target)
    if not same_name:
        pairs += zip(sorted(path for paths in waiting.values() for path in paths), unpaired, strict=False)
    return pairs


def _unlikeness(source: bytes, target: bytes) -> tuple[int, int, int]:
    """Smaller for paths that are more alike: the last name, then the parts shared at the end, then at the start."""
    before, after = source.split(b"/"), target.split(b"/")
    return (int(before[-1] != after[-1]), -_common(before[::-1], after[::-1]), -_common(before, after))


def _common(one: list[bytes], other: list[bytes]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _take(ranked: Iterable[tuple[_Rank, bytes, bytes]]) -> Iterable[tuple[_Rank, bytes, bytes]]:
    """The pairs of ``ranked`` whose source and target no earlier pair has taken."""
    sources: set[bytes] = set()
    targets: set[bytes] = set()
    for rank, source, target in ranked:
        if source not in sources and target not in targets:
            sources.add(source)
            targets.add(target)
            yield rank, source, target


def _similar_content(
    sources: dict[bytes, Entry], targets: dict[bytes, Entry], read: Read
) -> list[tuple[bytes, bytes, int]]:
    by_name = _unique_names(sources, targets)
    # Unique names first, so that the limit on reading drops the less likely pairs.
    first = dict.fromkeys(path for pair in by_name for path in pair)
    order = [*first, *(path for path in sorted((*sources, *targets)) if path not in first)]
    chunks: dict[bytes, dict[int, int]] = {}
    budget = MAX_READ_BYTES
    wanted: list[bytes] = []
    for path in order:
        budget -= (sources.get(path) or targets[path]).size
        if budget < 0:
            break
        wanted.append(path)
    entries = [sources.get(path) or targets[path] for path in wanted]
    for path, data in zip(wanted, read(entries), strict=True):
        if data is not None:
            chunks[path] = _chunks(data)

    found: list[tuple[bytes, bytes, int]] = []
    for source, target in by_name:
        if source in chunks and target in chunks:
            score = _percent(_shared(chunks[source], chunks[target]), sources[source].size, targets[target].size)
            if score >= MINIMUM_SIMILARITY:
                found.append((source, target, score))
    taken = {path for source, target, _ in found for path in (source, target)}
    found += _best_pairs(
        {path: entry.size for path, entry in sources.items() if path in chunks and path not in taken},
        {path: entry.size for path, entry in targets.items() if path in chunks and path not in taken},
        chunks,
    )
    return found


def _unique_names(sources: Iterable[bytes], targets: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    def unique(paths: Iterable[bytes]) -> dict[bytes, bytes]:
        names: dict[bytes, list[bytes]] = defaultdict(list)
        for path in paths:
            names[_name(path)].append(path)
        return {name: paths[0] for name, paths in names.items() if len(paths) == 1}

    before, after = unique(sources), unique(targets)
    return sorted((before[name], after[name]) for name in before.keys() & after.keys())


def _best_pairs(
    sources: dict[bytes, int], targets: dict[bytes, int], chunks: dict[bytes, dict[int, int]]
) -> list[tuple[bytes, bytes, int]]:
    """Pairs that are alike enough, best first, each path once.

    It examines the chunks that a target shares with sources, rare ones first. If that takes too many steps, only two
    groups of sources are compared in full: those that share the most examined chunks, and those of the target's name
    with the most similar paths.
    """
    holders: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    named: dict[bytes, list[bytes]] = defaultdict(list)
    for source in sorted(sources):
        named[_name(source)].append(source)
        for chunk, count in chunks[source].items():
            holders[chunk].append((source, count))
    steps = _MAX_STEPS // max(len(targets), 1)
    ranked: list[tuple[tuple[int, tuple[int, int, int]], bytes, bytes]] = []
    for target in sorted(targets):
        shared, complete = _shared_with(holders, chunks[target], steps)
        if not complete:
            likely = nsmallest(_CANDIDATES, shared, key=lambda source: (-shared[source], source))
            likely += nsmallest(
                _CANDIDATES, named.get(_name(target), ()), key=lambda source: _unlikeness(source, target)
            )
            shared = {source: _shared(chunks[source], chunks[target]) for source in likely}
        for source, common in shared.items():
            score = _percent(common, sources[source], targets[target])
            if score >= MINIMUM_SIMILARITY:
                ranked.append(((-score, _unlikeness(source, target)), source, target))
    ranked.sort()
    return [(source, target, -rank[0]) for rank, source, target in _take(ranked)]


def _shared_with(
    holders: dict[int, list[tuple[bytes, int]]], chunks: dict[int, int], steps: int
) -> tuple[dict[bytes, int], bool]:
    """How many bytes each source shares with a target, and whether that is all of them or the ``steps`` ran out."""
    common = sorted((chunk for chunk in chunks if chunk in holders), key=lambda chunk: (len(holders[chunk]), chunk))
    shared: dict[bytes, int] = defaultdict(int)
    for chunk in common:
        steps -= len(holders[chunk])
        if steps < 0:
            return shared, False
        count = chunks[chunk]
        for source, other in holders[chunk]:
            shared[source] += min(count, other)
    return shared, True


def _percent(shared: int, before: int, after: int) -> int:
    return min(shared * 100 // max(before, after, 1), 99)


def _shared(one: dict[int, int], other: dict[int, int]) -> int:
    if len(one) > len(other):
        one, other = other, one
    return sum(min(count, other[chunk]) for chunk, count in one.items() if chunk in other)


def _chunks(data: bytes) -> dict[int, int]:
    """Checksum of each chunk → how many bytes of ``data`` are such chunks; a CR before a line end is ignored."""
    counts: dict[int, int] = defaultdict(int)
    lines = data.split(b"\n")
    last = lines.pop()
    for line in [line.removesuffix(b"\r") + b"\n" for line in lines] + [last]:
        if len(line) <= _CHUNK:
            counts[zlib.crc32(line)] += len(line)
        else:
            for at in range(0, len(line), _CHUNK):
                piece = line[at : at + _CHUNK]
                counts[zlib.crc32(piece)] += len(piece)
    return counts

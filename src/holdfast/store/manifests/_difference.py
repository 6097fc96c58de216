"""How two manifests differ, found without reading a page that both have."""

from __future__ import annotations

from itertools import compress
from operator import itemgetter, ne

from holdfast.model.entries import Change
from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, cast
from holdfast.store.codecs.columns import check_foreign_paths
from holdfast.store.manifests._reader import batches, key_range, load
from holdfast.store.manifests.page_codec import MAX_ITEMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.manifests._reader import PageSource
    from holdfast.store.manifests.page_codec import Inner, Leaf, Page


class _Node(NamedTuple):
    """A page that only one side has."""

    key: bytes
    page: Page
    next: bytes | None
    """The key of the page that follows on its level; None after the last."""


def diff(pages: PageSource, a: Hash | None, b: Hash | None, prefix: bytes = b"") -> list[Change]:
    """The changes that lead from manifest ``a`` to manifest ``b``, sorted by path; None is a manifest with nothing.

    With ``prefix`` only those at or below this path. Shared pages are not read, so the cost depends on the differences.
    Raises the errors of ``pages``, and `FormatError`.
    """
    if a == b:
        return []
    before, after = _top(pages, a), _top(pages, b)
    while before and after and before[0].page.level != after[0].page.level:
        # A page can be shared only with one of its own level.
        if before[0].page.level > after[0].page.level:
            before = _descend(pages, before, frozenset(), prefix)
        else:
            after = _descend(pages, after, frozenset(), prefix)
    while (before and before[0].page.level) or (after and after[0].page.level):
        shared = _hashes(before) & _hashes(after)
        before, after = _descend(pages, before, shared, prefix), _descend(pages, after, shared, prefix)
    changes = _compare(before, after)
    if prefix:
        below = prefix + b"/"
        changes = [change for change in changes if change[0].startswith(below) or change[0] == prefix]
    # These paths are about to be acted upon, and the pages that hold them were decoded with trust.
    check_foreign_paths([change[0] for change in changes])
    return changes


def _top(pages: PageSource, root: Hash | None) -> list[_Node]:
    if root is None:
        return []
    page = load(pages, [root])[0]
    return [_Node(page.keys[0] if page.keys else b"", page, None)]


def _hashes(nodes: list[_Node]) -> frozenset[Hash]:
    return frozenset(name for node in nodes for name in cast("Inner", node.page).hashes)


def _descend(pages: PageSource, nodes: list[_Node], shared: frozenset[Hash], prefix: bytes) -> list[_Node]:
    """The children of ``nodes`` that are not ``shared`` and may contain ``prefix`` or paths below it."""
    begin, end = key_range(prefix)
    below: list[tuple[bytes, bytes | None, Hash]] = []
    level = 0
    for node in nodes:
        page = cast("Inner", node.page)
        level = page.level - 1
        keys = page.keys
        below += [
            (key, after, name)
            for key, after, name in zip(keys, [*keys[1:], node.next], page.hashes, strict=True)
            if name not in shared and (after is None or after > begin) and (end is None or key < end)
        ]
    if len({name for _, _, name in below}) < len(below):
        # A page cannot be in two places, as its paths cannot. Unchecked, a few pages could stand for an endless tree.
        raise FormatError("page: field 'hashes': one page in two places of a manifest")
    found: list[_Node] = []
    for some in batches(below):
        loaded = load(pages, [name for _, _, name in some], level)
        found += [_Node(key, page, after) for (key, after, _), page in zip(some, loaded, strict=True)]
    return found


def _compare(before: list[_Node], after: list[_Node]) -> list[Change]:
    """How the entries of two lists of leaves differ."""
    changes: list[Change] = []
    old_rows: dict[bytes, Entry] = {}
    new_rows: dict[bytes, Entry] = {}
    # Most leaves have a partner with nearly the same paths: there the columns alone tell what differs.
    partners = {node.key: cast("Leaf", node.page) for node in after}
    for node in before:
        old = cast("Leaf", node.page)
        new = partners.pop(node.key, None)
        if new is None:
            _add_rows(old_rows, old)
            continue
        head, tail = _common_ends(old, new)
        for old_at, new_at in _differing(old, new, head, tail):
            changes.append(Change(old.key(old_at), old.entry(old_at), new.entry(new_at)))
        if head + tail < old.count:
            _add_rows(old_rows, old, head, old.count - tail)
        if head + tail < new.count:
            _add_rows(new_rows, new, head, new.count - tail)
    for new in partners.values():
        _add_rows(new_rows, new)
    for path, entry in new_rows.items():
        known = old_rows.pop(path, None)
        if known != entry:
            changes.append(Change(path, known, entry))
    changes += [Change(path, entry, None) for path, entry in old_rows.items()]
    changes.sort(key=itemgetter(0))
    return changes


def _add_rows(rows: dict[bytes, Entry], leaf: Leaf, begin: int = 0, end: int = MAX_ITEMS) -> None:
    rows.update(zip(leaf.keys[begin:end], leaf.entries(begin, end), strict=True))


def _common_ends(old: Leaf, new: Leaf) -> tuple[int, int]:
    """How many paths two leaves share at their beginnings, and how many more at their ends."""
    if old.prefix == new.prefix and old.rest == new.rest:
        return old.count, 0
    head = _common_length(old.keys, new.keys)
    return head, _common_length(old.keys[head:][::-1], new.keys[head:][::-1])


def _common_length(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _differing(old: Leaf, new: Leaf, head: int, tail: int) -> list[tuple[int, int]]:
    """The indices of the entries that differ, among those whose paths both leaves have at their ends."""
    found: set[int] = set()
    shift = new.count - old.count
    if old.hashes != new.hashes:
        spans = [(0, head, 0), (old.count - tail, old.count, shift)]
        while spans:
            begin, end, by = spans.pop()
            if old.hashes[begin * 16 : end * 16] == new.hashes[(begin + by) * 16 : (end + by) * 16]:
                continue
            if end - begin == 1:
                found.add(begin)
            else:
                middle = (begin + end) // 2
                spans += ((begin, middle, by), (middle, end, by))
    columns = [(old.sizes, new.sizes)]
    if shift or old.runs != new.runs:
        columns.append((old.modes, new.modes))
    for these, others in columns:
        if these != others:
            found.update(compress(range(head), map(ne, these[:head], others)))
            last = old.count - tail
            found.update(compress(range(last, old.count), map(ne, these[last:], others[last + shift :])))
    return [(at, at if at < head else at + shift) for at in sorted(found)]

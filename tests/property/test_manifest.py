"""A manifest is a function of its entries alone, whatever the history, and reads back what went in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.model.entries import Change, Entry, file_entry, symlink_entry
from holdfast.model.errors import FormatError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.model.paths import under
from holdfast.store.codecs.changeset import decode_changeset, encode_changeset
from holdfast.store.manifests import manifest

from ..sampling import examples

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryPages(dict[Hash, bytes]):
    """Pages in a dictionary, counting what is read."""

    reads = 0

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        self.reads += len(hashes)
        return [self[name] for name in hashes]


NAMES = st.sampled_from([b"a", b"a-", b"a.b", b"b", b"c", b"\xff", b"dir", b"z" * 200])
PATHS = st.builds(b"/".join, st.lists(NAMES, min_size=1, max_size=4)) | st.builds(
    lambda number, folder: b"%s/f%05d" % (folder, number),
    st.integers(0, 3000),
    NAMES,
)
ENTRIES = st.builds(
    lambda seed, mode: file_entry(hash_bytes(b"%d" % seed), seed, mode),
    st.integers(0, 9),
    st.sampled_from([0o644, 0o755]),
) | st.builds(lambda seed: symlink_entry(hash_bytes(b"%d" % seed), seed), st.integers(0, 9))
CHANGES = st.dictionaries(PATHS, st.none() | ENTRIES, max_size=12)


def _base(count: int, seed: int) -> dict[bytes, Entry]:
    return {
        b"src/%02d/file-%05d" % ((number * seed) % 11, number): file_entry(hash_bytes(b"%d" % number), number, 0o644)
        for number in range(count)
    }


def _conflicts(entries: dict[bytes, Entry]) -> bool:
    return any(path[:at] in entries for path in entries for at in range(len(path)) if path[at : at + 1] == b"/")


@settings(
    max_examples=examples(150, 50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    st.integers(0, 1500),
    st.integers(1, 20),
    st.lists(
        st.tuples(CHANGES, st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 400)), max_size=2)), max_size=4
    ),
)
def test_updates_lead_where_building_leads(
    count: int, seed: int, steps: list[tuple[dict[bytes, Entry | None], list[tuple[int, int]]]]
) -> None:
    entries = _base(count, seed)
    pages = MemoryPages()
    built = manifest.build(sorted(entries.items()))
    pages.update(built.new_pages)
    root = built.root
    for few, removals in steps:
        changes: dict[bytes, Entry | None] = dict(few)
        names = sorted(entries)
        for begin, length in removals:
            changes.update(dict.fromkeys(names[begin : begin + length]))
        after = {**entries, **{path: entry for path, entry in changes.items() if entry is not None}}
        for path, entry in changes.items():
            if entry is None:
                after.pop(path, None)
        if _conflicts(after):
            with pytest.raises(FormatError, match="both a file and the directory"):
                manifest.update(pages, root, changes)
            continue
        updated = manifest.update(pages, root, changes)
        expected = manifest.build(sorted(after.items()))
        assert updated.root == expected.root
        assert (updated.files, updated.bytes) == (len(after), sum(entry.size for entry in after.values()))
        assert updated.new_pages.items() <= expected.new_pages.items()
        assert set(expected.new_pages) <= set(pages) | set(updated.new_pages)
        assert updated.previous.keys() <= updated.new_pages.keys()
        assert set(updated.previous.values()) <= set(pages)
        before = dict(entries)
        pages.update(updated.new_pages)
        changed = manifest.diff(pages, root, updated.root)
        assert changed == _changes(before, after)
        assert decode_changeset(encode_changeset(changed)) == changed
        entries, root = after, updated.root
    assert list(manifest.iterate(pages, root)) == sorted(entries.items())
    assert manifest.totals(pages, root) == (len(entries), sum(entry.size for entry in entries.values()))
    manifest.check(pages, root)


def _changes(before: dict[bytes, Entry], after: dict[bytes, Entry]) -> list[Change]:
    return [
        Change(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


@settings(max_examples=examples(60, 30), deadline=None)
@given(
    st.integers(0, 600),
    st.integers(0, 600),
    st.sampled_from([b"", b"src", b"src/03", b"src/03/file-00003", b"sr", b"z"]),
)
def test_diff_of_any_two_heights_and_prefixes(count: int, other: int, prefix: bytes) -> None:
    before, after = _base(count * count // 100, 7), _base(other, 7) | {b"src/03-": symlink_entry(hash_bytes(b"t"), 1)}
    pages = MemoryPages()
    roots: list[Hash] = []
    for entries in (before, after):
        built = manifest.build(sorted(entries.items()))
        pages.update(built.new_pages)
        roots.append(built.root)
    expected = [change for change in _changes(before, after) if under(change.path, prefix)]
    assert manifest.diff(pages, roots[0], roots[1], prefix) == expected
    within = [(path, entry) for path, entry in sorted(before.items()) if under(path, prefix)]
    assert list(manifest.iterate(pages, roots[0], prefix)) == within
    assert manifest.diff(pages, None, roots[0], prefix) == [Change(path, None, entry) for path, entry in within]
    assert manifest.diff(pages, roots[0], None, prefix) == [Change(path, entry, None) for path, entry in within]
    wanted = [*list(before)[::7], b"src", b"absent", b"\0"]
    assert manifest.get_many(pages, roots[0], wanted) == {path: before[path] for path in wanted if path in before}
    assert all(manifest.get(pages, roots[0], path) == before.get(path) for path in wanted[-20:])


@settings(max_examples=examples(60, 30), deadline=None)
@given(st.integers(0, 1500), st.sampled_from([b"", b"src", b"src/03", b"src/0"]), st.integers(0, 1600), st.booleans())
def test_a_list_goes_on_behind_any_path(count: int, prefix: bytes, at: int, exact: bool) -> None:
    entries = _base(count, 7)
    after = b"src/%02d/file-%05d" % ((at * 7) % 11, at) + (b"" if exact else b"x")
    pages = MemoryPages()
    built = manifest.build(sorted(entries.items()))
    pages.update(built.new_pages)
    expected = [(path, entry) for path, entry in sorted(entries.items()) if under(path, prefix) and path > after]
    assert list(manifest.iterate(pages, built.root, prefix, after=after)) == expected

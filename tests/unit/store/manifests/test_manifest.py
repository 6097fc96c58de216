"""The tree of pages: where pages are cut, what is read, what an update touches, which foreign manifest is refused."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from holdfast.model.entries import Entry, file_entry
from holdfast.model.errors import EscapeError, FormatError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.manifests import manifest
from holdfast.store.manifests.builder import cut
from holdfast.store.manifests.page_codec import (
    MAX_ITEMS,
    MAX_PATH_BYTES,
    Child,
    Inner,
    Leaf,
    decode_page,
    encode_inner,
    encode_leaf,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class MemoryPages(dict[Hash, bytes]):
    """Pages in a dictionary, noting what is read."""

    def __init__(self, *built: manifest.BuiltManifest) -> None:
        super().__init__()
        self.log: list[Hash] = []
        for one in built:
            self.update(one.new_pages)

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        self.log += hashes
        return [self[name] for name in hashes]


def entry(seed: object, size: int = 3, permissions: int = 0o644) -> Entry:
    return file_entry(hash_bytes(repr(seed).encode()), size, permissions)


def tree(paths: Iterable[bytes]) -> dict[bytes, Entry]:
    return {path: entry(path) for path in paths}


def build(entries: dict[bytes, Entry]) -> manifest.BuiltManifest:
    return manifest.build(sorted(entries.items()))


SEQUENTIAL = tree(b"src/module%03d/file%05d.py" % (number // 50, number) for number in range(20_000))


@pytest.fixture(scope="module")
def sequential() -> manifest.BuiltManifest:
    return build(SEQUENTIAL)


def test_the_empty_manifest_is_a_leaf_with_nothing() -> None:
    built = manifest.build([])
    assert built == (manifest.EMPTY_ROOT, {manifest.EMPTY_ROOT: manifest.EMPTY_PAGE}, 0, 0, {})
    assert encode_leaf([], []) == manifest.EMPTY_PAGE
    pages = MemoryPages(built)
    assert list(manifest.iterate(pages, built.root)) == []
    assert manifest.totals(pages, built.root) == (0, 0)
    assert manifest.get(pages, built.root, b"a") is None
    assert manifest.diff(pages, None, built.root) == []
    assert list(manifest.reachable(pages, built.root, lambda _: False)) == [(built.root, 0, [])]
    manifest.check(pages, built.root)


def test_leaves_of_sequential_names_have_about_64_entries(sequential: manifest.BuiltManifest) -> None:
    pages = [decode_page(data) for data in sequential.new_pages.values()]
    leaves = [page for page in pages if isinstance(page, Leaf)]
    assert 45 < len(SEQUENTIAL) / len(leaves) < 90
    assert max(page.count for page in leaves) <= MAX_ITEMS
    inner = [page for page in pages if page.level == 1]
    assert 20 < len(leaves) / len(inner) < 200
    assert sequential.files == len(SEQUENTIAL)
    assert sequential.bytes == 3 * len(SEQUENTIAL)


def test_pages_begin_where_the_documented_bits_of_the_crc_are_zero() -> None:
    keys = sorted(SEQUENTIAL)[:2000]
    natural = {at for at, key in enumerate(keys) if crc32(key) & 0b111111 == 0} | {0}
    assert natural <= set(cut(keys, 0))
    natural = {at for at, key in enumerate(keys) if crc32(key) >> 6 & 0b111111 == 0} | {0}
    assert natural <= set(cut(keys, 1))
    assert cut([], 0) == []
    assert cut(keys[:300], 15) == [0, 256]


@pytest.mark.parametrize("length", [20, 3000])
def test_updates_agree_with_building_where_only_full_pages_end(length: int) -> None:
    candidates = (b"%0*d" % (250, number) for number in range(4000))
    names = [name for name in candidates if crc32(name) & 63]
    if length > 250:
        names = [b"/".join([b"d" * 250] * (length // 251) + [name]) for name in names[:300]]
        names = [name for name in names if crc32(name) & 63]
    rnd = random.Random(length)
    entries = tree(rnd.sample(names, len(names) * 9 // 10))
    built = build(entries)
    pages = MemoryPages(built)
    sizes = [page for data in built.new_pages.values() if isinstance(page := decode_page(data), Leaf)]
    assert any(page.count == MAX_ITEMS or sum(map(len, page.keys)) > MAX_PATH_BYTES * 0.9 for page in sizes)
    root = built.root
    for _ in range(12):
        changes: dict[bytes, Entry | None] = {}
        for name in rnd.sample(names, rnd.choice([1, 2, 5])):
            changes[name] = None if name in entries and rnd.random() < 0.6 else entry(rnd.random())
        updated = manifest.update(pages, root, changes)
        entries = {path: kept for path, kept in {**entries, **changes}.items() if kept is not None}
        assert updated.root == build(entries).root
        pages.update(updated.new_pages)
        root = updated.root
    manifest.check(pages, root)


def test_an_edit_reads_and_makes_one_page_of_each_level(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    path = sorted(SEQUENTIAL)[7777]
    updated = manifest.update(pages, sequential.root, {path: entry("other", 10)})
    height = decode_page(pages[sequential.root]).level + 1
    assert height >= 2
    assert len(updated.new_pages) == len(pages.log) == height
    assert set(updated.previous) == set(updated.new_pages)
    assert set(updated.previous.values()) == set(pages.log)
    assert (updated.files, updated.bytes) == (sequential.files, sequential.bytes + 7)


def test_a_change_that_changes_nothing_makes_nothing(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    path = sorted(SEQUENTIAL)[100]
    for changes in ({}, {path: SEQUENTIAL[path]}, {b"absent": None}):
        updated = manifest.update(pages, sequential.root, changes)
        assert updated == (sequential.root, {}, sequential.files, sequential.bytes, {})


def test_removing_all_and_putting_it_back(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    emptied = manifest.update(pages, sequential.root, dict.fromkeys(SEQUENTIAL))
    assert (emptied.root, emptied.files, emptied.bytes) == (manifest.EMPTY_ROOT, 0, 0)
    pages.update(emptied.new_pages)
    assert manifest.update(pages, emptied.root, SEQUENTIAL).root == sequential.root


def test_a_diff_reads_no_page_that_both_have(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    names = sorted(SEQUENTIAL)
    changes: dict[bytes, Entry | None] = {
        names[5]: None,
        names[9000] + b"~": entry("new"),
        names[15_000]: entry("edit"),
    }
    updated = manifest.update(pages, sequential.root, changes)
    pages.update(updated.new_pages)
    ours = {reached.page for reached in manifest.reachable(pages, sequential.root, lambda _: False)}
    theirs = {reached.page for reached in manifest.reachable(pages, updated.root, lambda _: False)}
    pages.log.clear()
    changed = manifest.diff(pages, sequential.root, updated.root)
    assert [(change.path, change.status) for change in changed] == [
        (names[5], "D"),
        (names[9000] + b"~", "A"),
        (names[15_000], "M"),
    ]
    assert set(pages.log) == ours ^ theirs
    assert len(pages.log) == len(set(pages.log))
    pages.log.clear()
    assert manifest.diff(pages, updated.root, updated.root) == []
    assert pages.log == []


def test_a_change_of_permissions_alone_is_found(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    path = sorted(SEQUENTIAL)[4321]
    changed = SEQUENTIAL[path]._replace(mode=0o100755)
    updated = manifest.update(pages, sequential.root, {path: changed})
    pages.update(updated.new_pages)
    assert manifest.diff(pages, sequential.root, updated.root) == [(path, SEQUENTIAL[path], changed)]


def test_totals_read_the_root_alone(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    assert manifest.totals(pages, sequential.root) == (sequential.files, sequential.bytes)
    assert pages.log == [sequential.root]


def test_iterating_a_prefix_reads_what_holds_it(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    found = [path for path, _ in manifest.iterate(pages, sequential.root, b"src/module007")]
    assert found == sorted(path for path in SEQUENTIAL if path.startswith(b"src/module007/"))
    assert len(pages.log) < 12


def test_reachable_asks_once_and_skips_what_is_below(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    seen: set[Hash] = set()

    def skip(name: Hash) -> bool:
        if name in seen:
            return True
        seen.add(name)
        return False

    reached = list(manifest.reachable(pages, sequential.root, skip))
    assert {one.page for one in reached} == set(sequential.new_pages)
    contents = {child for one in reached if not one.level for child in one.children}
    assert contents == {one.hash for one in SEQUENTIAL.values()}
    updated = manifest.update(pages, sequential.root, {sorted(SEQUENTIAL)[3]: entry("x")})
    pages.update(updated.new_pages)
    assert {one.page for one in manifest.reachable(pages, updated.root, skip)} == set(updated.new_pages)


def test_an_update_goes_on_from_the_pages_that_the_one_before_has_made(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    cached = manifest.PageCache(pages)
    paths = sorted(SEQUENTIAL)
    expected, root = dict(SEQUENTIAL), sequential.root
    for turn in range(12):
        # Changed in one place, by turns with one removed and one added, which cuts the pages anew.
        changes: dict[bytes, Entry | None] = {paths[700]: entry(turn)}
        if turn % 3 == 1:
            changes |= {paths[710 + turn]: None, paths[720 + turn] + b"+": entry(turn)}
        built = manifest.update(cached, root, changes)
        for path, after in changes.items():
            if after is None:
                del expected[path]
            else:
                expected[path] = after
        root = built.root
        pages.update(built.new_pages)
        pages.log.clear()
        made = cached.load(list(built.new_pages))
        assert not pages.log
        assert [page.keys for page in made] == [decode_page(data).keys for data in built.new_pages.values()]
    assert root == build(expected).root


def test_cached_pages_are_read_once_and_only_so_many_are_kept(sequential: manifest.BuiltManifest) -> None:
    pages = MemoryPages(sequential)
    cached = manifest.PageCache(pages, limit=3)
    path = sorted(SEQUENTIAL)[50]
    assert (
        manifest.get(cached, sequential.root, path) == manifest.get(cached, sequential.root, path) == SEQUENTIAL[path]
    )
    height = decode_page(pages[sequential.root]).level + 1
    assert len(pages.log) == height
    assert dict(manifest.iterate(cached, sequential.root)) == SEQUENTIAL
    pages.log.clear()
    manifest.get(cached, sequential.root, path)
    assert len(pages.log) == height
    assert cached.read([sequential.root]) == [pages[sequential.root]]


@pytest.mark.parametrize(
    "path", [b"", b"/a", b"a/../b", b".git/config", b"a\0b", b"a//b", b"./a", b"x" * 256, b"a/.holdfast"]
)
def test_a_path_that_no_workspace_holds_is_refused(path: bytes) -> None:
    with pytest.raises(EscapeError):
        manifest.build([(path, entry(1))])
    built = build(tree([b"b"]))
    with pytest.raises(EscapeError):
        manifest.update(MemoryPages(built), built.root, {path: entry(1)})


def test_entries_out_of_order_are_refused_wherever_they_meet() -> None:
    names = sorted(SEQUENTIAL)
    for at in (0, 100, 5000, 19_000):
        wrong = [*names[: at + 1], names[at], *names[at + 1 :]]
        with pytest.raises(FormatError, match="ascending"):
            manifest.build((name, SEQUENTIAL[name]) for name in wrong)


@pytest.mark.parametrize("between", [0, 5, 3000])
def test_a_file_that_is_also_a_directory_is_refused(between: int) -> None:
    paths = [b"lib", *(b"lib-%05d" % number for number in range(between)), b"lib/module"]
    with pytest.raises(FormatError, match="'lib' is both a file and the directory of 'lib/module'"):
        build(tree(paths))
    for added, there in ((b"lib", paths[1:]), (b"lib/module", paths[:-1])):
        built = build(tree(there))
        pages = MemoryPages(built)
        with pytest.raises(FormatError, match="both a file and the directory"):
            manifest.update(pages, built.root, {added: entry(1)})
    built = build(tree(paths[:-1]))
    replaced = manifest.update(MemoryPages(built), built.root, {b"lib": None, b"lib/module": entry(1)})
    assert replaced.files == between + 1


def _forge(pages: MemoryPages, data: bytes) -> Hash:
    name = hash_bytes(data)
    pages[name] = data
    return name


def test_check_refuses_a_manifest_that_is_cut_elsewhere() -> None:
    entries = sorted(tree(b"f%02d" % number for number in range(40)).items())
    pages = MemoryPages()
    children: list[Child] = []
    keys: list[bytes] = []
    for half in (entries[:17], entries[17:]):
        paths, values = [path for path, _ in half], [value for _, value in half]
        keys.append(paths[0])
        children.append(Child(_forge(pages, encode_leaf(paths, values)), len(half), 3 * len(half)))
    root = _forge(pages, encode_inner(1, keys, children))
    assert dict(manifest.iterate(pages, root)) == dict(entries)
    with pytest.raises(FormatError, match="other pages"):
        manifest.check(pages, root)


def test_a_page_that_stands_in_many_places_is_refused() -> None:
    """I12: a few pages that stand for an endless manifest are refused before they unfold."""
    pages = MemoryPages()
    name = _forge(pages, encode_leaf([b"a"], [entry(1)]))
    files = 1
    for level in range(1, 12):
        keys = [b"a%03d" % number for number in range(200)]
        name = _forge(pages, encode_inner(level, [b"a", *keys], [Child(name, files, files)] * 201))
        files *= 201
        if files > 1 << 40:
            break
    small = build(tree([b"b"]))
    pages.update(small.new_pages)
    pages.log.clear()
    with pytest.raises(FormatError):
        manifest.check(pages, name)
    assert len(pages.log) < 3000
    for a, b in ((name, small.root), (small.root, name), (None, name)):
        with pytest.raises(FormatError, match="two places"):
            manifest.diff(pages, a, b)
    assert len(list(manifest.reachable(pages, name, lambda _: False))) == decode_page(pages[name]).level + 1


def test_check_refuses_counts_and_levels_that_are_not_so() -> None:
    pages = MemoryPages()
    leaf = _forge(pages, encode_leaf([b"a", b"b"], [entry(1), entry(2)]))
    wrong_count = _forge(pages, encode_inner(1, [b"a"], [Child(leaf, 3, 6)]))
    with pytest.raises(FormatError, match="files"):
        manifest.check(pages, wrong_count)
    wrong_level = _forge(pages, encode_inner(2, [b"a"], [Child(leaf, 2, 6)]))
    with pytest.raises(FormatError, match="level"):
        manifest.check(pages, wrong_level)
    wrong_key = _forge(pages, encode_inner(1, [b"0"], [Child(leaf, 2, 6)]))
    with pytest.raises(FormatError, match="page above"):
        manifest.check(pages, wrong_key)
    overlapping = _forge(pages, encode_inner(1, [b"a", b"aa"], [Child(leaf, 2, 6), Child(leaf, 2, 6)]))
    with pytest.raises(FormatError, match="beyond the key"):
        manifest.check(pages, overlapping)
    only = _forge(pages, encode_inner(1, [b"a"], [Child(leaf, 2, 6)]))
    assert isinstance(decode_page(pages[only]), Inner)
    with pytest.raises(FormatError, match="other pages"):
        manifest.check(pages, only)

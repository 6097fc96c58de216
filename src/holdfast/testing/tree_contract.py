"""The contract of `Tree`: subclass `TreeContract` and give it a fixture named ``space``, an `EditableTree`."""

from __future__ import annotations

import random
import stat
from typing import TYPE_CHECKING

import pytest

from holdfast.files.tree import ApplyResult
from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES, whole
from holdfast.model.entries import SYMLINK_MODE, Change, Entry, NotCaptured
from holdfast.model.errors import EscapeError, IntegrityError, NotFoundError, StorageError
from holdfast.model.ids import Hash, hash_bytes
from holdfast.testing.trees import NONCE, MemorySink, Target, contents_of, file, go, link, plan, state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.model.content import Content
    from holdfast.testing.trees import EditableTree

HOSTILE = (b"../x", b"/x", b"a/../../x", b"a//b", b"", b".", b"a\0b", b".git/config", b"d/.holdfast/x", b"n" * 300)


class TreeContract:
    """The suite. The fixture ``space`` gives an `EditableTree` that is empty."""

    def test_a_scan_finds_everything_and_hands_over_its_content(self, space: EditableTree) -> None:
        big = b"0123456789abcdef" * ((SMALL_BLOB_BYTES >> 4) + 10)
        target: Target = {
            b"top": (file(b"top"), b"top"),
            b"d/run": (file(b"#!", 0o755), b"#!"),
            b"d/e/empty": (file(b""), b""),
            b"d/big": (file(big), big),
            b"d/secret": (file(b"s", 0o600), b"s"),
            b"d/link": (link(b"../nowhere"), b"../nowhere"),
            b"caf\xe9 \n\xff": (file(b"odd"), b"odd"),
        }
        for path, (entry, content) in target.items():
            if entry.is_symlink:
                space.symlink(path, content)
            else:
                space.write(path, content, entry.permissions)
        sink = MemorySink()
        scan = space.tree.scan(sink)
        assert scan.base is None
        assert scan.changes == {path: entry for path, (entry, _) in target.items()}
        assert scan.not_captured == []
        for entry, content in target.values():
            assert sink.blobs[entry.hash] == content
        for path, (_, content) in target.items():
            assert whole(space.tree.read(path)) == content

    def test_what_cannot_be_captured_is_listed_and_what_is_ignored_is_not(self, space: EditableTree) -> None:
        space.write(b"f", b"x")
        space.write(b"server.pid", b"1")
        space.mkdir(b"empty")
        for path in (b"z", b"a/fifo", b"m"):
            space.special(path)
        scan = space.tree.scan(MemorySink())
        assert scan.changes == {b"f": file(b"x")}
        assert [path for path, _ in scan.not_captured] == [b"a/fifo", b"m", b"z"]
        assert all(reason for _, reason in scan.not_captured)

    def test_every_kind_of_change_is_found(self, space: EditableTree) -> None:
        for name in (b"same", b"edited", b"chmod", b"gone", b"d/becomes-link", b"becomes-directory"):
            space.write(name, b"before " + name)
        base = Hash(b"0123456789abcdef")
        first = state(space.tree.scan(MemorySink()), {})
        space.tree.settle(base)
        space.write(b"edited", b"after! edited")
        space.chmod(b"chmod", 0o700)
        space.delete(b"gone")
        space.symlink(b"d/becomes-link", b"x")
        space.delete(b"becomes-directory")
        space.write(b"becomes-directory/f", b"f")
        space.write(b"fresh", b"fresh")

        def lookup(path: bytes) -> Entry | None:
            return first.get(path)

        sink = MemorySink()
        scan = space.tree.scan(sink, base=base, lookup=lookup)
        expected = {
            **first,
            b"edited": file(b"after! edited"),
            b"chmod": file(b"before chmod", 0o700),
            b"d/becomes-link": link(b"x"),
            b"becomes-directory/f": file(b"f"),
            b"fresh": file(b"fresh"),
        }
        del expected[b"gone"], expected[b"becomes-directory"]
        assert state(scan, first) == expected
        if scan.base is not None:
            assert set(scan.changes) == {path for path in {*first, *expected} if first.get(path) != expected.get(path)}
        assert sink.previous[expected[b"edited"].hash] == first[b"edited"].hash, "the version before is named"
        assert state(space.tree.scan(MemorySink()), {}) == expected, "in full, whatever was answered before"

    def test_a_settled_tree_has_no_changes(self, space: EditableTree) -> None:
        space.write(b"a", b"1")
        space.write(b"d/b", b"2")
        first = state(space.tree.scan(MemorySink()), {})
        space.tree.settle(Hash(b"0123456789abcdef"))
        again = space.tree.scan(MemorySink(), base=Hash(b"0123456789abcdef"))
        assert state(again, first) == first
        assert again.base is None or again.changes == {}
        other = space.tree.scan(MemorySink(), base=Hash(b"another manifest"))
        assert other.base is None, "nothing is known of that one"
        assert state(other, {}) == first

    def test_a_full_hash_reads_everything_again(self, space: EditableTree) -> None:
        for name in (b"a", b"b", b"d/c"):
            space.write(name, name)
        space.tree.scan(MemorySink())
        sink = MemorySink()
        scan = space.tree.scan(sink, full_hash=True)
        assert scan.files_read == 3
        assert set(sink.blobs) == {hash_bytes(name) for name in (b"a", b"b", b"d/c")}

    def test_a_scan_that_fails_forgets_nothing(self, space: EditableTree) -> None:
        space.write(b"a", b"a")
        space.write(b"b", b"b")
        sink = MemorySink()
        sink.error = StorageError("disk full")
        with pytest.raises(StorageError, match="disk full"):
            space.tree.scan(sink)
        again = MemorySink()
        assert state(space.tree.scan(again), {}) == {b"a": file(b"a"), b"b": file(b"b")}
        assert {*sink.blobs, *again.blobs} == {hash_bytes(b"a"), hash_bytes(b"b")}, "each came to one of the two"

    def test_reading_what_is_not_there_or_not_ours(self, space: EditableTree) -> None:
        space.symlink(b"link", b"..")
        space.write(b"f", b"x")
        space.special(b"fifo")
        for path in (b"missing", b"d/missing", b"f/inside"):
            with pytest.raises(NotFoundError):
                space.tree.read(path)
        for path in (*HOSTILE, b"link/x"):
            with pytest.raises(EscapeError):
                space.tree.read(path)
            assert not space.tree.is_there(path)
        assert space.tree.read(b"link") == b".."
        assert not space.tree.is_there(b"missing")
        assert all(space.tree.is_there(path) for path in (b"f", b"fifo", b"link"))
        space.mkdir(b"empty")
        space.write(b"d/f", b"x")
        for path in (b"empty", b"d"):
            assert not space.tree.is_there(path)
            assert space.tree.is_there(path, directories=True)
        assert not space.tree.is_there(b"missing", directories=True)

    def test_a_tree_goes_to_another_state_and_back(self, space: EditableTree) -> None:
        first: Target = {
            b"same": (file(b"same"), b"same"),
            b"edit": (file(b"1"), b"1"),
            b"mode": (file(b"m", 0o644), b"m"),
            b"gone/deep/er": (file(b"g"), b"g"),
            b"dir-file/x": (file(b"x"), b"x"),
            b"file-dir": (file(b"f"), b"f"),
            b"link-file": (link(b"same"), b"same"),
            b"dir-link/y": (file(b"y"), b"y"),
        }
        second: Target = {
            b"same": (file(b"same"), b"same"),
            b"edit": (file(b"22"), b"22"),
            b"mode": (file(b"m", 0o755), b"m"),
            b"dir-file": (file(b"now a file"), b"now a file"),
            b"file-dir/in/side": (file(b"i", 0o600), b"i"),
            b"link-file": (file(b"now a file"), b"now a file"),
            b"dir-link": (link(b"file-dir"), b"file-dir"),
            b"new/\xff": (file(b""), b""),
        }
        held: dict[bytes, Entry] = {}
        for target in (first, second, first, {}, second):
            applied = go(space, held, target)
            assert applied.skipped == []
            assert space.contents() == contents_of(target)
            entries = {path: entry for path, (entry, _) in target.items()}
            assert sorted(applied.deleted) == sorted(set(held) - set(entries))
            assert sorted(applied.written) == sorted(path for path in entries if entries[path] != held.get(path))
            space.tree.settle(Hash(b"0123456789abcdef"))
            scan = space.tree.scan(MemorySink(), base=Hash(b"0123456789abcdef"))
            assert state(scan, entries) == entries
            held = entries

    def test_i8_what_changed_since_the_scan_is_left_alone(self, space: EditableTree) -> None:
        for name in (b"edited", b"deleted", b"retyped", b"mode", b"drop", b"fine"):
            space.write(name, b"seen " + name)
        before = state(space.tree.scan(MemorySink()), {})
        space.write(b"edited", b"mine")
        space.write(b"drop", b"mine")
        space.delete(b"deleted")
        space.symlink(b"retyped", b"elsewhere")
        space.chmod(b"mode", 0o640)
        space.write(b"appeared", b"mine")
        mine = space.contents()
        names = (b"edited", b"deleted", b"retyped", b"mode", b"appeared", b"fine")
        target: Target = {name: (file(b"theirs"), b"theirs") for name in names}
        applied = go(space, before, target)
        assert applied.written == [b"fine"]
        assert applied.deleted == []
        assert {path for path, _ in applied.skipped} == {*names, b"drop"} - {b"fine"}
        assert all(reason for _, reason in applied.skipped)
        assert space.contents() == {**mine, b"fine": (file(b"").mode, b"theirs")}

    def test_i5_what_no_checkpoint_holds_is_never_touched(self, space: EditableTree) -> None:
        space.write(b"d/server.pid", b"1")
        space.write(b"d/f", b"f")
        space.write(b"x.pid", b"ignored")
        space.special(b"fifo")
        before = state(space.tree.scan(MemorySink()), {})
        target: Target = {name: (file(b"new"), b"new") for name in (b"d", b"x.pid", b"fifo", b"x.pid/inside", b"ok")}
        applied = go(space, before, target)
        assert applied.deleted == [b"d/f"]
        assert applied.written == [b"ok"]
        assert {path for path, _ in applied.skipped} == {b"d", b"x.pid", b"fifo", b"x.pid/inside"}
        regular = file(b"").mode
        assert space.contents() == {
            b"d/server.pid": (regular, b"1"),
            b"x.pid": (regular, b"ignored"),
            b"ok": (regular, b"new"),
        }
        assert [path for path, _ in space.tree.scan(MemorySink()).not_captured] == [b"fifo"]

    def test_an_empty_directory_gives_way(self, space: EditableTree) -> None:
        space.mkdir(b"d")
        space.mkdir(b"d/e/f")
        space.mkdir(b"d/g")
        before = state(space.tree.scan(MemorySink()), {})
        assert go(space, before, {b"d": (file(b"x"), b"x")}) == ApplyResult([b"d"], [], [])
        assert space.contents() == {b"d": (file(b"").mode, b"x")}

    def test_i3_repeating_a_call_changes_nothing_and_reports_the_same(self, space: EditableTree) -> None:
        space.write(b"edit", b"1")
        space.write(b"mode", b"m")
        space.write(b"gone/x", b"x")
        before = state(space.tree.scan(MemorySink()), {})
        target: Target = {
            b"edit": (file(b"2"), b"2"),
            b"mode": (file(b"m", 0o700), b"m"),
            b"new/f": (file(b"n"), b"n"),
            b"new/l": (link(b"f"), b"f"),
        }
        first = go(space, before, target)
        after = space.contents()
        assert space.tree.clean(NONCE) == (0, [])
        again = go(space, before, target)
        assert (sorted(again.written), again.deleted, again.skipped) == (sorted(first.written), [b"gone/x"], [])
        assert space.contents() == after == contents_of(target)

    @pytest.mark.parametrize("in_pieces", [False, True])
    def test_content_that_is_not_its_entrys_is_refused(self, space: EditableTree, *, in_pieces: bool) -> None:
        space.write(b"f", b"old")
        before = state(space.tree.scan(MemorySink()), {})
        for wrong in (b"new?", b"longer than that", b""):
            content: Content = iter([wrong[:1], wrong[1:]]) if in_pieces else wrong
            with pytest.raises(IntegrityError):
                space.tree.apply([], [(Change(b"f", before[b"f"], file(b"new!")), content)], nonce=NONCE)
        assert space.contents() == {b"f": (file(b"").mode, b"old")}
        assert space.tree.clean(NONCE) == (0, []), "nothing is left lying"

    def test_content_flows_in_pieces(self, space: EditableTree) -> None:
        big = random.Random(1).randbytes(3 * CHUNK_BYTES + 5)

        def pieces() -> Iterator[bytes]:
            for at in range(0, len(big), CHUNK_BYTES):
                yield big[at : at + CHUNK_BYTES]

        assert space.tree.apply([], [(Change(b"d/big", None, file(big)), pieces())], nonce=NONCE).written == [b"d/big"]
        assert whole(space.tree.read(b"d/big")) == big

    def test_i7_hostile_paths_are_refused_one_by_one(self, space: EditableTree) -> None:
        space.symlink(b"out", b"..")
        before = state(space.tree.scan(MemorySink()), {})
        hostile = (*HOSTILE, b"out/x", b"out/d/x")
        writes: list[tuple[Change, Content | None]] = [(Change(path, None, file(b"x")), b"x") for path in hostile]
        writes.append((Change(b"fine", None, file(b"x")), b"x"))
        deletes = [Change(path, file(b"x"), None) for path in HOSTILE]
        applied = space.tree.apply(deletes, writes, nonce=NONCE)
        assert applied.written == [b"fine"]
        assert applied.deleted == []
        assert sorted(path for path, _ in applied.skipped) == sorted((*HOSTILE, *hostile))
        assert state(space.tree.scan(MemorySink()), {}) == {**before, b"fine": file(b"x")}

    def test_i7_contradictions_are_refused_and_not_followed(self, space: EditableTree) -> None:
        writes: list[tuple[Change, Content | None]] = [
            (Change(b"l", None, link(b"..")), b".."),
            (Change(b"l/f", None, file(b"x")), b"x"),
            (Change(b"twice", None, file(b"1")), b"1"),
            (Change(b"twice", None, file(b"2")), b"2"),
        ]
        applied = space.tree.apply([], writes, nonce=NONCE)
        assert len(applied.written) == len(applied.skipped) == 2
        assert set(space.contents()) == set(applied.written)
        assert {path for path, _ in applied.skipped} <= {b"l", b"l/f", b"twice"}

    def test_progress_is_told(self, space: EditableTree) -> None:
        space.write(b"old", b"x")
        heard: list[tuple[str, int, int]] = []

        def hear(phase: str, done: int, total: int) -> None:
            heard.append((phase, done, total))

        before = state(space.tree.scan(MemorySink(), progress=hear), {})
        assert {phase for phase, _, _ in heard} <= {"scan"}
        heard.clear()
        deletes, writes = plan(before, {b"new": (file(b"x"), b"x")})
        space.tree.apply(deletes, writes, nonce=NONCE, progress=hear)
        assert {phase for phase, _, _ in heard} == {"delete", "write"}
        assert all(0 <= done <= total or not total for _, done, total in heard)

    @pytest.mark.parametrize("seed", range(6))
    def test_any_state_leads_to_any_other(self, space: EditableTree, seed: int) -> None:
        chance = random.Random(seed)
        held: dict[bytes, Entry] = {}
        for _ in range(8):
            target = _some_target(chance)
            skipped: list[NotCaptured] = go(space, held, target).skipped
            assert skipped == []
            assert space.contents() == contents_of(target)
            if chance.random() < 0.5:
                _edit(space, chance)
            held = state(space.tree.scan(MemorySink()), {})
            assert {path: (entry.mode, entry.hash) for path, entry in held.items()} == {
                path: (mode, hash_bytes(content)) for path, (mode, content) in space.contents().items()
            }


def _some_target(chance: random.Random) -> Target:
    """A random tree of few names, so that files, links and directories often take each other's place."""
    target: Target = {}
    for _ in range(chance.randrange(12)):
        path = b"/".join(chance.choice([b"a", b"b", b"c"]) for _ in range(chance.randrange(1, 4)))
        clash = any(other.startswith(path + b"/") or path.startswith(other + b"/") for other in target)
        if not clash:
            content = chance.choice([b"x", b"y", b"../a"])
            if chance.random() < 0.2:
                target[path] = (link(content), content)
            else:
                target[path] = (file(content, chance.choice([0o644, 0o755, 0o600])), content)
    return target


def _edit(space: EditableTree, chance: random.Random) -> None:
    for path, (mode, content) in list(space.contents().items()):
        match chance.randrange(5):
            case 0:
                space.delete(path)
            case 1 if stat.S_ISREG(mode):
                space.write(path, content + b"!", mode & 0o777)
            case 2 if mode != SYMLINK_MODE:
                space.chmod(path, 0o700)
            case 3:
                space.symlink(path, b"edited")
            case _:
                pass

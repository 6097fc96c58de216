"""Patches, counts and JSON: what `git apply` makes of our patch is exactly the target."""

from __future__ import annotations

import base64
import os
import random
import re
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.diffs import patch_text as textdiff
from holdfast.engine.diffs.git_patch import hunks, quote
from holdfast.engine.diffs.renames import detect
from holdfast.model.command_results import Diff
from holdfast.model.entries import Change, Entry, file_entry, symlink_entry
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs the program git")

Node = tuple[bytes, int | None]
"""Content and permissions; None for a symbolic link."""
Tree = dict[bytes, Node]


class Contents:
    """The content of everything that was ever made, and what of it was asked for."""

    def __init__(self) -> None:
        self.known: dict[bytes, bytes] = {}
        self.asked: list[Entry] = []

    def entry(self, node: Node) -> Entry:
        data, permissions = node
        digest = hash_bytes(data)
        self.known[digest] = data
        return symlink_entry(digest, len(data)) if permissions is None else file_entry(digest, len(data), permissions)

    def fetch(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        for entry in entries:
            self.asked.append(entry)
            yield self.known[entry.hash]

    def read(self, entries: Sequence[Entry]) -> list[bytes | None]:
        return list(self.fetch(entries))

    def diff(self, before: Tree, after: Tree, *, renames: bool = True) -> Diff:
        changes: list[Change] = []
        unchanged = 0
        for path in sorted(before.keys() | after.keys()):
            one = self.entry(before[path]) if path in before else None
            other = self.entry(after[path]) if path in after else None
            if one == other:
                unchanged += 1
            else:
                changes.append(Change(path, one, other))
        rest, renamed = detect(changes, self.read) if renames else (changes, [])
        return Diff(None, None, rest, renamed, unchanged)


def write_tree(root: Path, tree: Tree) -> None:
    for path, (data, permissions) in tree.items():
        full = os.fsencode(root) + b"/" + path
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if permissions is None:
            os.symlink(data, full)
        else:
            with open(full, "wb") as file:
                file.write(data)
            os.chmod(full, permissions)


def read_tree(root: Path) -> Tree:
    tree: Tree = {}
    top = os.fsencode(root)
    for folder, names, files in os.walk(top):
        for name in [*names, *files]:
            full = folder + b"/" + name
            mode = os.lstat(full).st_mode
            path = os.path.relpath(full, top)
            if stat.S_ISLNK(mode):
                tree[path] = (os.readlink(full), None)
            elif stat.S_ISREG(mode):
                with open(full, "rb") as file:
                    tree[path] = (file.read(), 0o755 if mode & 0o100 else 0o644)
    return tree


def git_apply(root: Path, patch: bytes, *options: str) -> None:
    if not patch:
        return
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CEILING_DIRECTORIES": str(root.parent)}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", *options, "-"],
        cwd=root,
        input=patch,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, (done.stderr, patch)


def both_ways(folder: Path, before: Tree, after: Tree, *, renames: bool = True, binary: bool = True) -> bytes:
    """Apply our patch to ``before`` and back again with -R; both must be exact."""
    contents = Contents()
    diff = contents.diff(before, after, renames=renames)
    patch = b"".join(textdiff.patch(diff, contents.fetch, binary=binary))
    folder.mkdir(parents=True, exist_ok=True)
    write_tree(folder, before)
    git_apply(folder, patch)
    assert read_tree(folder) == after, patch
    git_apply(folder, patch, "-R")
    assert read_tree(folder) == before, patch
    return patch


LINES = st.lists(
    st.sampled_from(
        [b"a\n", b"b\n", b"c\n", b"\n", b"}\n", b"  x = 1\r\n", b"\xff\xfe\n", b"- - -\n", b"no end", b"\\\n"]
    ),
    max_size=14,
)
NAMES = st.sampled_from(
    [
        b"a", b"b", b"plain.txt", b"with space", b" lead", b"trail ", b'quo"te', b"tab\there", b"new\nline",
        b"\xc3\xa9t\xc3\xa9",
        b"\xff\xfe", b"back\\slash", b"a b b", b"-dash", b"\x01\x7f", b"dev", b"null",
    ]
)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
FILE_CONTENT = LINES.map(b"".join) | st.binary(max_size=80)
TARGETS = st.sampled_from([b"missing", b"../elsewhere", b"two\nlines", b"../with space", b"\xff"])


def node(data: bytes, permissions: int | None = None) -> Node:
    return (data, permissions)


NODES = st.builds(node, FILE_CONTENT, st.sampled_from([0o644, 0o755])) | st.builds(node, TARGETS)


def without_clashes(tree: Tree) -> Tree:
    """``tree`` without the paths that need a directory where it has a file."""
    files = set(tree)
    return {
        path: node
        for path, node in tree.items()
        if not any(path[: at.start()] in files for at in re.finditer(b"/", path))
    }


TREES: st.SearchStrategy[Tree] = st.dictionaries(PATHS, NODES, max_size=7).map(without_clashes)


@st.composite
def tree_pairs(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """Two trees, the second made from the first by edits, moves, removals and additions."""
    before = draw(TREES)
    after: Tree = {}
    for path, (data, mode) in before.items():
        action = draw(st.sampled_from(["keep", "keep", "edit", "move", "move and edit", "chmod", "retype", "drop"]))
        if action in ("edit", "move and edit") and mode is not None:
            lines = data.split(b"\n")
            at = draw(st.integers(0, len(lines)))
            lines[at : at + draw(st.integers(0, 2))] = draw(LINES)
            data = b"\n".join(lines)
        if action == "chmod" and mode is not None:
            mode ^= 0o111
        if action == "retype":
            data, mode = (draw(TARGETS), None) if mode is not None else (draw(FILE_CONTENT), 0o644)
        if action != "drop":
            after[draw(PATHS) if action.startswith("move") else path] = (data, mode)
    return before, without_clashes(after | draw(st.dictionaries(PATHS, NODES, max_size=2)))


@needs_git
@settings(max_examples=100, deadline=None)
@given(tree_pairs(), st.booleans())
def test_git_apply_makes_the_target_of_any_two_trees(
    tmp_path_factory: pytest.TempPathFactory, trees: tuple[Tree, Tree], renames: bool
) -> None:
    both_ways(tmp_path_factory.mktemp("tree"), *trees, renames=renames)


@needs_git
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({b"f": (b"", 0o644)}, {}),
        ({}, {b"f": (b"", 0o755)}),
        ({b"f": (b"a", 0o644)}, {b"f": (b"a\n", 0o644)}),
        ({b"f": (b"a\nb", 0o644)}, {b"f": (b"a\nb\nc", 0o755)}),
        ({b"f": (b"x\n", 0o644)}, {b"f": (b"x\n", 0o755)}),
        ({b"f": (b"x\n", 0o644)}, {b"f": (b"x", None)}),
        ({b"f": (b"x", None)}, {b"f": (b"\0\1", 0o755)}),
        ({b"d": (b"x\n", 0o644)}, {b"d/inside": (b"x\n", 0o644)}),
        ({b"d/inside": (b"x\n", 0o644)}, {b"d": (b"x\n", 0o644)}),
        ({b"l": (b"elsewhere", None)}, {b"l/inside": (b"x\n", 0o644)}),
        ({b"f": (bytes(range(256)) * 300, 0o644)}, {b"f": (bytes(range(255, -1, -1)) * 7, 0o644)}),
        ({b"f": (b"\0", 0o644)}, {}),
        ({}, {b"trail /a": (b"", 0o644)}),
        ({b"old name": (b"1\n2\n3\n4\n5\n", 0o644)}, {b"new\tname": (b"1\n2\n3\n4\n6\n", 0o755)}),
        ({b"f": (b"a\r\nb\r\n", 0o644)}, {b"f": (b"a\r\nb\n", 0o644)}),
        ({b"f": (b"\xe9\xff\n" * 9, 0o644)}, {b"f": (b"\xe9\xff\n" * 4 + b"\xe8\n" + b"\xe9\xff\n" * 4, 0o644)}),
        ({b"f": (b"diff --git a/x b/x\n--- a\n", 0o644)}, {b"f": (b"+++ b\n@@ -1 +1 @@\n", 0o644)}),
    ],
)  # fmt: skip
def test_git_apply_takes_the_odd_cases(tmp_path: Path, before: Tree, after: Tree) -> None:
    both_ways(tmp_path / "tree", before, after)


@needs_git
def test_the_text_is_that_of_git_diff(tmp_path: Path) -> None:
    """Byte for byte, where the choice of lines leaves no freedom."""
    text = b"".join(b"line %d\n" % n for n in range(60))
    before: Tree = {
        b"edit": (text, 0o644),
        b"with space": (b"a\n", 0o644),
        b"gone": (b"bye\n", 0o644),
        b"empty": (b"", 0o644),
        b"moved/from": (text + b"end", 0o644),
        b"link": (b"there", None),
        b"typed": (b"x\n", 0o755),
        b"mode": (b"m\n", 0o644),
        b"binary": (b"\0" * 100, 0o644),
    }
    after: Tree = {
        b"edit": (text.replace(b"line 9\n", b"new 9\n").replace(b"line 40\n", b""), 0o755),
        b"with space": (b"b\n", 0o644),
        b'caf\xc3\xa9 "q"': (b"hello", 0o644),
        b"empty": (b"x", 0o644),
        b"moved/to": (text + b"the end\n", 0o644),
        b"link": (b"elsewhere", None),
        b"typed": (b"x", None),
        b"mode": (b"m\n", 0o755),
        b"binary": (b"\0" * 101, 0o644),
    }  # fmt: skip
    write_tree(tmp_path / "a", before)
    write_tree(tmp_path / "b", after)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", "--git-dir", str(tmp_path / "git"), *arguments], env=environment, check=True, capture_output=True
        ).stdout

    git("init", "-q", "--bare")
    trees: list[str] = []
    for side in ("a", "b"):
        environment["GIT_INDEX_FILE"] = str(tmp_path / f"index-{side}")
        git("--work-tree", str(tmp_path / side), "add", "-A")
        trees.append(git("write-tree").decode().strip())
    contents = Contents()
    diff = contents.diff(before, after)
    assert b"".join(textdiff.patch(diff, contents.fetch)) == without_function_names(
        git("diff-tree", "-r", "-p", "-M", "--abbrev=10", *trees)
    )
    full = git("diff-tree", "-r", "-p", "-M", "--binary", "--abbrev=10", *trees)
    index = next(line for line in full.splitlines() if line.startswith(b"index ") and len(line) > 80)
    assert index in b"".join(textdiff.patch(diff, contents.fetch, binary=True)).splitlines()


def without_function_names(patch: bytes) -> bytes:
    """Git's text without what it finds behind the second ``@@``."""
    lines = patch.split(b"\n")
    return b"\n".join(b"@@".join(line.split(b"@@")[:2]) + b"@@" if line.startswith(b"@@ ") else line for line in lines)


@needs_git
def test_a_permission_that_git_does_not_know_is_shown_and_applies(tmp_path: Path) -> None:
    contents = Contents()
    diff = contents.diff({b"f": (b"x\n", 0o644)}, {b"f": (b"x\n", 0o600)})
    patch = b"".join(textdiff.patch(diff, contents.fetch))
    assert patch == b"diff --git a/f b/f\nold mode 100644\nnew mode 100600\n"
    write_tree(tmp_path / "tree", {b"f": (b"x\n", 0o644)})
    git_apply(tmp_path / "tree", patch)


def test_binary_content_without_data_is_one_line() -> None:
    contents = Contents()
    diff = contents.diff({b"f": (b"\0a", 0o644), b"g": (b"\0", 0o644)}, {b"f": (b"\0bc", 0o644)})
    patch = b"".join(textdiff.patch(diff, contents.fetch))
    assert b"Binary files a/f and b/f differ\n" in patch
    assert b"Binary files a/g and /dev/null differ\n" in patch
    assert textdiff.to_json(diff, contents.fetch)["modified"] == [
        {"path": "f", "binary": "Binary file changed (2 → 3 bytes)", "before_size": 2, "after_size": 3}
    ]


def test_a_nul_behind_the_first_8_kib_is_text() -> None:
    contents = Contents()
    text = b"x\n" * 4096
    diff = contents.diff({b"t": (text, 0o644)}, {b"t": (text + b"\0\n", 0o644)})
    assert b"+\0\n" in b"".join(textdiff.patch(diff, contents.fetch))
    diff = contents.diff({b"t": (text, 0o644)}, {b"t": (b"\0" + text, 0o644)})
    assert b"Binary files" in b"".join(textdiff.patch(diff, contents.fetch))


def test_content_beyond_the_limit_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textdiff, "MAX_TEXT_BYTES", 1000)
    monkeypatch.setattr(textdiff, "MAX_BINARY_PATCH_BYTES", 2000)
    contents = Contents()
    diff = contents.diff(
        {b"big": (b"x\n" * 1500, 0o644), b"chmod": (b"y" * 5000, 0o644)},
        {b"big": (b"x\n" * 1501, 0o644), b"chmod": (b"y" * 5000, 0o755)},
    )
    for binary in (False, True):
        patch = b"".join(textdiff.patch(diff, contents.fetch, binary=binary))
        assert b"Binary files a/big and b/big differ\n" in patch
        assert patch.count(b"differ") == 1
    assert [s.binary for s in textdiff.stat(diff, contents.fetch)] == [True, False]
    assert contents.asked == []


@needs_git
def test_large_text_goes_into_a_binary_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textdiff, "MAX_TEXT_BYTES", 1000)
    patch = both_ways(tmp_path / "tree", {b"t": (b"x\n" * 700, 0o644)}, {b"t": (b"y\n" * 900, 0o644)})
    assert b"GIT binary patch\n" in patch


def test_content_may_come_in_pieces() -> None:
    contents = Contents()
    diff = contents.diff({b"f": (b"one\ntwo\n", 0o644)}, {b"f": (b"one\n2\n", 0o644)})

    def in_pieces(entries: Sequence[Entry]) -> Iterator[Iterator[bytes]]:
        for data in contents.fetch(entries):
            yield (data[at : at + 3] for at in range(0, len(data), 3))

    assert b"".join(textdiff.patch(diff, in_pieces)).endswith(b"@@ -1,2 +1,2 @@\n one\n-two\n+2\n")


def test_many_files_are_fetched_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textdiff, "_BATCH_FILES", 3)
    contents = Contents()
    before: Tree = {b"%d" % n: (b"%d\n" % n, 0o644) for n in range(10)}
    after: Tree = {b"%d" % n: (b"new %d\n" % n, 0o644) for n in range(10)}
    sizes: list[int] = []

    def fetch(entries: Sequence[Entry]) -> Iterator[bytes]:
        sizes.append(len(entries))
        return contents.fetch(entries)

    diff = contents.diff(before, after)
    patch = b"".join(textdiff.patch(diff, fetch))
    assert sizes == [6, 6, 6, 2]
    assert patch.count(b"diff --git") == 10


def test_stat_counts_what_the_patch_says() -> None:
    contents = Contents()
    before: Tree = {
        b"a": (b"1\n2\n3\n", 0o644),
        b"t": (b"x\ny\n", 0o644),
        b"old": (b"k\n" * 20, 0o644),
        b"x": (b"\0", 0o644),
    }
    after: Tree = {
        b"a": (b"1\n3\n4\n5", 0o644),
        b"t": (b"x", None),
        b"new": (b"k\n" * 20 + b"l\n", 0o644),
        b"y": (b"q\n", 0o644),
    }
    stats = textdiff.stat(contents.diff(before, after), contents.fetch)
    assert [(s.path, s.before_path, s.status, s.added, s.removed, s.binary) for s in stats] == [
        (b"a", b"a", "M", 2, 1, False),
        (b"new", b"old", "R", 1, 0, False),
        (b"t", b"t", "T", 1, 2, False),
        (b"x", b"x", "D", 0, 0, True),
        (b"y", b"y", "A", 1, 0, False),
    ]


def test_json_has_the_documented_fields() -> None:
    contents = Contents()
    before: Tree = {
        b"gone": (b"g\n", 0o644),
        b"main.rs": (b"fn main() {\n    old();\n}\n", 0o644),
        b"latin": (b"caf\xe9\n", 0o644),
        b"from": (b"moved\n", 0o644),
        b"same": (b"same", 0o644),
        b"mode": (b"m", 0o600),
    }
    after: Tree = {
        b"new\xff": (b"12345", 0o644),
        b"main.rs": (b"fn main() {\n    new();\n}\n", 0o644),
        b"latin": (b"th\xe9\n", 0o644),
        b"to": (b"moved\n", 0o644),
        b"same": (b"same", 0o644),
        b"mode": (b"m", 0o755),
    }
    answer = textdiff.to_json(contents.diff(before, after), contents.fetch)
    hunk = b"@@ -1 +1 @@\n-caf\xe9\n+th\xe9\n"
    assert answer == {
        "base": None,
        "target": None,
        "added": [{"path": "new\\xff", "size": 5}],
        "deleted": [{"path": "gone"}],
        "modified": [
            {"path": "latin", "diff": hunk.decode(errors="replace"), "diff_base64": base64.b64encode(hunk).decode()},
            {"path": "main.rs", "diff": "@@ -1,3 +1,3 @@\n fn main() {\n-    old();\n+    new();\n }\n"},
            {"path": "mode", "diff": "", "mode": {"before": "100600", "after": "100755"}},
        ],
        "renamed": [{"from": "from", "to": "to", "similarity": 100}],
        "stats": {"added": 1, "deleted": 1, "modified": 3, "renamed": 1, "unchanged": 1},
    }


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b"plain name", b"plain name"),
        (b"caf\xc3\xa9", rb'"caf\303\251"'),
        (b'a"b\\c', rb'"a\"b\\c"'),
        (b"\a\b\t\n\v\f\r\x01\x7f", rb'"\a\b\t\n\v\f\r\001\177"'),
    ],
)
def test_names_are_quoted_as_git_quotes_them(name: bytes, quoted: bytes) -> None:
    assert quote(name) == quoted


@pytest.mark.parametrize("context", [0, 1, 3, 10])
def test_hunks_join_when_their_context_touches(context: int) -> None:
    before = b"".join(b"%d\n" % n for n in range(40))
    after = before.replace(b"10\n", b"x\n").replace(b"17\n", b"y\n")
    assert len(list(hunks(before, after, context))) == (1 if 2 * context >= 6 else 2)


def test_a_hostile_shuffle_still_gives_a_right_patch() -> None:
    rng = random.Random(7)
    before = b"".join(b"%d\n" % rng.randrange(30) for _ in range(3000))
    after = b"".join(b"%d\n" % rng.randrange(30) for _ in range(3000))
    assert apply_hunks(before, b"".join(hunks(before, after))) == after


def apply_hunks(before: bytes, patch: bytes) -> bytes:
    """A second opinion on unified diffs, for text that ends in a line feed."""
    source, out, at = before.splitlines(keepends=True), [], 0
    for line in patch.splitlines(keepends=True):
        if line.startswith(b"@@"):
            start, _, count = line.split(b" ")[1][1:].partition(b",")
            begin = int(start) - (count != b"0")
            out += source[at:begin]
            at = begin
        else:
            if line[:1] in b" -":
                assert source[at] == line[1:]
                at += 1
            if line[:1] in b" +":
                out.append(line[1:])
    return b"".join(out + source[at:])

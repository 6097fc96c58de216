"""Whether Git holds what a file does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.files.git.object_lookup import GitObjects

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(tree: Path, *words: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "core.autocrlf=false")
    subprocess.run(["git", *identity, *words], cwd=tree, check=True, capture_output=True)


@pytest.mark.parametrize("is_packed", [False, True])
def test_git_holds_what_was_added_as_it_was(tmp_path: Path, is_packed: bool) -> None:
    inner = tmp_path / "d" / "inner"
    for tree in (tmp_path, inner):
        tree.mkdir(parents=True, exist_ok=True)
        git(tree, "init", "-q")
        for number in range(300):
            (tree / f"f{number}").write_text(f"{tree} {number}")
        (tree / "empty").touch()
        git(tree, "add", "f*", "empty")
        git(tree, "commit", "-qm", "all")
        if is_packed:
            git(tree, "gc", "-q")
            assert not list(tree.glob(".git/objects/[0-9a-f][0-9a-f]/*"))
    kept = GitObjects(os.fsencode(tmp_path))
    assert all(kept.hold(b"f%d" % number) and kept.hold(b"d/inner/f%d" % number) for number in range(300))
    assert kept.hold(b"empty")
    (tmp_path / "f1").write_text("changed")
    (tmp_path / "d" / "f").write_text("never added")
    shutil.copy(tmp_path / "f2", inner / "f2")
    shutil.copy(tmp_path / "f2", tmp_path / "d" / "copy")
    (tmp_path / "link").symlink_to("f3")
    os.mkfifo(tmp_path / "fifo")
    for path in (b"f1", b"d/f", b"d/inner/f2", b"link", b"fifo", b"d", b"nothing"):
        assert not kept.hold(path)
    assert kept.hold(b"d/copy")


@pytest.mark.parametrize("damage", [b"", b"\xfftOc\0\0\0\2", b"\xfftOc\0\0\0\2" + b"\xff" * 1024, b"\xff" * 2000])
def test_a_damaged_index_of_a_pack_holds_nothing(tmp_path: Path, damage: bytes) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "f").write_text("content")
    for name in ("pack-1.idx", "pack-1.pack"):
        (tmp_path / ".git" / "objects" / "pack" / name).write_bytes(damage)
    os.mkfifo(tmp_path / ".git" / "objects" / "pack" / "pack-2.idx")
    (tmp_path / ".git" / "objects" / "pack" / "pack-2.pack").touch()
    assert not GitObjects(os.fsencode(tmp_path)).hold(b"f")


def test_where_there_is_no_repository_git_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / ".git").write_text("gitdir: elsewhere")
    assert not GitObjects(os.fsencode(tmp_path)).hold(b"f")


@pytest.mark.parametrize("link", [".git", ".git/objects", ".git/objects/pack", "d"])
def test_no_link_on_the_way_is_followed_i7(tmp_path: Path, link: str) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    git(tree, "init", "-q")
    (tree / "d").mkdir()
    (tree / "d" / "f").write_text("content")
    git(tree, "add", "d/f")
    git(tree, "commit", "-qm", "all")
    git(tree, "gc", "-q")
    kept = GitObjects(os.fsencode(tree))
    assert kept.hold(b"d/f")
    (tree / link).rename(outside)
    (tree / link).symlink_to(outside)
    assert not kept.hold(b"d/f")

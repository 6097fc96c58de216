"""Applying changes while others change the same tree, and what a killed call leaves."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.files.linux import syscalls
from holdfast.files.linux.file_lease import WriterStatus
from holdfast.files.tree import ApplyResult
from holdfast.files.write import displaced_file
from holdfast.files.write.batch import IN_THE_WAY
from holdfast.files.write.displaced_file import CHANGED, IN_USE
from holdfast.model.entries import Change, NotCaptured
from holdfast.model.errors import UsageError
from holdfast.model.paths import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable


from .applying import NONCE, Workspace, file, put, signature_of, wanted


def during_sync(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Let someone else act once, when everything is written and nothing is in place yet."""
    done: list[bool] = []

    def intruding(real: Callable[[int], None]) -> Callable[[int], None]:
        def intrude(fd: int) -> None:
            real(fd)
            if not done:
                done.append(True)
                action()

        return intrude

    monkeypatch.setattr(os, "fsync", intruding(os.fsync))
    monkeypatch.setattr(syscalls, "syncfs", intruding(syscalls.syncfs))


def test_i8_an_edit_between_the_look_and_the_rename_is_kept(space: Workspace, monkeypatch: pytest.MonkeyPatch):
    path = put(space, "f", b"old")
    space.scan()
    during_sync(monkeypatch, lambda: path.write_bytes(b"theirs"))
    assert space.go(wanted(f=b"ours")).skipped == [NotCaptured(b"f", CHANGED)]
    assert path.read_bytes() == b"theirs"
    assert b"f" not in space.seen.known


def test_i8_a_file_that_is_open_for_writing_is_left_alone(space: Workspace):
    put(space, "f", b"old")
    put(space, "gone/g", b"old")
    space.scan()
    with (space.path / "f").open("r+b") as one, (space.path / "gone/g").open("r+b") as other:
        applied = space.go(wanted(f=b"ours"))
        assert applied == ApplyResult([], [], [NotCaptured(b"gone/g", IN_USE), NotCaptured(b"f", IN_USE)])
        one.write(b"newer")
        other.write(b"newer")
    assert space.tree() == {b"f": file(b"newer"), b"gone/g": file(b"newer")}


@pytest.mark.parametrize("how", ["descriptor", "mapping"])
def test_i8_without_leases_what_is_written_to_is_kept(space: Workspace, monkeypatch: pytest.MonkeyPatch, how: str):
    """As on a file system that cannot tell who writes to a file."""
    monkeypatch.setattr(displaced_file, "writer_of", lambda fd: WriterStatus.UNSUPPORTED)
    for path in ("f", "gone/g", "calm", "quiet"):
        put(space, path, b"old")
    space.scan()
    kept = {b"f", b"gone/g"} if space.flags else {b"gone/g"}  # what a plain rename has replaced is gone at once
    files = [(space.path / os.fsdecode(path)).open("r+b") for path in sorted(kept)]
    held = [mmap.mmap(one.fileno(), 3) for one in files] if how == "mapping" else files
    if how == "mapping":
        for one in files:
            one.close()
    applied = space.go(wanted(f=b"ours", calm=b"ours"))
    for one in held:
        one.write(b"new")
        one.close()
    assert set(applied.written) == {b"f", b"calm"} - kept
    assert applied.deleted == [b"quiet"]
    assert {path for path, _ in applied.skipped} == kept
    assert all(reason.endswith(os.fsdecode(path) + ".kept-1") for path, reason in applied.skipped)
    assert space.tree() == {
        b"f": file(b"ours"),
        b"calm": file(b"ours"),
        **{path + b".kept-1": file(b"new") for path in kept},
    }


def test_i8_a_file_that_appears_meanwhile_is_kept(space: Workspace, monkeypatch: pytest.MonkeyPatch):
    during_sync(monkeypatch, lambda: put(space, "f", b"theirs"))
    assert space.go(wanted(f=b"ours")).skipped == [NotCaptured(b"f", IN_THE_WAY)]
    assert space.tree() == {b"f": file(b"theirs")}


def test_a_directory_that_appears_meanwhile_is_filled(space: Workspace, monkeypatch: pytest.MonkeyPatch):
    def appear() -> None:
        put(space, "d/e/theirs", b"theirs")
        put(space, "d/taken", b"theirs")
        put(space, "d/x", b"a file in the place of a directory")

    during_sync(monkeypatch, appear)
    applied = space.go(wanted(d_f=b"1", d_taken=b"2", d_e_g=b"3", d_x_y=b"4", d_new_h=b"5"))
    assert sorted(applied.written) == [b"d/e/g", b"d/f", b"d/new/h"]
    assert sorted(applied.skipped) == [NotCaptured(b"d/taken", IN_THE_WAY), NotCaptured(b"d/x/y", IN_THE_WAY)]
    assert (space.path / "d/taken").read_bytes() == b"theirs"
    assert (space.path / "d/e/theirs").read_bytes() == b"theirs"
    for path in applied.written:
        assert space.seen.known[path].signature == signature_of(space.at(path))


def test_i7_a_directory_that_is_swapped_meanwhile_takes_nothing_outside(
    space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f").write_bytes(b"theirs")
    put(space, "d/f", b"old")
    space.scan()

    def swap() -> None:
        (space.path / "d").rename(space.path / "moved")
        (space.path / "d").symlink_to("../outside")

    during_sync(monkeypatch, swap)
    applied = space.go(wanted(d_f=b"ours", d_g=b"ours", d_sub_h=b"ours"))
    assert applied.written == []
    assert {path for path, _ in applied.skipped} == {b"d/f", b"d/g", b"d/sub/h"}
    assert os.listdir(tmp_path / "outside") == ["f"]
    assert (tmp_path / "outside/f").read_bytes() == b"theirs"
    assert (space.path / "moved/f").read_bytes() == b"old"
    assert space.applier.clean(NONCE).removed > 0, "what was left in the moved directory is found"


def test_cleaning_takes_only_what_is_ours(space: Workspace, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    other = os.fsdecode(TEMPORARY_PREFIX) + "other-1"
    mine = os.fsdecode(TEMPORARY_PREFIX) + NONCE + "-1"
    (tmp_path / "outside" / mine).write_bytes(b"")
    (space.path / "link").symlink_to("../outside")
    put(space, f"a/b/{mine}")
    put(space, f"{mine}/deep/er/file")
    put(space, "normal/f")
    kept = put(space, f"a/{other}")
    git = put(space, f".git/{mine}")
    assert space.applier.clean(NONCE) == (2, [])
    assert space.applier.clean(NONCE) == (0, [])
    assert kept.exists()
    assert git.exists(), "nothing of ours is ever in there"
    assert (tmp_path / "outside" / mine).exists()
    assert (space.path / "normal/f").exists()
    kept.unlink()
    git.unlink()
    with pytest.raises(UsageError):
        space.applier.clean("../x")


def test_cleaning_keeps_what_is_not_what_was_to_be_removed(space: Workspace):
    prefix = os.fsdecode(TEMPORARY_PREFIX) + NONCE
    put(space, f"{prefix}-2-0123456789abcdef-0123456789abcdef", b"theirs")
    put(space, f"{prefix}-1/{prefix}-3--00", b"2")
    cleaned = space.applier.clean(NONCE)
    assert cleaned.removed == 0
    assert {path for path, _ in cleaned.kept} == set(space.tree()) == {b"found.kept-1", b"found.kept-2"}
    assert set(space.tree().values()) == {file(b"theirs"), file(b"2")}


def test_left_overs_of_a_killed_call_are_never_taken_for_ours(space: Workspace):
    prefix = os.fsdecode(TEMPORARY_PREFIX) + NONCE
    put(space, f"{prefix}-1/torn", b"torn")
    put(space, f"{prefix}-2", b"torn")
    assert space.go(wanted(d_f=b"f", top=b"top")).skipped == []
    assert space.applier.clean(NONCE) == (2, [])
    assert space.tree() == {b"d/f": file(b"f"), b"top": file(b"top")}


def test_very_deep_paths_are_written(space: Workspace):
    deep = b"/".join([b"d" * 200] * 20)
    path = deep[:4000] + b"/f"
    applied = space.applier.apply([], [(Change(path, None, file(b"x")), b"x")], nonce=NONCE)
    assert applied.written == [path]
    assert space.applier.apply([Change(path, file(b"x"), None)], [], nonce=NONCE).deleted == [path]
    assert os.listdir(space.path) == []

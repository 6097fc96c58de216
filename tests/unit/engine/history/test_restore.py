"""Restoring in a directory: what is touched, what is left alone, what belongs to whom."""

from __future__ import annotations

import os
import shutil
import stat
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.history.derived_state import create_derived_checkpoint
from holdfast.model.entries import Change
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.store.manifests import manifest
from holdfast.testing.permissions import permissions_hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.ids import CheckpointId

AS_ROOT = os.geteuid() == 0


def write(tree: Path, path: str, content: str | bytes) -> Path:
    file = tree / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def contents(tree: Path) -> dict[str, bytes | str]:
    """Every file, link and empty directory."""
    found: dict[str, bytes | str] = {}
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
        elif path.is_dir() and not any(path.iterdir()):
            found[name + "/"] = ""
    return found


def seen(tree: Path) -> dict[str, tuple[int, int, int]]:
    """What tells whether a file was touched: inode, mtime and ctime."""
    return {
        str(path.relative_to(tree)): (about.st_ino, about.st_mtime_ns, about.st_ctime_ns)
        for path in tree.rglob("*")
        if not path.is_dir()
        for about in [path.lstat()]
    }


def test_untouched_files_keep_their_times_and_inodes(workspace: Workspace, tree: Path) -> None:
    for number in range(20):
        write(tree, f"d{number % 3}/f{number}", f"{number}")
    (tree / "link").symlink_to("d0/f0")
    workspace.checkpoint("one")
    write(tree, "d1/f1", "changed")
    (tree / "d2/f2").unlink()
    write(tree, "new", "n")
    before = seen(tree)
    workspace.restore("one")
    after = seen(tree)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == {
        "d1/f1",
        "d2/f2",
        "new",
    }
    between = seen(tree)
    workspace.undo()
    workspace.redo()
    last = seen(tree)
    assert {path for path in between if between[path] != last[path]} == {"d1/f1", "d2/f2"}


def test_a_dry_run_leaves_no_trace_in_the_tree_or_the_home(workspace: Workspace, tree: Path, home: Path) -> None:
    write(tree, "f", "1")
    write(tree, "gone", "g")
    workspace.checkpoint("one")
    write(tree, "f", "2")
    (tree / "gone").unlink()
    write(tree, "extra", "x")
    workspace.status()

    def everything() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for base in (tree, home / "objects")
            for path in [base, *base.rglob("*")]
        }

    def records() -> object:
        log = workspace.log()
        return log.checkpoints, log.head, log.events, workspace.stats()[1:8]

    before = everything(), records(), workspace.status()
    result = workspace.restore("one", dry_run=True)
    assert result.rescue is None
    assert sorted(result.written) == [b"f", b"gone"]
    assert result.deleted == [b"extra"]
    some = workspace.restore("one", [b"f"], dry_run=True)
    assert (some.written, some.deleted) == ([b"f"], [])
    workspace.undo(dry_run=True)
    assert (everything(), records(), workspace.status()) == before
    assert workspace.unfinished() is None


def test_a_dry_run_shows_what_would_come_back_of_a_tree_that_is_gone(workspace: Workspace, tree: Path) -> None:
    write(tree, "d/f", "saved")
    write(tree, "g", "saved")
    saved = workspace.checkpoint("saved").checkpoint.id
    write(tree, "later", "x")
    workspace.checkpoint("later")
    shutil.rmtree(tree)
    would = workspace.restore("saved", dry_run=True)
    assert (would.checkpoint, would.written, would.deleted) == (saved, [b"d/f", b"g"], [])
    assert workspace.undo(dry_run=True).written == [b"d/f", b"g", b"later"]
    assert not tree.exists()
    assert workspace.restore("saved").written == would.written


@pytest.mark.parametrize("how", ["restore", "undo"])
def test_i8_a_file_that_is_being_written_is_left_alone_and_reported(workspace: Workspace, tree: Path, how: str) -> None:
    write(tree, "log", "one\n")
    write(tree, "other", "one")
    workspace.checkpoint("first")
    write(tree, "other", "two")
    with (tree / "log").open("a") as file:
        file.write("two\n")
        file.flush()
        workspace.checkpoint("second")
        result = workspace.restore("first") if how == "restore" else workspace.undo()
        assert result.written == [b"other"]
        assert [path for path, _ in result.skipped] == [b"log"]
        file.write("three\n")
    assert contents(tree) == {"log": b"one\ntwo\nthree\n", "other": b"one"}
    assert workspace.restore("first").skipped == []
    assert contents(tree) == {"log": b"one\n", "other": b"one"}


# --- types, names, directories


@pytest.mark.parametrize(
    ("first", "second"), list(permutations(["file", "link", "directory", "dangling", "nothing"], 2))
)
def test_a_path_may_change_its_type_both_ways(workspace: Workspace, tree: Path, first: str, second: str) -> None:
    def make(kind: str) -> None:
        at = tree / "x"
        if at.is_symlink() or at.is_file():
            at.unlink()
        elif at.exists():
            shutil.rmtree(at)
        if kind == "file":
            at.write_text("content")
        elif kind == "link":
            at.symlink_to("beside")
        elif kind == "dangling":
            at.symlink_to("/nowhere/at/all")
        elif kind == "directory":
            write(tree, "x/deep/y", "inner")
            (tree / "x/z").symlink_to("..")

    write(tree, "beside/f", "b")
    make(first)
    workspace.checkpoint("first")
    before = contents(tree)
    make(second)
    workspace.checkpoint("second")
    after = contents(tree)
    for _ in range(2):
        assert not workspace.restore("first").skipped
        assert contents(tree) == before
        assert not workspace.restore("second").skipped
        assert contents(tree) == after
    assert workspace.status().clean


def test_names_of_any_bytes_come_back(workspace: Workspace, tree: Path) -> None:
    names = [
        b"\xff\xfe",
        b"new\nline",
        b"-rf",
        b" ",
        b"tab\t",
        "täglich".encode(),
        "ta\u0308glich".encode(),
        b"n" * 255,
    ]
    for name in names:
        Path(os.fsdecode(bytes(tree) + b"/" + name)).write_bytes(name)
    workspace.checkpoint("one")
    before = contents(tree)
    for name in names:
        os.unlink(bytes(tree) + b"/" + name)
    workspace.restore("one")
    assert contents(tree) == before
    for name in names:
        assert b"".join(workspace.cat("one", name)) == name


def test_empty_directories_are_not_tracked_and_go_only_if_the_restore_emptied_them(
    workspace: Workspace, tree: Path
) -> None:
    write(tree, "d/f", "1")
    workspace.checkpoint("one")
    (tree / "empty/inner").mkdir(parents=True)
    assert not workspace.checkpoint().created
    write(tree, "made/by/f", "2")
    (tree / "made/beside").mkdir()
    workspace.checkpoint("two")
    workspace.restore("one")
    assert contents(tree) == {"d/f": b"1", "empty/inner/": "", "made/beside/": ""}
    workspace.undo()
    assert contents(tree) == {"d/f": b"1", "empty/inner/": "", "made/beside/": "", "made/by/f": b"2"}


def test_set_id_and_sticky_bits_are_not_captured_and_stay_on_what_is_left_alone(
    workspace: Workspace, tree: Path
) -> None:
    file = write(tree, "f", "1")
    file.chmod(0o2755)
    workspace.checkpoint("one")
    write(tree, "g", "2")
    assert workspace.checkpoint("two").checkpoint.changes == (1, 0, 0)
    workspace.restore("one")
    assert stat.S_IMODE(file.stat().st_mode) == 0o2755


# --- ignore rules


def test_ignored_files_survive_a_restore_that_takes_their_rule_away_and_its_undo(
    workspace: Workspace, tree: Path
) -> None:
    # I5, I6: the restore brings them to light, and the undo that it prints must not take them for something to undo.
    write(tree, "f", "1")
    workspace.checkpoint("one")
    write(tree, ".gitignore", "*.dat\n/built/\n")
    write(tree, "f", "2")
    workspace.checkpoint("two")
    write(tree, "x.dat", "precious")
    write(tree, "built/deep/y", "expensive")
    before = contents(tree)
    assert workspace.status().clean
    result = workspace.restore("one")
    assert contents(tree) == {"f": b"1", "x.dat": b"precious", "built/deep/y": b"expensive"}
    assert result.undo_command == "holdfast undo"
    workspace.undo()
    assert contents(tree) == before
    assert workspace.status().clean
    workspace.redo()
    assert contents(tree) == {"f": b"1", "x.dat": b"precious", "built/deep/y": b"expensive"}
    workspace.undo()
    workspace.undo()
    assert contents(tree) == {"f": b"1", "x.dat": b"precious", "built/deep/y": b"expensive"}


def test_what_a_restore_brings_back_out_of_sight_is_a_state_to_go_back_from(workspace: Workspace, tree: Path) -> None:
    # I6: rules that no state holds, since they ignore themselves, leave out all that the restore brings back.
    write(tree, "f", "0")
    workspace.checkpoint("zero")
    write(tree, "f", "1")
    write(tree, "b", "built")
    write(tree, "sub/.gitignore", "none\n")
    workspace.checkpoint("one")
    (tree / "sub/.gitignore").unlink()
    (tree / "b").unlink()
    workspace.checkpoint("two")
    write(tree, ".gitignore", ".gitignore\nb\n")
    workspace.restore("one")
    assert contents(tree)["b"] == b"built"
    assert workspace.undo(dry_run=True).written == []
    workspace.undo()
    assert contents(tree)["f"] == b"1"
    workspace.undo()
    assert contents(tree)["b"] == b"built"
    assert contents(tree)["f"] == b"1"
    workspace.undo()
    assert contents(tree)["f"] == b"0"


def made_elsewhere(workspace: Workspace, tree: Path, rules: str, kind: str) -> CheckpointId:
    """A state with ``n``, ``d/n`` and ``src`` whose ``.gitignore`` has these rules, as a bundle can hold one: no tree
    is saved as such. The tree is as before, with ``src`` alone, which is saved.
    """
    write(tree, "src", "s")
    before = workspace.checkpoint("base").checkpoint
    for path, content in (("n", "n"), ("d/n", "deep"), ("rules", rules)):
        write(tree, path, content)
    held = workspace.checkpoint().checkpoint
    workspace.restore(before.id)
    context = workspace._context
    with context.lock():
        entry = manifest.get(context.store.pages, held.root, b"rules")
        changes = [Change(b".gitignore", None, entry), Change(b"rules", entry, None)]
        return create_derived_checkpoint(context, held.id, changes, held.provenance, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["manual", "merge"])
@pytest.mark.parametrize("rules", ["*\n", "/n\n/d/\n.gitignore\n"], ids=["all", "its own"])
def test_what_a_restore_brought_goes_with_its_undo_though_the_rules_that_came_with_it_leave_it_out(
    workspace: Workspace, tree: Path, rules: str, kind: str
) -> None:
    # Rules that stayed would switch saving off, without a word.
    hostile = made_elsewhere(workspace, tree, rules, kind)
    brought = {"src": b"s", "n": b"n", "d/n": b"deep", ".gitignore": rules.encode()}
    workspace.restore(hostile)
    assert contents(tree) == brought
    assert workspace.status().changes == []
    assert not workspace.checkpoint().created
    assert sorted(workspace.undo(dry_run=True).deleted) == [b".gitignore", b"d/n", b"n"]
    workspace.undo()
    assert contents(tree) == {"src": b"s"}
    workspace.redo()
    assert contents(tree) == brought
    workspace.restore("base")
    assert contents(tree) == {"src": b"s"}
    workspace.undo()
    assert contents(tree) == brought
    workspace.undo()
    write(tree, "new", "seen")
    assert [change.path for change in workspace.status().changes] == [b"new"]


def test_what_was_changed_of_it_since_stays_and_is_named(
    workspace: Workspace, tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workspace.restore(made_elsewhere(workspace, tree, "*\n", "manual"))
    assert "leave out .gitignore, d/n, n, src" in caplog.text
    caplog.clear()
    write(tree, "n", "mine")
    write(tree, "src", "mine, too")
    write(tree, "unseen", "")
    result = workspace.undo()
    assert contents(tree) == {"src": b"mine, too", "n": b"mine", "unseen": b""}
    assert [path for path, _ in result.skipped] == [b"n"]
    assert ": src, unseen;" in caplog.text


def test_ignored_files_survive_undo_and_redo_of_the_rule_itself(workspace: Workspace, tree: Path) -> None:
    # I5, I6
    write(tree, "f", "1")
    workspace.checkpoint("one")
    write(tree, "f", "2")
    workspace.checkpoint("two")
    write(tree, "sub/.gitignore", "*.dat\n")
    write(tree, "sub/x.dat", "precious")
    workspace.checkpoint("three")
    before = contents(tree)
    workspace.undo()
    assert contents(tree) == {"f": b"2", "sub/x.dat": b"precious"}
    workspace.redo()
    assert contents(tree) == before
    workspace.undo()
    workspace.undo()
    assert contents(tree) == {"f": b"1", "sub/x.dat": b"precious"}
    workspace.redo(2)
    assert contents(tree) == before
    assert workspace.status().clean


def test_rules_that_come_back_decide_nothing_about_that_restore(workspace: Workspace, tree: Path) -> None:
    # I5: what the rescue holds may go; its content stays in the history, and undo brings it back.
    write(tree, ".gitignore", "*.dat\n")
    write(tree, "f", "1")
    workspace.checkpoint("one")
    (tree / ".gitignore").unlink()
    write(tree, "x.dat", "captured by now")
    before = contents(tree)
    result = workspace.restore("one")
    assert result.rescue is not None
    assert b"".join(workspace.cat(result.rescue, b"x.dat")) == b"captured by now"
    workspace.undo()
    assert contents(tree) == before


def test_a_file_that_became_ignored_is_not_deleted_and_not_overwritten(workspace: Workspace, tree: Path) -> None:
    # I5
    write(tree, "x.dat", "first")
    workspace.checkpoint("one")
    write(tree, ".gitignore", "*.dat\n")
    assert [(change.path, change.status) for change in workspace.status().changes] == [
        (b".gitignore", "A"),
        (b"x.dat", "D"),
    ]
    workspace.checkpoint("two")
    assert contents(tree) == {".gitignore": b"*.dat\n", "x.dat": b"first"}
    write(tree, "x.dat", "second, never captured")
    result = workspace.restore("one")
    assert [path for path, _ in result.skipped] == [b"x.dat"]
    assert (tree / "x.dat").read_text() == "second, never captured"
    workspace.undo()
    assert contents(tree) == {".gitignore": b"*.dat\n", "x.dat": b"second, never captured"}


def test_ignored_files_keep_their_directory(workspace: Workspace, tree: Path) -> None:
    # I5
    write(tree, ".gitignore", "*.dat\n")
    workspace.checkpoint("one")
    write(tree, "d/f", "1")
    write(tree, "d/x.dat", "ignored")
    workspace.checkpoint("two")
    workspace.restore("one")
    assert contents(tree) == {".gitignore": b"*.dat\n", "d/x.dat": b"ignored"}


def test_a_link_in_place_of_a_directory_is_not_followed(workspace: Workspace, tree: Path, tmp_path: Path) -> None:
    # I7
    write(tree, "d/f", "inside")
    workspace.checkpoint("one")
    outside = tmp_path / "outside"
    write(outside, "f", "not ours")
    write(outside, "g", "not ours either")
    shutil.rmtree(tree / "d")
    (tree / "d").symlink_to(outside)
    workspace.restore("one")
    assert (tree / "d/f").read_text() == "inside"
    assert not (tree / "d").is_symlink()
    workspace.undo()
    assert (tree / "d").is_symlink()
    assert contents(outside) == {"f": b"not ours", "g": b"not ours either"}


# --- what cannot be captured


def test_everything_that_is_not_captured_is_named_with_its_reason(
    open_workspace: Callable[..., Workspace], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.chdir(tree)
    write(tree, "f", "1")
    os.mkfifo(tree / "pipe")
    write(tree, "big", b"x" * 5000)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("endpoint")
        workspace = open_workspace(flags={"capture.max_file_bytes": 4000})
        result = workspace.checkpoint()
        reasons = dict(result.not_captured)
        assert reasons.keys() == {b"pipe", b"endpoint", b"big"}
        assert (reasons[b"pipe"], reasons[b"endpoint"]) == ("fifo", "socket")
        assert "too large: 5000 bytes" in reasons[b"big"]
        assert result.checkpoint.total_files == 1
        assert list(workspace.show().not_captured) == list(result.not_captured)
        assert list(workspace.status().not_captured) == list(result.not_captured)
        write(tree, "f", "2")
        workspace.undo()
        assert (tree / "big").stat().st_size == 5000
        assert stat.S_ISFIFO((tree / "pipe").stat().st_mode)


def test_a_file_that_does_not_hold_still_is_named_unstable(
    workspace: Workspace, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.files.scan import file_capture

    file = write(tree, "log", "0")
    write(tree, "f", "1")
    read = os.read

    def unsteady(fd: int, size: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}") == str(file):
            with open(file, "ab") as more:
                more.write(b"+")
        return read(fd, size)

    with monkeypatch.context() as patched:
        patched.setattr(file_capture.os, "read", unsteady)
        result = workspace.checkpoint()
    assert [tuple(found) for found in result.not_captured] == [(b"log", file_capture.UNSTABLE)]
    assert [change.path for change in workspace.show().changes] == [b"f"]
    again = workspace.checkpoint()
    assert again.created
    assert not again.not_captured


def test_an_unreadable_file_is_named(workspace: Workspace, tree: Path) -> None:
    write(tree, "f", "1")
    write(tree, "secret", "s").chmod(0)
    with permissions_hold():
        result = workspace.checkpoint()
    assert [path for path, _ in result.not_captured] == [b"secret"]


# --- ownership


@pytest.mark.skipif(not AS_ROOT, reason="only root can give files away")
def test_what_root_restores_and_forks_belongs_to_the_owner_of_the_root(
    workspace: Workspace, tree: Path, home: Path, tmp_path: Path
) -> None:
    write(tree, "d/e/f", "1")
    (tree / "link").symlink_to("d")
    workspace.checkpoint("one")
    os.chown(tree, 1234, 2345)
    shutil.rmtree(tree / "d")
    (tree / "link").unlink()
    workspace.restore("one")
    for path in ("d", "d/e", "d/e/f", "link"):
        about = (tree / path).lstat()
        assert (about.st_uid, about.st_gid) == (1234, 2345), path
    forked = tmp_path / "forked"
    workspace.fork("one", forked)
    for path in (forked, *forked.rglob("*")):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (1234, 2345), path
    with holdfast.open(tree, home=home, flags={"files.uid": 77, "files.gid": 78}) as configured:
        (tree / "d/e/f").write_text("2")
        configured.undo()
    assert ((tree / "d/e/f").stat().st_uid, (tree / "d/e/f").stat().st_gid) == (77, 78)


@pytest.mark.skipif(not AS_ROOT, reason="only root can give files away")
def test_a_root_that_is_made_again_belongs_to_the_owner_of_what_it_lies_in(home: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    os.chown(above, 1234, 2345)
    tree = above / "a/b"
    write(tree, "f", "1")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
    shutil.rmtree(above / "a")
    with holdfast.open(tree, home=home) as workspace:
        workspace.restore("@")
        assert workspace.verify(read_data=True).ok
    for path in (above / "a", tree, tree / "f"):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345), path


# --- refusals


@pytest.mark.parametrize(("name", "magic"), [("operation", b"HFOP"), ("restore", b"HFRJ"), ("undoing", b"HFUN")])
def test_a_record_that_is_damaged_is_named_and_nothing_is_touched(
    workspace: Workspace, tree: Path, name: str, magic: bytes
) -> None:
    write(tree, "f", "1")
    workspace.checkpoint("one")
    write(tree, "f", "2")
    journal = Path(os.fsdecode(workspace.folder)) / name
    journal.write_bytes(magic + b" 1 0000\n{}")
    with pytest.raises(holdfast.HoldfastError, match="damaged") as caught:
        workspace.restore("one")
    assert str(journal) in (caught.value.message + (caught.value.hint or ""))
    assert (tree / "f").read_text() == "2"
    journal.unlink()
    workspace.restore("one")


@pytest.mark.parametrize("name", ["operation", "restore", "undoing"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_what_is_no_file_in_the_place_of_the_record_is_named_and_never_waited_for(
    workspace: Workspace, tree: Path, kind: str, name: str
) -> None:
    write(tree, "f", "1")
    workspace.checkpoint("one")
    write(tree, "f", "2")
    folder = Path(os.fsdecode(workspace.folder))
    (folder / "root").unlink()
    os.mkfifo(folder / "root")
    journal = folder / name
    match kind:
        case "fifo":
            os.mkfifo(journal)
        case "directory":
            journal.mkdir()
        case _:
            journal.symlink_to(tree / "f")
    for act in (workspace.status, lambda: workspace.restore("one"), workspace.undo, workspace.unfinished):
        with pytest.raises(holdfast.HoldfastError, match="no file at all"):
            act()
    assert (tree / "f").read_text() == "2"
    if kind == "directory":
        journal.rmdir()
    else:
        journal.unlink()
    workspace.restore("one")
    with holdfast.open(tree, home=os.fsdecode(workspace.home)) as again:
        assert again.id == workspace.id


def test_a_fork_lands_only_where_nothing_is(workspace: Workspace, tree: Path, tmp_path: Path, home: Path) -> None:
    write(tree, "f", "1")
    workspace.checkpoint("one")
    full = tmp_path / "full"
    write(full, "mine", "m")
    (tmp_path / "file").write_text("x")
    (tmp_path / "to-tree").symlink_to(tree)
    for target in (full, tmp_path / "file", tree, tree / "inner", tmp_path / "to-tree/inner", home / "inner"):
        with pytest.raises(RefusedError):
            workspace.fork("one", target)
    assert contents(full) == {"mine": b"m"}
    assert contents(tree) == {"f": b"1"}
    assert not (home / "inner").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    workspace.fork("one", empty)
    assert contents(empty) == {"f": b"1"}
    with pytest.raises(RefusedError):
        workspace.fork("one", empty)
    deep = tmp_path / "not/there/yet"
    workspace.fork("one", deep)
    assert contents(deep) == {"f": b"1"}


def test_a_fork_that_was_cut_short_is_finished_by_the_same_fork(
    workspace: Workspace, tree: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # I3
    from holdfast.files.local_tree import LocalTree

    class Crash(Exception):
        pass

    for number in range(5):
        write(tree, f"f{number}", f"{number}")
    workspace.checkpoint("one")
    target = tmp_path / "target"

    def fail(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(LocalTree, "apply", fail)
        with pytest.raises(Crash):
            workspace.fork("one", target)
    write(tree, "other", "o")
    workspace.checkpoint("two")
    with pytest.raises(RefusedError):
        workspace.fork("two", target)
    with holdfast.open(target, home=home) as half:
        assert half.unfinished() is not None
    result = workspace.fork("one", target)
    assert result.written == 5
    assert contents(target) == {f"f{number}": b"%d" % number for number in range(5)}
    with holdfast.open(target, home=home) as whole:
        assert whole.unfinished() is None
        assert whole.status().clean


def test_an_undo_of_nothing_names_the_checkpoint_that_it_has_made(workspace: Workspace, tree: Path) -> None:
    (tree / "file").write_text("not saved yet\n")
    with pytest.raises(NotFoundError) as caught:
        workspace.undo()
    (saved,) = workspace.log().checkpoints
    assert caught.value.hint == (
        f"checkpoint {saved.id[:12]} now holds the unsaved changes; `holdfast log` lists the states"
    )
    with pytest.raises(NotFoundError) as again:
        workspace.undo()
    assert again.value.hint == "`holdfast log` lists the states", "nothing new was saved"

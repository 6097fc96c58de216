"""Applying changes to a directory tree."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from holdfast.files import kernel, taken
from holdfast.files.apply import DIRECTORY_IN_THE_WAY, OTHER_NAMES, Applier
from holdfast.files.batch import IN_THE_WAY, NAMED_TWICE
from holdfast.files.index import Known, Signature
from holdfast.files.lease import Writer
from holdfast.files.owner import Owner
from holdfast.files.replace import GONE
from holdfast.files.rooted import Root
from holdfast.files.taken import CHANGED, IN_USE
from holdfast.files.tree import Applied
from holdfast.model.entries import Change, Entry, NotCaptured, file_entry, symlink_entry
from holdfast.model.errors import IntegrityError, StorageError, UsageError
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.model.sinks import Content

NONCE = "n0"


class Seen:
    """What is known of a tree, kept in a dictionary."""

    def __init__(self) -> None:
        self.known: dict[bytes, Known] = {}

    def get(self, path: bytes) -> Known | None:
        return self.known.get(path)

    def put(self, path: bytes, entry: Entry, signature: Signature) -> None:
        self.known[path] = Known(entry, signature)

    def drop(self, path: bytes) -> None:
        self.known.pop(path, None)


def file(content: bytes, permissions: int = 0o644) -> Entry:
    return file_entry(hash_bytes(content), len(content), permissions)


def link(target: bytes) -> Entry:
    return symlink_entry(hash_bytes(target), len(target))


def signature_of(path: bytes) -> Signature:
    info = os.lstat(path)
    return Signature(info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode)


def content_of(path: Path) -> bytes:
    """What a file holds, even if its permissions keep its owner from reading it."""
    mode = path.stat().st_mode & 0o7777
    if os.access(path, os.R_OK):
        return path.read_bytes()
    path.chmod(0o400)
    try:
        return path.read_bytes()
    finally:
        path.chmod(mode)


class Workspace:
    """A directory, and what applies changes to it."""

    def __init__(self, path: Path, *, flags: bool, beneath: bool) -> None:
        self.path = path
        self.root = Root(bytes(path), beneath=beneath)
        self.seen = Seen()
        self.flags = flags
        self.applier = Applier(self.root, self.seen, flags=flags)

    def at(self, path: bytes) -> bytes:
        return bytes(self.path) + b"/" + path

    def tree(self) -> dict[bytes, Entry | str]:
        """Every path with its entry; a directory without entries below it and special files by a word."""
        found: dict[bytes, Entry | str] = {}
        for parent, directories, files in os.walk(bytes(self.path)):
            for name in [*directories, *files]:
                path = parent + b"/" + name
                inner = os.path.relpath(path, bytes(self.path))
                if os.path.islink(path):
                    found[inner] = link(os.readlink(path))
                elif os.path.isfile(path):
                    found[inner] = file(content_of(Path(os.fsdecode(path))), os.stat(path).st_mode)
                elif not os.path.isdir(path):
                    found[inner] = "special"
                elif not os.listdir(path):
                    found[inner] = "empty"
        return found

    def scan(self) -> dict[bytes, Entry]:
        """Look at the tree and remember it."""
        entries = {path: entry for path, entry in self.tree().items() if isinstance(entry, Entry)}
        self.seen.known = {path: Known(entry, signature_of(self.at(path))) for path, entry in entries.items()}
        return entries

    def go(self, target: dict[bytes, tuple[Entry, bytes]], *, pieces: bool = False) -> Applied:
        """Apply what leads from what was seen last to ``target``."""
        before = {path: known.entry for path, known in self.seen.known.items()}
        deletes = [Change(path, entry, None) for path, entry in before.items() if path not in target]
        writes: list[tuple[Change, Content | None]] = []
        for path, (entry, content) in target.items():
            old = before.get(path)
            if old == entry:
                continue
            only_mode = old is not None and old.hash == entry.hash and old.is_symlink == entry.is_symlink
            given = None if only_mode else iter([content[:2], content[2:]]) if pieces else content
            writes.append((Change(path, old, entry), given))
        return self.applier.apply(deletes, writes, nonce=NONCE)

    def temporaries(self) -> list[str]:
        return [str(path) for path in self.path.rglob(os.fsdecode(TEMPORARY_PREFIX) + "*")]


@pytest.fixture(params=["renameat2", "no flags"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "w").mkdir()
    flags = request.param == "renameat2"
    space = Workspace(tmp_path / "w", flags=flags, beneath=flags)
    yield space
    assert space.temporaries() == [], "nothing of ours is left lying"
    space.root.close()


def put(space: Workspace, path: str, content: bytes = b"old", mode: int = 0o644) -> Path:
    target = space.path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(mode)
    return target


def wanted(**contents: bytes) -> dict[bytes, tuple[Entry, bytes]]:
    return {path.replace("_", "/").encode(): (file(content), content) for path, content in contents.items()}


def test_a_tree_is_written_out(space: Workspace):
    target = {
        b"top": (file(b"top"), b"top"),
        b"a/b/c/deep": (file(b"deep", 0o755), b"deep"),
        b"a/b/link": (link(b"../../top"), b"../../top"),
        b"a/dangling": (link(b"/nowhere"), b"/nowhere"),
        b"caf\xe9/\xff\n": (file(b"no text", 0o600), b"no text"),
        b"empty": (file(b""), b""),
        b"locked": (file(b"x", 0o000), b"x"),
    }
    applied = space.go(target)
    assert sorted(applied.written) == sorted(target)
    assert applied.deleted == []
    assert applied.skipped == []
    assert space.tree() == {path: entry for path, (entry, _) in target.items()}


def test_the_index_knows_what_was_written(space: Workspace):
    put(space, "a/old", b"old")
    put(space, "chmod", b"same")
    space.scan()
    space.go(
        {
            b"a/old": (file(b"new"), b"new"),
            b"a/fresh": (file(b"fresh"), b"fresh"),
            b"new/dir/f": (file(b"f"), b"f"),
            b"l": (link(b"x"), b"x"),
            b"chmod": (file(b"same", 0o700), b"same"),
        }
    )
    assert {path: known.entry for path, known in space.seen.known.items()} == space.tree()
    for path, known in space.seen.known.items():
        assert known.signature == signature_of(space.at(path)), path


def test_files_that_stay_are_not_touched(space: Workspace):
    stays = put(space, "d/stays")
    os.utime(stays, ns=(1, 2))
    put(space, "d/goes")
    put(space, "d/changes")
    before = space.scan()
    info = stays.stat()
    space.go({b"d/stays": (before[b"d/stays"], b"old"), b"d/changes": (file(b"new"), b"new")})
    assert stays.stat() == info
    assert set(space.tree()) == {b"d/stays", b"d/changes"}


def test_content_comes_whole_or_in_pieces(space: Workspace):
    put(space, "a", b"old")
    space.scan()
    applied = space.go({b"a": (file(b"in pieces"), b"in pieces"), b"d/b": (file(b"more"), b"more")}, pieces=True)
    assert sorted(applied.written) == [b"a", b"d/b"]
    assert (space.path / "a").read_bytes() == b"in pieces"


def test_types_change_both_ways(space: Workspace):
    put(space, "file-link", b"f")
    (space.path / "link-file").symlink_to("x")
    put(space, "file-dir", b"f")
    put(space, "dir-file/a/b", b"f")
    put(space, "dir-link/a", b"f")
    (space.path / "link-dir").symlink_to("dir-link")
    space.scan()
    target = {
        b"file-link": (link(b"y"), b"y"),
        b"link-file": (file(b"now"), b"now"),
        b"file-dir/inside": (file(b"i"), b"i"),
        b"dir-file": (file(b"j"), b"j"),
        b"dir-link": (link(b"z"), b"z"),
        b"link-dir/inside": (file(b"k"), b"k"),
    }
    applied = space.go(target)
    assert applied.skipped == []
    assert space.tree() == {path: entry for path, (entry, _) in target.items()}


def test_emptied_directories_go_and_others_stay(space: Workspace):
    put(space, "a/b/c/f")
    put(space, "a/keep/f")
    put(space, "x/y/f")
    (space.path / "x/y/uncaptured").mkdir()
    before = space.scan()
    applied = space.go({b"a/keep/f": (before[b"a/keep/f"], b"old")})
    assert sorted(applied.deleted) == [b"a/b/c/f", b"x/y/f"]
    assert space.tree() == {b"a/keep/f": before[b"a/keep/f"], b"x/y/uncaptured": "empty"}


def test_a_directory_that_is_filled_again_keeps_its_permissions(space: Workspace):
    put(space, "d/old")
    (space.path / "d").chmod(0o700)
    space.scan()
    space.go(wanted(d_new=b"new"))
    assert (space.path / "d").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["file", "link", "fifo", "directory"])
def test_i5_what_is_not_captured_is_never_in_danger(space: Workspace, kind: str):
    path = space.path / "d/thing"
    path.parent.mkdir()
    if kind == "file":
        path.write_bytes(b"theirs")
    elif kind == "link":
        path.symlink_to("theirs")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
        (path / "theirs").write_bytes(b"theirs")
    before, info = space.tree(), path.lstat()
    applied = space.go({b"d/thing": (file(b"ours"), b"ours"), b"d/fine": (file(b"fine"), b"fine")})
    reason = DIRECTORY_IN_THE_WAY if kind == "directory" else IN_THE_WAY
    assert applied.skipped == [NotCaptured(b"d/thing", reason)]
    assert applied.written == [b"d/fine"]
    assert path.lstat() == info
    assert space.tree() == before | {b"d/fine": file(b"fine")}


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_i5_a_file_where_a_directory_must_go_stays(space: Workspace, kind: str):
    if kind == "file":
        put(space, "d", b"theirs")
    else:
        os.mkfifo(space.path / "d")
    before = space.tree()
    applied = space.go(wanted(d_f=b"ours"))
    assert applied.skipped == [NotCaptured(b"d/f", IN_THE_WAY)]
    assert space.tree() == before


def test_i5_a_directory_with_a_name_of_git_stays(space: Workspace):
    (space.path / "d/.git").mkdir(parents=True)
    assert space.go(wanted(d=b"file")).skipped == [NotCaptured(b"d", DIRECTORY_IN_THE_WAY)]
    assert (space.path / "d/.git").is_dir()


def test_directories_without_any_file_give_way_to_a_file(space: Workspace):
    (space.path / "d/e/f").mkdir(parents=True)
    assert space.go(wanted(d=b"file")).written == [b"d"]
    assert space.tree() == {b"d": file(b"file")}


@pytest.mark.parametrize("change", ["edit", "touch and edit", "replace", "directory", "gone", "chmod"])
def test_i8_what_changed_since_it_was_seen_is_left_alone(space: Workspace, change: str):
    for name in ("written", "deleted"):
        path = put(space, name, b"seen")
    space.scan()
    for name in ("written", "deleted"):
        path = space.path / name
        info = path.stat()
        if change in ("edit", "touch and edit"):
            path.write_bytes(b"edit")
            if change == "touch and edit":
                os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        elif change == "chmod":
            path.chmod(0o600)
        else:
            path.unlink()
            if change == "replace":
                path.symlink_to("seen")
            elif change == "directory":
                path.mkdir()
                (path / "f").write_bytes(b"f")
    before = space.tree()
    applied = space.go(wanted(written=b"ours"))
    skipped = dict(applied.skipped)
    assert skipped[b"written"] == (GONE if change == "gone" else CHANGED)
    if change in ("gone", "directory"):
        assert applied.deleted == [b"deleted"], "there is no such file any more, as was wanted"
    else:
        assert skipped[b"deleted"] == CHANGED
    assert space.tree() == before


def test_a_file_that_was_only_touched_is_known_by_its_content(space: Workspace):
    for name in ("written", "deleted"):
        os.utime(put(space, name, b"seen"), ns=(1, 1))
    space.scan()
    for name in ("written", "deleted"):
        os.utime(space.path / name, ns=(2, 2))
    applied = space.go(wanted(written=b"ours"))
    assert applied == Applied([b"written"], [b"deleted"], [])


def test_nothing_needs_to_be_known(space: Workspace):
    put(space, "a", b"old")
    put(space, "b", b"old")
    (space.path / "l").symlink_to("old")
    space.seen.known.clear()
    applied = space.applier.apply(
        [Change(b"b", file(b"old"), None), Change(b"l", link(b"old"), None)],
        [(Change(b"a", file(b"old"), file(b"new")), b"new")],
        nonce=NONCE,
    )
    assert applied == Applied([b"a"], [b"l", b"b"], [])
    assert space.tree() == {b"a": file(b"new")}


def untouched(path: Path) -> tuple[int, ...]:
    """What any change of a file or a link would change; reading it may change the time of access, which is left out."""
    about = os.lstat(path)
    return (
        about.st_dev,
        about.st_ino,
        about.st_mode,
        about.st_nlink,
        about.st_size,
        about.st_mtime_ns,
        about.st_ctime_ns,
    )


def test_what_is_done_already_is_not_done_again(space: Workspace):
    put(space, "same/a", b"new", 0o755)
    put(space, "old", b"old")
    (space.path / "l").symlink_to("target")
    before = [untouched(space.path / name) for name in ("same/a", "l")]
    applied = space.applier.apply(
        [Change(b"gone", file(b"x"), None), Change(b"gone/deeper/x", file(b"x"), None)],
        [
            (Change(b"same/a", file(b"old"), file(b"new", 0o755)), b"new"),
            (Change(b"l", None, link(b"target")), b"target"),
            (Change(b"old", file(b"older"), file(b"old")), b"old"),
        ],
        nonce=NONCE,
    )
    assert sorted(applied.written) == [b"l", b"old", b"same/a"]
    assert sorted(applied.deleted) == [b"gone", b"gone/deeper/x"]
    assert applied.skipped == []
    assert [untouched(space.path / name) for name in ("same/a", "l")] == before
    assert space.seen.known[b"same/a"].entry == file(b"new", 0o755)


def test_permissions_alone_change_in_place(space: Workspace):
    path = put(space, "f", b"content")
    os.utime(path, ns=(5, 5))
    path.chmod(0o4644)
    hidden = put(space, "hidden", b"x", 0o000)
    space.scan()
    inode = path.stat().st_ino
    applied = space.go({b"f": (file(b"content", 0o755), b"content"), b"hidden": (file(b"x", 0o644), b"x")})
    assert sorted(applied.written) == [b"f", b"hidden"]
    info = path.stat()
    assert (info.st_ino, info.st_mtime_ns, info.st_mode & 0o7777) == (inode, 5, 0o4755), "set-id bits of the user stay"
    assert hidden.stat().st_mode & 0o7777 == 0o644


def test_permissions_are_not_changed_through_another_name(space: Workspace, tmp_path: Path):
    path = put(space, "f", b"same", 0o644)
    os.link(path, tmp_path / "outside")
    space.scan()
    assert space.go({b"f": (file(b"same", 0o755), b"same")}).skipped == [NotCaptured(b"f", OTHER_NAMES)]
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o644
    (tmp_path / "outside").unlink()
    space.scan()
    assert space.go({b"f": (file(b"same", 0o755), b"same")}).written == [b"f"]
    assert path.stat().st_mode & 0o777 == 0o755


def test_permissions_are_not_changed_on_what_changed(space: Workspace):
    path = put(space, "f", b"content")
    space.scan()
    path.write_bytes(b"theirs!")
    assert space.go({b"f": (file(b"content", 0o755), b"content")}).skipped == [NotCaptured(b"f", CHANGED)]
    assert path.stat().st_mode & 0o777 == 0o644


def test_new_files_carry_no_set_id_bits(space: Workspace):
    path = put(space, "f", b"old", 0o6755)
    space.scan()
    space.go({b"f": (file(b"new", 0o755), b"new")})
    assert path.stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "name", [b"../x", b"/tmp/x", b"a//b", b"a/../b", b".git/hooks/x", b"d/.holdfast/x", b"n\0", b"x" * 300]
)
def test_i7_paths_that_are_never_allowed_are_skipped(space: Workspace, name: bytes):
    applied = space.applier.apply(
        [Change(name, file(b"x"), None)], [(Change(name, None, file(b"x")), b"x")], nonce=NONCE
    )
    assert applied.written == applied.deleted == []
    assert [path for path, _ in applied.skipped] == [name, name]
    assert all("refused" in reason for _, reason in applied.skipped)
    assert os.listdir(space.path.parent) == ["w"]


def test_i7_no_link_is_written_through(space: Workspace, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f").write_bytes(b"theirs")
    (space.path / "d").symlink_to("../outside")
    applied = space.applier.apply(
        [Change(b"d/f", file(b"theirs"), None)],
        [
            (Change(b"d/f", file(b"theirs"), file(b"ours")), b"ours"),
            (Change(b"d/new/f", None, file(b"ours")), b"ours"),
        ],
        nonce=NONCE,
    )
    assert applied.deleted == [b"d/f"], "what lies behind a link is not in the tree"
    assert [path for path, _ in applied.skipped] == [b"d/f", b"d/new/f"]
    assert (tmp_path / "outside/f").read_bytes() == b"theirs"
    assert os.listdir(tmp_path / "outside") == ["f"]


def test_i7_a_link_from_the_same_call_is_not_written_through(space: Workspace, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    applied = space.applier.apply(
        [],
        [
            (Change(b"d", None, link(b"../outside")), b"../outside"),
            (Change(b"d/f", None, file(b"x")), b"x"),
            (Change(b"e/l", None, link(b"../../outside")), b"../../outside"),
            (Change(b"e/l/f", None, file(b"x")), b"x"),
            (Change(b"twice", None, file(b"1")), b"1"),
            (Change(b"twice", None, file(b"2")), b"2"),
            (Change(b"e/twice", None, file(b"1")), b"1"),
            (Change(b"e/twice", None, file(b"2")), b"2"),
        ],
        nonce=NONCE,
    )
    assert os.listdir(tmp_path / "outside") == []
    assert len(applied.written) + len(applied.skipped) == 8
    assert (b"e/twice", NAMED_TWICE) in applied.skipped
    for path, _ in applied.skipped:
        assert path in (b"d", b"d/f", b"e/l/f", b"twice", b"e/twice")


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("path", [b"a", b"new/a", b"fresh"])
def test_damaged_content_replaces_nothing(space: Workspace, path: bytes, pieces: bool):
    put(space, "a", b"old")
    put(space, "b", b"old")
    before = space.scan()
    wrong: Content = iter([b"wr", b"ong"]) if pieces else b"wrong"
    with pytest.raises(IntegrityError):
        space.applier.apply(
            [],
            [
                (Change(b"b", file(b"old"), file(b"new")), b"new"),
                (Change(path, before.get(path), file(b"right")), wrong),
            ],
            nonce=NONCE,
        )
    assert space.tree() == before


def test_an_error_of_the_content_goes_on_as_it_is(space: Workspace):
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise StorageError("the bucket is gone")

    put(space, "keep", b"x")
    before = space.scan()
    with pytest.raises(StorageError, match="the bucket is gone"):
        space.applier.apply([], [(Change(b"d/f", None, file(b"something")), broken())], nonce=NONCE)
    assert space.tree() == before


def test_content_that_is_not_needed_is_closed(space: Workspace):
    closed: list[bool] = []

    def content() -> Iterator[bytes]:
        try:
            yield b"x"
        finally:
            closed.append(True)

    put(space, "theirs", b"theirs")
    given = content()
    next(given)
    space.applier.apply([], [(Change(b"theirs", None, file(b"x")), given)], nonce=NONCE)
    assert closed == [True]


class Failing:
    """Makes the nth call of one function of ``os`` or of the kernel fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: object, name: str, number: int, after: int) -> None:
        self.calls, self.real = 0, getattr(module, name)

        def call(*arguments: object, **named: object) -> object:
            self.calls += 1
            if self.calls > after:
                raise OSError(number, os.strerror(number))
            return self.real(*arguments, **named)

        monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_full_disk_is_reported_and_leaves_no_temporaries(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, number: int, after: int
):
    for name in ("a", "b"):
        put(space, name, b"old")
    before = space.scan()
    with monkeypatch.context() as context:
        Failing(context, os, "write", number, after)
        with pytest.raises(StorageError, match=r"could not be written"):
            space.go(wanted(a=b"new", b=b"new", c=b"new", d_e_f=b"new", d_g=b"new"))
    assert space.tree() == before
    assert space.go(wanted(a=b"new", b=b"new", c=b"new", d_e_f=b"new", d_g=b"new")).skipped == []


@pytest.mark.parametrize("lacking", ["room", "inodes", "nothing"])
def test_on_a_disk_with_little_room_what_is_deleted_is_gone_before_anything_is_written(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, lacking: str
):
    put(space, "d/old", b"old")
    put(space, "other", b"old")
    space.scan()
    real = os.fstatvfs(space.root.fd)
    free = {"f_bavail": 1000} if lacking == "room" else {"f_favail": 3, "f_files": 10} if lacking == "inodes" else {}
    about = SimpleNamespace(**{"f_bavail": 1 << 40, "f_frsize": real.f_frsize, "f_files": 0, "f_favail": 0, **free})
    monkeypatch.setattr(os, "statvfs", lambda _: about)
    found: list[int] = []

    def content() -> Iterator[bytes]:
        found.append([path.read_bytes() for path in space.path.rglob("*") if path.is_file()].count(b"old"))
        yield b"new"

    deletes = [Change(path, file(b"old"), None) for path in (b"d/old", b"other")]
    applied = space.applier.apply(deletes, [(Change(b"new", None, file(b"new")), content())], nonce=NONCE)
    assert (applied.deleted, applied.written) == ([b"other", b"d/old"], [b"new"])
    assert found == [2 if lacking == "nothing" else 0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_deletion_for_which_there_is_no_room_waits_for_the_others(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, number: int, lasting: bool
):
    """A rename may need a block more for its directory, which others give back."""
    for name in ("a", "b", "c"):
        put(space, name, b"old")
    space.scan()
    rename = os.rename

    def full(src: bytes, dst: bytes, **where: int) -> None:
        if src == b"b" and (lasting or (space.path / "a").exists()):
            raise OSError(number, os.strerror(number))
        rename(src, dst, **where)

    monkeypatch.setattr(os, "rename", full)
    if lasting:
        with pytest.raises(StorageError, match=r"'b' could not be deleted"):
            space.go({})
    else:
        assert sorted(space.go({}).deleted) == [b"a", b"b", b"c"]
    assert [path.name for path in space.path.iterdir()] == (["b"] if lasting else [])


@pytest.mark.parametrize("name", ["fsync", "syncfs"])
def test_i4_after_a_failed_sync_nothing_is_replaced(space: Workspace, monkeypatch: pytest.MonkeyPatch, name: str):
    target = wanted(a=b"new", **{f"d_f{n}": b"new" for n in range(1 if name == "fsync" else 30)})
    put(space, "a", b"old")
    before = space.scan()
    with monkeypatch.context() as context:
        Failing(context, os if name == "fsync" else kernel, name, errno.EIO, 0)
        with pytest.raises(StorageError, match="Input/output"):
            space.go(target)
    assert space.tree() == before


def test_a_path_that_cannot_be_written_does_not_stop_the_others(space: Workspace, monkeypatch: pytest.MonkeyPatch):
    for name in ("a", "b", "c"):
        put(space, name, b"old")
    space.scan()
    real = os.open

    def refuse(path: object, flags: int, *arguments: object, **named: object) -> int:
        if flags & os.O_CREAT and isinstance(path, bytes) and path.endswith(b"-2"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    applied = space.go(wanted(a=b"new", b=b"new", c=b"new"))
    assert len(applied.written) == 2
    assert [reason for _, reason in applied.skipped] == ["Permission denied"]


@pytest.mark.parametrize("call", ["renameat2", "rename", "link"])
def test_what_cannot_be_placed_leaves_no_temporary(space: Workspace, monkeypatch: pytest.MonkeyPatch, call: str):
    put(space, "old", b"old")
    space.scan()

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(kernel if call == "renameat2" else os, call, refused)
    applied = space.go(wanted(old=b"ours", new=b"ours"))
    monkeypatch.undo()
    assert len(applied.written) + len(applied.skipped) == 2
    assert bool(applied.skipped) == {"renameat2": space.flags, "rename": True, "link": not space.flags}[call]
    assert set(space.tree()) == {b"old", *applied.written}, "no temporary is left"


def test_batches_are_placed_one_after_the_other(space: Workspace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.files.apply._BATCH_FILES", 3)
    target = wanted(**{f"d{n % 3}_e{n % 2}_f{n}": b"%d" % n for n in range(20)}, top=b"top")
    applied = space.go(target)
    assert sorted(applied.written) == sorted(target)
    assert space.tree() == {path: entry for path, (entry, _) in target.items()}


def test_progress_is_told(space: Workspace):
    put(space, "a")
    space.scan()
    heard: list[tuple[str, int, int]] = []
    space.applier.apply(
        [Change(b"a", file(b"old"), None)],
        [(Change(b"b", None, file(b"x")), b"x")],
        nonce=NONCE,
        progress=lambda *values: heard.append(values),
    )
    assert heard == [("delete", 0, 1), ("delete", 1, 1), ("write", 0, 0), ("write", 1, 1)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root to give files away")
def test_what_is_created_belongs_to_the_owner(space: Workspace):
    owner = Owner(1234, 2345)
    applier = Applier(space.root, space.seen, owner=owner, flags=space.flags)
    put(space, "old", b"old")
    space.scan()
    applier.apply(
        [],
        [
            (Change(b"old", file(b"old"), file(b"new")), b"new"),
            (Change(b"d/e/f", None, file(b"f", 0o755)), b"f"),
            (Change(b"d/l", None, link(b"x")), b"x"),
        ],
        nonce=NONCE,
    )
    for path in ("old", "d", "d/e", "d/e/f", "d/l"):
        info = (space.path / path).lstat()
        assert (info.st_uid, info.st_gid) == owner, path
    assert (space.path / "d/e/f").stat().st_mode & 0o7777 == 0o755


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
    monkeypatch.setattr(kernel, "syncfs", intruding(kernel.syncfs))


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
        assert applied == Applied([], [], [NotCaptured(b"gone/g", IN_USE), NotCaptured(b"f", IN_USE)])
        one.write(b"newer")
        other.write(b"newer")
    assert space.tree() == {b"f": file(b"newer"), b"gone/g": file(b"newer")}


@pytest.mark.parametrize("how", ["descriptor", "mapping"])
def test_i8_without_leases_what_is_written_to_is_kept(space: Workspace, monkeypatch: pytest.MonkeyPatch, how: str):
    """As on a file system that cannot tell who writes to a file."""
    monkeypatch.setattr(taken, "writer_of", lambda fd: Writer.UNTOLD)
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

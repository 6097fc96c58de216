"""Applying changes where something goes wrong: damaged content, a full disk, calls that fail."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from holdfast.files.linux import syscalls
from holdfast.files.write.applier import Applier
from holdfast.files.write.ownership import Owner
from holdfast.model.entries import Change
from holdfast.model.errors import IntegrityError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.model.content import Content

from .applying import NONCE, Workspace, file, link, put, wanted


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
        Failing(context, os if name == "fsync" else syscalls, name, errno.EIO, 0)
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

    monkeypatch.setattr(syscalls if call == "renameat2" else os, call, refused)
    applied = space.go(wanted(old=b"ours", new=b"ours"))
    monkeypatch.undo()
    assert len(applied.written) + len(applied.skipped) == 2
    assert bool(applied.skipped) == {"renameat2": space.flags, "rename": True, "link": not space.flags}[call]
    assert set(space.tree()) == {b"old", *applied.written}, "no temporary is left"


def test_batches_are_placed_one_after_the_other(space: Workspace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.files.write.applier._BATCH_FILES", 3)
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
    assert os.stat(space.at(b"old")).st_uid == 0, "it is as that which it replaces"
    for path in ("d", "d/e", "d/e/f", "d/l"):
        info = (space.path / path).lstat()
        assert (info.st_uid, info.st_gid) == owner, path
    assert (space.path / "d/e/f").stat().st_mode & 0o7777 == 0o755

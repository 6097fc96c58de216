"""Atomic replacement of one name."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.files.linux import exclusive_rename, syscalls
from holdfast.files.write import atomic_replacement
from holdfast.files.write.atomic_replacement import GONE, Durability, TemporaryNames, digest
from holdfast.files.write.displaced_file import CHANGED, IN_USE, DisplacedFile, FileIdentity, identity_of
from holdfast.files.write.ownership import Owner
from holdfast.model.entries import Entry, file_entry, symlink_entry
from holdfast.model.errors import IntegrityError, RefusedError, UsageError
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def entry_of(content: bytes, permissions: int = 0o644) -> Entry:
    return file_entry(hash_bytes(content), len(content), permissions)


def seen(path: Path) -> FileIdentity:
    return identity_of(path.lstat())


def taken(path: Path) -> DisplacedFile:
    """What a look at the file found, to be taken away."""
    return DisplacedFile(seen(path), entry_of(path.read_bytes(), path.stat().st_mode), doubtful=True)


def lacking(*_: object) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


@pytest.fixture(params=["flags", "no flags", "flags refused"])
def flags(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "flags refused":
        monkeypatch.setattr(syscalls, "renameat2", lacking)
    return request.param != "no flags"


@pytest.mark.parametrize("permissions", [0o644, 0o755, 0o600, 0o777, 0o000, 0o444])
def test_a_file_is_written_with_exactly_its_permissions(directory: int, tmp_path: Path, permissions: int):
    fd, info = atomic_replacement.write_file(directory, b"f", b"content", entry_of(b"content", permissions), None)
    os.close(fd)
    assert (tmp_path / "f").stat() == info
    assert info.st_mode & 0o7777 == permissions
    assert (tmp_path / "f").read_bytes() == b"content"


def test_pieces_are_written_in_order(directory: int, tmp_path: Path):
    whole = b"".join(bytes([n]) * 70_000 for n in range(50))
    pieces = iter([whole[at : at + 65_536] for at in range(0, len(whole), 65_536)])
    fd, _ = atomic_replacement.write_file(directory, b"f", pieces, entry_of(whole), None)
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == whole


def test_short_writes_are_continued(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:3])))
    fd, _ = atomic_replacement.write_file(directory, b"f", b"0123456789", entry_of(b"0123456789"), None)
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == b"0123456789"


@pytest.mark.parametrize("wrong", [b"contenT", b"content and more", b"short", b""])
@pytest.mark.parametrize("as_pieces", [False, True])
def test_content_that_is_not_the_entrys_leaves_nothing(directory: int, tmp_path: Path, wrong: bytes, as_pieces: bool):
    content = iter([wrong[:3], wrong[3:]]) if as_pieces else wrong
    with pytest.raises(IntegrityError):
        atomic_replacement.write_file(directory, b"f", content, entry_of(b"content"), None)
    with pytest.raises(IntegrityError):
        atomic_replacement.write_link(directory, b"l", wrong, symlink_entry(hash_bytes(b"content"), 7), None)
    assert os.listdir(tmp_path) == []


def test_endless_content_is_cut_off(directory: int, tmp_path: Path):
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 1000

    with pytest.raises(IntegrityError):
        atomic_replacement.write_file(directory, b"f", endless(), entry_of(b"content"), None)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_nothing(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        atomic_replacement.write_file(directory, b"f", b"x", entry_of(b"x"), None)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", [b"a\0b", b"", b"x" * 4096])
def test_targets_that_no_link_can_have_are_refused(directory: int, tmp_path: Path, target: bytes):
    with pytest.raises(RefusedError):
        atomic_replacement.write_link(directory, b"l", target, symlink_entry(hash_bytes(target), len(target)), None)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root to give files away")
def test_files_and_links_are_given_to_the_owner(directory: int, tmp_path: Path):
    owner = Owner(1234, 2345)
    fd, info = atomic_replacement.write_file(directory, b"f", b"x", entry_of(b"x", 0o755), owner)
    os.close(fd)
    assert (info.st_uid, info.st_gid, info.st_mode & 0o7777) == (1234, 2345, 0o755)
    link = atomic_replacement.write_link(directory, b"l", b"f", symlink_entry(hash_bytes(b"f"), 1), owner)
    assert (link.st_uid, link.st_gid) == (1234, 2345)


def test_moving_takes_only_a_free_name(directory: int, tmp_path: Path, flags: bool):
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "dir").mkdir()
    for name in (b"a", b"link", b"dir"):
        assert exclusive_rename.move_if_absent(directory, name, directory, b"new-" + name, flags=flags)
    assert sorted(os.listdir(tmp_path)) == ["new-a", "new-dir", "new-link"]
    assert os.readlink(tmp_path / "new-link") == "a"
    for taken in (b"new-a", b"new-dir", b"new-link"):
        for name in (b"new-a", b"new-dir", b"new-link"):
            if name != taken:
                assert not exclusive_rename.move_if_absent(directory, name, directory, taken, flags=flags)
    assert (tmp_path / "new-a").read_bytes() == b"a"


def test_an_exchange_replaces_what_was_expected(directory: int, tmp_path: Path, flags: bool):
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "tmp").write_bytes(b"new")
    assert atomic_replacement.exchange(directory, b"tmp", b"f", taken(tmp_path / "f"), flags=flags) is None
    assert (tmp_path / "f").read_bytes() == b"new"
    assert not (tmp_path / "tmp").exists() or (tmp_path / "tmp").read_bytes() == b"old"


@pytest.mark.parametrize("become", ["edited", "replaced", "directory", "link", "gone"])
def test_i8_what_changed_before_the_exchange_stays(directory: int, tmp_path: Path, flags: bool, become: str):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    expected = taken(path)
    (tmp_path / "tmp").write_bytes(b"new")
    if become == "edited":
        path.write_bytes(b"theirs")
    else:
        path.unlink()
        if become == "replaced":
            (tmp_path / "other").write_bytes(b"old")
            (tmp_path / "other").rename(path)
        elif become == "directory":
            path.mkdir()
        elif become == "link":
            path.symlink_to("nowhere")
    theirs = None if become == "gone" else seen(path)
    assert atomic_replacement.exchange(directory, b"tmp", b"f", expected, flags=flags) == (
        GONE if become == "gone" else CHANGED
    )
    assert os.listdir(tmp_path) == ([] if become == "gone" else ["f"])
    assert theirs is None or seen(path) == theirs


class Intruder:
    """Runs an action of someone else right after the nth call of renameat2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, action: Callable[[], object]) -> None:
        self.calls, self.real = 0, syscalls.renameat2

        def call(*arguments: object) -> None:
            self.real(*arguments)  # type: ignore[arg-type]
            self.calls += 1
            if self.calls == after:
                action()

        monkeypatch.setattr(syscalls, "renameat2", call)


def test_i8_two_edits_in_the_last_moment_are_both_kept(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    expected = taken(path)
    path.write_bytes(b"theirs 1")
    (tmp_path / "tmp").write_bytes(b"new")

    def edit_again() -> None:
        (tmp_path / "editor").write_bytes(b"theirs 2")
        (tmp_path / "editor").rename(path)

    Intruder(monkeypatch, 1, edit_again)
    reason = atomic_replacement.exchange(directory, b"tmp", b"f", expected)
    assert reason is not None
    assert reason.startswith(CHANGED)
    assert "f.kept-1" in reason
    assert path.read_bytes() == b"theirs 2"
    assert (tmp_path / "f.kept-1").read_bytes() == b"theirs 1"
    assert sorted(os.listdir(tmp_path)) == ["f", "f.kept-1"]


def test_i8_an_edit_and_a_removal_in_the_last_moment(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    expected = taken(path)
    path.write_bytes(b"theirs")
    (tmp_path / "tmp").write_bytes(b"new")
    Intruder(monkeypatch, 1, path.unlink)
    assert atomic_replacement.exchange(directory, b"tmp", b"f", expected) == CHANGED
    assert os.listdir(tmp_path) == ["f"]
    assert path.read_bytes() == b"theirs"


def test_taking_away_takes_only_what_was_expected(directory: int, tmp_path: Path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    expected = taken(path)
    assert atomic_replacement.move_aside(directory, b"missing", directory, b"aside", expected) is None
    path.write_bytes(b"theirs")
    assert atomic_replacement.move_aside(directory, b"f", directory, b"aside", expected) == CHANGED
    assert path.read_bytes() == b"theirs"
    assert atomic_replacement.move_aside(directory, b"f", directory, b"aside", taken(path)) is None
    assert os.listdir(tmp_path) == ["aside"]


def test_taking_away_keeps_what_cannot_go_back(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    expected = taken(path)
    path.write_bytes(b"theirs 1")
    (tmp_path / "trash").mkdir()
    trash = os.open(tmp_path / "trash", os.O_RDONLY)
    rename = os.rename

    def intrude(*arguments: object, **named: object) -> None:
        rename(*arguments, **named)  # type: ignore[arg-type]
        path.write_bytes(b"theirs 2") if not path.exists() else None

    monkeypatch.setattr(os, "rename", intrude)
    reason = atomic_replacement.move_aside(directory, b"f", trash, b"aside", expected)
    os.close(trash)
    assert reason is not None
    assert "f.kept-1" in reason
    assert path.read_bytes() == b"theirs 2"
    assert (tmp_path / "f.kept-1").read_bytes() == b"theirs 1"
    assert os.listdir(tmp_path / "trash") == []


def test_kept_names_fit_and_never_replace(directory: int, tmp_path: Path):
    name = b"n" * 255
    for _ in range(3):
        (tmp_path / "tmp").write_bytes(b"x")
        assert len(atomic_replacement.keep_beside(directory, b"tmp", name)) <= 255
    assert len(os.listdir(tmp_path)) == 3


def test_temporary_names_are_told_apart():
    names, other = TemporaryNames("ab"), TemporaryNames("abc")
    assert len({names.new() for _ in range(100)}) == 100
    assert names.new().startswith(TEMPORARY_PREFIX + b"ab-")
    assert names.owns(names.new())
    assert not names.owns(other.new())
    assert not other.owns(names.new())
    for bad in ("", "a-b", "a/b", "..", "x" * 65, "é"):
        with pytest.raises(UsageError):
            TemporaryNames(bad)


def test_a_name_says_what_may_be_under_it(tmp_path: Path):
    path, ours = tmp_path / "f", entry_of(b"ours")
    path.write_bytes(b"x")
    names = TemporaryNames("n")
    plain = names.new()
    assert names.marks(plain) is None
    assert names.marks(names.aside(taken(path))) == (b"", digest(taken(path).entry))
    marked = names.exchanged(plain, ours, taken(path))
    assert marked.startswith(plain)
    assert names.owns(marked)
    assert names.marks(marked) == (digest(ours), digest(taken(path).entry))
    entries = [ours, taken(path).entry, entry_of(b"ours", 0o755), symlink_entry(ours.hash, ours.size)]
    assert len({digest(entry) for entry in entries}) == 4


@pytest.mark.parametrize("how", ["descriptor", "mapping"])
def test_i8_what_somebody_may_still_write_to_keeps_its_name(directory: int, tmp_path: Path, how: str):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    expected = taken(path)
    (tmp_path / "tmp").write_bytes(b"new")
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 3) if how == "mapping" else None
        if mapping is not None:
            file.close()
        assert atomic_replacement.exchange(directory, b"tmp", b"f", expected) == IN_USE
        assert atomic_replacement.move_aside(directory, b"f", directory, b"aside", expected) == IN_USE
        if mapping is None:
            file.write(b"new")
        else:
            mapping[:] = b"new"
            mapping.close()
    assert os.listdir(tmp_path) == ["f"]
    assert path.read_bytes() == b"new"


def test_i8_a_change_that_left_size_and_time_is_noticed_in_doubt(directory: int, tmp_path: Path, flags: bool):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    expected, info = taken(path), path.stat()
    path.write_bytes(b"new")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    (tmp_path / "tmp").write_bytes(b"ours")
    assert atomic_replacement.exchange(directory, b"tmp", b"f", expected, flags=flags) == CHANGED
    assert atomic_replacement.move_aside(directory, b"f", directory, b"aside", expected) == CHANGED
    assert path.read_bytes() == b"new"


def test_runs_of_zeros_take_no_room(directory: int, tmp_path: Path):
    block = b"x" * 4096
    pieces = [bytes(1 << 20), bytes(5000), block, bytes(100), bytes(1 << 20), b"", b"end", bytes(8192 - 3), b""]
    whole = b"".join(pieces)
    fd, info = atomic_replacement.write_file(directory, b"f", iter(pieces), entry_of(whole), None)
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == whole
    assert info.st_size == len(whole)
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.truncate(1 << 20)
    if probe.stat().st_blocks:
        pytest.skip("this file system has no holes")
    assert (tmp_path / "f").stat().st_blocks * 512 <= 8 * 4096


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("size", [4095, 4096, 8191, 8192, 20_000])
def test_zeros_anywhere_come_back_as_they_were(directory: int, tmp_path: Path, at: int, size: int):
    whole = b"a" * at + bytes(size) + b"b" * 100
    ways = [whole], [whole[:3], whole[3:5000], whole[5000:]], [whole[: at + size], b"b" * 100]
    for number, pieces in enumerate(ways):
        fd, _ = atomic_replacement.write_file(directory, b"f%d" % number, iter(pieces), entry_of(whole), None)
        os.close(fd)
        assert (tmp_path / f"f{number}").read_bytes() == whole
    fd, _ = atomic_replacement.write_file(directory, b"tail", whole[: at + size], entry_of(whole[: at + size]), None)
    os.close(fd)
    assert (tmp_path / "tail").read_bytes() == whole[: at + size]


@pytest.mark.parametrize("count", [0, 1, 8, 9, 40])
def test_everything_that_was_added_is_synced_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int):
    synced: set[int] = set()
    whole: list[int] = []
    fsync, syncfs = os.fsync, syscalls.syncfs

    def spy(fd: int) -> None:
        fsync(fd)
        synced.add(os.fstat(fd).st_ino)

    def spy_all(fd: int) -> None:
        syncfs(fd)
        whole.append(os.fstat(fd).st_dev)

    monkeypatch.setattr(os, "fsync", spy)
    monkeypatch.setattr(syscalls, "syncfs", spy_all)
    durability = Durability()
    before = set(os.listdir("/proc/self/fd"))
    inodes: set[int] = set()
    for number in range(count):
        fd = os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT)
        info = os.fstat(fd)
        inodes.add(info.st_ino)
        durability.add(fd, info.st_dev)
    durability.flush()
    assert set(os.listdir("/proc/self/fd")) == before
    assert synced >= inodes or whole == [tmp_path.stat().st_dev]
    assert bool(whole) == (count > 8), "few files by themselves, many by one call"
    synced.clear()
    durability.flush()
    assert not synced, "a flush forgets what it has synced"


def test_a_failed_sync_is_an_error_and_closes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(syscalls, "syncfs", fail)
    before = set(os.listdir("/proc/self/fd"))
    for count in (3, 20):
        durability = Durability()
        for number in range(count):
            fd = os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT)
            durability.add(fd, os.fstat(fd).st_dev)
        with pytest.raises(OSError, match="Input/output"):
            durability.flush()
    assert set(os.listdir("/proc/self/fd")) == before

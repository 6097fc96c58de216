"""Rooted access, in both implementations."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from holdfast.files.ignore.reserved_paths import ReservedPaths
from holdfast.files.linux import syscalls
from holdfast.files.write._trash import remove_hollow, remove_tree
from holdfast.files.write.ownership import Owner
from holdfast.files.write.rooted_access import NOT_A_DIRECTORY, Root, open_root
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError, RefusedError, StorageError

ROUNDS = 1000


@pytest.fixture(params=[True, False], ids=["openat2", "by component"])
def beneath(request: pytest.FixtureRequest, tmp_path: Path) -> bool:
    if request.param:
        fd = os.open(tmp_path, os.O_PATH)
        try:
            os.close(syscalls.openat2(fd, b".", os.O_PATH, syscalls.RESOLVE_BENEATH))
        except OSError:
            pytest.skip("this kernel has no openat2")
        finally:
            os.close(fd)
    return request.param


@pytest.fixture
def root(beneath: bool, tmp_path: Path):
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    with Root(str(tmp_path / "root"), beneath=beneath) as opened:
        yield opened


def read(root: Root, path: bytes) -> bytes:
    fd = root.open_file(path)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


@pytest.mark.parametrize("told", ["by its path", "by what it is"])
def test_what_is_reserved_is_refused_however_deep(root: Root, beneath: bool, tmp_path: Path, told: str):
    # I14, I15
    ours = tmp_path / "root/a/ours"
    (ours / "b/c").mkdir(parents=True)
    (ours / "b/f").write_bytes(b"ours")
    about = ours.stat()
    by_path = told == "by its path"
    reserved = ReservedPaths(
        frozenset([b"a/ours"] if by_path else ()), frozenset(() if by_path else [(about.st_dev, about.st_ino)])
    )
    with Root(str(tmp_path / "root"), beneath=beneath, reserved=reserved) as careful:
        for _ in range(2):
            for path in (b"a/ours/b/f", b"a/ours/b/new", b"a/ours/f"):
                with pytest.raises(RefusedError) as caught:
                    careful.locate(path)
                assert caught.value.code == "reserved"
            for path in (b"a/ours", b"a/ours/b", b"a/ours/b/c"):
                with pytest.raises(RefusedError):
                    careful.directory(path)
            with pytest.raises(RefusedError):
                careful.make_directory(b"a/ours/b/d/e")
        assert careful.list(b"a") == [b"ours"]
        assert remove_hollow(careful, b"a") is False
    assert read(root, b"a/ours/b/f") == b"ours"


def test_what_is_there_is_reached(root: Root, tmp_path: Path):
    deep = tmp_path / "root" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"content")
    (deep / "l").symlink_to("../nowhere")
    assert read(root, b"a/b/f") == b"content"
    assert root.readlink(b"a/b/l") == b"../nowhere"
    assert root.lstat(b"a/b/f").st_size == 7
    assert sorted(root.list(b"a/b")) == [b"f", b"l"]
    assert root.list() == [b"a"]
    assert root.list() == [b"a"], "a second listing begins at the beginning"
    root.rename(b"a/b/f", b"g")
    assert (tmp_path / "root" / "g").read_bytes() == b"content"
    root.unlink(b"a/b/l")
    assert root.rmdir(b"a") is False
    assert root.rmdir(b"a/b") is True
    with pytest.raises(NotFoundError):
        root.lstat(b"a/b/f")


FORBIDDEN = [
    b"",
    b"/etc/passwd",
    b"../outside/secret",
    b"a/../../outside/secret",
    b"a//b",
    b"./a",
    b"a\0b",
    b"x" * 256,
    b"a/" * 2048 + b"a",
    b"a/.git/config",
    b".holdfast",
]


@pytest.mark.parametrize("path", FORBIDDEN)
def test_i7_names_that_are_never_allowed_are_refused(root: Root, path: bytes):
    for operation in (root.open_file, root.lstat, root.readlink, root.unlink, root.rmdir, root.locate):
        with pytest.raises(EscapeError):
            operation(path)
    if path:
        with pytest.raises(EscapeError):
            root.make_directory(path)


@pytest.mark.parametrize("target", ["../outside", "/", "."])
def test_i7_no_link_is_followed_on_the_way_or_at_the_end(root: Root, tmp_path: Path, target: str):
    (tmp_path / "root" / "link").symlink_to(target)
    (tmp_path / "root" / "file-link").symlink_to("../outside/secret")
    for path in (b"link/secret", b"link/x/y"):
        for operation in (root.open_file, root.lstat, root.unlink, root.rmdir, root.locate):
            with pytest.raises(EscapeError, match="link"):
                operation(path)
        with pytest.raises(EscapeError):
            root.make_directory(path)
    with pytest.raises(EscapeError):
        root.list(b"link")
    with pytest.raises(RefusedError):
        root.open_file(b"file-link")
    assert (tmp_path / "outside" / "secret").read_bytes() == b"secret"


def test_a_file_on_the_way_is_told_from_a_missing_directory(root: Root, tmp_path: Path):
    (tmp_path / "root" / "f").write_bytes(b"")
    with pytest.raises(NotFoundError) as raised:
        root.locate(b"f/x")
    assert raised.value.code == NOT_A_DIRECTORY
    with pytest.raises(NotFoundError) as raised:
        root.locate(b"missing/x")
    assert raised.value.code == "not_found"
    with pytest.raises(NotFoundError):
        root.make_directory(b"f/x")


def test_only_regular_files_are_opened_and_nothing_blocks(root: Root, tmp_path: Path):
    """Case 9: fifos and devices are refused."""
    os.mkfifo(tmp_path / "root" / "fifo")
    (tmp_path / "root" / "dir").mkdir()
    for path in (b"fifo", b"dir"):
        with pytest.raises(RefusedError, match="regular"):
            root.open_file(path)
    with pytest.raises(RefusedError, match="link"):
        root.readlink(b"dir")
    with pytest.raises(NotFoundError):
        root.open_file(b"missing")


def test_missing_directories_are_made_like_the_one_above_whatever_the_umask(root: Root, tmp_path: Path):
    (tmp_path / "root").chmod(0o750)
    before = os.umask(0o077)
    try:
        root.make_directory(b"/".join([b"d"] * 1200))
    finally:
        os.umask(before)
    assert (tmp_path / "root" / "d").stat().st_mode & 0o7777 == 0o750
    assert root.list(b"/".join([b"d"] * 1199)) == [b"d"]
    remove_tree(root, b"d")  # too deep for those who clean up after tests
    assert root.list() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root to give directories away")
def test_made_directories_are_given_to_the_owner(root: Root, tmp_path: Path):
    root.make_directory(b"a/b", Owner(1234, 2345))
    for path in ("a", "a/b"):
        info = (tmp_path / "root" / path).stat()
        assert (info.st_uid, info.st_gid) == (1234, 2345)


def test_a_rename_never_replaces(root: Root, tmp_path: Path):
    (tmp_path / "root" / "a").write_bytes(b"a")
    (tmp_path / "root" / "b").write_bytes(b"b")
    with pytest.raises(RefusedError):
        root.rename(b"a", b"b")
    assert (tmp_path / "root" / "b").read_bytes() == b"b"


def test_remembered_directories_are_bounded_and_forgotten(root: Root, tmp_path: Path):
    def open_files() -> int:
        paths = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        return sum(path.startswith(str(tmp_path / "root")) for path in paths)

    before = open_files()
    for number in range(300):
        root.make_directory(b"d%d" % number)
    assert before < open_files() <= before + 256
    (tmp_path / "root" / "d299").rename(tmp_path / "root" / "moved")
    root.forget()
    assert open_files() == before
    with pytest.raises(NotFoundError):
        root.directory(b"d299")


def test_the_root_itself_may_be_missing_or_no_directory(tmp_path: Path):
    with pytest.raises(NotFoundError):
        Root(str(tmp_path / "missing"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotFoundError):
        Root(bytes(tmp_path / "file"))


def test_a_name_too_long_for_the_file_system_is_a_storage_error(root: Root, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StorageError, match=r"'f'.*Input/output"):
        root.unlink(b"f")


def test_without_openat2_the_walk_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(*_: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(syscalls, "openat2", missing)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(b"x")
    with Root(str(tmp_path)) as root:
        assert read(root, b"a/f") == b"x"


class Attacker(threading.Thread):
    """Swaps a directory for a link to one outside and back, as fast as it can, until told to stop."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self.base = base
        self.stop = threading.Event()
        self.swaps = 0

    def run(self) -> None:
        inner, link = bytes(self.base / "root/d"), bytes(self.base / "root/link")
        os.symlink(self.base / "outside", link)
        while not self.stop.is_set():
            syscalls.renameat2(-100, inner, -100, link, syscalls.RENAME_EXCHANGE)
            syscalls.renameat2(-100, inner, -100, link, syscalls.RENAME_EXCHANGE)
            self.swaps += 1


def test_i7_holds_while_a_directory_is_swapped_for_a_link(root: Root, tmp_path: Path):
    """Case 9."""
    inside, outside = tmp_path / "root" / "d", tmp_path / "outside"
    inside.mkdir()
    (inside / "secret").write_bytes(b"inside")
    (outside / "sub").mkdir()
    (outside / "victim").write_bytes(b"victim")
    before = {path: path.stat() for path in [outside, *outside.rglob("*")]}
    attacker = Attacker(tmp_path)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    attacker.start()
    outcomes: dict[str, int] = {}
    try:
        for number in range(ROUNDS):
            for name, operation in {
                "read": lambda: read(root, b"d/secret") == b"inside" or pytest.fail("read what is outside"),
                "unlink": lambda: root.unlink(b"d/victim"),
                "rmdir": lambda: root.rmdir(b"d/sub"),
                "list": lambda: b"victim" in root.list(b"d") and pytest.fail("listed what is outside"),
                "mkdir": lambda n=number: root.make_directory(b"d/made%d/x" % n),
                "rename": lambda: root.rename(b"d/victim", b"stolen"),
            }.items():
                root.forget()
                try:
                    operation()
                    outcomes[name] = outcomes.get(name, 0) + 1
                except HoldfastError as error:
                    outcomes[error.code] = outcomes.get(error.code, 0) + 1
    finally:
        attacker.stop.set()
        attacker.join()
        sys.setswitchinterval(interval)
    assert attacker.swaps > 0
    assert outcomes["read"] > 0, "the operations do succeed between the swaps"
    assert outcomes.get("escape", 0) + outcomes.get("not_found", 0) > 0
    assert {path: path.stat()[:2] + path.stat()[6:9:2] for path in before} == {
        path: info[:2] + info[6:9:2] for path, info in before.items()
    }
    assert sorted(os.listdir(outside)) == ["secret", "sub", "victim"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read")
def test_what_lies_above_a_root_need_not_be_readable() -> None:
    """It has to be searched, as the home of all homes often can, and no more."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o711)
        (base / "own").mkdir()
        os.chown(base / "own", 65534, 65534)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                code = int(os.listdir(open_root(os.fsencode(base.resolve() / "own"))) != [])
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

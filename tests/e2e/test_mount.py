"""Mounted checkpoints, by the real kernel: what they show, what holds them up, and how they end."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ..fuse import ONLY_WITH_FUSE
from ..waiting import wait_until
from .conftest import INSTALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from .conftest import Cli

GONE = (errno.ENOTCONN, errno.ECONNABORTED)
"""What whoever still uses a mount is told, once nobody serves it."""
_MNT_DETACH = 2
_SECONDS = 120
_libc = ctypes.CDLL(None, use_errno=True)


pytestmark = ONLY_WITH_FUSE


class Mount(NamedTuple):
    """A mount, and the process that serves it."""

    path: Path
    server: subprocess.Popen[str]
    said: dict[str, Any]

    def end(self, number: int = signal.SIGTERM) -> str:
        """End the server by a signal; what it has logged."""
        self.server.send_signal(number)
        return self.ended()

    def ended(self) -> str:
        """What the server, which is about to end, has logged."""
        assert self.server.stderr is not None
        return self.server.communicate(timeout=30)[1]


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


@pytest.fixture(name="mount")
def _mount(cli: Cli, place: Path) -> Iterator[Callable[..., Mount]]:
    """Mounts a checkpoint, on ``mnt`` beside the workspace; afterwards nothing is left, whatever has happened."""
    started: list[subprocess.Popen[str]] = []
    paths = [place / "mnt"]

    def kill() -> None:
        # Whoever hangs on a mount is freed by the end of its server.
        for server in started:
            server.kill()

    watchdog = threading.Timer(_SECONDS, kill)
    watchdog.start()

    def start(*words: str, directory: Path = paths[0]) -> Mount:
        command = [*INSTALLED, "--json", "mount", *(words or ("@",)), str(directory)]
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(server)
        paths.append(directory)
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, server.communicate(timeout=30)
        said = json.loads(line)
        assert cli.is_documented("mount", said)
        assert said["directory"] == str(directory)
        return Mount(directory, server, said)

    yield start
    watchdog.cancel()
    kill()
    for server in started:
        server.wait(30)
        for stream in (server.stdout, server.stderr):
            assert stream is not None
            stream.close()
    for path in paths:
        _libc.umount2(bytes(path), _MNT_DETACH)
    assert str(place) not in mounts()


@contextmanager
def fails(*numbers: int) -> Generator[None]:
    """What is done in the block is refused by the system with one of these errors."""
    names = "|".join(re.escape(f"[Errno {number}]") for number in numbers)
    with pytest.raises(OSError, match=names):
        yield


@contextmanager
def opened(path: Path) -> Generator[int]:
    """A descriptor; that it cannot even be closed well, when nobody serves it any more, is no matter."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        with suppress(OSError):
            os.close(descriptor)


def shape(root: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything below a directory, content included."""
    found: dict[bytes, tuple[object, ...]] = {}
    for folder, directories, files in os.walk(bytes(root)):
        for name in directories + files:
            path = os.path.join(folder, name)
            about = os.lstat(path)
            content: bytes | None = None
            if stat.S_ISLNK(about.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(about.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            size = 0 if stat.S_ISDIR(about.st_mode) else about.st_size
            found[os.path.relpath(path, bytes(root))] = (about.st_mode, about.st_uid, about.st_gid, size, content)
    return found


def fill(cli: Cli) -> None:
    """A tree with everything that a checkpoint holds."""
    numbers = random.Random(7)
    for number in range(1500):
        cli.write(f"many/{number:04}.txt", f"{number}\n" * (number % 40))
    for name in ("a-b", "a/b", "a/c d", "a0", "empty", "new\nline", "ünicode"):
        cli.write(name, "" if name == "empty" else name)
    cli.write(b"not utf-8 \xff/\xfe\x80", b"\xff")
    cli.write("/".join(["deep"] * 60) + "/end", "x")
    cli.write("n" * 255 + "/" + "m" * 255, "long names")
    cli.write("medium", numbers.randbytes(900_000))
    cli.write("large", numbers.randbytes(3 << 20) + bytes(1 << 20) + b"the end")
    for name, mode in (("a-b", 0o755), ("a/b", 0o600), ("a0", 0o444)):
        (cli.root / name).chmod(mode)
    for name, target in (("link", "a/b"), ("dangling", "/nowhere/at all"), ("a/self", ".")):
        (cli.root / name).symlink_to(target)
    os.symlink(b"\xff\xfe", bytes(cli.root / "odd"))


def test_a_mount_shows_what_a_fork_would(cli: Cli, mount: Callable[..., Mount], place: Path) -> None:
    fill(cli)
    cli("checkpoint")
    cli("fork", "@", str(place / "fork"))
    mounted = mount("@")
    expected = shape(place / "fork")
    assert len(expected) > 1500
    assert shape(mounted.path) == expected
    about = mounted.path.lstat()
    assert stat.S_IMODE(about.st_mode) == stat.S_IMODE((place / "fork").lstat().st_mode)
    inodes = [entry.inode() for entry in os.scandir(mounted.path / "many")]
    assert len(set(inodes)) == 1500
    assert {path.lstat().st_ino for path in (mounted.path / "many").iterdir()} == set(inodes)
    assert mounted.end() == ""
    assert not mounted.path.exists()


def test_it_shows_the_checkpoint_and_not_what_came_later(cli: Cli, mount: Callable[..., Mount]) -> None:
    cli.write("a", "old")
    first = cli.json("checkpoint", "-m", "first")
    (cli.root / "a").unlink()
    cli.write("b", "new")
    cli("checkpoint")
    mounted = mount("first")
    assert mounted.said["checkpoint"] == first["id"]
    assert [path.name for path in mounted.path.iterdir()] == ["a"]
    assert (mounted.path / "a").read_text() == "old"
    assert not (mounted.path / "b").exists()


def test_at_a_time_it_is_the_newest_of_then(cli: Cli, mount: Callable[..., Mount], place: Path) -> None:
    cli.write("a", "1")
    first = cli.json("checkpoint")
    cli.write("a", "2")
    second = cli.json("checkpoint")
    assert mount("--at", first["created_at"]).said["checkpoint"] == first["id"]
    assert mount("--at", "0s", directory=place / "now").said["checkpoint"] == second["id"]
    assert "no checkpoint yet" in cli("mount", "--at", "2001-01-01", str(place / "other"), code=3).err
    assert "no time such as" in cli("mount", "--at", "yesterday", str(place / "other"), code=2).err
    cli("mount", "@", "--at", "2h", str(place / "other"), code=2)


def test_nobody_changes_anything(cli: Cli, mount: Callable[..., Mount]) -> None:
    cli.write("a/file", "content")
    cli("checkpoint")
    path = mount().path
    for change in (
        lambda: (path / "new").write_text("x"),
        lambda: (path / "a/file").write_text("x"),
        (path / "a/file").unlink,
        lambda: (path / "a/file").chmod(0o777),
        lambda: (path / "a/file").rename(path / "b"),
        (path / "a/dir").mkdir,
        lambda: os.utime(path / "a/file"),
        lambda: os.truncate(path / "a/file", 0),
        lambda: os.setxattr(path / "a/file", "user.a", b"x"),
    ):
        with fails(errno.EROFS):
            change()
    assert os.statvfs(path).f_flag & os.ST_RDONLY


def test_many_read_at_once(cli: Cli, mount: Callable[..., Mount]) -> None:
    fill(cli)
    cli("checkpoint")
    path = mount().path
    large = (cli.root / "large").read_bytes()
    files = sorted((cli.root / "many").iterdir())

    def read(seed: int) -> bool:
        numbers = random.Random(seed)
        with open(path / "large", "rb", buffering=0) as file:
            for _ in range(40):
                at, size = numbers.randrange(len(large)), numbers.randrange(300_000)
                if os.pread(file.fileno(), size, at) != large[at : at + size]:
                    return False
        return all((path / "many" / one.name).read_bytes() == one.read_bytes() for one in numbers.sample(files, 200))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))


def test_a_huge_file_is_read_in_parts_and_never_held_whole(cli: Cli, mount: Callable[..., Mount]) -> None:
    block = random.Random(1).randbytes(1 << 20)
    with open(cli.root / "huge", "wb") as file:
        file.writelines(number.to_bytes(8, "big") + block[8:] for number in range(256))
    cli("checkpoint")
    mounted = mount()
    with open(mounted.path / "huge", "rb", buffering=0) as file:
        for number in (255, 3, 200):
            assert os.pread(file.fileno(), 8, number << 20) == number.to_bytes(8, "big")
        assert all(os.pread(file.fileno(), 1 << 20, number << 20)[8:] == block[8:] for number in range(256))
    status = Path(f"/proc/{mounted.server.pid}/status").read_text()
    (peak,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    assert peak < 180_000
    assert mounted.end() == ""


def test_a_signal_ends_it_while_a_file_is_open(cli: Cli, mount: Callable[..., Mount]) -> None:
    cli.write("a", "x" * 5000)
    cli.write("large", random.Random(1).randbytes(3 << 20))
    cli("checkpoint")
    mounted = mount()
    with opened(mounted.path / "large") as file:
        assert mounted.end(signal.SIGINT) == ""
        assert mounted.server.returncode == 0
        with fails(*GONE):
            os.pread(file, 10, 2 << 20)
    assert str(mounted.path) not in mounts()
    assert not mounted.path.exists()


def test_umount_ends_it(cli: Cli, mount: Callable[..., Mount], place: Path) -> None:
    cli.write("a")
    cli("checkpoint")
    (place / "mnt").mkdir()
    mounted = mount()
    assert _libc.umount2(bytes(mounted.path), 0) == 0
    assert mounted.ended() == ""
    assert mounted.server.returncode == 0
    assert list(mounted.path.iterdir()) == []  # what was there before is left


def test_killed_it_leaves_errors_and_no_hang_and_the_next_mount_takes_its_place(
    cli: Cli, mount: Callable[..., Mount]
) -> None:
    cli.write("a", "content")
    cli.write("large", random.Random(1).randbytes(3 << 20))
    old = cli.json("checkpoint")["id"]
    cli.write("a", "other")
    cli("checkpoint")
    mounted = mount("@-")
    with opened(mounted.path / "large") as file:
        mounted.end(signal.SIGKILL)
        for use in (lambda: os.pread(file, 10, 2 << 20), lambda: os.listdir(mounted.path)):
            with fails(*GONE):
                use()
    # Nobody serves it any more, so nothing keeps it either.
    assert [one["id"] for one in cli.json("forget", old)["removed"]] == [old]
    again = mount("@")
    assert (again.path / "a").read_text() == "other"


def test_what_is_mounted_is_neither_forgotten_nor_collected(cli: Cli, mount: Callable[..., Mount]) -> None:
    contents = {name: random.Random(name).randbytes(200_000 if name == "b" else 2_000_000) for name in "ab"}
    for name, content in contents.items():
        cli.write(name, content)
    old = cli.json("checkpoint")["id"]
    for name in contents:
        (cli.root / name).unlink()
    cli("checkpoint")
    mounted = mount(old)
    refused = cli("forget", old, code=4).err
    assert f"mounted on {mounted.path}" in refused
    cli("forget", "--keep-last", "1")
    cli("gc", "--grace", "0s")
    for name, content in contents.items():
        assert (mounted.path / name).read_bytes() == content
    mounted.end()
    cli("forget", old)
    assert cli.json("gc", "--grace", "0s")["bytes_freed"] > 2_000_000


def test_damage_is_an_error_of_one_file_and_a_line_in_the_log(cli: Cli, mount: Callable[..., Mount]) -> None:
    cli.write("good", "fine")
    cli("checkpoint")
    cli.write("bad", random.Random(1).randbytes(50_000))
    cli.write("lost", random.Random(2).randbytes(2_000_000))
    before = {path for path in cli.home.rglob("objects/**/*") if path.is_file()}
    cli("checkpoint")
    new = {path for path in cli.home.rglob("objects/**/*") if path.is_file()} - before
    kept = {path: path.read_bytes() for path in new}
    (lost,) = (path for path in new if len(kept[path]) > 1_000_000)
    (bad,) = (path for path in new if 50_000 <= len(kept[path]) < 1_000_000)
    mounted = mount()
    lost.unlink()
    data = bytearray(kept[bad])
    data[25_000] ^= 0xFF
    bad.write_bytes(data)
    for name in ("bad", "lost"):
        with fails(errno.EIO):
            (mounted.path / name).read_bytes()
    assert (mounted.path / "good").read_text() == "fine"
    logged = [json.loads(line)["message"] for line in mounted.end().splitlines()]
    assert any("bad: blob" in line and "another hash" in line for line in logged), logged
    assert any("lost: blob" in line and "missing" in line for line in logged), logged
    for path, content in kept.items():
        path.write_bytes(content)


def test_a_command_has_it_for_as_long_as_it_runs(cli: Cli, place: Path) -> None:
    script = cli.write("tool", '#!/bin/sh\necho "$0 in $(pwd)"; ls "$1"; exit 7\n')
    script.chmod(0o755)
    cli("checkpoint")
    where = str(place / "mnt")
    # (The program itself lies in the mount.)
    done = cli.process("--json", "mount", "@", where, "--exec", "--", f"{where}/tool", where, code=7)
    assert done.stdout.decode() == f"{where}/tool in {cli.root}\ntool\n"
    said = json.loads(done.stderr.splitlines()[-1])
    assert cli.is_documented("mount", said)
    assert said["exit_code"] == 7
    assert not (place / "mnt").exists()
    assert cli.process("mount", where, "--exec", "sh", "-c", "kill -9 $$", code=137).stderr == b""
    assert b"not found" in cli.process("mount", where, "--exec", "--", "no-such-command", code=127).stderr
    for words in (["--exec"], ["--", "ls"]):
        cli.process("mount", where, *words, code=2)


def test_a_signal_is_the_commands(cli: Cli, mount: Callable[..., Mount], place: Path) -> None:
    cli.write("a")
    cli("checkpoint")
    told = place / "told"
    script = f"trap 'echo ended > {told}; exit 3' TERM; echo up > {told}; while :; do sleep 0.05; done"
    where = str(place / "mnt")
    server = cli.start("mount", "@", where, "--exec", "--", "sh", "-c", script)
    try:
        wait_until(lambda: told.exists() and told.read_text() == "up\n")
        server.terminate()
        assert server.wait(30) == 3
        assert told.read_text() == "ended\n"
    finally:
        server.kill()
        server.communicate()
        _libc.umount2(os.fsencode(where), _MNT_DETACH)


def test_where_it_cannot_be_it_is_refused(cli: Cli, mount: Callable[..., Mount], place: Path) -> None:
    cli.write("a")
    cli("checkpoint")
    (place / "full").mkdir()
    (place / "full" / "x").touch()
    assert "not empty" in cli("mount", "@", str(place / "full"), code=4).err
    assert "would capture" in cli("mount", "@", str(cli.root / "inside"), code=4).err
    assert "own home" in cli("mount", "@", str(cli.home / "x"), code=4).err
    cli("mount", "@", str(place / "no" / "such"), code=3)
    cli("mount", "@", str(place / "full" / "x"), code=4)
    cli("mount", "no-such-checkpoint", str(place / "mnt"), code=3)
    mounted = mount()
    assert "not empty" in cli("mount", "@", str(mounted.path), code=4).err
    assert not (cli.root / "inside").exists()


def test_what_runs_supervised_mounts_nothing(cli: Cli, place: Path) -> None:
    cli.write("a")
    cli("checkpoint")
    words = [*INSTALLED, "mount", "@", str(place / "mnt")]
    done = cli.process("run", "--", *words, code=4)
    assert b"cannot ask for a mount" in done.stderr
    assert not (place / "mnt").exists()


AS_NOBODY = """
import importlib, json, logging, os, pkgutil, shutil, sys, subprocess, tempfile, unicodedata
import argparse, datetime, difflib, tomllib, encodings.ascii, encodings.idna, encodings.latin_1
import holdfast
for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not module.name.startswith(("holdfast.testing", "holdfast.__main__")):
        importlib.import_module(module.name)
from holdfast.cli.main import main
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.mkdir("tree")
os.chdir("tree")
with open("file", "w") as file:
    file.write("content")
home = ["--home", "../home"]
assert main([*home, "init", "-q"]) == 0
assert main([*home, "checkpoint", "-q"]) == 0
sys.exit(main([*home, "mount", "@", "../mnt", "--exec", "--", "sh", "-c", "id -u; cat ../mnt/file; stat -c %u ../mnt"]))
"""
"""Everything is loaded before the privilege is given up: the interpreter may lie where no other user can read."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="needs fusermount3 (the package fuse3)")
def test_an_ordinary_user_mounts_by_fusermount3(tmp_path_factory: pytest.TempPathFactory) -> None:
    import tempfile

    place = Path(tempfile.mkdtemp(prefix="holdfast-nobody-"))
    try:
        os.chown(place, 65534, 65534)
        # A device that everybody may use, as it is on most machines; for this process alone.
        prepare = (
            "mount --make-rprivate / && mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && "
            'mount --bind /mnt/fuse /dev/fuse && exec "$@"'
        )
        words = ["unshare", "-m", "sh", "-c", prepare, "sh", sys.executable, "-c", AS_NOBODY]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=60, check=False)
        if "unshare failed" in done.stderr or "permission denied" in done.stderr:
            pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "65534\ncontent65534\n", "")
    finally:
        shutil.rmtree(place)

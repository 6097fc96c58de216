"""A real directory that is served over FUSE: many who use it, those who are killed, and those who mean harm."""

from __future__ import annotations

import contextlib
import errno
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.bridge.mount.fuse_device import clear_dead
from holdfast.bridge.server import request_threads
from holdfast.files.linux.file_lease import WriterStatus, writer_of
from holdfast.model.clock import SystemClock
from holdfast.testing.bridged import Bridged
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.safeguards.tickets import Safeguards
from holdfast.undo.service import Thresholds
from holdfast.vfs.recorded import recorded_directory
from holdfast.vfs.recorded.node_registry import NodeRegistry

from ..fuse import ONLY_WITH_FUSE
from ..waiting import wait_until
from .afterwards import undo_each
from .bridge import bridged

pytestmark = ONLY_WITH_FUSE
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    """With an empty ``tree``, and ``mnt``."""
    for name in ("tree", "mnt"):
        (tmp_path / name).mkdir()
    return tmp_path


def work(top: Path, seed: int) -> None:
    """Some hundred operations, always the same for a seed; what the system refuses is refused everywhere."""
    chance = random.Random(seed)
    for number in range(300):
        one, other = (top / f"{chance.randrange(3)}" / f"{chance.randrange(5)}" for _ in range(2))
        operations: tuple[Callable[[], object], ...] = (
            lambda one=one: one.parent.mkdir(),
            lambda one=one: one.mkdir(),
            lambda one=one, number=number: one.write_bytes(b"%d" % number * chance.choice((1, 9000))),
            lambda one=one: one.read_bytes(),
            lambda one=one, other=other: one.rename(other),
            lambda one=one, other=other: os.link(one, other),
            lambda one=one: one.unlink(),
            lambda one=one: one.rmdir(),
            lambda one=one: os.truncate(one, 3),
            lambda one=one: one.symlink_to("x"),
            lambda one=one: sorted(path.stat() for path in one.parent.iterdir()) and None,
        )
        with contextlib.suppress(OSError):
            chance.choice(operations)()


@pytest.mark.parametrize("passthrough", [True, False], ids=["passthrough", "served"])
def test_threads_and_processes_at_once(place: Path, monkeypatch: pytest.MonkeyPatch, passthrough: bool) -> None:
    """I1."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # (the processes look this module up by its name)
    tops = [f"{kind}{number}" for kind in ("process", "thread") for number in range(4)]
    for top in tops:
        (place / "tree" / top).mkdir()
        (place / "native" / top).mkdir(parents=True)
    before = photograph(place / "tree")
    for seed, top in enumerate(tops):
        work(place / "native" / top, seed)
    with bridged(place / "tree", place / "log", place / "mnt", passthrough=passthrough):
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=work, args=(place / "mnt" / tops[at], at)) for at in range(4)]
        for process in processes:
            process.start()
        with ThreadPoolExecutor(4) as pool:
            assert len(list(pool.map(work, [place / "mnt" / top for top in tops[4:]], range(4, 8)))) == 4
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
    photos = [photograph(place / name) for name in ("native", "tree")]
    for photo in photos:
        photo.update({path: seen._replace(mtime=0) for path, seen in photo.items()})
    assert differences(*photos) == []
    undo_each(place / "log", place / "tree")
    assert differences(before, photograph(place / "tree")) == []


def test_a_killed_server_leaves_nothing_half_done(place: Path) -> None:
    """I3."""
    tree, mount = place / "tree", place / "mnt"
    (tree / "kept").write_text("before")
    before = photograph(tree)
    with contextlib.suppress(AssertionError), bridged(tree, place / "log", mount) as served:
        (mount / "kept").write_text("after")
        (mount / "new").mkdir()
        file = os.open(mount / "open", os.O_RDWR | os.O_CREAT)
        os.write(file, b"x")
        served.server.kill()
        served.server.wait(30)
        with pytest.raises(OSError, match=rf"\[Errno ({errno.ENOTCONN}|{errno.ECONNABORTED})\]"):
            os.listdir(mount)
        with contextlib.suppress(OSError):
            os.close(file)
        assert clear_dead(bytes(mount))
        assert os.listdir(mount) == []
    assert (tree / "kept").read_text() == "after"
    assert undo_each(place / "log", tree) == 0  # what was open is rolled back
    assert differences(before, photograph(tree)) == []


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_killed_client_leaves_nothing_open(place: Path) -> None:
    script = (
        "import mmap, os, sys, time\n"
        "files = [os.open(f'{number}', os.O_RDWR | os.O_CREAT) for number in range(200)]\n"
        "os.ftruncate(files[0], 4096)\n"
        "memory = mmap.mmap(files[0], 4096)\n"
        "memory[:3] = b'MAP'\n"
        "os.unlink('1')\n"
        "print('ready', flush=True)\n"
        "while True: os.pwrite(files[2], b'x' * 100_000, 0)\n"
    )
    with bridged(place / "tree", place / "log", place / "mnt") as served:
        before = descriptors(served.server.pid)
        with subprocess.Popen([sys.executable, "-c", script], cwd=place / "mnt", stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
            assert descriptors(served.server.pid) >= before + 200
            client.kill()
        wait_until(lambda: descriptors(served.server.pid) <= before + 5)
        assert (place / "tree" / "0").read_bytes()[:3] == b"MAP"
        assert sorted(os.listdir(place / "mnt")) == sorted(os.listdir(place / "tree"))


def test_few_descriptors_for_many_files(place: Path) -> None:
    for folder in range(400):
        (place / "tree" / f"{folder}").mkdir()
        for number in range(10):
            (place / "tree" / f"{folder}" / f"{number}").touch()
    with bridged(place / "tree", place / "log", place / "mnt") as served:
        seen = [path.stat().st_ino for path in (place / "mnt").rglob("*")]
        assert len(seen) == 4400
        assert descriptors(served.server.pid) < 320
        for path in (place / "mnt").glob("*/7"):  # those that were closed are found again
            path.write_text("x")
    assert {path.read_text() for path in (place / "tree").glob("*/7")} == {"x"}


def test_names_that_are_not_utf8(place: Path) -> None:
    with bridged(place / "tree", place / "log", place / "mnt"):
        top = bytes(place / "mnt")
        os.mkdir(top + b"/\xff\xfe")
        with open(top + b"/\xff\xfe/\x80 (deleted)", "wb") as file:
            file.write(b"odd")
        os.chmod(top + b"/\xff\xfe/\x80 (deleted)", 0o600)
        os.rename(top + b"/\xff\xfe", top + b"/new\nline\xff")
        assert os.listdir(top) == [b"new\nline\xff"]
    with open(bytes(place / "tree") + b"/new\nline\xff/\x80 (deleted)", "rb") as file:
        assert file.read() == b"odd"
    assert undo_each(place / "log", place / "tree") == 1
    assert os.listdir(place / "tree") == []


@pytest.mark.parametrize("passthrough", [True, False], ids=["passthrough", "served"])
def test_writes_through_a_mapping_are_undone(place: Path, passthrough: bool) -> None:
    """Case 10: long after the file was opened, and after its descriptor was closed."""
    (place / "tree" / "file").write_bytes(b"before" * 1000)
    with bridged(place / "tree", place / "log", place / "mnt", passthrough=passthrough):
        with open(place / "mnt" / "file", "r+b") as file:
            memory = mmap.mmap(file.fileno(), 6000)
        memory[100:103] = b"MAP"
        memory.flush()
        assert (place / "mnt" / "file").read_bytes()[100:103] == b"MAP"
        memory.close()
        with open(place / "tree" / "file", "rb") as file:
            # (The kernel tells the server of it later on; until then it is not known what the step leaves.)
            wait_until(lambda: writer_of(file.fileno()) is WriterStatus.NONE)
    assert (place / "tree" / "file").read_bytes()[100:103] == b"MAP"
    assert undo_each(place / "log", place / "tree") == 1
    assert (place / "tree" / "file").read_bytes() == b"before" * 1000


def test_nobody_who_swaps_directories_for_links_leads_out(place: Path) -> None:
    """I7, case 9."""
    tree, mount, out = place / "tree", place / "mnt", place / "out"
    for directory in (tree / "d" / "e", out / "e"):
        directory.mkdir(parents=True)
    for folder in (out, out / "e"):
        (folder / "secret").write_text("secret")
    (tree / "link").symlink_to(out)
    before = photograph(out)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            os.rename(tree / "d", tree / "away")
            os.rename(tree / "link", tree / "d")
            os.rename(tree / "d", tree / "link")
            os.rename(tree / "away", tree / "d")

    def use(number: int, inside: int, above: int) -> int:
        """Only where the link really is there, and is followed by the kernel outside of the mount, is there more."""
        done = 0
        try:
            for at in range(300):
                for fd, name in ((inside, f"{number}-{at}"), (above, "d"), (above, "away")):
                    with contextlib.suppress(OSError):
                        inner = fd
                        if fd == above:
                            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
                        try:
                            with contextlib.suppress(FileNotFoundError):
                                os.stat("secret", dir_fd=inner)
                                raise AssertionError("it leads out")
                            os.close(os.open(f"made {number} {at}", os.O_WRONLY | os.O_CREAT, dir_fd=inner))
                            os.unlink(f"made {number} {at}", dir_fd=inner)
                            done += 1
                        finally:
                            if inner != fd:
                                os.close(inner)
        finally:
            os.close(inside)
            os.close(above)
        return done

    with bridged(tree, place / "log", mount), ThreadPoolExecutor(4) as pool:
        opened = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (mount / "d" / "e", mount)]
        attacker = threading.Thread(target=swap)
        attacker.start()
        try:
            done = list(pool.map(lambda number: use(number, *map(os.dup, opened)), range(3)))
        finally:
            over.set()
            attacker.join()
            for fd in opened:
                os.close(fd)
    assert all(count > 100 for count in done)
    assert differences(before, photograph(out)) == []


def test_what_others_change_beside_the_mount_is_seen(place: Path) -> None:
    tree, mount = place / "tree", place / "mnt"
    (tree / "d").mkdir()
    with bridged(tree, place / "log", mount):
        assert not (mount / "d" / "a").exists()
        (tree / "d" / "a").write_text("1")
        wait_until((mount / "d" / "a").exists)
        assert (mount / "d" / "a").read_text() == "1"
        (tree / "d" / "a").write_text("22")
        wait_until(lambda: (mount / "d" / "a").read_text() == "22")
        (tree / "d" / "a").rename(tree / "d" / "b")
        wait_until(lambda: os.listdir(mount / "d") == ["b"] and not (mount / "d" / "a").exists())
        (tree / "d").rename(tree / "e")
        wait_until(lambda: os.listdir(mount) == ["e"] and not (mount / "d").exists())
        shutil.rmtree(tree / "e")
        wait_until(lambda: not os.listdir(mount) and not (mount / "e").exists())


@AS_ROOT
def test_what_is_made_belongs_to_who_made_it_and_set_ids_do_not_last(place: Path) -> None:
    """Case 11."""
    os.chmod(place / "tree", 0o777)
    for folder in place, *place.parents[:3]:
        os.chmod(folder, os.stat(folder).st_mode | 0o55)
    script = (
        "import os, sys\n"
        "os.umask(0o027)\n"
        "for uid in (0, 65534):\n"
        "    for mode in (0o4777, 0o6777, 0o2777, 0o2767):\n"
        "        for how in ('write', 'truncate', 'allocate', 'open'):\n"
        "            name = f'{uid} {mode} {how}'\n"
        "            open(name, 'w').write('abc' * 3000); os.chmod(name, mode)\n"
        "            pid = os.fork()\n"
        "            if not pid:\n"
        "                if uid: os.setgroups([]); os.setresgid(12, 12, 12); os.setresuid(uid, uid, uid)\n"
        "                fd = os.open(name, os.O_RDWR | (os.O_TRUNC if how == 'open' else 0))\n"
        "                if how == 'write': os.write(fd, b'x')\n"
        "                elif how == 'truncate': os.ftruncate(fd, 3)\n"
        "                elif how == 'allocate': os.posix_fallocate(fd, 0, 20000)\n"
        "                os.close(os.open(name + ' made', os.O_WRONLY | os.O_CREAT, 0o6777)); os.mkdir(name + ' too')\n"
        "                os._exit(0)\n"
        "            assert os.waitpid(pid, 0)[1] == 0\n"
    )
    (place / "native").mkdir(mode=0o777)
    os.chmod(place / "native", 0o777)
    subprocess.run([sys.executable, "-c", script], cwd=place / "native", check=True)
    for passthrough in (True, False):
        with bridged(place / "tree", place / "log", place / "mnt", passthrough=passthrough):
            subprocess.run([sys.executable, "-c", script], cwd=place / "mnt", check=True)
        photos = [photograph(place / name) for name in ("native", "tree")]
        for photo in photos:
            photo.update({path: seen._replace(mtime=0) for path, seen in photo.items()})
        assert differences(*photos) == []
        undo_each(place / "log", place / "tree")
        assert os.listdir(place / "tree") == []


@AS_ROOT
def test_a_full_disk_loses_nothing(place: Path) -> None:
    """Case 4: what cannot be kept is not changed."""
    small = place / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=True)
    try:
        (small / "tree").mkdir()
        (small / "tree" / "large").write_bytes(b"L" * 2_500_000)
        with bridged(small / "tree", small / "log", place / "mnt"):
            with pytest.raises(OSError, match=rf"\[Errno {errno.ENOSPC}\]"):
                (place / "mnt" / "large").write_bytes(b"new")
            assert (place / "mnt" / "large").read_bytes() == b"L" * 2_500_000
            with pytest.raises(OSError, match=rf"\[Errno {errno.ENOSPC}\]"), open(place / "mnt" / "more", "wb") as file:
                file.write(b"x" * 3_000_000)
            (place / "mnt" / "more").unlink()
            (place / "mnt" / "little").write_text("fits")
        assert undo_each(small / "log", small / "tree") == 1
        assert os.listdir(small / "tree") == ["large"]
        assert (small / "tree" / "large").read_bytes() == b"L" * 2_500_000
    finally:
        subprocess.run(["umount", "-l", small], check=True)


@AS_ROOT
def test_a_tree_may_hold_more_than_the_kernel_may_know_at_a_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 12."""
    monkeypatch.setattr(recorded_directory, "NodeRegistry", partial(NodeRegistry, most=2500))
    for directory in range(20):
        (place / "tree" / f"{directory}").mkdir()
        for file in range(200):
            (place / "tree" / f"{directory}" / f"{file}").write_text("x")
    root_fd = os.open(place / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(bytes(place / "log"), root_fd, SystemClock())
    service = LocalUndoService(log, intercepts=True)
    try:
        with Bridged(log, root_fd, service.open("command"), bytes(place / "mnt")):
            held = os.open(place / "mnt" / "0" / "0", os.O_RDONLY)
            for path in sorted((place / "mnt").rglob("*")):
                assert path.stat().st_ino == (place / "tree" / path.relative_to(place / "mnt")).stat().st_ino
            assert os.readlink(f"/proc/self/fd/{held}") == f"{place}/mnt/0/0", "what is open stays where it is"
            os.close(held)
    finally:
        log.close()
        os.close(root_fd)


def test_nothing_is_written_to_by_a_mount_that_is_gone(place: Path) -> None:
    """Though nobody has said that it was closed. The step after it is undone alone."""
    root_fd = os.open(place / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(bytes(place / "log"), root_fd, SystemClock())
    service = LocalUndoService(log, intercepts=True)
    try:
        first = service.open("command")
        with Bridged(log, root_fd, first, bytes(place / "mnt")):
            held = os.open(place / "mnt" / "f", os.O_WRONLY | os.O_CREAT)
            assert log.writers(True) == {os.fstat(held).st_ino}
        assert log.writers(True) == frozenset()
        assert service.close(first) is not None
        with contextlib.suppress(OSError):
            os.close(held)
        second = service.open("command")
        with Bridged(log, root_fd, second, bytes(place / "mnt")):
            (place / "mnt" / "f").write_text("second")
        assert service.close(second) is not None
        assert service.undo([second]).conflicts == ()
        assert (place / "tree" / "f").read_bytes() == b""
    finally:
        log.close()
        os.close(root_fd)


@contextmanager
def guarded(place: Path) -> Generator[LocalUndoService]:
    """The tree, served in this process: removing anything is for a person to decide."""
    root_fd = os.open(place / "tree", os.O_RDONLY | os.O_DIRECTORY)
    safeguards = Safeguards(SystemClock())
    log = UndoLog(bytes(place / "log"), root_fd, SystemClock(), safeguards)
    recover(log)
    service = LocalUndoService(log, safeguards, intercepts=True)
    service.guard(Thresholds(deletes=1))
    try:
        with Bridged(log, root_fd, service.open("command"), bytes(place / "mnt")):
            yield service
    finally:
        log.close()
        os.close(root_fd)


def test_a_safeguard_keeps_an_operation_back_until_it_is_allowed(place: Path) -> None:
    """I9."""
    (place / "tree" / "d").mkdir()
    for name in ("d/a", "b"):
        (place / "tree" / name).touch()
    with guarded(place) as service, ThreadPoolExecutor(1) as pool:
        removed = pool.submit((place / "mnt" / "d" / "a").unlink)
        wait_until(lambda: bool(service.held()))
        assert (place / "tree" / "d" / "a").exists()
        # Others are served. (In the same directory the kernel has them wait.)
        assert stat.S_ISREG((place / "mnt" / "b").stat().st_mode)
        service.answer(service.held()[0].id, allow=True)
        removed.result(30)
        assert os.listdir(place / "tree" / "d") == []


def test_a_safeguard_that_nobody_answers_denies(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9."""
    monkeypatch.setattr(request_threads, "PATIENCE_SECONDS", 0.1)
    (place / "tree" / "a").touch()
    with guarded(place):
        with pytest.raises(PermissionError):
            (place / "mnt" / "a").unlink()
        assert os.listdir(place / "mnt") == ["a"]


def test_it_ends_when_it_is_unmounted(place: Path) -> None:
    with contextlib.suppress(AssertionError), bridged(place / "tree", place / "log", place / "mnt") as served:
        (place / "mnt" / "a").touch()
        command = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
        subprocess.run([*command, place / "mnt"], check=True)
        assert served.server.wait(60) == 0
        assert served.server.returncode != -signal.SIGKILL
    assert os.listdir(place / "tree") == ["a"]


@pytest.mark.parametrize("taken", ["removed", "replaced"])
def test_a_directory_that_undo_brings_back_is_whole_though_a_process_has_the_removed_one(
    place: Path, taken: str
) -> None:
    """The kernel keeps what is a process's, and finds nothing more in a directory that it has removed."""
    (place / "tree" / "src").mkdir()
    root_fd = os.open(place / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(bytes(place / "log"), root_fd, SystemClock())
    service = LocalUndoService(log, intercepts=True)
    seen = place / "mnt" / "src"
    try:
        step = service.open("command")
        with Bridged(log, root_fd, step, bytes(place / "mnt"), watches=True) as served:
            held = os.open(seen, os.O_RDONLY | os.O_DIRECTORY)
            if taken == "removed":
                seen.rmdir()
            else:
                (place / "mnt" / "other").mkdir()
                (place / "mnt" / "other").rename(seen)
            assert service.close(step) is not None
            served.world.current = service.open("command")
            assert service.undo([step]).conflicts == ()
            (place / "tree" / "src" / "main").write_text("there")
            wait_until((seen / "main").exists)
            assert (seen / "main").read_text() == "there"
            os.close(held)
    finally:
        log.close()
        os.close(root_fd)

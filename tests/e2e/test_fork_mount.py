"""Forks by mount, by the real kernel: what can be done in one, what holds it up, and what is left of it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.bridge.mount.overlayfs import refuse_without_privilege
from holdfast.model.errors import UnsupportedError
from holdfast.testing.tree_state import differences, photograph

from ..waiting import wait_until
from .conftest import INSTALLED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Cli

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse, to mount an overlay"
)
_MNT_DETACH = 2
_SECONDS = 120
_libc = ctypes.CDLL(None, use_errno=True)


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def server_of(home: Path) -> int:
    """The process that serves the only fork by mount that was made."""
    (lock,) = home.glob("workspaces/*/fork.lock")
    return int(lock.read_text())


def is_gone(pid: int) -> bool:
    """Whether it has ended, and each of its threads: until then what it had open stays open."""
    try:
        is_dead = "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
        return is_dead and len(os.listdir(f"/proc/{pid}/task")) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(name="fork")
def _fork(cli: Cli, place: Path) -> Iterator[Path]:
    """A fork by mount of a tree of several directories; afterwards nothing of it is mounted, whatever has happened."""
    for number in range(40):
        cli.write(f"src/part{number % 4}/file{number}.txt", f"{number}\n" * number)
    cli.write("src/part0/deep/er/end", "x")
    cli.write("top", "of it all")
    cli.write("large", os.urandom(1 << 20) + bytes(2 << 20))
    (cli.root / "link").symlink_to("src/part1")
    cli("checkpoint", "-m", "base")
    path = place / "fork"

    def kill() -> None:
        # Whoever hangs on a mount is freed by the end of its server.
        for lock in cli.home.glob("workspaces/*/fork.lock"):
            os.kill(int(lock.read_text()), signal.SIGKILL)

    watchdog = threading.Timer(_SECONDS, kill)
    watchdog.start()
    made = cli.json("fork", "base", str(path), "--mount")
    assert made["mounted"]
    assert made["written"] == 0
    yield path
    watchdog.cancel()
    for line in reversed(mounts().splitlines()):
        if line.split()[4].startswith(str(place)):
            _libc.umount2(os.fsencode(line.split()[4]), _MNT_DETACH)
    servers = [int(lock.read_text()) for lock in cli.home.glob("workspaces/*/fork.lock")]
    wait_until(lambda: all(is_gone(pid) for pid in servers if pid != os.getpid()))


def changed(cli: Cli, root: Path) -> tuple[list[str], list[str], list[str]]:
    """What `status` says: added, modified, deleted."""
    said = cli.json("status", "-w", str(root))
    return said["added"], said["modified"], said["deleted"]


def edit(root: Path) -> None:
    """Something of everything."""
    (root / "src").rename(root / "source")
    (root / "source/part0/deep").rename(root / "deep")
    (root / "source/part1").rename(root / "deep/one")
    shutil.rmtree(root / "source/part2")
    (root / "source/part2").mkdir()
    (root / "source/part2/new").write_text("new")
    (root / "source/part3/file11.txt").chmod(0o700)
    (root / "also").hardlink_to(root / "top")
    (root / "link").unlink()
    (root / "link").symlink_to("nowhere")
    with (root / "large").open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"changed")
    (root / "source/part3/file3.txt").rename(root / "source/part3/file4.txt")
    (root / ".env.local").write_text("secret")


def test_it_is_a_workspace_like_one_that_was_written_out(cli: Cli, fork: Path, place: Path) -> None:
    plain = place / "plain"
    cli("fork", "base", str(plain))
    said: dict[Path, object] = {}
    for root in (fork, plain):
        edit(root)
        where = ("-w", str(root))
        changes = changed(cli, root)
        saved = cli.json("checkpoint", "-m", "edited", *where)
        assert changed(cli, root) == ([], [], [])
        names = cli("diff", "@-", "@", "--name-status", *where).out
        cli("undo", *where)
        undone = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        cli("redo", *where)
        log = [one["operation"] for one in cli.json("log", *where)["events"]]
        said[root] = (
            changes,
            saved["changes"],
            names,
            [(path.relative_to(root), content) for path, content in undone.items()],
            log,
            cli.json("show", "@", *where)["not_captured"],
        )
    assert said[fork] == said[plain]


def test_nothing_of_the_base_is_read_to_save_a_change(cli: Cli, fork: Path) -> None:
    packs, away = cli.home / "objects/packs", cli.home / "away"
    packs.rename(away)
    (fork / "src").rename(fork / "source")
    (fork / "source/part1/new").write_text("new")
    assert [len(paths) for paths in changed(cli, fork)] == [42, 0, 41]
    with pytest.raises(OSError, match="Input/output error"):
        (fork / "source/part2/file2.txt").read_text()
    packs.mkdir()
    saved = cli.json("checkpoint", "-w", str(fork))
    assert saved["changes"] == {"added": 42, "modified": 0, "deleted": 41}
    for path in packs.rglob("*"):
        if path.is_file():
            (away / path.relative_to(packs)).parent.mkdir(parents=True, exist_ok=True)
            path.rename(away / path.relative_to(packs))
    shutil.rmtree(packs)
    away.rename(packs)


def test_what_a_run_does_in_it_is_taken_back_exactly(cli: Cli, fork: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fork / "src/part3/file3.txt").write_text("changed before")
    (fork / "node_modules").mkdir()
    before = {path: photograph(fork / path) for path in ("src", "node_modules")}
    monkeypatch.chdir(fork)
    script = "echo x >> src/part0/file0.txt; mv src/part1 src/part9; rm -r src/part2; echo y > src/part3/file3.txt"
    cli.process("run", "--", "sh", "-c", script)
    assert not (fork / "src/part2").exists()
    cli.process("undo", "--run")
    for path, picture in before.items():
        assert differences(picture, photograph(fork / path)) == []
    cli.process("unmount", str(fork), code=4)
    monkeypatch.chdir(cli.root)


def test_the_command_serves_it_by_a_copy_of_itself_with_locks_of_its_own(cli: Cli, fork: Path, place: Path) -> None:
    cli("unmount", str(fork))
    words = ["--home", str(cli.home), "mount", str(fork)]
    mounted = subprocess.run([*INSTALLED, *words], capture_output=True, text=True, check=True)
    assert "Mounted the fork" in mounted.stdout  # (nobody else has the pipe open by now)
    pid = server_of(cli.home)
    assert str(fork) in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
    # What SQLite knows of its locks is of no account in a copy of a process that has opened the same file before.
    catalog = (cli.home / "catalog.db").stat().st_ino
    assert [
        line for line in Path("/proc/locks").read_text().splitlines() if f" {pid} " in line and f":{catalog} " in line
    ]
    detached = [
        *INSTALLED,
        "--home",
        str(cli.home),
        "-w",
        str(cli.root),
        "mount",
        "base",
        str(place / "mnt"),
        "--detach",
    ]
    subprocess.run(detached, capture_output=True, check=True)
    assert (place / "mnt/top").read_text() == "of it all"
    cli("unmount", str(place / "mnt"))


def test_unmounted_by_hand_it_is_there_again_with_all_that_was_changed(cli: Cli, fork: Path) -> None:
    edit(fork)
    cli("checkpoint", "-w", str(fork))
    (fork / "unsaved").write_text("here")
    pid = server_of(cli.home)
    subprocess.run(["umount", str(fork)], check=True)
    wait_until(lambda: is_gone(pid))
    assert list(fork.iterdir()) == []
    for words in (["status"], ["checkpoint"], ["restore", "@-"], ["undo"], ["log"], ["run", "true"], ["watch"]):
        refused = cli("-w", str(fork), *words, code=4)
        assert "is not mounted" in refused.err
        assert f"holdfast mount {fork}" in refused.err
    assert list(fork.iterdir()) == []
    assert cli.json("mount", str(fork))["event"] == "mounted"
    assert (fork / "unsaved").read_text() == "here"
    assert (fork / "top").read_text() == (fork / "also").read_text() == "of it all"
    assert changed(cli, fork) == (["unsaved"], [], [])
    assert "mounted already" in cli("mount", str(fork), code=4).err


def test_what_lies_where_it_was_mounted_is_not_hidden(cli: Cli, fork: Path) -> None:
    cli("unmount", str(fork))
    (fork / "by mistake").write_text("here")
    assert "not empty" in cli("mount", str(fork), code=4).err
    (fork / "by mistake").unlink()
    fork.rmdir()
    cli("mount", str(fork))
    assert (fork / "top").read_text() == "of it all"


def test_a_killed_server_loses_nothing(cli: Cli, fork: Path) -> None:
    (fork / "top").write_text("changed")
    pid = server_of(cli.home)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))
    with pytest.raises(OSError, match=f"Errno ({errno.ENOTCONN}|{errno.ECONNABORTED})"):
        (fork / "large").read_bytes()
    assert "was ended" in cli("status", "-w", str(fork), code=4).err
    cli("mount", str(fork))
    assert (fork / "top").read_text() == "changed"
    assert (fork / "large").read_bytes() == (cli.root / "large").read_bytes()


def test_in_use_it_stays_and_afterwards_its_server_goes(cli: Cli, fork: Path) -> None:
    pid = server_of(cli.home)
    with (fork / "top").open():
        assert "in use" in cli("unmount", str(fork), code=4).err
        assert "in use" in cli("fork", "--materialise", str(fork), code=4).err
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: is_gone(pid))
    assert str(fork) not in mounts()
    assert "Holdfast has mounted nothing" in cli("unmount", str(fork), code=3).err


def test_it_becomes_a_plain_directory_with_all_that_is_in_it(cli: Cli, fork: Path) -> None:
    edit(fork)
    (fork / "empty").mkdir()
    os.setxattr(fork / "top", "user.holdfast", b"kept")
    os.utime(fork / "deep/er/end", ns=(1, 1_234_567_890))
    cli("checkpoint", "-w", str(fork))
    (fork / "unsaved").write_text("here")
    cli("unmount", str(fork))  # (the kernel shows two names of one file as two files while it remembers them)
    cli("mount", str(fork))
    before = photograph(fork)
    assert cli.json("fork", "--materialise", str(fork)) == {"path": str(fork), "mounted": False}
    assert str(fork) not in mounts()
    assert differences(before, photograph(fork)) == []
    assert (fork / "top").samefile(fork / "also")
    assert changed(cli, fork) == (["unsaved"], [], [])
    assert list(cli.home.glob("workspaces/*/overlay")) == []
    assert "no fork" in cli("fork", "--materialise", str(fork), code=3).err


def test_ten_processes_use_it_while_its_base_is_collected_around_it(cli: Cli, fork: Path) -> None:
    cli.write("top", "another")
    shutil.rmtree(cli.root / "src")
    cli("checkpoint")
    assert "fork" in cli("forget", "base", code=4).err
    program = """if 1:
        import os, pathlib, sys
        root, name = pathlib.Path(sys.argv[1]), sys.argv[2]
        for turn in range(5):
            for path in sorted((root / "src").rglob("*.txt")):
                assert path.read_text() == (path.name[4:-4] + chr(10)) * int(path.name[4:-4]), path
            (root / name).mkdir(exist_ok=True)
            (root / name / str(turn)).write_text(name)
    """
    users = [subprocess.Popen([sys.executable, "-c", program, str(fork), f"user{number}"]) for number in range(10)]
    while any(user.poll() is None for user in users):
        cli("forget", "--keep-last", "1")
        cli("gc", "--grace", "0")
        cli.process("checkpoint", "-q", "-w", str(fork))
    assert [user.returncode for user in users] == [0] * 10
    cli("checkpoint", "-w", str(fork))
    assert changed(cli, fork) == ([], [], [])
    assert cli.json("verify", "--read-data")["problems"] == []


def test_its_layers_are_the_owners_alone_and_its_root_looks_like_the_workspaces(cli: Cli, fork: Path) -> None:
    (overlay,) = cli.home.glob("workspaces/*/overlay")
    assert stat.S_IMODE(overlay.stat().st_mode) == 0o700
    assert stat.S_IMODE((overlay / "work").stat().st_mode) == 0o700
    assert stat.S_IMODE(fork.stat().st_mode) == stat.S_IMODE(cli.root.stat().st_mode)
    assert str(overlay) not in "".join(line.split()[4] for line in mounts().splitlines())


def test_a_deleted_one_is_let_go_of_and_its_changes_with_it(cli: Cli, fork: Path) -> None:
    (fork / "top").write_text("changed")
    cli("unmount", str(fork))
    fork.rmdir()
    assert len(cli.json("forget", "--gone")["removed"]) == 1
    assert list(cli.home.glob("workspaces/*/overlay")) == []
    cli.write("top", "another")
    cli("checkpoint")
    cli("forget", "base")


def test_a_full_disk_is_an_error_of_who_writes_and_nothing_else(cli: Cli, fork: Path) -> None:
    cli("unmount", str(fork))
    (overlay,) = cli.home.glob("workspaces/*/overlay")
    shutil.rmtree(overlay)
    overlay.mkdir(0o700)
    assert _libc.mount(b"holdfast", bytes(overlay), b"tmpfs", 0, b"size=2m,mode=0700") == 0
    cli("mount", str(fork))
    (fork / "top").write_text("changed")
    with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
        (fork / "large").open("r+b")  # which is larger than all that there is
    assert (fork / "large").stat().st_size == 3 << 20
    assert changed(cli, fork) == ([], ["top"], [])
    cli("checkpoint", "-w", str(fork))
    cli("unmount", str(fork))


@pytest.mark.parametrize("damage", ["opaque", "redirect", "garbage"])
def test_a_layer_that_the_kernel_has_not_written_is_only_looked_at_more(cli: Cli, fork: Path, damage: str) -> None:
    cli("status", "-w", str(fork))
    cli("unmount", str(fork))
    (upper,) = cli.home.glob("workspaces/*/overlay/upper")
    (upper / "src/part1").mkdir(parents=True)
    (upper / "src/part1/planted").write_text("x")
    match damage:
        case "opaque":
            os.setxattr(upper / "src/part1", "trusted.overlay.opaque", b"y")
        case "redirect":
            os.setxattr(upper / "src/part1", "trusted.overlay.redirect", b"/src/part0")
            os.mknod(upper / "src/part0", stat.S_IFCHR, os.makedev(0, 0))
        case _:
            os.setxattr(upper / "src/part1", "trusted.overlay.opaque", b"\0" * 900)
            (upper / "src/loop").symlink_to("..")
    cli("mount", str(fork))
    cli("checkpoint", "-w", str(fork))
    with holdfast.open(fork, home=cli.home) as workspace:
        names = {str(path.relative_to(fork)) for path in fork.rglob("*") if path.is_symlink() or path.is_file()}
        kept = {os.fsdecode(change.path) for change in workspace.diff("@-", "@", renames=False).changes}
        root = workspace.show("@").checkpoint.root
        assert workspace.checkpoint(full_hash=True).checkpoint.root == root
    assert "src/part1/planted" in names & kept


def test_without_the_privilege_it_is_said_what_would_help(cli: Cli, place: Path) -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(UnsupportedError) as raised:
            refuse_without_privilege()
    finally:
        os.seteuid(0)
    assert "without --mount works anywhere" in (raised.value.hint or "")
    cli.write("a", "x")
    cli("checkpoint")
    # Root of a container may not mount either; then nothing is left of the attempt.
    words = ["setpriv", "--bounding-set=-sys_admin", *INSTALLED]
    failed = subprocess.run(
        [*words, "fork", str(place / "fork"), "--mount"], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1, failed
    assert "/dev/fuse" in failed.stderr
    assert not (place / "fork").exists()
    assert list(cli.home.glob("workspaces/*/overlay")) == []
    cli("fork", str(place / "fork"))


def test_in_a_namespace_of_ones_own_it_goes_without_being_the_machines_root(cli: Cli, place: Path) -> None:
    cli.write("d/a", "x")
    cli.write("d/b", "y")
    cli("checkpoint")
    script = """set -e
        holdfast() { %s "$@"; }
        holdfast fork "$1" --mount -q
        mv "$1/d/a" "$1/c"; mv "$1/d" "$1/e"; echo more >> "$1/e/b"
        holdfast -w "$1" checkpoint -q
        holdfast -w "$1" diff @- @ --name-status
        holdfast unmount "$1" -q
    """
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script % " ".join(INSTALLED), "sh"]
    done = subprocess.run([*words, str(place / "fork")], capture_output=True, text=True, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip("this kernel grants no user namespaces")
    assert done.returncode == 0, done
    assert "R100\td/a\tc" in done.stdout
    wait_until(lambda: is_gone(server_of(cli.home)))


def test_a_checkpoint_is_mounted_until_it_is_unmounted(cli: Cli, place: Path) -> None:
    cli.write("a", "x")
    cli("checkpoint")
    path = place / "mnt"
    try:
        said = cli.json("mount", "@", str(path), "--detach")
        assert (path / "a").read_text() == "x"
        with (path / "a").open():
            cli("unmount", str(path), code=4)
        assert cli.json("unmount", str(path)) == {"event": "unmounted", "directory": str(path)}
        wait_until(lambda: is_gone(said["pid"]))
        assert not path.exists()
    finally:
        _libc.umount2(bytes(path), _MNT_DETACH)
    assert list(cli.home.glob("workspaces/*/mounts/*")) == []

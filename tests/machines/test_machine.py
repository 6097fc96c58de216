"""A machine from the outside and the inside: what its guest finds, what QEMU may do, how it ends."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import LockedError, UsageError
from holdfast.processes.process_tree import descendants
from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.policy import NoNetwork
from holdfast.sandbox.vm.disk import create_disk, open_disk, remove_disk
from holdfast.sandbox.vm.machine import Machine
from holdfast.testing.tree_state import photograph

from ..e2e.isolated import need_namespaces
from ..waiting import has_ended, process_name, wait_until
from .guests import EMULATION, MEMORY, USER, Guest, Served, compare_at_random, plan, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    need_namespaces()


class Working:
    """A machine with a directory."""

    def __init__(self, guest: Guest, served: Served) -> None:
        self.guest = guest
        self.machine = guest.machine
        self.tree = served.tree


@pytest.fixture(scope="module")
def working(built_image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Working]:
    folder = tmp_path_factory.mktemp("machine")
    served = Served(folder)
    (served.tree / "file").write_text("of the host")
    (served.tree / "of the host").mkdir()
    for path in (served.tree, served.tree / "file"):
        os.chown(path, USER.uid, USER.gid)
    before = photograph(served.tree)
    with Machine.start(plan(built_image, folder, shares=(served.share,)), EMULATION) as machine:
        served.serve(machine.files[0].dup())
        guest = Guest(machine)
        yield Working(guest, served)
        guest.close()
        machine.control.shutdown(socket.SHUT_RDWR)
        assert machine.wait(60)
        assert machine.exit_code() == 0
        assert machine.failure(answered=True).message.startswith("the guest has powered off by itself")
    served.undo()
    after = photograph(served.tree)
    for path in (b"of the host", b"of the host/later"):  # (no guest has made this)
        before.pop(path, None)
        after.pop(path, None)
    assert after == before


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_read_is_what_was_written(working: Working, seed: int) -> None:
    compare_at_random(working.guest, working.tree, "mapped", "holes", operations=5_000, seed=seed)


def test_what_the_guest_finds(working: Working) -> None:
    guest = working.guest
    assert guest.out("id -u; id -g; hostname; echo $HOME $GREETING; cd; pwd; stat -c %u .").split() == [
        str(USER.uid), str(USER.gid), "guest-host", "/home/agent", "hello", "/home/agent", str(USER.uid),
    ]  # fmt: skip
    assert guest.out("sudo -n id -u; getent hosts guest-host").split()[:1] == ["0"]
    # (Its clock was set some seconds after QEMU had started; how late the host's answer came, it does not know.)
    before = time.time()
    assert before - 2 < float(guest.out("date +%s.%N")) <= time.time()
    assert guest.out("stat -c '%a %u' ~/.given; cat ~/.given") == f"640 {USER.uid}\ngiven"
    # (It has gone, with what may be secret in it.)
    assert guest.out("sudo ls /run/holdfast").split() == ["files", "guest_init.py", "shim.py"]
    assert guest.out("sudo ls -A /run/holdfast/files") == ""
    assert abs(int(guest.out("date +%s")) - time.time()) < 30
    assert guest.out("bash -c 'cat <(echo y)'; test -w /dev/shm && ls /dev/virtio-ports").split()[:2] == [
        "y", "holdfast.control",
    ]  # fmt: skip


def test_a_directory_is_at_its_path_and_the_same_on_both_sides(working: Working) -> None:
    path, guest = working.tree, working.guest
    assert guest.out(f"cat {path}/file; echo changed > {path}/file; mkdir {path}/new; mv {path}/file {path}/new") == (
        "of the host"
    )
    assert (path / "new/file").read_text() == "changed\n"
    (path / "of the host/later").write_text("more")
    assert guest.out(f"cat '{path}/of the host/later'") == "more"


def test_qemu_sees_the_system_s_files_and_nothing_of_the_user_s(working: Working) -> None:
    (qemu,) = (pid for pid in descendants(working.machine.pid) if process_name(pid).startswith("qemu-system"))
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{qemu}/status").read_text().splitlines() if ":\t" in line
    )
    assert (status["CapEff"], status["NoNewPrivs"], status["Seccomp"]) == ("0000000000000000", "1", "2")
    if os.geteuid() != 0:
        return
    root = Path(f"/proc/{qemu}/root")
    shown = {path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink() and any(path.iterdir())}
    assert {"usr", "etc"} <= shown
    users = shown & {"home", "root", "tmp", "run", "work", "opt", "srv", "mnt", "boot"}
    made = working.machine.plan.image
    image = {os.path.realpath(os.fsdecode(path)) for path in (made.kernel, made.root)}
    found = {f"/{path.relative_to(root)}" for top in users for path in (root / top).rglob("*") if path.is_file()}
    assert found <= image, "and that it cannot write to"
    assert {path.name for path in (root / "var").iterdir()} <= {"tmp", "run", "lib"}
    assert not (root / str(working.tree)[1:]).exists()
    assert not stat.S_ISREG((root / "etc/shadow").stat().st_mode)
    assert not (root / "dev/kvm").exists()


def test_pausing_holds_the_guest(working: Working) -> None:
    count = working.tree / "count"
    working.guest.out(f"(while :; do echo x >> {count}; sleep 0.02; done) >/dev/null 2>&1 & echo $! > /tmp/counter")
    wait_until(lambda: count.exists() and count.stat().st_size > 4)
    working.machine.pause()
    working.machine.pause()
    held = count.stat().st_size
    time.sleep(0.5)
    assert count.stat().st_size == held
    working.machine.resume()
    working.machine.resume()
    wait_until(lambda: count.stat().st_size > held)
    working.guest.out("kill $(cat /tmp/counter)")


def test_memory_in_use(working: Working) -> None:
    # (The guest's own has been touched for the most part, and what is emulated takes room for its code.)
    assert 64 << 20 < working.machine.memory_in_use() < MEMORY + (512 << 20)


def test_what_a_guest_writes_to_its_console_is_harmless(working: Working) -> None:
    working.guest.out(r"printf '\033]0;title\007a\033[2Jb\rc\bd\n' | sudo tee /dev/console")
    wait_until(lambda: "ab" in working.machine.console_tail())
    assert working.machine.console_tail().isprintable() or "\n" in working.machine.console_tail()
    assert not {"\x1b", "\x07", "\b", "\r"} & set(working.machine.console_tail())


def test_a_disk_keeps_what_the_guest_writes_and_belongs_to_one_machine(built_image: Image, tmp_path: Path) -> None:
    path = bytes(tmp_path / "disk")
    create_disk(path, 256 << 20)
    with pytest.raises(UsageError):
        create_disk(bytes(tmp_path / "small"), 1 << 20)
    made = plan(built_image, tmp_path, disk=path, network=NoNetwork())
    with running(made) as guest:
        guest.out("sudo sh -c 'echo kept > /etc/kept'; echo more > ~/kept")
        assert 100 < int(guest.out("df --output=size -BM / | tail -n 1").strip().rstrip("M")) <= 256
        with pytest.raises(LockedError, match="another machine has the disk"):
            Machine.start(made._replace(log=bytes(tmp_path)), EMULATION)
        with pytest.raises(LockedError):
            remove_disk(path)
    with running(made) as guest:
        assert guest.out("cat /etc/kept ~/kept") == "kept\nmore\n"
        # A kernel that panics ends its machine, and the lock goes with it.
        _, _ = guest.run("(sleep 1; echo c | sudo tee /proc/sysrq-trigger) >/dev/null 2>&1 &")
        assert guest.machine.wait(60)
        failure = guest.machine.failure(answered=True)
    assert failure.code == "vm_crashed"
    said = "the guest's kernel has panicked: sysrq triggered crash; the end of its console:\n"
    assert failure.message.startswith(said)
    os.close(open_disk(path))
    remove_disk(path)


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_a_machine_that_did_not_come_up_was_killed_or_hangs(built_image: Image, tmp_path: Path) -> None:
    made = plan(built_image, tmp_path, network=NoNetwork())
    with Machine.start(made, EMULATION) as machine:
        failure = machine.failure()
        assert (failure.code, failure.message[:34]) == ("vm_not_started", "the machine did not come up in time"[:34])
        assert machine.failure(answered=True).code == "vm_hung"
        below = descendants(machine.pid)
        (qemu,) = (pid for pid in below if process_name(pid).startswith("qemu"))
        os.kill(qemu, signal.SIGKILL)
        assert machine.wait(60)
        failure = machine.failure()
        assert (failure.code, failure.message) == ("vm_killed", "the machine was killed (SIGKILL)")
    wait_until(lambda: all(map(has_ended, below)))
    machine.stop()


def test_qemu_that_cannot_begin_says_why(built_image: Image, tmp_path: Path) -> None:
    (tmp_path / "kernel").write_bytes(b"no kernel" * 1000)
    made = plan(built_image._replace(kernel=bytes(tmp_path / "kernel")), tmp_path, network=NoNetwork())
    with Machine.start(made, EMULATION) as machine:
        assert machine.wait(60)
        failure = machine.failure()
    assert failure.code == "vm_not_started"
    assert failure.message.startswith("QEMU has failed (1): qemu")


def test_stopping_ends_what_does_not_answer(built_image: Image, tmp_path: Path) -> None:
    machine = Machine.start(plan(built_image, tmp_path, network=NoNetwork()), EMULATION)
    below = descendants(machine.pid)
    wait_until(lambda: machine.memory_in_use() > 32 << 20)
    machine.pause()
    machine.stop(seconds=0)
    wait_until(lambda: all(map(has_ended, below)))
    with pytest.raises(ChildProcessError):
        os.waitpid(machine.pid, 0)

"""Machines that go on from the memory of another one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.model.errors import FormatError, NotFoundError, RefusedError, StorageError
from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.policy import NoNetwork
from holdfast.sandbox.vm.disk import create_disk
from holdfast.sandbox.vm.machine import Machine
from holdfast.sandbox.vm.memory_snapshot import restore_machine, take_snapshot

from ..e2e.isolated import need_namespaces
from .guests import EMULATION, Guest, Served, plan, running

pytestmark = pytest.mark.slow


def test_machines_go_on_from_a_snapshot_each_for_itself(built_image: Image, tmp_path: Path) -> None:
    need_namespaces()
    disk = bytes(tmp_path / "disk")
    create_disk(disk, 128 << 20)
    made = plan(built_image, tmp_path, disk=disk, network=NoNetwork())
    kept, again = bytes(tmp_path / "kept"), bytes(tmp_path / "again")

    def fork(name: str, source: bytes = kept) -> Machine:
        folder = tmp_path / name
        folder.mkdir()
        return restore_machine(
            source, plan(built_image, folder, disk=bytes(folder / "disk"), network=NoNetwork()), EMULATION
        )

    with running(made) as guest:
        guest.out("echo source > ~/on-disk; echo source > /dev/shm/in-memory")
        guest.out(
            "(while :; do date +%s%N > /dev/shm/new; mv /dev/shm/new /dev/shm/tick; sleep 0.1; done) > /dev/null 2>&1 &"
        )
        began = time.perf_counter()
        take_snapshot(guest.machine, kept)
        print(f"taken in {time.perf_counter() - began:.3f} s")
        # It goes on, and what it does is its own.
        assert guest.out("cat ~/on-disk /dev/shm/in-memory") == "source\nsource\n"
        guest.out("echo later > ~/on-disk; echo later > /dev/shm/in-memory; sync")
    assert sorted(path.name for path in Path(os.fsdecode(kept)).iterdir()) == ["disk", "facts", "memory", "state"]
    assert {path.stat().st_mode & 0o777 for path in Path(os.fsdecode(kept)).iterdir()} == {0o600}
    assert (tmp_path / "kept/memory").stat().st_blocks * 512 < made.memory

    forks: list[Guest] = []
    for name in ("one", "two"):
        began = time.perf_counter()
        machine = fork(name)
        up = time.perf_counter() - began
        forks.append(Guest(machine, first=1000))
        assert forks[-1].out("cat ~/on-disk /dev/shm/in-memory") == "source\nsource\n"
        print(f"{name}: runs after {up:.3f} s, answered after {time.perf_counter() - began:.3f} s")
        forks[-1].out(f"echo {name} > ~/on-disk; echo {name} > /dev/shm/in-memory; sync")
    first, second = forks
    # (What ran in the background goes on.)
    first.out('old=$(cat /dev/shm/tick); while [ "$(cat /dev/shm/tick)" = "$old" ]; do sleep 0.1; done')
    assert first.out("cat ~/on-disk /dev/shm/in-memory") == "one\none\n"
    assert second.out("cat ~/on-disk /dev/shm/in-memory") == "two\ntwo\n"

    # A second time, from one that was restored itself.
    take_snapshot(first.machine, again)
    for guest in forks:
        guest.close()
        guest.machine.stop(seconds=0)
    last = Guest(fork("three", again), first=2000)
    assert last.out("cat ~/on-disk /dev/shm/in-memory") == "one\none\n"
    last.close()
    last.machine.stop()
    assert last.machine.exit_code() == 0

    # Nothing else may go on from there.
    for changes, what in (
        ({"memory": 512 << 20}, "memory 268435456, and not 536870912"),
        ({"image": built_image._replace(id="other")}, "image [0-9a-f]+, and not other"),
        ({"disk": None}, "disk True, and not False"),
    ):
        with pytest.raises(RefusedError, match=what) as refused:
            restore_machine(kept, made._replace(**changes), EMULATION)
        assert refused.value.code == "vm_differs"
    with pytest.raises(StorageError, match="File exists"):
        restore_machine(kept, made, EMULATION)
    (tmp_path / "kept/facts").write_bytes((tmp_path / "kept/facts").read_bytes()[:-1])
    with pytest.raises(FormatError):
        restore_machine(kept, made, EMULATION)
    with pytest.raises(NotFoundError):
        restore_machine(bytes(tmp_path / "log"), made, EMULATION)


def test_directories_are_unplugged_for_a_snapshot(built_image: Image, tmp_path: Path) -> None:
    need_namespaces()
    served = Served(tmp_path)
    (served.tree / "file").write_text("of the host")
    os.chmod(served.tree, 0o777)
    mount = f"sudo mount -t virtiofs work {served.tree} && cat {served.tree}/file"
    made = plan(built_image, tmp_path, network=NoNetwork(), shares=(served.share,))
    kept = bytes(tmp_path / "kept")
    with Machine.start(made, EMULATION) as machine:
        served.serve(machine.files[0].dup())
        guest = Guest(machine)
        assert guest.out(f"cat {served.tree}/file") == "of the host"
        with pytest.raises(RefusedError, match="directories of the host") as refused:
            take_snapshot(machine, kept)
        assert refused.value.code == "vm_has_directories"
        assert not (tmp_path / "kept").exists()

        guest.out(f"sudo umount {served.tree}")
        machine.unplug(0)
        take_snapshot(machine, kept)
        machine.plug(0, served.serve)
        assert guest.out(mount) == "of the host"
        guest.out(f"echo source > {served.tree}/new")
        guest.close()

        log = tmp_path / "log-2"
        log.mkdir()
        with restore_machine(kept, made._replace(log=bytes(log)), EMULATION) as restored:
            assert restored.plugged == set()
            restored.plug(0, served.serve)
            guest = Guest(restored, first=1000)
            assert guest.out(mount) == "of the host"
            assert guest.out(f"cat {served.tree}/new; echo restored > {served.tree}/new") == "source\n"
            guest.close()
    assert (served.tree / "new").read_text() == "restored\n"
    served.undo()
    assert sorted(path.name for path in served.tree.iterdir()) == ["file"]

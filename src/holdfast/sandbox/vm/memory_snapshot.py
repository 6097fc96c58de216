"""A snapshot of a running machine with its memory, in a directory; any number of machines can continue from it.

| file | |
| --- | --- |
| ``memory`` | the guest's memory, with holes where it was never touched |
| ``state`` | what QEMU says of processor and devices |
| ``disk`` | the disk, if the machine has one; it shares blocks with the machine's where the file system can |
| ``facts`` | what a machine must be to go on from here. Written last: without it there is no snapshot |

The guest is paused while these are copied, except the last. Its memory is a file that QEMU has mapped, so QEMU need not
stream it (``x-ignore-shared``), and pages that the guest has not touched are not read.

The state requires a QEMU with the same devices and processor, so others are refused: the caller starts such a machine
anew, from its disk. Secrets in the guest's memory are in the snapshot (mode 0600 in a directory with 0700).

Every machine that continues from a snapshot would get the same random numbers, and has the clock of the snapshot: the
caller sets both by commands before any other work of the guest.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.linux.reflink import copy_content, copy_data
from holdfast.files.note_file import NoteFile, sync_directory
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import ChannelError, FormatError, NotFoundError, RefusedError, StorageError, room_hint
from holdfast.model.paths import display
from holdfast.sandbox.policy import NoNetwork
from holdfast.sandbox.vm.machine import Machine
from holdfast.sandbox.vm.programs import find_qemu, qemu_version

if TYPE_CHECKING:
    from holdfast.sandbox.vm.monitor import Monitor
    from holdfast.sandbox.vm.plan import Accelerator, MachinePlan

_NOTE = NoteFile(
    b"facts", b"holdfast memory snapshot 1 ", "the facts of a snapshot of a machine", 1 << 14, "take another one"
)
_SECONDS = 60.0
"""For QEMU to write, or read, the state: it takes some hundredths of one."""
_LOOK_SECONDS = 0.002
_CAPABILITY: dict[str, object] = {"capabilities": [{"capability": "x-ignore-shared", "state": True}]}
_FD = "state"
"""The name that QEMU knows the descriptor by."""


class _Facts(msgspec.Struct, frozen=True):
    """The values that must be equal. The fields' names are shown to people."""

    qemu: str
    accelerator: str
    processor: str
    processors: int
    memory: int
    image: str
    network: bool
    disk: bool
    directories: int


def take_snapshot(machine: Machine, folder: bytes) -> None:
    """Make the new directory ``folder`` with a snapshot of the machine, which goes on afterwards. Durable.

    Raises `RefusedError` if the machine has directories of the host plugged in (`Machine.unplug`), whose state is no
    part of it; `ChannelError` if
    QEMU does not do it, `StorageError`. Then ``folder`` is not there.
    """
    if machine.plugged:
        raise RefusedError(
            "the memory of a machine that has directories of the host cannot be kept",
            hint="unmount them in the guest, and unplug them",
            code="vm_has_directories",
        )
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise StorageError(f"cannot make {display(folder)}: {error.strerror}") from error
    try:
        _write(machine, folder)
        _NOTE.write(folder, msgspec.json.encode(_facts(machine.plan, machine.accelerator)))
    except OSError as error:
        shutil.rmtree(folder)
        raise StorageError(f"cannot write {display(folder)}: {error.strerror}", hint=room_hint(error)) from error
    except BaseException:
        shutil.rmtree(folder)
        raise


def restore_machine(folder: bytes, plan: MachinePlan, accelerator: Accelerator) -> Machine:
    """Start a machine that continues from the snapshot in ``folder``. The plan's boot settings have no effect, and its
    shares are not plugged in yet.

    The plan's disk, if it has one, is made as a copy of the snapshot's, and must not exist yet. Raises `NotFoundError`,
    `FormatError` for a damaged snapshot, `RefusedError` with the code ``vm_differs`` with the differences, and as
    `take_snapshot` and `Machine.start`.
    """
    _require_same(_read(folder), _facts(plan, accelerator))
    if plan.disk is not None:
        _copy_file(os.path.join(folder, b"disk"), plan.disk)
    machine = Machine.start(plan, accelerator, restored=True)
    try:
        # QEMU takes as long to start, and does not touch the memory before it has the state.
        _fill_memory(machine, os.path.join(folder, b"memory"))
        monitor = machine.monitor
        with open(os.path.join(folder, b"state"), "rb") as state:
            monitor.execute("migrate-set-capabilities", _CAPABILITY)
            monitor.execute("getfd", {"fdname": _FD}, fd=state.fileno())
            monitor.execute("migrate-incoming", {"uri": f"fd:{_FD}"})
            _wait_for_state(monitor)
        machine.resume()
    except ChannelError as error:
        failure = machine.failure()
        machine.stop(seconds=0)
        raise failure from error
    except BaseException:
        machine.stop(seconds=0)
        raise
    return machine


def _fill_memory(machine: Machine, path: bytes) -> None:
    try:
        with open(path, "rb") as saved:
            copy_data(saved.fileno(), machine.memory)
    except OSError as error:
        raise StorageError(f"cannot take {display(path)}: {error.strerror}", hint=room_hint(error)) from error


def _write(machine: Machine, folder: bytes) -> None:
    monitor = machine.monitor
    names = [b"memory", b"state", *([b"disk"] if machine.plan.disk is not None else [])]
    files = {
        name: os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        for name in names
    }
    try:
        monitor.execute("migrate-set-capabilities", _CAPABILITY)
        monitor.execute("getfd", {"fdname": _FD}, fd=files[b"state"])
        machine.pause()
        try:
            # A paused QEMU has written all of the guest's writes to the disk's file.
            monitor.execute("migrate", {"uri": f"fd:{_FD}"})
            _wait_for_state(monitor)
            copy_content(machine.memory, files[b"memory"])
            if machine.plan.disk is not None:
                with open(machine.plan.disk, "rb") as disk:
                    copy_content(disk.fileno(), files[b"disk"])
        finally:
            machine.resume()
        for fd in files.values():
            os.fsync(fd)
    finally:
        for fd in files.values():
            os.close(fd)


def _wait_for_state(monitor: Monitor) -> None:
    until = time.monotonic() + _SECONDS
    while (found := monitor.execute("query-migrate")).get("status") != "completed":
        if found.get("status") in ("failed", "cancelled") or time.monotonic() > until:
            raise ChannelError(f"QEMU does not keep or take a state: {found.get('error-desc', found.get('status'))}")
        time.sleep(_LOOK_SECONDS)


def _copy_file(source: bytes, target: bytes) -> None:
    try:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(source, "rb") as file:
                copy_content(file.fileno(), fd)
        finally:
            os.close(fd)
        sync_directory(os.path.dirname(target))
    except OSError as error:
        raise StorageError(f"cannot make {display(target)}: {error.strerror}", hint=room_hint(error)) from error


def _facts(plan: MachinePlan, accelerator: Accelerator) -> _Facts:
    return _Facts(
        qemu_version(find_qemu()),
        accelerator.kind,
        _processor() if accelerator.kind == "kvm" else "emulated",
        plan.cpus,
        plan.memory,
        plan.image.id,
        network=not isinstance(plan.network, NoNetwork),
        disk=plan.disk is not None,
        directories=len(plan.shares),
    )


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")


def _read(folder: bytes) -> _Facts:
    body = _NOTE.read(folder)
    if body is None:
        raise NotFoundError(f"there is no snapshot of a machine in {display(folder)}")
    try:
        return json_decoder(_Facts).decode(body)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{display(folder)} has no facts of a snapshot: {error}") from error


def _require_same(kept: _Facts, wanted: _Facts) -> None:
    different = [
        f"{name} {getattr(kept, name)}, and not {getattr(wanted, name)}"
        for name in _Facts.__struct_fields__
        if getattr(kept, name) != getattr(wanted, name)
    ]
    if different:
        raise RefusedError(
            f"the snapshot is of a machine with {'; '.join(different)}",
            hint="start the machine anew, from its disk",
            code="vm_differs",
        )

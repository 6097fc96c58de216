"""What there is of a workspace's virtual machines: those that run, each with a note, and the disk that stays.

A note is locked by the process whose machine it is, for as long as that lives: one that is not locked was left by a
process that was killed. Its machine has ended with it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.files.linux.process_lock import exclusive
from holdfast.files.note_file import NoteFile
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.log import Log
from holdfast.model.machine import RunningMachine
from holdfast.model.message_text import plural
from holdfast.model.message_text import size as size_text
from holdfast.processes.process_tree import memory_of_tree
from holdfast.sandbox.vm.disk import create_disk, remove_disk, size_of_disk

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.clock import Clock
    from holdfast.sandbox.images.manifest import Image

_LOG = Log(__name__)
_NOTE: Final = b"run-"
_MOST_BYTES: Final = 1 << 14
_DISK: Final = b"disk.qcow2"
_IMAGE: Final = NoteFile(
    b"disk-image", b"HFVD 1 ", "what a virtual machine's disk was made for", 1024, "`holdfast vm reset` begins anew"
)
_LOCK: Final = b"disk.lock"
_LOCK_SECONDS: Final = 120.0
"""For another run that makes the disk."""


class MachineStatus(NamedTuple):
    """What there is of a workspace's virtual machines."""

    running: Sequence[RunningMachine]
    disk_bytes: int | None
    """What the disk that stays takes of the host; None: there is none."""


def machine_directory(folder: bytes) -> bytes:
    """Where what belongs to the machines of a workspace is: beside its undo log, in its ``folder`` of the home."""
    return os.path.join(folder, b"machine")


def machine_of_run(folder: bytes, run: str) -> RunningMachine | None:
    """The machine that is the run ``run``, of the workspace with this ``folder`` in the home; None if it has ended."""
    return next((one for one in _running(machine_directory(folder)) if one.run == run), None)


def machine_status(context: Context) -> MachineStatus:
    """What there is now."""
    directory = machine_directory(context.folder)
    try:
        size = os.stat(os.path.join(directory, _DISK)).st_blocks * 512
    except FileNotFoundError:
        size = None
    return MachineStatus(list(_running(directory)), size)


def reset_machine(context: Context) -> bool:
    """Remove the disk that stays: the next machine begins anew from its image. Whether there was one. The workspace's
    files are no part of it. Raises `RefusedError` while a machine runs.
    """
    directory = machine_directory(context.folder)
    if running := list(_running(directory)):
        raise RefusedError(
            f"{plural(len(running), 'virtual machine')} of this workspace runs (run {running[0].run})",
            hint="end what runs in it first",
            code="machine_running",
        )
    try:
        remove_disk(os.path.join(directory, _DISK))
    except NotFoundError:
        return False
    _IMAGE.remove(directory)
    return True


def provide_disk(directory: bytes, size: int, image: Image, clock: Clock) -> bytes:
    """The path of the disk that stays, which is made where there is none. It stands on the image that it was made for:
    raises `RefusedError` (``image_changed``) if that is another one by now, `FormatError` where that is not known for
    damage, and as `create_disk`.
    """
    disk = os.path.join(directory, _DISK)
    os.makedirs(directory, 0o700, exist_ok=True)
    lock = os.path.join(directory, _LOCK)
    with exclusive(lock, timeout=_LOCK_SECONDS, clock=clock, what="the virtual machine's disk"):
        if not os.path.exists(disk):
            # (First: a disk of which nothing says what it stands on could not be used.)
            _IMAGE.write(directory, image.id.encode())
            create_disk(disk, size)
            return disk
    if _IMAGE.read(directory) != image.id.encode():
        raise RefusedError(
            f"the virtual machine's disk was made for another image than {image.name} is now",
            hint="`holdfast vm reset` begins anew, without the programs installed there; HOLDFAST_VM_MODE=ephemeral "
            "goes without the disk",
            code="image_changed",
        )
    if (made := size_of_disk(disk)) != -(-size // 512) * 512:
        _LOG.warning(
            "the virtual machine's disk was made with %s, and vm.disk (%s) is for a new one: `holdfast vm reset`",
            *map(size_text, (made, size)),
        )
    return disk


@contextmanager
def noted(directory: bytes, machine: RunningMachine) -> Generator[None]:
    """For the length of the block, the machine is among those that run. Raises `OSError`."""
    os.makedirs(directory, 0o700, exist_ok=True)
    for _ in _running(directory):
        pass  # (what killed processes have left goes)
    path = os.path.join(directory, _NOTE + machine.run.encode())
    begun = path + b".new"
    fd = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, msgspec.json.encode(machine))
        os.rename(begun, path)
        yield
    finally:
        os.unlink(path)
        os.close(fd)


def _running(directory: bytes) -> Generator[RunningMachine]:
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith(_NOTE) and b"." not in name)
    except FileNotFoundError:
        return
    for name in names:
        path = os.path.join(directory, name)
        with suppress(FileNotFoundError), open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                with suppress(msgspec.MsgspecError):  # (it is just being written)
                    noted = json_decoder(RunningMachine).decode(file.read(_MOST_BYTES))
                    yield msgspec.structs.replace(noted, memory_bytes=memory_of_tree(noted.pid))
            else:
                os.unlink(path)

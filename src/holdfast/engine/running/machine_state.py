"""A workspace's virtual machines: running ones, each with a note, and the kept disk.

The process of a machine locks its note for its lifetime: an unlocked note was left by a killed process, whose machine
has ended with it.
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
    """A workspace's virtual machines and disk."""

    running: Sequence[RunningMachine]
    disk_bytes: int | None
    """The disk's size on the host; None without one."""


def machine_directory(folder: bytes) -> bytes:
    """The directory of a workspace's machines: beside its undo log, in its ``folder`` of the home."""
    return os.path.join(folder, b"machine")


def machine_of_run(folder: bytes, run: str) -> RunningMachine | None:
    """The machine that is the run ``run``, of the workspace with this ``folder`` in the home; None if it has ended."""
    return next((one for one in _running(machine_directory(folder)) if one.run == run), None)


def machine_status(context: Context) -> MachineStatus:
    """The present state."""
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
    """The path of the kept disk, which is made if it is missing. It depends on the image that it was made for: raises
    `RefusedError` (``image_changed``) for another image, `FormatError` if the record of the image is damaged, and as
    `create_disk`.
    """
    disk = os.path.join(directory, _DISK)
    os.makedirs(directory, 0o700, exist_ok=True)
    lock = os.path.join(directory, _LOCK)
    with exclusive(lock, timeout=_LOCK_SECONDS, clock=clock, what="the virtual machine's disk"):
        if not os.path.exists(disk):
            # The record first: a disk without one could not be used.
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
    """For the length of the block, the machine is listed as running. Raises `OSError`."""
    os.makedirs(directory, 0o700, exist_ok=True)
    for _ in _running(directory):
        pass  # deletes the notes of killed processes
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
                with suppress(msgspec.MsgspecError):  # it is being written
                    noted = json_decoder(RunningMachine).decode(file.read(_MOST_BYTES))
                    yield msgspec.structs.replace(noted, memory_bytes=memory_of_tree(noted.pid))
            else:
                os.unlink(path)

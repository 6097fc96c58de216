"""Chooses between the processor (KVM) and emulation for a machine.

An accessible ``/dev/kvm`` proves little: in a nested virtual machine it may answer and still hang every kernel. So KVM
is used only after our own kernel has started under it once, up to the first line of its shim. The finding is kept in
the home, and is valid for one boot of the host, one version of QEMU and one image.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.note_file import NoteFile
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import HoldfastError, MachineError, StorageError
from holdfast.model.log import Log
from holdfast.sandbox.policy import NoNetwork
from holdfast.sandbox.vm.machine import Machine, first_line
from holdfast.sandbox.vm.plan import Accelerator, BootPlan, GuestUser, MachinePlan
from holdfast.sandbox.vm.programs import find_qemu, qemu_version

if TYPE_CHECKING:
    from holdfast.sandbox.images.manifest import Image

_LOG = Log(__name__)
LIMIT_SECONDS = 5.0
"""A kernel that runs has needed a tenth of it."""
_MEMORY = 256 << 20
_DEVICE = "/dev/kvm"
_EMULATED = "virtual machines are emulated here, several times slower: "
NOTE_NAME = b"accelerator"
"""The name of the file in the home with the finding."""
_NOTE = NoteFile(
    NOTE_NAME, b"holdfast accelerator 1 ", "the finding about KVM", 4096, "it is found out again without it"
)


class _Finding(msgspec.Struct, frozen=True):
    """The finding, and its conditions."""

    boot: str
    qemu: str
    image: str
    works: bool


def choose_accelerator(
    home: bytes, image: Image, *, device: str = _DEVICE, limit: float = LIMIT_SECONDS
) -> Accelerator:
    """KVM where it is known to work; if nothing is known, it is tried, for ``limit`` seconds at most.

    ``home`` is the directory in which the answer is kept. Raises `UnsupportedError` if there can be no machine at all.
    """
    if (known := known_accelerator(home, image, device=device, limit=limit)) is not None:
        return known
    found = msgspec.structs.replace(_here(image), works=_comes_up(image, limit))
    try:
        _NOTE.write(home, msgspec.json.encode(found))
    except StorageError as error:
        _LOG.warning("the finding about KVM is not kept: %s", error)
    return _accelerator(found, device, limit)


def known_accelerator(
    home: bytes, image: Image | None, *, device: str = _DEVICE, limit: float = LIMIT_SECONDS
) -> Accelerator | None:
    """The answer of `choose_accelerator` without a trial; None if it would try KVM, as always for an ``image`` that
    does not exist yet. Raises as that does.
    """
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return Accelerator("tcg", f"{_EMULATED}there is no {device}")
    except OSError as error:
        return Accelerator("tcg", f"{_EMULATED}{device} cannot be opened: {error.strerror}")
    known = None if image is None else _read(home)
    if image is None or known is None or msgspec.structs.replace(known, works=False) != _here(image):
        return None
    return _accelerator(known, device, limit)


def _here(image: Image) -> _Finding:
    """The finding for these conditions, if KVM is unusable."""
    return _Finding(_boot_id(), qemu_version(find_qemu()), image.id, works=False)


def _accelerator(found: _Finding, device: str, limit: float) -> Accelerator:
    if found.works:
        return Accelerator("kvm")
    return Accelerator("tcg", f"{_EMULATED}no guest comes up under {device} within {limit:.0f} seconds")


def _read(home: bytes) -> _Finding | None:
    """The stored finding; None if it is missing or invalid."""
    try:
        body = _NOTE.read(home)
        return None if body is None else json_decoder(_Finding).decode(body)
    except (HoldfastError, msgspec.MsgspecError) as error:
        _LOG.warning("the finding about KVM is of no use: %s", error)
        return None


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _comes_up(image: Image, limit: float) -> bool:
    # The shim's first message answers an unknown request, in every version of the protocol.
    user = GuestUser("root", 0, 0, b"/root")
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        plan = MachinePlan(image, _MEMORY, 1, BootPlan(user), NoNetwork(), os.fsencode(folder))
        try:
            with Machine.start(plan, Accelerator("kvm")) as machine:
                try:
                    machine.control.send(b"{}\n")
                    first_line(machine, limit)
                    return True
                except (MachineError, OSError) as error:
                    _LOG.info("KVM is of no use: %s", error)
                    machine.stop(seconds=0)
                    return False
        except StorageError as error:
            _LOG.info("KVM is of no use: %s", error)
            return False

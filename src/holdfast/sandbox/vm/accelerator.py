"""Whether a machine's instructions are carried out by the processor (KVM) or by emulation.

That ``/dev/kvm`` can be opened, and answers, says little: in a nested virtual machine it may do so and hang every
kernel. So KVM counts where our own kernel has come up under it, once, as far as the first line of its shim. What was
found is kept in the home, and holds for one boot of the host, one version of QEMU and one image.
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
_EMULATED = "the machine is emulated, which is several times slower: "
_NOTE = NoteFile(
    b"accelerator", b"holdfast accelerator 1 ", "what is known of KVM", 4096, "it is found out again without it"
)


class _Finding(msgspec.Struct, frozen=True):
    """What was found, and where it holds."""

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
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return Accelerator("tcg", f"{_EMULATED}there is no {device}")
    except OSError as error:
        return Accelerator("tcg", f"{_EMULATED}{device} cannot be opened: {error.strerror}")
    here = _Finding(_boot_id(), qemu_version(find_qemu()), image.id, works=False)
    known = _read(home)
    if known is None or msgspec.structs.replace(known, works=False) != here:
        known = msgspec.structs.replace(here, works=_comes_up(image, limit))
        try:
            _NOTE.write(home, msgspec.json.encode(known))
        except StorageError as error:
            _LOG.warning("what is known of KVM is not kept: %s", error)
    if known.works:
        return Accelerator("kvm")
    return Accelerator("tcg", f"{_EMULATED}no guest comes up under {device} within {limit:.0f} seconds")


def _read(home: bytes) -> _Finding | None:
    """What was kept; None if that is nothing, or of no use."""
    try:
        body = _NOTE.read(home)
        return None if body is None else json_decoder(_Finding).decode(body)
    except (HoldfastError, msgspec.MsgspecError) as error:
        _LOG.warning("what is known of KVM is of no use: %s", error)
        return None


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _comes_up(image: Image, limit: float) -> bool:
    # (The shim speaks first when it is asked for something that it does not know, in every version of the protocol.)
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

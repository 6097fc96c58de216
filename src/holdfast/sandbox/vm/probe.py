"""The virtual machines that this host offers this user, and missing parts. Starts nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import UnsupportedError
from holdfast.model.paths import display
from holdfast.sandbox.images.host_tools import find_tools
from holdfast.sandbox.images.store import ImageStore
from holdfast.sandbox.vm.accelerator import NOTE_NAME, known_accelerator
from holdfast.sandbox.vm.monitor import require_library
from holdfast.sandbox.vm.programs import find_program, find_qemu, qemu_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.sandbox.images.manifest import Image

_KVM = "/dev/kvm"
_BUILDERS = ("mmdebstrap", "mksquashfs", "busybox")


class MachineFinding(NamedTuple):
    """One thing that virtual machines need, or are better with."""

    works: bool
    message: str
    help: str = ""
    """If it does not work: what would change that."""


def probe(home: bytes, image: str) -> Iterator[MachineFinding]:
    """Check the programs, the library, the images in ``home``, and the known state of KVM with the one called
    ``image``. Raises as reading the images does.
    """
    try:
        yield MachineFinding(True, f"commands can run in virtual machines: {qemu_version(find_qemu())}")
    except UnsupportedError as error:
        yield MachineFinding(False, f"commands cannot run in virtual machines: {error.message}", error.hint or "")
        return
    yield from _missing(require_library)
    yield from _missing(lambda: find_program("qemu-img", "qemu-utils"))
    yield from _missing(lambda: find_tools(*_BUILDERS))
    images = {found.name: found for found in ImageStore(home).list()}
    yield _accelerator(home, images.get(image))
    if images:
        yield MachineFinding(True, f"images: {', '.join(images)}")
    else:
        yield MachineFinding(False, "there is no image of a virtual machine", "`holdfast image build` makes one")


def _accelerator(home: bytes, image: Image | None) -> MachineFinding:
    known = known_accelerator(home, image)
    if known is None:
        return MachineFinding(True, "whether they run with KVM is not tried yet: the first one tries it")
    if known.kind == "kvm":
        return MachineFinding(True, "they run with KVM")
    usable = os.access(_KVM, os.R_OK | os.W_OK)
    again = f"a new start of this host, or `rm {display(os.path.join(home, NOTE_NAME))}`, has it tried again"
    return MachineFinding(False, known.note, again if usable else "the group kvm, or a host with KVM")


def _missing(look: Callable[[], object]) -> Iterator[MachineFinding]:
    try:
        look()
    except UnsupportedError as error:
        yield MachineFinding(False, error.message, error.hint or "")

"""What virtual machines this host lets this user have, and what is missing. Nothing is started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import UnsupportedError
from holdfast.sandbox.images.host_tools import find_tools
from holdfast.sandbox.images.store import ImageStore
from holdfast.sandbox.vm.monitor import require_library
from holdfast.sandbox.vm.programs import find_program, find_qemu, qemu_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KVM = "/dev/kvm"
_BUILDERS = ("mmdebstrap", "mksquashfs", "busybox")


class MachineFinding(NamedTuple):
    """One thing that virtual machines need, or are better with."""

    works: bool
    message: str
    help: str = ""
    """If it does not work: what would change that."""


def probe(home: bytes) -> Iterator[MachineFinding]:
    """Look at programs, the library, ``/dev/kvm``, and the images in ``home``. Raises what reading the images does."""
    try:
        yield MachineFinding(True, f"commands can run in virtual machines: {qemu_version(find_qemu())}")
    except UnsupportedError as error:
        yield MachineFinding(False, f"commands cannot run in virtual machines: {error.message}", error.hint or "")
        return
    yield from _missing(require_library)
    yield from _missing(lambda: find_program("qemu-img", "qemu-utils"))
    yield from _missing(lambda: find_tools(*_BUILDERS))
    if not os.access(_KVM, os.R_OK | os.W_OK):
        lacking = f"{_KVM} may not be used" if os.path.exists(_KVM) else f"there is no {_KVM}"
        yield MachineFinding(False, f"they are emulated, which is slow: {lacking}", "the group kvm, or a host with KVM")
    names = [image.name for image in ImageStore(home).list()]
    if names:
        yield MachineFinding(True, f"images: {', '.join(names)}")
    else:
        yield MachineFinding(False, "there is no image of a virtual machine", "`holdfast image build` makes one")


def _missing(look: Callable[[], object]) -> Iterator[MachineFinding]:
    try:
        look()
    except UnsupportedError as error:
        yield MachineFinding(False, error.message, error.hint or "")

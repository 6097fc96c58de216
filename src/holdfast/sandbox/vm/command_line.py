"""The command line of QEMU for a machine. Pure.

QEMU gets its own files as open descriptors: sockets by their numbers, files as ``/proc/self/fd/N``, which opens the
same file wherever it is. So QEMU's box need not show any directory of the user. But that path permits opening for
writing, too: an image, which machines share, is shown in the box by its path, read-only.

Sources: qemu(1); QEMU's docs/specs/vmgenid; docs/interop/vhost-user.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import UsageError
from holdfast.sandbox.policy import NoNetwork
from holdfast.sandbox.vm.plan import ADDRESS_9P, CONTROL_PORT, PROCESSES_PORT, ports_9p

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sandbox.vm.plan import Accelerator, MachinePlan, Share

MEMORY_UNIT = 2 << 20
LEAST_MEMORY = 128 << 20
_TAG = re.compile(r"[A-Za-z0-9._-]{1,36}")
_MOST_CPUS = 255

_SYSTEM_CALLS = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_KERNEL = "console=ttyS0 quiet panic=-1 audit=0"
"""A guest whose kernel panics reboots at once, and with ``-no-reboot`` QEMU ends then and says so."""
_EMULATED = "mitigations=off no_timer_check"
"""Emulation has no speculation, so mitigations only take time. On a busy host ticks come too late for the kernel's
check of its timer, which then panics.
"""


class Descriptors(NamedTuple):
    """Numbers of descriptors that QEMU inherits."""

    monitor: int
    console: int
    control: int
    processes: int
    """Connected sockets."""
    memory: int
    """The guest's: a file of its size."""
    initrd: int
    disk: int | None
    """Open files."""
    shares: Sequence[int]
    """For each of the plan's shares, a connected socket at whose other end a vhost-user back end or a 9P server serves
    it; none for a machine that is restored.
    """


def check(plan: MachinePlan) -> None:
    """Raise `UsageError` if no machine can be made of the plan."""
    if plan.memory < LEAST_MEMORY or plan.memory % MEMORY_UNIT:
        raise UsageError(
            f"a machine cannot have {plan.memory} bytes of memory",
            hint=f"at least {LEAST_MEMORY >> 20} MiB, and a multiple of {MEMORY_UNIT >> 20} MiB",
        )
    if not 1 <= plan.cpus <= _MOST_CPUS:
        raise UsageError(f"a machine cannot have {plan.cpus} processors", hint=f"from 1 to {_MOST_CPUS}")
    tags = [share.tag for share in plan.shares]
    for tag in tags:
        if not _TAG.fullmatch(tag) or tags.count(tag) > 1:
            raise UsageError(f"{tag!r} is no tag for a directory of a machine")


def arguments(
    program: bytes, plan: MachinePlan, accelerator: Accelerator, given: Descriptors, *, restored: bool = False
) -> list[bytes]:
    """The command line. The plan must have passed `check`, and its image's paths have no links. ``restored``: the
    memory has a snapshot's content, and QEMU waits for the state of the devices, except shares.
    """
    emulated = accelerator.kind == "tcg"
    words = [
        "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-sandbox", _SYSTEM_CALLS,
        "-machine", "q35,memory-backend=mem,usb=off,vmport=off,smbus=off", "-m", f"{plan.memory >> 20}M",
        "-object", f"memory-backend-file,id=mem,size={plan.memory},mem-path={_path(given.memory)},share=on",
        "-accel", "tcg,thread=multi" if emulated else "kvm", "-cpu", "max" if emulated else "host",
        "-smp", f"{plan.cpus}",
        "-kernel", os.fsdecode(plan.image.kernel), "-initrd", _path(given.initrd),
        "-append", f"{_KERNEL} {_EMULATED}" if emulated else _KERNEL,
        *_socket("monitor", given.monitor), "-mon", "chardev=monitor,mode=control",
        *_socket("console", given.console), "-serial", "chardev:console",
        "-device", "virtio-serial-pci",
        *_socket("control", given.control), "-device", f"virtserialport,chardev=control,name={CONTROL_PORT}",
        *_socket("processes", given.processes), "-device", f"virtserialport,chardev=processes,name={PROCESSES_PORT}",
        "-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
        "-device", "vmgenid,guid=auto",
        "-blockdev", f"driver=file,node-name=root,filename={_value(plan.image.root)},read-only=on",
        "-device", "virtio-blk-pci,drive=root,serial=root",
    ]  # fmt: skip
    if given.disk is not None:
        # Blocks that the guest's file system frees are freed in the file, too.
        words += [
            "-blockdev", f"driver=file,node-name=disk-file,filename={_path(given.disk)},discard=unmap",
            "-blockdev", "driver=qcow2,node-name=disk,file=disk-file,discard=unmap",
            "-device", "virtio-blk-pci,drive=disk,serial=disk",
        ]  # fmt: skip
    forwarded = ""
    ports = ports_9p(plan.shares)
    for number, share in enumerate(plan.shares):
        name = share_name(number)
        if share.kind == "9p":
            words += _socket(name, given.shares[number])
            forwarded += f",guestfwd=tcp:{ADDRESS_9P}:{ports[share.tag]}-chardev:{name}"
            continue
        # Each in a slot of its own, from which it can be unplugged.
        slot = f"slot-{number}"
        words += ["-device", f"pcie-root-port,id={slot},chassis={number + 1},slot={number + 1}"]
        if not restored:
            words += _socket(name, given.shares[number])
            words += ["-device", ",".join(f"{key}={value}" for key, value in share_device(number, share).items())]
    without_network = isinstance(plan.network, NoNetwork)
    if forwarded or not without_network:
        restricted = ",restrict=on" if without_network else ""
        # Without an option ROM, as nothing boots from the network.
        words += [
            "-netdev", f"user,id=net,ipv6=off{restricted}{forwarded}",
            "-device", "virtio-net-pci,netdev=net,romfile=",
        ]  # fmt: skip
    if restored:
        words += ["-incoming", "defer"]
    return [program, *map(os.fsencode, words)]


def share_name(number: int) -> str:
    """QEMU's name for the device of a share, and its socket."""
    return f"share-{number}"


def share_device(number: int, share: Share) -> dict[str, object]:
    """The device of a share, as it is plugged in."""
    name = share_name(number)
    return {
        "driver": "vhost-user-fs-pci", "id": name, "bus": f"slot-{number}", "chardev": name, "tag": share.tag
    }  # fmt: skip


def _value(path: bytes) -> str:
    """A path in an option, with doubled commas, since a single one would end it."""
    return os.fsdecode(path).replace(",", ",,")


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _socket(name: str, fd: int) -> list[str]:
    return ["-chardev", f"socket,id={name},fd={fd}"]

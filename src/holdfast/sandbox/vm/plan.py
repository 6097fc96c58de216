"""The specification of a virtual machine: values. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.sandbox.images.manifest import Image
    from holdfast.sandbox.policy import Network

CONTROL_PORT = "holdfast.control"
"""The virtio-serial port of the shim in the guest."""
PROCESSES_PORT = "holdfast.processes"
"""The port at which the guest names the command of a process."""
TIME_QUESTION = b"holdfast: what time is it?"
"""The guest's question at its console; the answer is the host's time, in seconds since the epoch."""

ADDRESS_9P = "10.0.2.100"
"""In QEMU's network for users, and nowhere else: connections to it are handed to the servers of shares."""
FIRST_PORT_9P = 5640


class Share(NamedTuple):
    """A directory of the host's that the guest mounts at the same path. Another process serves it."""

    tag: str
    """Unique in a machine: at most 36 characters, ASCII letters, digits, ``.``, ``_`` and ``-``."""
    path: bytes
    """Absolute."""
    read_only: bool = False
    kind: Literal["virtiofs", "9p"] = "virtiofs"
    """How: as a vhost-user device, or as a stream of 9P2000.L, which the guest finds at a port (`ports_9p`)."""


def ports_9p(shares: Sequence[Share]) -> dict[str, int]:
    """At which port of `ADDRESS_9P` the guest mounts each share that is served by 9P, by their tags."""
    return {share.tag: FIRST_PORT_9P + at for at, share in enumerate(shares) if share.kind == "9p"}


class GuestUser(NamedTuple):
    """The user of the commands. The guest makes the account if its image has none."""

    name: str
    uid: int
    gid: int
    home: bytes


class GuestFile(NamedTuple):
    """A file that the guest has from the start. It belongs to the guest's user."""

    path: bytes
    """Absolute."""
    content: bytes
    mode: int = 0o600


class BootPlan(NamedTuple):
    """The work of the guest's first program."""

    user: GuestUser
    hostname: str = "holdfast"
    environment: Mapping[str, str] = {}
    """Of the shim, and so of every command."""
    files: tuple[GuestFile, ...] = ()


class MachinePlan(NamedTuple):
    """All that a machine is made of."""

    image: Image
    memory: int
    """Bytes; a multiple of 2 MiB."""
    cpus: int
    boot: BootPlan
    network: Network
    log: bytes
    """A directory, for ``console.log``."""
    disk: bytes | None = None
    """A qcow2 that holds an ext4, with what the guest changes in its file system. None: that is in its memory, and
    gone with it.
    """
    shares: tuple[Share, ...] = ()


class Accelerator(NamedTuple):
    """How the guest's instructions are carried out."""

    kind: Literal["kvm", "tcg"]
    """By the processor, or by emulation."""
    note: str = ""
    """If by emulation: why, in one line for people."""

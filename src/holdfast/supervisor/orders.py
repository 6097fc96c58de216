"""What the launcher of a run and the parent of its tree say to each other: MessagePack in its length, over a socket."""

from __future__ import annotations

import socket
from typing import Literal, TypeVar

import msgspec

from holdfast.supervisor.messages import LENGTH
from holdfast.supervisor.settings import Settings
from holdfast.undo.safeguards import OFF, Thresholds

T = TypeVar("T")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher asks for."""

    command: tuple[bytes, ...]
    directory: bytes
    """Where the command runs."""
    environment: dict[bytes, bytes]
    run: str
    one_step: bool
    fails_whole: bool = False
    """If the command fails, or is killed, all that it has started ends with it."""
    settings: Settings
    read_only: tuple[int, ...] = ()
    """Directories that the command may not change anything beneath, open; inherited."""
    closed: tuple[bytes, ...] = ()
    """What `landlock.confine` is told of: the paths of the workspace and of those directories."""
    thresholds: Thresholds = OFF
    """When a person is to be asked."""
    mounted: bool = False
    """What it changes comes by a mount, which whoever is executed for ``box`` makes, and not by a filter."""
    box: tuple[bytes, ...] = ()
    """If the command runs in a box: what to execute for that. It starts the shim inside, with the environment above."""
    descriptors: tuple[int, ...] = ()
    """The box's own, which it inherits."""
    channel: int = -1
    """The shim's end of ours, if there is a box; inherited as well."""
    shim: int = -1
    """The other end of the channel."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher is told."""

    kind: Literal["started", "stopped", "ended", "failed"]
    pid: int = 0
    """With ``started``: the keeper, if it was started for this run; with ``stopped``: the command."""
    status: int = 0
    """With ``ended``: as `os.wait` has it."""
    stays: bool = False
    """With ``ended``: something of the tree lives on, and this process with it."""
    message: str = ""
    """With ``failed``: what went wrong."""
    code: str = ""
    hint: str | None = None


def send(to: socket.socket, value: object) -> None:
    """Send one. Raises `OSError` if nobody is there any more."""
    body = msgspec.msgpack.encode(value)
    to.sendall(LENGTH.pack(len(body)) + body)


def receive(source: socket.socket, type_: type[T]) -> T | None:
    """Wait for one; None if the other side is gone."""
    head = source.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(head) < LENGTH.size:
        return None
    body = source.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL)
    return msgspec.msgpack.decode(body, type=type_)

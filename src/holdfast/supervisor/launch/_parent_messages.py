"""The messages between the launcher of a run and the parent of its tree: JSON in frames of `holdfast.ipc.messages`.

After its one message the launcher sends a byte for each signal that it gets, with its number, and 0 as an answer. They
have no frames, since a single call writes each, for a signal the kernel itself.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from holdfast.ipc.connection import Connection
from holdfast.model.decoders import json_decoder
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.undo.service import OFF, RunEnding, Thresholds

if TYPE_CHECKING:
    import socket

T = TypeVar("T")

RELAYED: Final = frozenset(map(int, signal.valid_signals())) - {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGPIPE, signal.SIGXFSZ),  # Python's own
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS),
}
"""Signals that end neither the launcher nor the parent: those that the command does not get directly are passed on."""
ANSWER: Final = b"\0"


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher's request."""

    command: tuple[bytes, ...]
    called: tuple[bytes, ...] = ()
    """The command in steps; empty: ``command``."""
    directory: bytes
    """Where the command runs."""
    environment: dict[bytes, bytes]
    run: str
    one_step: bool
    fails_whole: bool = False
    """If the command fails, or is killed, all that it has started ends with it."""
    ends_whole: bool = False
    """The same however it ends."""
    settings: KeeperSettings
    read_only: tuple[int, ...] = ()
    """Directories that the command may not change anything beneath, open; inherited."""
    inherited: tuple[int, ...] = ()
    """Descriptors that the command has under the same numbers; inherited by the parent as well."""
    closed: tuple[bytes, ...] = ()
    """The argument of `landlock.confine`: the paths of the workspace and of those directories."""
    thresholds: Thresholds = OFF
    """The limits at which a person is asked."""
    mounted: bool = False
    """Its changes come by a mount, which the program for ``box`` makes, and not by a filter."""
    box: tuple[bytes, ...] = ()
    """If the command runs in a box: the program that makes it. It starts the shim inside, with this environment."""
    descriptors: tuple[int, ...] = ()
    """The box's own, which it inherits."""
    channel: int = -1
    """The shim's end of ours, if there is a box; inherited as well."""
    shim: int = -1
    """The other end of the channel."""
    blocked: tuple[int, ...] = ()
    """The signals that the command finds blocked; this process finds those in `RELAYED` blocked until it is ready."""
    relays: bool = False
    """The launcher tells of signals that it gets. Else each gets its own, and none is passed on."""


class LaunchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The parent's report."""

    kind: Literal["started", "stopped", "asked", "ended", "failed"]
    """``asked``: to be answered by `ANSWER`, after the signals that the launcher has got by then."""
    pid: int = 0
    """With ``started``: the keeper, if it was started for this run; with ``stopped``: the command."""
    status: int = 0
    """With ``ended``: as `os.wait` has it."""
    stays: bool = False
    """With ``ended``: processes of the tree live on, and this process with them."""
    parting: RunEnding = RunEnding()
    """With ``ended``: what the keeper has said last."""
    message: str = ""
    """With ``failed``: the error."""
    code: str = ""
    hint: str | None = None


def send_message(to: socket.socket, value: object) -> None:
    """Send one. Raises `ConnectionError` if the other side is gone."""
    Connection(to).send(msgspec.json.encode(value))


def receive_message(source: socket.socket, type_: type[T]) -> T | None:
    """Wait for one; None if the other side is gone."""
    try:
        body = Connection(source).receive()
    except ConnectionError:
        return None
    return json_decoder(type_).decode(body)

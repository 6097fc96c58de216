"""Connecting a tree to its keeper: to the running one, or to a new one."""

from __future__ import annotations

import os
import socket
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec

from holdfast.ipc import messages
from holdfast.ipc.connection import Connection
from holdfast.ipc.port import encode_result
from holdfast.model.errors import HoldfastError, LockedError
from holdfast.model.paths import KEEPER_SOCKET
from holdfast.processes import forked_process
from holdfast.supervisor.control.keeper_port import GONE
from holdfast.supervisor.control.remote_service import RemoteUndoService, connect
from holdfast.supervisor.keeper.stderr_log import open_log
from holdfast.supervisor.launch._caller_access_server import begin_serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.supervisor.control.keeper_port import JoinRequest
    from holdfast.supervisor.keeper.keeper_settings import KeeperSettings

_PATIENCE_SECONDS = 10.0
"""For a process that uses the undo log for a moment without being its keeper."""
_RETRY_SECONDS = 0.05
_KEEPER = "holdfast.supervisor.keeper.keeper"
_READY = encode_result(None)


def preload_keeper(log: bytes) -> None:
    """If the undo log in the directory ``log`` has no keeper, import its modules."""
    if not os.path.exists(os.path.join(log, KEEPER_SOCKET)):
        forked_process.preload(_KEEPER)


def join(
    settings: KeeperSettings, request: JoinRequest, server: int, read_only: Sequence[int] = (), port: int | None = None
) -> tuple[RemoteUndoService, int]:
    """Let a keeper serve a tree, by the descriptor ``server`` (see `JoinRequest.served_by`); ``read_only`` are its
    directories of that kind. This process, its parent, answers the keeper from then on, or the guest of a virtual
    machine at ``port`` (`holdfast.supervisor.keeper.guest_processes`). Descriptors are borrowed.

    Returns the connection, whose end ends the run, and the keeper's process, 0 if it was not started for this run.
    Raises the keeper's errors; `LockedError` if another process uses the log for longer than a moment.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            remote = connect(settings.log)
            keeper, starter = 0, None
            if remote is None:
                keeper, starter = _start(settings)
                remote = connect(settings.log)
            if remote is not None:
                # A thread answers there, and starts after the keeper, which may be a fork of this process. Nor does the
                # command inherit the socket.
                with nullcontext() if port is not None else begin_serving() as asked:
                    parent = port if asked is None else asked.fileno()
                    assert parent is not None
                    remote.join_run(request, [server, parent, *read_only])
                if starter is not None:
                    starter.close()
                return remote, keeper
        except LockedError:
            # A command has the log for a moment, or a keeper that is about to end, or to begin.
            if time.monotonic() > deadline:
                raise
        except HoldfastError as error:
            if error.code != GONE or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def _start(settings: KeeperSettings) -> tuple[int, Connection]:
    """Start a keeper; as long as the connection is open it waits for a run to join."""
    os.makedirs(settings.log, 0o700, exist_ok=True)
    ours, its = socket.socketpair()
    notes = open_log(settings.log)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        keeper = forked_process.start(_KEEPER, its.fileno(), streams=(null, null, notes), own_session=True)
    finally:
        os.close(null)
        os.close(notes)
        its.close()
    starter = Connection(ours)
    try:
        answer = starter.ask(msgspec.json.encode(settings))
    except ConnectionError:
        raise HoldfastError(
            "the keeper ended before it was ready", hint="the undo log's keeper.log may say why"
        ) from None
    if answer != _READY:
        try:
            messages.decode_result(answer)
        except HoldfastError:
            forked_process.wait(keeper)
            raise
    return keeper, starter

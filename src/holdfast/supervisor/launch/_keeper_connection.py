"""How a tree comes to its keeper: to the one that there is, or to a new one."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import msgspec

from holdfast.ipc import messages
from holdfast.ipc.connection import Connection
from holdfast.model.errors import HoldfastError, LockedError
from holdfast.processes.helper_process import start_module
from holdfast.supervisor.control.keeper_port import GONE, JoinRequest
from holdfast.supervisor.control.remote_service import RemoteUndoService, connect
from holdfast.supervisor.keeper.stderr_log import open_log

if TYPE_CHECKING:
    from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
    from holdfast.supervisor.launch._parent_messages import LaunchRequest

_PATIENCE_SECONDS = 10.0
"""For a process that uses the undo log for a moment without being its keeper."""
_RETRY_SECONDS = 0.05


def join(
    order: LaunchRequest, listener: int, agent: int, parent: int
) -> tuple[RemoteUndoService, subprocess.Popen[bytes] | None]:
    """Have the tree of which ``listener`` is the filter's (or the mount's) and ``agent`` the first process served; its
    parent answers on the socket ``parent``.

    Returns the connection that the run lasts as long as, and the keeper if it was started for it. Raises what the
    keeper answers; `LockedError` if another process uses the log for longer than a moment.
    """
    request = JoinRequest(
        run=order.run,
        agent=agent,
        one_step=order.one_step,
        command=order.called or order.command,
        directory=order.directory,
        read_only=len(order.read_only),
        thresholds=order.thresholds,
        mounted=order.mounted,
    )
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            remote = connect(order.settings.log)
            keeper = starter = None
            if remote is None:
                keeper, starter = _start(order.settings)
                remote = connect(order.settings.log)
            if remote is not None:
                remote.join_run(request, [listener, parent, *order.read_only])
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


def _start(settings: KeeperSettings) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a keeper; as long as the connection is open it waits for a run to join."""
    os.makedirs(settings.log, 0o700, exist_ok=True)
    ours, its = socket.socketpair()
    notes = open_log(settings.log)
    try:
        keeper = start_module(
            "holdfast.supervisor.keeper.keeper",
            str(its.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=notes,
            pass_fds=[its.fileno()],
        )
    finally:
        os.close(notes)
        its.close()
    starter = Connection(ours)
    try:
        answer = starter.ask(msgspec.json.encode(settings))
    except ConnectionError:
        raise HoldfastError(
            "the keeper ended before it was ready", hint="the undo log's keeper.log may say why"
        ) from None
    try:
        messages.decode_result(answer)
    except HoldfastError:
        keeper.wait()
        raise
    return keeper, starter

"""Starting a watcher that outlives its starter: a new process in a session of its own, never a bare fork."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from holdfast.engine.opening.home import open_process_log
from holdfast.engine.opening.watch_client import connect
from holdfast.model.clock import SystemClock
from holdfast.model.errors import HoldfastError, LockedError, StorageError
from holdfast.model.paths import display
from holdfast.processes.helper_process import start_in_own_session
from holdfast.processes.process_tree import end_child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.clock import Clock
    from holdfast.wire.watch_messages import WatcherState

LOG = b"watch.log"
_TAIL_BYTES = 2000
_PAUSE = 0.02


def start_detached(
    command: Sequence[str | bytes],
    folder: bytes,
    *,
    limit: float = 15.0,
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> WatcherState:
    """Run ``command``, which watches the workspace with this ``folder``, and return when it answers.

    Its output goes to ``watch.log`` in the folder (mode 0600, started anew beyond 1 MiB). Raises `LockedError` if the
    workspace has a watcher already, `HoldfastError` with the end of the log if the new process ends, or does not answer
    within ``limit`` seconds (it is then ended).
    """
    clock = SystemClock() if clock is None else clock
    running = _answering(folder)
    if running is not None:
        raise LockedError(
            f"a watcher is at work in this workspace already (pid {running.pid})",
            hint="`holdfast watch --stop` stops it",
        )
    log = open_process_log(folder, LOG)
    try:
        start = os.fstat(log).st_size
        process = start_in_own_session(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, environment=environ)
    except OSError as error:
        raise StorageError(f"cannot start the watcher: {error.strerror}") from error
    finally:
        os.close(log)
    deadline = clock.monotonic() + limit
    while process.poll() is None:
        found = _answering(folder)
        if found is not None and _belongs(found.pid, process.pid):
            process.returncode = 0  # it is not ours to wait for any more, and to be warned about
            return found
        if clock.monotonic() >= deadline:
            end_child(process, 5)
            raise HoldfastError(
                f"the watcher did not answer within {limit:g} s{_tail(folder, start)}",
                hint=f"its log is {display(folder + b'/' + LOG)}",
                code="no_watcher",
            )
        time.sleep(_PAUSE)
    raise HoldfastError(
        f"the watcher ended at once, with status {process.returncode}{_tail(folder, start)}",
        hint=f"its log is {display(folder + b'/' + LOG)}",
        code="no_watcher",
    )


def _answering(folder: bytes) -> WatcherState | None:
    watcher = connect(folder, wait=2.0)
    if watcher is None:
        return None
    with watcher:
        try:
            return watcher.ping()
        except HoldfastError:
            return None  # it is ending, or busy with its first checkpoint


def _belongs(pid: int, started: int) -> bool:
    """True if the answering process is the one that was started, or a child of it."""
    try:
        return pid == started or os.getsid(pid) == started
    except OSError:
        return False


def _tail(folder: bytes, start: int) -> str:
    """The log's text since ``start``, or its end."""
    with open(folder + b"/" + LOG, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(start, size - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace").strip()
    return f": {text}" if text else ""

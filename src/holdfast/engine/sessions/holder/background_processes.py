"""Processes that commands of a session left running: background jobs, servers.

There is no register: the keeper knows the processes of each tree that it serves, and the kernel the rest. The trees of
a session are found by the note beside its lock (the tree of its commands), and by ``HOLDFAST_SESSION`` and
``HOLDFAST_RUN`` in the environment of running processes (the trees of its shells and hooks). In an unsupervised session
only the first variable identifies a process.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engine.opening.current_run import RUN_VARIABLE
from holdfast.engine.opening.home import UNDO_LOG, default_home
from holdfast.engine.running.session_tree import is_command_starter, noted_run
from holdfast.engine.sessions.holder.lock import at_work, tree_note_path
from holdfast.engine.sessions.identifiers import SESSION_VARIABLE
from holdfast.model.errors import HoldfastError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import UNDO_LOG_IN_TREE
from holdfast.model.session_results import BackgroundProcess
from holdfast.store.catalog_records import last_seen_path
from holdfast.supervisor.control.remote_service import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.opening.context import HomeContext
    from holdfast.store.catalog_records import WorkspaceRow

_SESSION = SESSION_VARIABLE.encode() + b"="
_RUN = RUN_VARIABLE + b"="
_MOST_BYTES = 4 << 20
"""The largest environment that a program can start with."""


class Running(NamedTuple):
    """A process that some session's command, shell or hook has started."""

    pid: int
    session: str
    run: str
    """Empty: it is not supervised."""
    home: bytes | None
    """The home that its environment names, as far as it does."""


def running_processes() -> Sequence[Running]:
    """All that says in its environment that it belongs to a session, as far as this user may see it."""
    found: list[Running] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                data = file.read(_MOST_BYTES)
                if _SESSION in data:
                    items = (item.partition(b"=") for item in data.split(b"\0"))
                    given = {name: value for name, _, value in items}
                    if session := given.get(_SESSION[:-1]):
                        run = given.get(_RUN[:-1], b"")
                        found.append(Running(int(name), _text(session), _text(run), _home(given)))
    return found


def left_by(
    session: str, lock: bytes, home: HomeContext, workspace: WorkspaceRow, running: Sequence[Running]
) -> Sequence[BackgroundProcess]:
    """Processes that commands of the ``session`` with this ``lock`` left running in its ``workspace``, by number,
    without those of the present command or shell. ``running`` is `running_processes`.
    """
    own = [one for one in running if one.session == session]
    noted, known = noted_run(tree_note_path(lock)), {one.pid for one in own}
    runs = {noted, *(one.run for one in own)} - {""}
    found: dict[int, tuple[bytes, ...]] = {
        one.pid: () for one in own if not one.run and one.home == os.path.realpath(home.home)
    }
    for log in undo_logs_of(home, workspace) if runs else ():
        with suppress(HoldfastError):  # a keeper that has just ended serves nothing
            keeper = connect(os.path.realpath(log))
            if keeper is not None:
                with keeper:
                    for run in runs:
                        # A run that is known by the variable alone may have processes outside this session.
                        served = (one for one in keeper.processes(run) if run == noted or one.pid in known)
                        found |= {one.pid: one.command for one in served}
    working = at_work(lock)
    processes: list[BackgroundProcess] = []
    for pid, command in sorted(found.items()):
        at = _stat(pid)
        words = command or _words(pid)
        if at is not None and words and working not in (pid, at[0]) and not is_command_starter(words):
            processes.append(BackgroundProcess(pid, words, at[1]))
    return processes


def undo_logs_of(home: HomeContext, workspace: WorkspaceRow) -> tuple[bytes, bytes]:
    """Where the undo log of a workspace may be."""
    return (
        os.path.join(home.folder_of(workspace), UNDO_LOG),
        os.path.join(last_seen_path(workspace.path), UNDO_LOG_IN_TREE),
    )


def _home(given: Mapping[bytes, bytes]) -> bytes | None:
    with suppress(HoldfastError):
        return os.path.realpath(default_home({_text(name): _text(value) for name, value in given.items()}))
    return None


def _words(pid: int) -> tuple[bytes, ...]:
    """Its command line; empty if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return tuple(file.read().rstrip(b"\0").split(b"\0"))
    return ()


def _stat(pid: int) -> tuple[int, int] | None:
    """The session (setsid(2)) of a process, and when it began, in microseconds since 1970; None if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
        if fields[0] not in b"ZX":
            since_boot = int(fields[19]) * 1_000_000 // os.sysconf("SC_CLK_TCK")
            boot = (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1000
            return int(fields[3]), boot + since_boot
    return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")

"""Which process is at the other end of a connection over loopback, and whether it may change anything here.

Every process can read the arguments of the browser, with the token, and the browser keeps its cookie in its user's
files. So neither proves that a person asks. But the kernel knows whether a process is, or ever was, in a run: the
programs of a run have a seccomp filter with ``no_new_privs`` (`holdfast.supervisor.confinement`). No process can drop
either, even after its parents end.

TCP does not identify its peer. The kernel lists the owner and inode number of each socket, and which processes have it
open. The client is a process that has the socket open while the request is handled; a process that sends a request and
exits is not found.

Sources: proc_net_tcp.txt and proc.rst of the kernel; proc_pid_status(5), ``NoNewPrivs`` and ``Seccomp_filters``.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_LOG = Log(__name__)

Standing = Literal["outside", "supervised", "hidden", "other_user"]
"""Relation of a process to this server. ``hidden``: no visible process has the connection open."""

_REFUSALS: Final[dict[str, str]] = {
    "supervised": "A process in a run, or under another filter of system calls, may not come in or change anything "
    "here. Use a browser outside of it; `holdfast safeguard` answers in another terminal.",
    "hidden": "The system does not show which process asks. Start `holdfast ui --no-browser`, and open the address "
    "that it prints; `holdfast safeguard` answers in a terminal.",
    "other_user": "Processes of other users may not ask.",
}


class Peers:
    """Inspects the requesting process."""

    def __init__(self, *, may_hide: bool) -> None:
        """``may_hide``: no process has the address in its arguments, so an invisible process may come in. The kernel
        hides the descriptors of sshd, which forwards a port from another machine, from all but root.
        """
        self._may_hide = may_hide and os.geteuid() != 0

    def refusal(
        self, client: tuple[str, int] | None, server: tuple[str, int] | None, *, enters: bool = False
    ) -> str | None:
        """Why the process that connected from ``client`` to ``server`` may not change anything; None if it may.

        ``enters``: it has the token. Where it can be seen, so it must from now on.
        """
        if sys.platform != "linux":
            return None  # There is no supervisor.
        standing = "hidden" if client is None or server is None else standing_of(client, server)
        if standing == "outside":
            self._may_hide = self._may_hide and not enters
            return None
        if standing == "hidden" and self._may_hide:
            return None
        _LOG.warning("refused a process that asked for the page: %s", standing.replace("_", " "))
        return _REFUSALS[standing]


def standing_of(client: tuple[str, int], server: tuple[str, int]) -> Standing:
    """The standing of the process whose socket at ``client`` is connected with ``server``. Reads all of ``/proc``."""
    found = _socket(client, server)
    if found is None:
        return "hidden"
    if found.uid not in (os.geteuid(), 0):
        return "other_user"
    usual = _usual_filters()
    standings = {_is_supervised(process, usual) for process in _holders(found.inode)}
    return "supervised" if True in standings else "outside" if standings else "hidden"


class _Socket(NamedTuple):
    uid: int
    inode: int


def _socket(local: tuple[str, int], remote: tuple[str, int]) -> _Socket | None:
    """A socket that a process has open, by its two ends."""
    here, there = _as_listed(*local), _as_listed(*remote)
    # An IPv6 socket may carry IPv4; its listed addresses then end with the IPv4 ones.
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/self/net/{table}") as lines:
            for line in lines:
                fields = line.split()
                if fields[1].endswith(here) and fields[2].endswith(there):
                    inode = int(fields[9])
                    return _Socket(int(fields[7]), inode) if inode else None
    return None


def _as_listed(host: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"


def _holders(inode: int) -> Iterator[int]:
    """The directories in ``/proc``, open for this long, of processes that have a socket open."""
    name = f"socket:[{inode}]"
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with _directory(pid) as process:
                if process is not None and name in _open_files(process):
                    yield process


@contextmanager
def _directory(pid: str) -> Generator[int | None]:
    """A descriptor of the process's directory, which stays valid for this process when its pid is reused."""
    try:
        process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield process
    finally:
        os.close(process)


def _open_files(process: int) -> Iterator[str]:
    try:
        fds = os.open("fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    except OSError:
        return
    try:
        for fd in os.listdir(fds):
            with suppress(OSError):
                yield os.readlink(fd, dir_fd=fds)
    except OSError:
        return  # The process has ended.
    finally:
        os.close(fds)


def _is_supervised(process: int, usual: int) -> bool:
    """True if the process is permanently under more filters than the ``usual`` ones, or has ended."""
    state = _state(process)
    return state is None or (state.no_new_privs and state.filters > usual)


class _State(NamedTuple):
    no_new_privs: bool
    filters: int


def _state(process: int) -> _State | None:
    try:
        status = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
        with open(status) as lines:
            said = dict(line.split(":", 1) for line in lines if ":" in line)
        # Before Linux 5.9 the kernel does not report their number; 2 is the mode of filters.
        filters = said.get("Seccomp_filters") or int(said.get("Seccomp", "0")) // 2
        return _State(int(said.get("NoNewPrivs", "0")) == 1, int(filters))
    except OSError:
        return None


def _usual_filters() -> int:
    """How many filters the first process is under: those of a container are over all processes in it."""
    with _directory("1") as first:
        state = None if first is None else _state(first)
    return 0 if state is None else state.filters

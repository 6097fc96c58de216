"""Which process is at the other end of a connection over loopback, and whether it may change anything here.

The address that lets a browser in stands among the arguments of that browser, where every process of the machine can
read it, and a browser keeps its cookie in files of its user. So neither shows that a person asks. But whether a process
is in a run, or ever was, the kernel knows: a run's programs are under a filter of system calls with ``no_new_privs``
(`holdfast.supervisor.confinement`), and no process gets rid of either, whatever becomes of its parents.

TCP says nothing of its peer. The kernel lists the owner and the inode number of each socket, and which processes have
it open. Who asks is who has it open as the request is worked on: a process that sends a request and ends is none.

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
"""What a process is to us. ``hidden``: no process is seen to have the connection open."""

_REFUSALS: Final[dict[str, str]] = {
    "supervised": "A process in a run, or under another filter of system calls, may not come in or change anything "
    "here. Use a browser outside of it; `holdfast safeguard` answers in another terminal.",
    "hidden": "The system does not show which process asks. Start `holdfast ui --no-browser`, and open the address "
    "that it prints; `holdfast safeguard` answers in a terminal.",
    "other_user": "Processes of other users may not ask.",
}


class Peers:
    """Looks at who asks."""

    def __init__(self, *, may_hide: bool) -> None:
        """``may_hide``: the address is in no arguments of a process, so one that cannot be seen may come in. (The
        kernel shows no descriptors of sshd, which forwards a port from another machine. To root it shows them.)
        """
        self._may_hide = may_hide and os.geteuid() != 0

    def refusal(
        self, client: tuple[str, int] | None, server: tuple[str, int] | None, *, enters: bool = False
    ) -> str | None:
        """Why the process that connected from ``client`` to ``server`` may not change anything; None if it may.

        ``enters``: it has the token. Where it can be seen, so it must from now on.
        """
        if sys.platform != "linux":
            return None  # (Nothing is supervised there.)
        standing = "hidden" if client is None or server is None else standing_of(client, server)
        if standing == "outside":
            self._may_hide = self._may_hide and not enters
            return None
        if standing == "hidden" and self._may_hide:
            return None
        _LOG.warning("refused a process that asked for the page: %s", standing.replace("_", " "))
        return _REFUSALS[standing]


def standing_of(client: tuple[str, int], server: tuple[str, int]) -> Standing:
    """What the process is whose socket is at ``client``, connected with ``server``. Looks at all processes."""
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
    # (A socket of IPv6 may speak IPv4 as well: its addresses end with those.)
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
    """What stays about this process when another one gets its number."""
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
        return  # (It has ended meanwhile.)
    finally:
        os.close(fds)


def _is_supervised(process: int, usual: int) -> bool:
    """Whether it is under more filters than the ``usual`` ones, for good. One that has ended may have been anything."""
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
        # (Before Linux 5.9 it is not said how many there are; 2 is the mode of filters.)
        filters = said.get("Seccomp_filters") or int(said.get("Seccomp", "0")) // 2
        return _State(int(said.get("NoNewPrivs", "0")) == 1, int(filters))
    except OSError:
        return None


def _usual_filters() -> int:
    """How many filters the first process is under: those of a container are over all processes in it."""
    with _directory("1") as first:
        state = None if first is None else _state(first)
    return 0 if state is None else state.filters

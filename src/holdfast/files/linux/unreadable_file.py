"""Reads a file of one's own in spite of its mode: without changing that, so that no other process sees it.

In a user namespace of its own, the owner has the capability to override modes, for files whose owner and group that
namespace maps (user_namespaces(7), capabilities(7)). A process that enters one opens the file, and passes the
descriptor back.
"""

from __future__ import annotations

import os
import socket
import stat

from holdfast.files.linux.metadata import proc_path
from holdfast.ipc import private_socket

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_PATIENCE_SECONDS = 20.0
# (Not `holdfast.ipc`: the helper must start fast, without our modules, and has only one descriptor to pass.)
_HELPER = """
import array, ctypes, os, socket, sys
target, channel = map(int, sys.argv[1:])
user, group = os.geteuid(), os.getegid()
if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):  # CLONE_NEWUSER
    raise SystemExit(1)
for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
found = os.open(f"/proc/self/fd/{target}", os.O_RDONLY | os.O_NONBLOCK)
socket.socket(fileno=channel).sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [found]))])
"""


def open_to_read(fd: int) -> int:
    """A descriptor for reading the regular file of ``fd`` (``O_PATH`` is enough), whatever its mode.

    Raises `OSError`: EACCES if the file is not our own, or users may not have namespaces here. The process for it takes
    some hundredths of a second; a readable file costs nothing more.
    """
    try:
        return os.open(proc_path(fd), _READ)
    except PermissionError:
        if os.fstat(fd).st_uid == os.geteuid() and (opened := _open_in_a_namespace(fd)) >= 0:
            return opened
        raise


def takes_long(found: os.stat_result) -> bool:
    """Whether `open_to_read` of the file with this metadata starts a process, unless we may read everything. That
    process may be stopped, and is waited for some seconds: others should not have to wait too.
    """
    return not found.st_mode & stat.S_IRUSR and found.st_uid == os.geteuid()


def _open_in_a_namespace(fd: int) -> int:
    """-1 if that is not possible."""
    from holdfast.processes.child import Limits, run
    from holdfast.processes.helper_process import program_words

    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with its:
            try:
                # (It may have been stopped, and would never end by itself.)
                run(
                    program_words("-c", _HELPER, str(fd), str(its.fileno())),
                    Limits(_PATIENCE_SECONDS),
                    pass_fds=(fd, its.fileno()),
                )
            except OSError:
                return -1
        ours.setblocking(False)
        try:
            _, found = private_socket.receive(ours, 1, 1)
        except OSError:
            found = []
    return found[0] if found else -1

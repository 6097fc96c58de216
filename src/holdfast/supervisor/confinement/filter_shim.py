"""The shim that precedes the command in a box: it puts itself under the filter, sends the listener out, and executes
the command.

A box that another program builds starts it by `arguments`; a child calls `enter`. It sends one message with the
listener on the channel, a pair of ``SOCK_SEQPACKET`` (``SCM_CREDENTIALS`` identifies the sender in the receiver's pid
namespace). It continues after an answer, and ends with the other side. If the command cannot be executed, a second
message is the errno in decimal.

It needs little of the standard library, and nothing else: every command waits for it.
"""

from __future__ import annotations

import array
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from holdfast.supervisor.confinement import landlock, seccomp_notify, seccomp_program

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

READY = b"ready"
GO = b"go"
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, which a command does not expect."""
CANNOT_EXECUTE = 126
NOT_FOUND = 127

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from holdfast.supervisor.confinement.filter_shim import main; main(sys.argv[1:])"
)  # fmt: skip


def arguments(channel: int, closed: Sequence[bytes], command: Sequence[bytes], *, guarded: bool) -> list[bytes]:
    """The command line that calls `enter` with the descriptor ``channel``. Neither environment nor working directory
    influence which code runs. The command ignores the signals that this process ignores, whatever the box does.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    above = os.fsencode(os.path.dirname(package))
    python = os.fsencode(sys.executable)
    start = [python, b"-I", b"-S", b"-B", b"-c", _START.encode(), above]
    return [*start, b"%d" % channel, ignored_signals(), b"%d" % guarded, b"%d" % len(closed), *closed, *command]


def main(argv: Sequence[str]) -> NoReturn:
    """See `arguments`."""
    channel, numbers, guarded, count, *rest = argv
    closed, command = rest[: int(count)], rest[int(count) :]
    ignore_signals(numbers)
    words = [os.fsencode(word) for word in command]
    enter(int(channel), [os.fsencode(path) for path in closed], words, guarded=guarded == "1")


def ignored_signals() -> bytes:
    """The numbers of the signals that this process ignores, for `ignore_signals`."""
    return b",".join(b"%d" % number for number in _signals() if signal.getsignal(number) is signal.SIG_IGN)


def ignore_signals(numbers: str) -> None:
    """Ignore what `ignored_signals` has said, and nothing else."""
    for number in _signals():
        signal.signal(number, signal.SIG_IGN if str(int(number)) in numbers.split(",") else signal.SIG_DFL)
    for number in _PYTHONS_OWN:
        signal.signal(number, signal.SIG_DFL)


def _signals() -> set[signal.Signals]:
    """All signals that a process may choose how to treat."""
    fixed = {signal.SIGKILL, signal.SIGSTOP, *_PYTHONS_OWN}
    return {signal.Signals(number) for number in signal.valid_signals() if number < signal.SIGRTMIN} - fixed


def enter(channel: int, closed: Sequence[bytes], command: Sequence[bytes], *, guarded: bool) -> NoReturn:
    """Confine this process by `landlock.confine`, send out the listener, and execute ``command`` with this process's
    environment. ``guarded``: safeguards are asked about losses by open descriptors
    (`holdfast.supervisor.syscalls.table.LOSING`). Does not return; ends with 126 or 127 as a shell would if the command
    cannot be executed.
    """
    import socket

    os.set_inheritable(channel, False)
    talk = socket.socket(fileno=channel)
    seccomp_notify.give_up_privileges()
    # Before the filter, which refuses the calls of Landlock.
    landlock.confine(closed)
    listener = seccomp_notify.install(seccomp_program.program(os.uname().machine, guarded=guarded))
    hand_out_listener(talk, listener)
    become_command(talk, command)


def hand_out_listener(talk: socket.socket, *descriptors: int) -> None:
    """Give away by what the tree is served, and wait for the word to go on; ends if there comes none."""
    import socket

    # No `holdfast.ipc`: every command waits for this, under its filter already, and one message is enough.
    try:
        talk.sendmsg([READY], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
    finally:
        # Closed even if the other side is gone: exiting is a call that waits for an answer, and its absence must show.
        for descriptor in descriptors:
            os.close(descriptor)
    if talk.recv(len(GO)) != GO:
        os._exit(1)


def become_command(talk: socket.socket, command: Sequence[bytes]) -> NoReturn:
    """Be the command; see `enter`."""
    try:
        os.execvp(command[0], list(command))  # noqa: S606
    except OSError as error:
        talk.send(b"%d" % (error.errno or 0))
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE)

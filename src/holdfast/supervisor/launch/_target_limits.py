"""The answers of the parent of a tree with a mount: limits and priorities may be set within the tree only
(`holdfast.supervisor.syscalls.table.TARGETS`), and regular files cannot be waited for (`WAITED_FOR`).

It reads no memory, and receives no other call.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import TYPE_CHECKING

from holdfast.supervisor.confinement.seccomp_notify import Listener
from holdfast.supervisor.operations.process_limits import target_errno
from holdfast.supervisor.operations.registers import integer
from holdfast.supervisor.process_tree.members import descends_from
from holdfast.supervisor.syscalls.table import TARGETS, WAITED_FOR, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


def begin_answering(listener: int, spared: Callable[[], Collection[int]]) -> None:
    """Answer from now on, on a thread of its own. The tree is this process's descendants, without the children in
    ``spared``. Takes over the listener.
    """
    names = numbers(os.uname().machine, frozenset({*TARGETS, WAITED_FOR[0]}))
    threading.Thread(target=_answer, args=(Listener(listener), names, spared), daemon=True).start()


def _answer(listener: Listener, names: dict[int, str], spared: Callable[[], Collection[int]]) -> None:
    own = os.getpid()

    def holds(tgid: int) -> bool:
        met: list[int] = []

        def is_known(pid: int) -> bool:
            if pid == own or pid in spared():
                met.append(pid)
            return bool(met)

        return tgid != own and bool(descends_from(tgid, is_known)) and met == [own]

    while True:
        try:
            found = listener.receive()
        except OSError:
            return  # nothing is left that could call
        if found is not None:
            id_, tid, _, number, _, _, *args = found
            name = names[number]
            if error := _waiting(tid, args) if name == WAITED_FOR[0] else target_errno(name, tid, args, holds):
                listener.answer(id_, 0, error)
            else:
                listener.go_on(id_)


def _waiting(tid: int, args: Sequence[int]) -> int:
    """EPERM for a regular file; 0 for others, and where the kernel would report another error first."""
    epoll, _, number, event, *_ = args
    try:
        os.stat(f"/proc/{tid}/fd/{integer(epoll)}")
        mode = os.stat(f"/proc/{tid}/fd/{integer(number)}").st_mode
    except OSError:
        return 0
    return errno.EPERM if event and stat.S_ISREG(mode) else 0

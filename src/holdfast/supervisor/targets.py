"""Limits and priorities of other processes, where a mount records: the tree's parent lets those of the tree be set.

It looks at no memory, and hears of no other call (`holdfast.supervisor.calls.TARGETS`).
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from holdfast.supervisor.calls import TARGETS, numbers
from holdfast.supervisor.notify import Listener
from holdfast.supervisor.operations.limits import refusal
from holdfast.supervisor.processes import descends

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def begin_answering(listener: int, spared: Callable[[], Collection[int]]) -> None:
    """Answer from now on, on a thread of its own. The tree is what descends from this process, but for the children
    that are ``spared``. Takes the listener over.
    """
    names = numbers(os.uname().machine, frozenset(TARGETS))
    threading.Thread(target=_answer, args=(Listener(listener), names, spared), daemon=True).start()


def _answer(listener: Listener, names: dict[int, str], spared: Callable[[], Collection[int]]) -> None:
    own = os.getpid()

    def holds(tgid: int) -> bool:
        met: list[int] = []

        def is_known(pid: int) -> bool:
            if pid == own or pid in spared():
                met.append(pid)
            return bool(met)

        return tgid != own and bool(descends(tgid, is_known)) and met == [own]

    while True:
        try:
            found = listener.receive()
        except OSError:
            return  # nothing is left that could call
        if found is not None:
            id_, tid, _, number, _, _, *args = found
            if error := refusal(names[number], tid, args, holds):
                listener.answer(id_, 0, error)
            else:
                listener.go_on(id_)

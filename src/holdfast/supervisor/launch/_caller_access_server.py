"""The service of a tree's parent for the keeper: it may access the tree's processes where the keeper may not.

`holdfast.supervisor.syscalls.caller_access` is the client, and documents the requests. The process with the other end
of the socket is trusted: the socket never gets into the tree, and a process of this user could access the same anyway.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import threading

from holdfast.supervisor.process_tree.process_freezer import ProcessFreezer
from holdfast.supervisor.syscalls.caller_access import (
    ANSWER,
    DESCRIPTOR,
    MEMORY,
    MOST_NUMBERS,
    NUMBER,
    REQUEST,
    copy_descriptor,
)
from holdfast.supervisor.syscalls.caller_memory import peek


def begin_serving() -> socket.socket:
    """Answer requests on the returned socket until it is closed, on a thread of its own."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    threading.Thread(target=_serve, args=(ours,), daemon=True).start()
    return its


def _serve(keeper: socket.socket) -> None:
    with keeper:
        while request := _received(keeper, REQUEST.size):
            number, what, pid, first, second = REQUEST.unpack(request)
            try:
                if what == MEMORY:
                    found, size = peek(pid, first, second)
                    keeper.send(ANSWER.pack(number, 0) + found[:size])
                elif what == DESCRIPTOR:
                    taken = copy_descriptor(pid, first)
                    try:
                        socket.send_fds(keeper, [ANSWER.pack(number, 0)], [taken])
                    finally:
                        os.close(taken)
                else:
                    with _begin_freezing() as freezing:
                        socket.send_fds(keeper, [ANSWER.pack(number, 0)], [freezing.fileno()])
            except (BrokenPipeError, ConnectionResetError):
                return
            except OSError as error:
                keeper.send(ANSWER.pack(number, error.errno or errno.EIO))


def _begin_freezing() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    threading.Thread(target=_freeze, args=(ours,), daemon=True).start()
    return its


def _freeze(keeper: socket.socket) -> None:
    frozen = ProcessFreezer()
    try:
        with keeper:
            while numbers := _received(keeper, MOST_NUMBERS * array.array(NUMBER).itemsize):
                frozen.add(array.array(NUMBER, numbers))
    finally:
        frozen.release()


def _received(keeper: socket.socket, size: int) -> bytes:
    """One message; nothing if the other side is gone."""
    try:
        return keeper.recv(size)
    except ConnectionResetError:
        return b""

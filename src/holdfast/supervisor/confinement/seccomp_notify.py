"""Seccomp's user notification: a filter hands system calls to the holder of its listener, and waits for the answer.

Sources: seccomp(2), seccomp_unotify(2), ``include/uapi/linux/seccomp.h``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
from fcntl import ioctl
from typing import Final

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
_WAIT_KILLABLE_RECV = 1 << 5
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}

_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_ID_VALID = 0x40082102
_ADDFD = 0x40182103
_SET_FLAGS = 0x40082104
_SYNC_WAKE_UP = 1
_FLAG_CONTINUE = 1

NOTIFICATION: Final = struct.Struct("=QIIiIQ6Q")
"""``struct seccomp_notif``: id, tid, flags, number, architecture, instruction pointer, six arguments."""
_ANSWER = struct.Struct("=QqiI")
_ADDING = struct.Struct("=QIIII")

_libc = ctypes.CDLL(None, use_errno=True)
_at_once = ctypes.PyDLL(None)
"""Calls by this do not release the interpreter's lock."""
_at_once.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def give_up_privileges() -> None:
    """From now on no ``exec`` of this process gains anything: what an unprivileged filter and domain ask for."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        _fail()


def install(program: bytes) -> int:
    """Put this process, all it starts and all its threads under the filter; returns the listener (close-on-exec).

    Received calls wait for their answer even if a non-fatal signal arrives (Linux 5.19): no completed call is reported
    as interrupted. Raises `OSError`: EBUSY if it is under such a filter already.
    """
    # Before Linux 5.19 the kernel answers EINVAL to _WAIT_KILLABLE_RECV.
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE_RECV, _NEW_LISTENER):
        listener = _set_filter(program, flags)
        if listener >= 0:
            return listener
        if ctypes.get_errno() != errno.EINVAL:
            break
    return _fail()


def install_unheard(program: bytes) -> None:
    """The same under a filter without a listener. Raises `OSError`."""
    if _set_filter(program, 0) < 0:
        _fail()


def _set_filter(program: bytes, flags: int) -> int:
    filter_ = _Program(len(program) // 8, program)
    number = _SYS_SECCOMP[os.uname().machine]
    return _libc.syscall(number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(filter_))


class Listener:
    """The keeper's end, for several threads.

    Answers to a call whose caller was killed meanwhile are dropped.
    """

    __slots__ = ("_lock", "_users", "fd", "is_closed")

    def __init__(self, fd: int) -> None:
        """Take over the descriptor. Raises `OSError`, and does not take it, if it is no listener."""
        try:
            ioctl(fd, _ID_VALID, bytes(8))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
        self.fd = fd
        self.is_closed = False
        self._lock = threading.Lock()
        self._users = 1
        try:
            # The caller waits for us, so the kernel may run us on its processor (Linux 6.6).
            ioctl(fd, _SET_FLAGS, _SYNC_WAKE_UP)
        except OSError:
            pass

    def close(self) -> None:
        """All calls that wait, and all that come, fail with ENOSYS: at once, or, while other threads `hold` it, by the
        answer of these.
        """
        self.is_closed = True
        self.release()

    def hold(self) -> None:
        """Keep the descriptor until `release`: a thread that waits in the kernel would keep the filter alive anyway."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """See `hold`."""
        with self._lock:
            self._users -= 1
            if not self._users:
                os.close(self.fd)

    def is_over(self) -> bool:
        """Whether no process is under the filter any more."""
        ends = select.poll()
        ends.register(self.fd, 0)
        return bool(ends.poll(0))

    def receive(self) -> tuple[int, ...] | None:
        """The next call, as in `NOTIFICATION`; None if its caller is gone. Waits for one."""
        notification = bytearray(NOTIFICATION.size)  # the kernel requires zeros
        try:
            ioctl(self.fd, _RECEIVE, notification)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # the caller was killed after our wake-up; a signal
                return None
            raise
        return NOTIFICATION.unpack(notification)

    def answer(self, id_: int, value: int, error: int) -> None:
        """The call returns ``value``, or fails with the errno ``error`` if that is not 0."""
        self._send(_ANSWER.pack(id_, value, -error, 0))

    def refuse(self, id_: int) -> None:
        """The call fails with ENOSYS. From any thread, also one that does not `hold` it."""
        with self._lock:
            # Without users the descriptor is closed, so the kernel has answered; its number may be another file's.
            if self._users:
                self.answer(id_, 0, errno.ENOSYS)

    def go_on(self, id_: int) -> None:
        """Let the kernel carry the call out, with its arguments of that moment: other threads of the caller may have
        changed the memory that they point to since it was examined.
        """
        self._send(_ANSWER.pack(id_, 0, 0, _FLAG_CONTINUE))

    def add(self, id_: int, fd: int, *, cloexec: bool) -> tuple[int, int]:
        """Give the caller a copy of ``fd``; it goes on waiting for its answer.

        Returns its number there and 0, or the errno if the caller could not take it (EMFILE).
        """
        # Mutable: for immutable data, `ioctl` returns the data instead of the result.
        adding = bytearray(_ADDING.pack(id_, 0, fd, 0, os.O_CLOEXEC if cloexec else 0))
        try:
            return ioctl(self.fd, _ADDFD, adding), 0
        except OSError as error:
            return 0, error.errno or errno.EIO

    def is_valid(self, id_: int) -> bool:
        """Whether the caller still waits. No other thread of this process runs between the answer and its use, unless
        that blocks.
        """
        return _at_once.ioctl(self.fd, _ID_VALID, id_.to_bytes(8, "little")) == 0

    def _send(self, answer: bytes) -> None:
        while True:
            try:
                ioctl(self.fd, _SEND, answer)
            except InterruptedError:
                continue  # interrupted by a short stop of this thread, such as the machine's sleep
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
            return


def _fail() -> int:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))

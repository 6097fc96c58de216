"""The threads whose calls wait: their view of the file systems, and their credentials.

A thread's credentials are read from ``/proc`` at its first call, and kept until the thread changes them: the calls for
that (``umask``, ``setuid``, …) reach the keeper, which then forgets the thread. An ``exec`` is not reported, so
attributes that it could remove are not kept. A thread is identified by a descriptor of its directory in ``/proc``,
which a later thread with the same number does not share; the exception is a thread of its process that calls ``exec``
and takes the first thread's place.

Only a keeper of root can have callers with other credentials than its own: below a filter no process can gain any
(``no_new_privs``), and a process that makes a user namespace keeps its ids for access to files.
"""

from __future__ import annotations

import errno
import os
from functools import cache, cached_property
from typing import TYPE_CHECKING

from holdfast.files.linux.process_credentials import Credentials, own_status, read_status
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.supervisor.process_tree.kcmp import FILE_SYSTEMS, is_shared
from holdfast.supervisor.resolution.procfs import ProcessIdentity, identify

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.supervisor.resolution.handler_context import HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MOST = 256
_MOST_UMASKS = 32
"""The most remembered changes. Usually such a change ended long ago, in a thread without a call since."""
_ALONE = 3
"""How many links the directory ``task`` of a process with one thread has."""


class Caller:
    """A thread. Its descriptor is closed with the last reference to it."""

    def __init__(self, tid: int) -> None:
        """Raises `OSError` if there is no such thread."""
        self.tid = tid
        self.fd = -1
        try:
            self.fd = os.open(f"/proc/{tid}", _DIRECTORY)
            status = read_status(self.fd)
        except OSError as error:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
        self.tgid = status.tgid
        self.umask = status.umask
        keeper = _keeper()
        privileged = keeper.credentials.capabilities != 0
        self.credentials: Credentials | None = status.credentials if privileged else None
        """None: the same as the keeper's, or of no more use than those."""
        if self.credentials is not None and os.readlink("ns/user", dir_fd=self.fd) != keeper.user_namespace:
            # Its capabilities in a user namespace of its own do not count outside.
            self.credentials = self.credentials._replace(capabilities=0)
        if self.credentials == keeper.credentials:
            self.credentials = None
        self.lasting = self.credentials is None and (status.uniform or not privileged)
        """An ``exec``, which is not reported, cannot reduce its rights."""
        root = os.stat("root", dir_fd=self.fd)
        self.view = os.readlink("ns/mnt", dir_fd=self.fd), root.st_dev, root.st_ino
        """Its view of the file systems, as a comparable value."""
        self.foreign = self.view != keeper.view
        """Its paths start at another root than the keeper's."""

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        """Close the descriptor."""
        if self.fd >= 0:
            close(self.fd)

    @cached_property
    def process(self) -> ProcessIdentity:
        """Its process, as every ``/proc`` tells of it. Raises `OSError`."""
        return identify(self.fd)

    def is_alive(self) -> bool:
        """Whether the thread is still there, so that its number cannot be another one's."""
        try:
            os.stat(b"comm", dir_fd=self.fd)
        except OSError:
            return False
        return True


class Callers:
    """The threads that were seen, at most 256 of them. For several threads at once."""

    def __init__(self) -> None:
        self._known: dict[int, Caller] = {}
        self._changed: set[int] = set()
        """Processes of which a thread has changed its credentials, or has a umask of its own: with an ``exec`` it takes
        the number of the first thread, about which nothing may be known then.
        """
        self._umasks: dict[int, int] = {}
        """Threads that were let go on to change the umask and have not called since, and the new one: ``/proc`` may
        still tell the old one.
        """
        self._steady = True
        self.on_forget: Callable[[], object] = lambda: None
        """Called when the facts about a thread change."""

    def find_usual(self, tid: int) -> Caller | None:
        """The facts about a thread with this process's view and rights; None for any other."""
        caller = self._known.get(tid) if self._steady else None
        return None if caller is None or caller.foreign or caller.credentials is not None else caller

    def find(self, call: PendingCall, context: HandlerContext, *, fresh: bool = False) -> Caller:
        """The caller. It may be an earlier thread with the same number: check `is_alive`, unless a path below its
        directory in ``/proc`` was found since the call came. ``fresh`` reads it anew.

        Raises `OSError` with ESRCH if the caller is gone.
        """
        caller = None if fresh or not self._steady else self._known.get(call.tid)
        if self._umasks:
            self._umasks.pop(call.tid, None)
        if caller is None:
            caller = Caller(call.tid)
            if not context.is_valid(call):
                raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
            if caller.lasting:
                self._known[call.tid] = caller
                # (Asked afterwards: `forget` and `note_umask` may be called meanwhile.)
                if caller.tgid in self._changed or self._is_outdated(caller):
                    self._known.pop(call.tid, None)
                if len(self._known) > _MOST:
                    self._known.pop(next(iter(self._known)), None)
        return caller

    def forget(self, tid: int) -> None:
        """The thread is going to change its credentials."""
        tgid = (self._known.get(tid) or Caller(tid)).tgid
        self._changed.add(tgid)
        for known in list(self._known.values()):
            if known.tgid == tgid:
                self._known.pop(known.tid, None)
        self.on_forget()

    def note_umask(self, tid: int, umask: int) -> None:
        """The thread is about to change its umask, and that of all threads that share it, maybe in other processes
        (``CLONE_FS`` of clone(2)).
        """
        self._umasks[tid] = umask
        if len(self._umasks) > _MOST_UMASKS:
            self._umasks = {thread: new for thread, new in self._umasks.items() if _umask_of(thread) not in (-1, new)}
        for known in list(self._known.values()):
            if is_shared(tid, known.tid, FILE_SYSTEMS) is not False:
                self._known.pop(known.tid, None)
        if _has_own(tid):
            self.forget(tid)
        self.on_forget()

    def _is_outdated(self, caller: Caller) -> bool:
        """Whether the umask that was read may be the one before a change that is under way."""
        for tid, umask in list(self._umasks.items()):
            shares = is_shared(tid, caller.tid, FILE_SYSTEMS)
            if shares is None or (shares and umask == caller.umask):
                self._umasks.pop(tid, None)
            if shares is not False and umask != caller.umask:
                return True
        return False

    def distrust(self) -> None:
        """A process is going to change its view of the file systems, which others may share: from now on every one is
        looked at anew for every call.
        """
        self._steady = False
        self.on_forget()


def _umask_of(tid: int) -> int:
    """The umask of a thread; -1 if it is gone."""
    try:
        return Caller(tid).umask
    except OSError:
        return -1


def _has_own(tid: int) -> bool:
    """Whether another thread of its process has a working directory and umask apart from this one's."""
    threads = f"/proc/{tid}/task"
    try:
        if os.stat(threads).st_nlink <= _ALONE:
            return False
        return any(is_shared(tid, int(other), FILE_SYSTEMS) is False for other in os.listdir(threads))
    except OSError:  # it has ended
        return False


CALLERS = Callers()
"""The known threads of this machine."""


class _Keeper(NamedTuple):
    credentials: Credentials
    user_namespace: str
    view: tuple[str, int, int]


@cache
def _keeper() -> _Keeper:
    user, mount = (os.readlink(f"/proc/thread-self/ns/{name}") for name in ("user", "mnt"))
    root = os.stat("/")
    return _Keeper(own_status().credentials, user, (mount, root.st_dev, root.st_ino))

"""The processes of each step.

All processes below one direct child of the agent are one group; the agent itself is another. A process is assigned at
its first change, with all its ancestors, and keeps its group when they are gone. A `pidfd` of each reports its end, so
that a reused number is another process. The number of these descriptors is limited: a process beyond it may change
nothing. A process whose parent is about to end is assigned before that (`Processes.sort_children`). If a signal ended
the parent, it belongs to the group of its process group or session, or else to the run's ambient group.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import struct
import time
from contextlib import suppress
from fcntl import ioctl
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from holdfast.processes.process_tree import descendants
from holdfast.undo.service import OFF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAX_COMMAND_BYTES = 1 << 16
_TRIES = 5
_PART = 0.2
"""The share of this process's descriptors that is for processes."""
_TIMES = 3
"""A run may have this many times the number that it leaves to others; half of it is for processes with changes."""
_MOST_ENDED = 1 << 14
"""So many numbers of ended processes are remembered: half of what Linux usually gives out before it uses one anew."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_ENDING = sum(1 << number - 1 for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("=Q52xi")
"""``struct pidfd_info``: a mask of its fields, and (last in its first version) the status."""


class StepGroup:
    """Processes whose changes are one step."""

    __slots__ = ("ambient", "barred", "command", "directory", "exit_code", "explicit", "live", "root", "run", "step")

    def __init__(self, run: Run, root: int, *, ambient: bool = False) -> None:
        self.run = run
        self.root = root
        """The child of the agent, or the agent."""
        self.ambient = ambient
        self.command: tuple[bytes, ...] = ()
        self.directory = b""
        self.live = 0
        """How many of its processes are known and have not ended."""
        self.exit_code: int | None = None
        """Of its root, if that has ended and the kernel still knew; after death by a signal, 128 and its number."""
        self.step = 0
        """The open step; 0 if there is none."""
        self.explicit = 0
        """The explicit step of its last change; 0 if there is none."""
        self.barred = False
        """It makes no more changes: a step of it was denied, or has ended while it waited for a person."""

    @property
    def lives_on(self) -> bool:
        """Whether only pauses separate its steps: it is the agent, or the group of orphans."""
        return self.ambient or (self.root == self.run.agent and not self.run.one_step)


class Run:
    """One supervised process tree."""

    __slots__ = (
        *("agent", "agents", "ambient", "awaited", "awaited_since", "handed_in", "id", "line", "members", "one_step"),
        "processes",
        "thresholds",
    )

    def __init__(self, id_: str, agent: int, *, one_step: bool = False) -> None:
        self.id = id_
        self.agent = agent
        self.one_step = one_step
        self.thresholds = OFF
        """Its limits at which a person is asked."""
        self.agents = StepGroup(self, agent)
        """The agent's own changes."""
        self.ambient = StepGroup(self, 0, ambient=True)
        self.awaited: StepGroup | None = None
        """The group of the agent's next new child, if it is known in advance."""
        self.awaited_since = 0
        """The child is one that was started then, or later (clock ticks since the system's start)."""
        self.line: StepGroup | None = None
        """While the agent, a shell, runs a line: the agent itself, and its children."""
        self.handed_in: frozenset[int] = frozenset()
        """The inode numbers of files that the agent had open from the start, and that were recorded."""
        self.processes = 0
        """How many of its processes are known and have not ended."""
        self.members: dict[int, StepGroup] = {}
        """Process groups and sessions that only one group's processes are in, by the number of their leader."""


class SeenProcess:
    """One process that was seen."""

    __slots__ = ("group", "pidfd", "tgid", "threads")

    def __init__(self, tgid: int, pidfd: int, group: StepGroup) -> None:
        self.tgid = tgid
        self.pidfd = pidfd
        self.group = group
        self.threads: list[int] = []


class _Stat(NamedTuple):
    parent: int
    process_group: int
    session: int


class Processes:
    """All processes that were seen and live. For one thread."""

    def __init__(self, watch: Callable[[int], None], most: int | None = None) -> None:
        """``watch(pidfd)`` is to see to it that `ended` is called when the descriptor becomes readable. ``most``
        processes are known at a time; by default `_PART` of the descriptors that this process may have.
        """
        self._watch = watch
        self._most = most
        self._processes: dict[int, SeenProcess] = {}
        self._threads: dict[int, SeenProcess] = {}
        self._pidfds: dict[int, SeenProcess] = {}
        self._ended: dict[int, None] = {}
        """The numbers of those that have ended, the latest last."""

    def group(self, run: Run, tid: int) -> StepGroup:
        """The group of a thread of the run's tree that waits for a system call.

        Raises `OSError` (ENFILE) if too many processes are known to admit another one of the run.
        """
        process = self._processes.get(tid) or self._threads.get(tid)
        if process is None:
            process = self._find_thread(run, tid)
            if process is None:
                return run.ambient
        return run.line if run.line is not None and process.group is run.agents else process.group

    def begin_line(self, run: Run, command: tuple[bytes, ...]) -> None:
        """The agent, a shell, is about to run a line: `Run.line` becomes a new group, until the line is over."""
        for _ in self.living_groups(run):
            pass  # the agent's earlier children are assigned by it, so they are no part of the line
        run.line = group = StepGroup(run, 0)
        group.command = command
        with suppress(OSError):
            group.directory = _directory(run.agent)

    def watches(self, pidfd: int) -> bool:
        """Whether the descriptor is that of a process that has not `ended`."""
        return pidfd in self._pidfds

    def ended(self, pidfd: int) -> StepGroup | None:
        """A process has ended: forget it. Returns its group if it was the last one of it."""
        process = self._pidfds.pop(pidfd)
        self._note_end(process.tgid)
        del self._processes[process.tgid]
        for tid in process.threads:
            self._threads.pop(tid, None)
        group = process.group
        group.live -= 1
        group.run.processes -= 1
        if process.tgid == group.root:
            group.exit_code = _exit_code(process)
        os.close(pidfd)
        if group.live:
            return None
        members = group.run.members
        for number in [number for number, owner in members.items() if owner is group]:
            del members[number]
        return group

    def sort_children(self, run: Run, tid: int) -> None:
        """The thread's process is about to end: sort those whose parent it is, as long as it is."""
        try:
            for thread in os.listdir(b"/proc/%d/task" % tid):
                self._note_end(int(thread))  # the process has the number of one of them
                for child in _read(b"/proc/%d/task/%b/children" % (tid, thread)).split():
                    self._find(run, int(child))
        except OSError:
            pass  # it was killed, or the kernel was built without this list

    def forget_threads(self) -> None:
        """To be called a few times a second: unlike a process's, the number of a thread that ended is not watched,
        and comes back at the earliest after all others.
        """
        for process in self._threads.values():
            process.threads.clear()
        self._threads.clear()

    def knows(self, tid: int) -> bool:
        """Whether the thread's group is known."""
        return tid in self._processes or tid in self._threads

    def is_known(self, tgid: int) -> bool:
        """Whether the process was seen, and has not ended. From any thread."""
        return tgid in self._processes

    def was_known(self, tgid: int) -> bool:
        """Whether the process was seen, or has ended by a call of its own. Not one that a signal ended before it made
        any call that would be received. From any thread.
        """
        return tgid in self._processes or tgid in self._ended

    def tgids_except(self, runs: Iterable[Run]) -> list[int]:
        """All processes that are known and live, except those of these runs. From any thread."""
        return [process.tgid for process in list(self._processes.values()) if process.group.run not in runs]

    def pidfds(self, run: Run) -> list[int]:
        """Descriptors (pidfds) of the run's processes that are known and live."""
        return [process.pidfd for process in self._processes.values() if process.group.run is run]

    def living_processes(self, run: Run) -> Iterable[int]:
        """Every living process of the run's tree, including those without a change."""
        # The number of a process that has just ended may be reused, even the agent's; a known agent is alive.
        own = (process for process in self._processes.values() if process.group.run is run)
        known = [process.tgid for process in own if not has_ended(process.pidfd)]
        return dict.fromkeys((*known, *descendants(*known)))

    def living_groups(self, run: Run) -> Iterator[tuple[int, StepGroup]]:
        """`living_processes`, with their groups; without those beyond the limit."""
        for tgid in self.living_processes(run):
            process = None
            with suppress(OSError):
                process = self._find(run, tgid, is_asking=False)
            if process is not None:
                yield tgid, process.group

    def is_below(self, run: Run, tgid: int) -> bool:
        """Whether the process is in the run's tree, and not the agent."""
        known = self._processes.get(tgid)
        if known is not None:
            return known.group.run is run and tgid != run.agent
        return tgid != run.agent and tgid > 1 and self._below(run, tgid) is not None

    def is_of(self, run: Run, tgid: int) -> bool:
        """Whether a process that lives is one of the run's that were seen, or below one. From any thread.

        Not one that was orphaned unseen, though it is of the tree: nothing tells that any more.
        """
        line = [tgid]
        while (known := self._processes.get(line[-1])) is None:
            if (parent := parent_of(line[-1])) <= 1:
                return False
            line.append(parent)
        if known.group.run is not run or has_ended(known.pidfd) or self._processes.get(known.tgid) is not known:
            return False  # its descriptor is closed, and maybe another's by now
        # A process with the same parent as before had it all the time: so none on the way has ended, and its number is
        # still its own.
        return all(parent_of(child) == parent for child, parent in reversed([*pairwise(line)]))

    def _note_end(self, number: int) -> None:
        self._ended.pop(number, None)
        self._ended[number] = None
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def _find_thread(self, run: Run, tid: int) -> SeenProcess | None:
        try:
            tgid = _tgid(tid)
        except OSError:
            return None  # it was killed
        process = self._find(run, tgid)
        if process is not None and tid != tgid:
            self._threads[tid] = process
            process.threads.append(tid)
        return process

    def _find(self, run: Run, tgid: int, *, is_asking: bool = True) -> SeenProcess | None:
        """The assigned process; None if it is gone, or not of the run's tree. Raises `OSError` as `group`;
        ``is_asking``: it waits to make a change. Other processes leave room for those.
        """
        if (known := self._processes.get(tgid)) is not None:
            return known
        self._check_room(run, is_asking=is_asking)
        try:
            pidfd = os.pidfd_open(tgid)
        except OSError as error:
            if error.errno in _EXHAUSTED:
                raise
            return None
        try:
            found = _stat(tgid)
            group = self._sort(run, tgid, found)
        except OSError as error:
            os.close(pidfd)
            if error.errno in _EXHAUSTED:
                raise
            return None
        process = SeenProcess(tgid, pidfd, group)
        group.live += 1
        group.run.processes += 1
        self._processes[tgid] = process
        self._pidfds[pidfd] = process
        self._watch(pidfd)
        if group is not run.agents and group is not run.ambient:
            for leader in {found.process_group, found.session}:
                # The agent's own group and session, and those that it was started in, prove nothing.
                if self.is_below(run, leader):
                    run.members.setdefault(leader, group)
        return process

    def _check_room(self, run: Run, *, is_asking: bool) -> None:
        most = self._most
        if most is None:
            most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _PART)
        left = most - len(self._processes)
        if run.processes >= (_TIMES * left if is_asking else left):
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    def _sort(self, run: Run, tgid: int, found: _Stat) -> StepGroup:
        if run.one_step or tgid == run.agent:
            return run.agents
        if found.parent == run.agent:
            group = run.awaited
            if group is not None and _started(tgid) >= run.awaited_since:
                group.root, run.awaited = tgid, None
                return group
            if run.line is not None:
                return run.line
            group = StepGroup(run, tgid)
            group.command, group.directory = _command(tgid), _directory(tgid)
            return group
        if found.parent > 1:
            parent = self._processes.get(found.parent) or self._below(run, found.parent)
            if parent is not None:
                return parent.group
        return run.members.get(found.process_group) or run.members.get(found.session) or run.ambient

    def _below(self, run: Run, tgid: int) -> SeenProcess | None:
        """The process, sorted, if it is below the agent."""
        line: list[int] = []
        at = tgid
        while at != run.agent and at not in self._processes:
            line.append(at)
            try:
                at = _stat(at).parent
            except OSError:
                return None
            if at <= 1:
                return None
        # From above, as there may be very many: then the parent of each is known.
        process = self._find(run, at)
        for each in reversed(line):
            process = self._find(run, each)
        return process


def command_of(tgid: int) -> tuple[bytes, ...]:
    """The command line of a process; empty if it is gone."""
    try:
        return _command(tgid)
    except OSError:
        return ()


def ticks_now() -> int:
    """The time as the kernel notes when a process started: clock ticks since the system's start."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 1_000_000_000


def _started(tgid: int) -> int:
    return int(_read(b"/proc/%d/stat" % tgid).rpartition(b") ")[2].split(b" ", 20)[19])


def has_ended(pidfd: int) -> bool:
    """Whether the process has ended."""
    ends = select.poll()
    ends.register(pidfd, select.POLLIN)
    return bool(ends.poll(0))


def parent_of(tgid: int) -> int:
    """The number of a process's parent; 0 if it is gone."""
    try:
        return _stat(tgid).parent
    except (OSError, IndexError, ValueError):
        return 0


def descends_from(tgid: int, is_one: Callable[[int], bool]) -> bool | None:
    """Whether ``is_one`` is true of a process or any of its ancestors but the first of all; None if that is unknown,
    because they end faster than they can be examined.
    """
    for _ in range(_TRIES):
        at = tgid
        while at > 1:
            if is_one(at):
                return True
            at = parent_of(at)
        if at == 1 or not os.path.exists(f"/proc/{tgid}"):
            return False
        # An ancestor has ended meanwhile, and its children have another parent now.
    return None


def is_asked_to_end(tgid: int) -> bool:
    """Whether a signal waits for a process that asks it to end, as by Ctrl-C, and that it does not ignore."""
    try:
        status = _read(b"/proc/%d/status" % tgid)
    except OSError:
        return False
    own, shared, ignored = (_signals(status, name) for name in (b"SigPnd", b"ShdPnd", b"SigIgn"))
    return bool((own | shared) & ~ignored & _ENDING)


def _signals(status: bytes, name: bytes) -> int:
    at = status.index(b"\n%b:\t" % name) + len(name) + 3
    return int(status[at : status.index(b"\n", at)], 16)


def thread_group(tid: int) -> int:
    """The number of a thread's process; 0 if it is gone."""
    try:
        return _tgid(tid)
    except (OSError, ValueError):
        return 0


def is_in_namespace_below(tid: int) -> bool:
    """Whether a thread has other process numbers: those of a namespace within ours. False for one that is gone."""
    try:
        status = _read(b"/proc/%d/status" % tid)
    except OSError:
        return False
    at = status.index(b"\nNSpid:\t") + 8
    return b"\t" in status[at : status.index(b"\n", at)]


def _tgid(tid: int) -> int:
    text = _read(b"/proc/%d/status" % tid)
    at = text.index(b"\nTgid:\t") + 7
    return int(text[at : text.index(b"\n", at)])


def _stat(tgid: int) -> _Stat:
    # The name may hold anything, the last parenthesis ends it (proc(5)).
    fields = _read(b"/proc/%d/stat" % tgid).rpartition(b") ")[2].split(b" ", 4)
    return _Stat(int(fields[1]), int(fields[2]), int(fields[3]))


def _exit_code(process: SeenProcess) -> int | None:
    """How a process ended: ``/proc`` shows it of a zombie, the pidfd of one that is gone."""
    try:
        fields = _read(b"/proc/%d/stat" % process.tgid).rpartition(b") ")[2].split()
        if fields[0] in (b"Z", b"X"):
            return _as_shells_say(int(fields[-1]))
    except OSError:
        pass
    found = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(found, 0, _PIDFD_INFO_EXIT, 0)
    try:
        ioctl(process.pidfd, _PIDFD_GET_INFO, found)  # Linux 6.15
    except OSError:
        return None
    mask, status = _PIDFD_INFO.unpack(found)
    return _as_shells_say(status) if mask & _PIDFD_INFO_EXIT else None


def _as_shells_say(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _command(tgid: int) -> tuple[bytes, ...]:
    return tuple(_read(b"/proc/%d/cmdline" % tgid).removesuffix(b"\0").split(b"\0"))


def _directory(tgid: int) -> bytes:
    try:
        return os.readlink(b"/proc/%d/cwd" % tgid)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return b""  # it is for people to read


def _read(path: bytes) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MAX_COMMAND_BYTES)
    finally:
        os.close(fd)

"""Calls of a supervised tree: several threads receive them, one at a time is carried out and answered.

A signal interrupts a call that is not received yet: without ``SA_RESTART`` it fails with EINTR, which none of these
calls does natively. After that only a fatal signal interrupts it. So receivers must wake up quickly: usually one waits
in the kernel, without the interpreter lock, and with a higher priority where that is allowed.

A call whose handler has a bug fails with EIO: no caller is ever left waiting.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import deque
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import HeldError, HoldfastError, out_of_space_errno
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.supervisor.syscalls.pending_call import LaterError, PendingCall, Reply, SlowError
from holdfast.supervisor.syscalls.retries import Retries
from holdfast.supervisor.syscalls.table import LOSING, NOTIFIED, numbers
from holdfast.undo.interceptor import StepEndedError

if TYPE_CHECKING:
    import select
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from holdfast._hot import Gate
    from holdfast.supervisor.confinement.seccomp_notify import Listener
    from holdfast.supervisor.keeper._keeper_context import KeeperContext
    from holdfast.supervisor.keeper.native_loop import NativeTree
    from holdfast.supervisor.process_tree.members import Processes, Run
    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.resolution.territory import ReadOnly
    from holdfast.supervisor.syscalls.caller_access import CallerAccess
    from holdfast.supervisor.syscalls.retries import Pipe
    from holdfast.undo.journal.records import StepId


_log = Log(__name__)

_END = "exit_group"
_RECEIVERS: Final = 2
"""Of each tree. A third made a tenth fewer calls be interrupted, and each take a sixth longer."""
_NICE: Final = -20
_SLICE_NS: Final = 100_000
"""The shortest that there is: a thread that asks for less at a time gets the processor earlier (Linux 6.12)."""
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = Struct("=IIQiIQQQ")

_libc = ctypes.CDLL(None, use_errno=True)
_at_once = ctypes.PyDLL(None)
"""Calls by this do not release the interpreter's lock."""
_EVENT_BYTES = 16
"""Room for one ``struct epoll_event``."""


class DispatchLock:
    """The right to carry out calls, and other work for one thread at a time: the serving thread takes this lock, and in
    between any thread that has received a call.
    """

    def __init__(self, is_quiet: Callable[[], bool], selector: select.epoll, lock: Gate | None = None) -> None:
        """Calls wait while ``is_quiet``, and while ``selector`` has events for the serving thread: the end of a process
        must be handled before its parent's next call, which is another step. Natively executed calls wait for the
        ``lock``, if given.
        """
        self._is_quiet = is_quiet
        self._selector = selector.fileno()
        self._event = ctypes.create_string_buffer(_EVENT_BYTES)
        self._lock = lock or threading.Lock()
        self._waits = lock is not None
        """A call that is carried out natively does not look at the queue when it is done: so its end is waited for."""
        self._calls: deque[Callable[[], None]] = deque()
        self._is_wanted = False

    def __enter__(self) -> None:
        """Take it, as soon as the call that is being carried out is. For the serving thread."""
        self._is_wanted = True
        self._lock.acquire()
        self._is_wanted = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Carry out what calls there are by now, and give it up."""
        try:
            if kind is None:
                self._carry_out(len(self._calls))
        finally:
            self._lock.release()

    @property
    def has_calls(self) -> bool:
        """Whether calls wait that may be carried out."""
        return bool(self._calls) and not self._is_quiet()

    def put(self, call: Callable[[], None]) -> None:
        """Carry out a call, on this thread or on the one that has the turn. From any thread."""
        self._calls.append(call)
        # The thread with the turn checks again after releasing it, so no call in between is missed.
        while self._calls and self._lock.acquire(blocking=self._waits):
            try:
                if not self._carry_out():
                    return
            finally:
                self._lock.release()

    def _carry_out(self, most: int = -1) -> bool:
        """Carry out at most ``most`` calls. False if the serving thread must do the rest."""
        while most and self._calls:
            if self._is_quiet() or self._is_wanted or self._has_news():
                return False
            most -= 1
            self._calls.popleft()()
        return True

    def _has_news(self) -> bool:
        """Whether the selector has events. Releasing the interpreter's lock for this would cost more than the call."""
        return _at_once.epoll_wait(self._selector, self._event, 1, 0) > 0


def receive_calls(tree: SupervisedTree, dispatch_lock: DispatchLock, fail: Callable[[], None]) -> None:
    """Receive the calls of a tree until its last process has ended. A thread that cannot go on calls ``fail``."""
    for _ in range(_RECEIVERS):
        tree.listener.hold()
        threading.Thread(target=_receive, args=(tree, dispatch_lock, fail), daemon=True).start()


def _receive(tree: SupervisedTree, dispatch_lock: DispatchLock, fail: Callable[[], None]) -> None:
    listener = tree.listener
    _raise_thread_priority()
    try:
        # Not checked before each call: the kernel wakes the waiting threads when the last process ends (Linux 6.11).
        # Older kernels leave them waiting until the keeper ends.
        while (found := tree.receive()) is not None or not listener.is_over():
            if found is not None:
                dispatch_lock.put(lambda found=found: tree.serve(found))
    except BaseException as error:
        _log.warning("a call failed by a mistake of Holdfast's own: %r", error)
        fail()
        raise
    finally:
        listener.release()


def raise_priority() -> None:
    """Have this process be preferred to those of other sessions (sched(7), autogroup), where that counts and is
    allowed: within its own, `receive_calls` sees to it.
    """
    with suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(_NICE))


def _raise_thread_priority() -> None:
    """Have this thread be given the processor at once."""
    me = threading.get_native_id()
    with suppress(OSError):  # (only administrators may)
        os.setpriority(os.PRIO_PROCESS, me, _NICE)
    nice = os.getpriority(os.PRIO_PROCESS, me)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, nice, 0, _SLICE_NS, 0, 0)
    _libc.syscall(_SYS_SCHED_SETATTR[os.uname().machine], 0, attributes, 0)


def restore_priority() -> None:
    """Take the priority from this thread that it has from one that receives."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, os.getpid()))


def handler_table(machine: str, handlers: Mapping[str, Handler]) -> dict[int, tuple[str, Handler]]:
    """Number → name and handler of every call that reaches the keeper. A call without a handler fails with ENOSYS."""
    return {number: (name, handlers.get(name, _refuse)) for number, name in numbers(machine, NOTIFIED | LOSING).items()}


def _refuse(_call: PendingCall, _context: HandlerContext) -> Reply:
    return Reply(error=errno.ENOSYS)


class TreeDescriptors(NamedTuple):
    """The descriptors that a tree passes to its keeper as it joins."""

    listener: Listener
    access: CallerAccess
    read_only: tuple[ReadOnly, ...] = ()


class SupervisedTree:
    """One supervised tree. Implements `HandlerContext` for its calls.

    Its methods are for the thread with the turn; slow calls are carried out on threads of their own.
    """

    def __init__(
        self,
        keeper: KeeperContext,
        run: Run,
        descriptors: TreeDescriptors,
        processes: Processes,
        calls: Mapping[int, tuple[str, Handler]],
        hold: Callable[[SupervisedTree, int, int], None],
    ) -> None:
        """Take the ``descriptors`` over. ``hold(tree, ticket, thread)`` is called by the serving thread for each call
        that waits for a person. After a slow call the keeper's worker wakes that thread, which is to call `settle`.
        """
        self.run = run
        self.listener, self.access, self.read_only = descriptors
        self.root_fd, self.forbidden, self.interceptor, _ = keeper.workspace
        self.held: list[tuple[int, PendingCall]] = []
        """Calls that wait for a person, with the number of the ticket."""
        self.later = Retries()
        """Calls that are tried again until they can be carried out."""
        self.anchors: frozenset[int] = frozenset()
        """Processes that all of the tree descend from."""
        self._calls = calls
        self._handlers = dict(calls.values())
        self._processes = processes
        self._steps = keeper.steps
        self._worker = keeper.worker
        self._hold = hold
        self._slow: dict[int, StepId] = {}
        self._slow_held: list[tuple[int, PendingCall]] = []
        self._slow_later: list[tuple[PendingCall, Pipe | None]] = []
        self._tells = _log.wants("debug")
        self._native: NativeTree | None = None
        if keeper.native is not None:
            self._native = keeper.native.serve(self.listener.fd, keeper.selector.fileno(), self.root_fd)

    # HandlerContext ---------------------------------------------------------------------------------------------

    def step(self, call: PendingCall) -> StepId:
        """See `HandlerContext.step`."""
        if not self.is_valid(call):
            raise OSError(errno.EINTR, os.strerror(errno.EINTR))
        # Usually no slow call is in progress.
        if self._slow and (known := self._slow.get(threading.get_ident())) is not None:
            return known
        if call.held_in and (held_in := self._steps.held_step(call.held_in)):
            return held_in
        epoch = 0 if self._native is None else self._native.epoch
        step = self._steps.step_of(self._processes.group(self.run, call.tid))
        if self._native is not None:
            self._native.teach(call.tid, step, epoch)
        return step

    def holds(self, tgid: int) -> bool:
        """See `HandlerContext.holds`."""
        return self._processes.is_of(self.run, tgid)

    def is_valid(self, call: PendingCall) -> bool:
        """See `HandlerContext.is_valid`."""
        return self.listener.is_valid(call.id)

    def note_territory(self, root: bytes, borders: tuple[bytes, ...], fresh_ns: int) -> None:
        """See `HandlerContext.note_territory`."""
        if self._native is not None:
            self._native.set_territory(root, borders, fresh_ns)

    # Serving ----------------------------------------------------------------------------------------------------

    def receive(self) -> tuple[int, ...] | None:
        """The next call that has to be served, as `Listener.receive` has it."""
        return self.listener.receive() if self._native is None else self._native.receive()

    @property
    def busy(self) -> bool:
        """Whether slow calls are being carried out."""
        return bool(self._slow)

    def serve(self, found: tuple[int, ...]) -> None:
        """Carry out a call that the listener has received."""
        name, handler = self._calls[found[3]]
        if self.listener.is_closed:  # while the call was queued; its receiving thread may be gone
            self.listener.refuse(found[0])
        elif name == _END:
            self._processes.sort_children(self.run, found[1])
            self.listener.go_on(found[0])
        else:
            self._handle(PendingCall(found[0], found[1], name, found[6:], self.access), handler)  # type: ignore[arg-type]

    def close(self) -> None:
        """Serve nothing more: what waits, and what still comes, fails with ENOSYS."""
        for call in (*(call for _, call in self.held), *self.later.close()):
            self.listener.answer(call.id, 0, errno.ENOSYS)
        if self._native is not None:
            self._native.close()
        self.listener.close()
        self.access.close()
        for directory in self.read_only:
            directory.close()

    def release_directories(self) -> None:
        """Close the callers' directories, between two calls: an open one keeps a file system from being unmounted."""
        if self._native is not None:
            self._native.release()

    def retry(self, waiting: set[int]) -> None:
        """Continue held calls whose ticket no longer waits."""
        settled = [call for ticket, call in self.held if ticket not in waiting]
        self.held = [(ticket, call) for ticket, call in self.held if ticket in waiting]
        for call in settled:
            if self.is_valid(call):
                self._handle(call, self._handlers[call.name])

    def retry_later_calls(self) -> None:
        """Try some of the calls anew that have to be."""
        for call in self.later.take():
            if self.is_valid(call):
                self._handle(call, self._handlers[call.name])

    def settle(self) -> None:
        """Take over what threads have left."""
        while self._slow_held:
            self._keep(*self._slow_held.pop())
        while self._slow_later:
            self.later.add(*self._slow_later.pop())

    def _keep(self, ticket: int, call: PendingCall) -> None:
        self.held.append((ticket, call))
        self._hold(self, ticket, call.tid)

    def _handle(self, call: PendingCall, handler: Handler) -> None:
        if self._tells:
            _log.debug("call", call=call.name, thread=call.tid)
        try:
            reply = handler(call, self)
        except OSError as error:
            self.listener.answer(call.id, 0, error.errno or errno.EIO)
        except SlowError:
            self._begin_slow(call, handler)
        except LaterError as error:
            self.later.add(call, error.pipe)
        except HeldError as error:
            self._keep(error.ticket, call._replace(held_in=error.step or call.held_in))
        except StepEndedError:  # another thread has closed it since it was looked up
            self._keep(0, call)
        except Exception as error:  # noqa: BLE001
            self._fail(call, error)
        else:
            if reply.fd >= 0:
                self.later.note_opened(reply.fd)
            self._reply(call, reply)

    def _begin_slow(self, call: PendingCall, handler: Handler) -> None:
        patient = call._replace(patient=True)
        try:
            step = self.step(call)
            thread = threading.Thread(target=self._do_slow, args=(patient, handler, step), daemon=True)
            self.listener.hold()
            thread.start()
        except OSError as error:
            self.listener.answer(call.id, 0, error.errno or errno.EIO)
        except Exception as error:  # noqa: BLE001
            self._fail(call, error)

    def _do_slow(self, call: PendingCall, handler: Handler, step: StepId) -> None:
        me = threading.get_ident()
        self._slow[me] = step
        restore_priority()
        try:
            reply = handler(call, self)
        except OSError as error:
            self.listener.answer(call.id, 0, error.errno or errno.EIO)
        except HeldError as error:
            held = call._replace(patient=False, held_in=error.step or call.held_in)
            self._slow_held.append((error.ticket, held))
        except LaterError as error:
            self._slow_later.append((call._replace(patient=False), error.pipe))
        except Exception as error:  # noqa: BLE001
            self._fail(call, error)
        else:
            self._reply(call, reply)
        finally:
            del self._slow[me]
            self.listener.release()
            self._worker.wake()

    def _reply(self, call: PendingCall, reply: Reply) -> None:
        listener = self.listener
        if reply.fd >= 0:
            # Ours is closed before the caller continues: it may want to execute the file that it has written.
            number, error = listener.add(call.id, reply.fd, cloexec=reply.cloexec)
            os.close(reply.fd)
            listener.answer(call.id, number, error)
        elif reply.native:
            listener.go_on(call.id)
        else:
            listener.answer(call.id, reply.value, reply.error)

    def _fail(self, call: PendingCall, error: Exception) -> None:
        if isinstance(error, HoldfastError):
            _log.warning("%s by thread %d failed: %s", call.name, call.tid, error)
            self.listener.answer(call.id, 0, out_of_space_errno(error) or errno.EIO)
        else:
            import traceback

            text = "".join(traceback.format_exception(error))
            _log.warning("%s by thread %d failed by a mistake of Holdfast's own: %s", call.name, call.tid, text)
            self.listener.answer(call.id, 0, errno.EIO)

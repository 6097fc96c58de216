"""Calls of a supervised tree, one after the other: received, handed to their handler, answered.

A call whose handler fails by a mistake of ours fails with EIO: nobody is ever left waiting.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from holdfast.model.errors import HeldError, HoldfastError, lacks_room
from holdfast.model.log import Log
from holdfast.supervisor.call import Call, LaterError, Reply, SlowError
from holdfast.supervisor.calls import LOSING, NOTIFIED, numbers
from holdfast.supervisor.receiving import slow_down
from holdfast.supervisor.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.supervisor.call import Handler, Supervision
    from holdfast.supervisor.notify import Listener
    from holdfast.supervisor.processes import Processes, Run
    from holdfast.supervisor.reach import Reach
    from holdfast.supervisor.retries import Pipe
    from holdfast.supervisor.stepping import Steps
    from holdfast.supervisor.territory import ReadOnly
    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.records import StepId

_log = Log(__name__)


def table(machine: str, handlers: Mapping[str, Handler]) -> dict[int, tuple[str, Handler]]:
    """Number → name and handler of every call that reaches the keeper. What has no handler fails with ENOSYS."""
    return {number: (name, handlers.get(name, _refuse)) for number, name in numbers(machine, NOTIFIED | LOSING).items()}


_END = "exit_group"


def _refuse(_call: Call, _world: Supervision) -> Reply:
    return Reply(error=errno.ENOSYS)


class Tree:
    """One supervised tree. Implements `Supervision` for its calls.

    Its methods are for the thread whose turn it is; slow calls are carried out on threads of their own.
    """

    def __init__(
        self,
        run: Run,
        listener: Listener,
        reach: Reach,
        calls: Mapping[int, tuple[str, Handler]],
        processes: Processes,
        steps: Steps,
        interceptor: Interceptor,
        root_fd: int,
        forbidden: tuple[int, ...],
        read_only: tuple[ReadOnly, ...],
        wake: Callable[[], None],
        hold: Callable[[Tree, int, int], None],
    ) -> None:
        """Take the listener, the reach and the read-only directories over. ``wake()``, called from any thread, is to
        see to it that `settle` is called; ``hold(tree, ticket, thread)``, by the serving thread, is told whose call
        waits for a person.
        """
        self.run = run
        self.listener = listener
        self.reach = reach
        self.interceptor = interceptor
        self.root_fd = root_fd
        self.forbidden = forbidden
        self.read_only = read_only
        self.held: list[tuple[int, Call]] = []
        """Calls that wait for a person, with the number of the ticket."""
        self.later = Retries()
        """Calls that are tried again until they can be carried out."""
        self.anchors: frozenset[int] = frozenset()
        """Processes that all of the tree descend from."""
        self._calls = calls
        self._handlers = dict(calls.values())
        self._processes = processes
        self._steps = steps
        self._wake = wake
        self._hold = hold
        self._slow: dict[int, StepId] = {}
        self._slow_held: list[tuple[int, Call]] = []
        self._slow_later: list[tuple[Call, Pipe | None]] = []
        self._tells = _log.wants("debug")

    # Supervision ------------------------------------------------------------------------------------------------

    def step(self, call: Call) -> StepId:
        """See `Supervision.step`."""
        if not self.is_valid(call):
            raise OSError(errno.EINTR, os.strerror(errno.EINTR))
        # (Nearly always, nothing slow is going on.)
        if self._slow and (known := self._slow.get(threading.get_ident())) is not None:
            return known
        return self._steps.of(self._processes.group(self.run, call.tid))

    def holds(self, tgid: int) -> bool:
        """See `Supervision.holds`."""
        return self._processes.is_of(self.run, tgid)

    def is_valid(self, call: Call) -> bool:
        """See `Supervision.is_valid`."""
        return self.listener.is_valid(call.id)

    # Serving ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether slow calls are being carried out."""
        return bool(self._slow)

    def serve(self, found: tuple[int, ...]) -> None:
        """Carry out a call that the listener has received."""
        name, handler = self._calls[found[3]]
        if self.listener.is_closed:
            self.listener.answer(found[0], 0, errno.ENOSYS)
        elif name == _END:
            self._processes.leaving(self.run, found[1])
            self.listener.go_on(found[0])
        else:
            self._handle(Call(found[0], found[1], name, found[6:], self.reach), handler)  # type: ignore[arg-type]

    def close(self) -> None:
        """Serve nothing more: what waits, and what still comes, fails with ENOSYS."""
        for call in (*(call for _, call in self.held), *self.later.close()):
            self.listener.answer(call.id, 0, errno.ENOSYS)
        self.listener.close()
        self.reach.close()
        for directory in self.read_only:
            directory.close()

    def retry(self, waiting: set[int]) -> None:
        """Go on with held calls whose ticket is not among those that still wait."""
        settled = [call for ticket, call in self.held if ticket not in waiting]
        self.held = [(ticket, call) for ticket, call in self.held if ticket in waiting]
        for call in settled:
            if self.is_valid(call):
                self._handle(call, self._handlers[call.name])

    def try_again(self) -> None:
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

    def _keep(self, ticket: int, call: Call) -> None:
        self.held.append((ticket, call))
        self._hold(self, ticket, call.tid)

    def _handle(self, call: Call, handler: Handler) -> None:
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
            self._keep(error.ticket, call)
        except Exception as error:  # noqa: BLE001
            self._fail(call, error)
        else:
            if reply.fd >= 0:
                self.later.opened(reply.fd)
            self._reply(call, reply)

    def _begin_slow(self, call: Call, handler: Handler) -> None:
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

    def _do_slow(self, call: Call, handler: Handler, step: StepId) -> None:
        me = threading.get_ident()
        self._slow[me] = step
        slow_down()
        try:
            reply = handler(call, self)
        except OSError as error:
            self.listener.answer(call.id, 0, error.errno or errno.EIO)
        except HeldError as error:
            self._slow_held.append((error.ticket, call._replace(patient=False)))
        except LaterError as error:
            self._slow_later.append((call._replace(patient=False), error.pipe))
        except Exception as error:  # noqa: BLE001
            self._fail(call, error)
        else:
            self._reply(call, reply)
        finally:
            del self._slow[me]
            self.listener.release()
            self._wake()

    def _reply(self, call: Call, reply: Reply) -> None:
        listener = self.listener
        if reply.fd >= 0:
            # Ours is closed before the caller goes on: what it has written it may want to execute.
            number, error = listener.add(call.id, reply.fd, cloexec=reply.cloexec)
            os.close(reply.fd)
            listener.answer(call.id, number, error)
        elif reply.native:
            listener.go_on(call.id)
        else:
            listener.answer(call.id, reply.value, reply.error)

    def _fail(self, call: Call, error: Exception) -> None:
        if isinstance(error, HoldfastError):
            _log.warning("%s by thread %d failed: %s", call.name, call.tid, error)
            self.listener.answer(call.id, 0, lacks_room(error) or errno.EIO)
        else:
            import traceback

            text = "".join(traceback.format_exception(error))
            _log.warning("%s by thread %d failed by a mistake of Holdfast's own: %s", call.name, call.tid, text)
            self.listener.answer(call.id, 0, errno.EIO)

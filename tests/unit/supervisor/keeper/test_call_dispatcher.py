"""Calls handed to handlers and answered, without a kernel: a listener that is a list."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from holdfast.model.errors import HeldError
from holdfast.supervisor.keeper._call_dispatcher import SupervisedTree, TreeDescriptors, handler_table
from holdfast.supervisor.keeper._keeper_context import KeeperContext, ServedWorkspace
from holdfast.supervisor.operations import HANDLERS
from holdfast.supervisor.process_tree.members import Processes, Run
from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
from holdfast.supervisor.syscalls.pending_call import LaterError, PendingCall, Reply, SlowError
from holdfast.supervisor.syscalls.table import LOSING, NOTIFIED, numbers
from holdfast.undo.interceptor import StepEndedError


class Listening:
    """What a `Listener` would do."""

    fd = -1
    is_closed = False

    def __init__(self) -> None:
        self.waiting = 1
        self.held = 1
        self.answers: list[tuple[object, ...]] = []
        self.answered = threading.Event()

    def receive(self) -> tuple[int, ...]:
        return (self.waiting, 1, 0, 263, 0, 0, 0, 0, 0, 0, 0, 0)

    def answer(self, id_: int, value: int, error: int) -> None:
        self.answers.append((id_, value, error))
        self.answered.set()

    def refuse(self, id_: int) -> None:
        self.answer(id_, 0, errno.ENOSYS)

    def go_on(self, id_: int) -> None:
        self.answers.append((id_, "native"))

    def is_valid(self, id_: int) -> bool:
        return True

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1

    def close(self) -> None:
        self.is_closed = True
        self.release()


class NoSteps:
    """Every change is of step 7."""

    held: int | PermissionError = 0
    """What has become of the step of a call that was held."""

    def step_of(self, _group: object) -> int:
        return 7

    def held_step(self, _step: int) -> int:
        if isinstance(self.held, PermissionError):
            raise self.held
        return self.held


class NoWorker:
    """Nothing waits to be woken."""

    def wake(self) -> None:
        pass


def tree(handler: Handler) -> tuple[SupervisedTree, Listening]:
    listening: Any = Listening()
    steps: Any = NoSteps()
    worker: Any = NoWorker()
    nothing: Any = None
    run = Run("r", 1)
    calls = {263: ("unlinkat", handler)}
    processes = Processes(lambda fd: None)
    workspace = ServedWorkspace(-1, (), nothing, nothing)
    keeper = KeeperContext(workspace, nothing, steps, worker, nothing, nothing, nothing)
    made = SupervisedTree(keeper, run, TreeDescriptors(listening, nothing), processes, calls, lambda *_: None)
    return made, listening


def test_every_call_that_reaches_the_keeper_has_a_handler() -> None:
    for machine in ("x86_64", "aarch64"):
        assert set(numbers(machine, NOTIFIED | LOSING).values()) - HANDLERS.keys() == {"exit_group"}
        assert handler_table(machine, HANDLERS).keys() == numbers(machine, NOTIFIED | LOSING).keys()


@pytest.mark.parametrize(
    ("reply", "answer"), [(Reply(5), (1, 5, 0)), (Reply(error=2), (1, 0, 2)), (Reply(native=True), (1, "native"))]
)
def test_a_reply_is_passed_on(reply: Reply, answer: tuple[object, ...]) -> None:
    served, listening = tree(lambda call, world: reply)
    served.serve(listening.receive())
    assert listening.answers == [answer]


def test_a_mistake_of_ours_is_an_error_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    def fail(call: PendingCall, world: HandlerContext) -> Reply:
        raise KeyError("mistake")

    served, listening = tree(fail)
    served.serve(listening.receive())
    assert listening.answers == [(1, 0, errno.EIO)]
    assert "mistake" in caplog.text
    caplog.clear()


def test_a_slow_call_is_done_elsewhere_in_the_same_step() -> None:
    seen: list[tuple[bool, int, bool]] = []

    def handle(call: PendingCall, world: HandlerContext) -> Reply:
        seen.append((call.patient, world.step(call), threading.current_thread() is threading.main_thread()))
        if not call.patient:
            raise SlowError
        return Reply(3)

    served, listening = tree(handle)
    served.serve(listening.receive())
    assert listening.answered.wait(20)
    assert seen == [(False, 7, True), (True, 7, False)]
    assert listening.answers == [(1, 3, 0)]
    while served.busy:
        pass


def test_nothing_is_of_any_step_for_a_caller_that_was_killed() -> None:
    served, listening = tree(lambda call, world: Reply(world.step(call)))
    listening.is_valid = lambda id_: False
    served.serve(listening.receive())
    assert listening.answers == [(1, 0, errno.EINTR)]


def test_what_waits_when_a_tree_is_served_no_longer_fails_and_so_does_what_still_comes() -> None:
    def handle(call: PendingCall, world: HandlerContext) -> Reply:
        raise HeldError(4, "waits") if listening.waiting == 1 else LaterError

    served, listening = tree(handle)
    for listening.waiting in (1, 2):
        served.serve(listening.receive())
    closing: Any = served
    closing.access = listening
    served.close()
    listening.waiting = 3
    served.serve(listening.receive())
    assert listening.answers == [(number, 0, errno.ENOSYS) for number in (1, 2, 3)]
    assert listening.held == -1, "the listener and the access are closed"


def test_what_is_held_goes_on_when_its_ticket_is_settled() -> None:
    held = True

    def handle(call: PendingCall, world: HandlerContext) -> Reply:
        if held:
            raise HeldError(4, "waits")
        raise PermissionError(errno.EPERM, "denied")

    served, listening = tree(handle)
    served.serve(listening.receive())
    served.retry({4})
    assert listening.answers == []
    held = False
    served.retry(set())
    assert listening.answers == [(1, 0, errno.EPERM)]
    assert served.held == []


@pytest.mark.parametrize(
    ("became", "answer"),
    [
        pytest.param(9, (1, 9, 0), id="it is open"),
        pytest.param(0, (1, 7, 0), id="it has ended since it was allowed"),
        pytest.param(PermissionError(errno.EPERM, "ended"), (1, 0, errno.EPERM), id="it was not allowed"),
    ],
)
def test_what_is_held_happens_in_its_step_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, became: int | PermissionError, answer: tuple[int, int, int]
) -> None:
    held = [HeldError(4, "waits", 9), HeldError(0, "is taken back")]

    def handle(call: PendingCall, world: HandlerContext) -> Reply:
        if held:
            raise held.pop(0)
        return Reply(world.step(call))

    served, listening = tree(handle)
    served.serve(listening.receive())
    monkeypatch.setattr(NoSteps, "held", became)
    served.retry(set())
    assert listening.answers == []
    served.retry(set())
    assert listening.answers == [answer]


def test_what_comes_to_a_step_that_has_just_ended_is_tried_again() -> None:
    ended = [StepEndedError(7)]

    def handle(call: PendingCall, world: HandlerContext) -> Reply:
        if ended:
            raise ended.pop()
        return Reply(world.step(call))

    served, listening = tree(handle)
    served.serve(listening.receive())
    assert listening.answers == []
    served.retry(set())
    assert listening.answers == [(1, 7, 0)]


def test_what_has_to_be_tried_again_takes_no_thread_and_a_few_turns_at_a_time() -> None:
    tried: list[int] = []

    def handle(call: PendingCall, world: HandlerContext) -> Reply:
        tried.append(call.id)
        assert threading.current_thread() is threading.main_thread()
        if call.id < 3 or len(tried) < 20:
            raise LaterError
        return Reply(call.id)

    served, listening = tree(handle)
    for number in range(1, 11):
        listening.waiting = number
        served.serve(listening.receive())
    assert tried == list(range(1, 11))
    served.retry_later_calls()
    assert len(tried) == 14, "others have to be served meanwhile"
    served.retry_later_calls()
    served.retry_later_calls()
    assert tried[10:] == [*range(1, 11), 1, 2]
    assert listening.answers == [(10, 10, 0)]
    for _ in range(5):
        served.retry_later_calls()
    assert sorted(listening.answers) == [(number, number, 0) for number in range(3, 11)]
    assert len(served.later) == 2


def test_a_slow_call_may_have_to_be_tried_again() -> None:
    tried: list[bool] = []

    def handle(call: PendingCall, world: HandlerContext) -> Reply:
        tried.append(call.patient)
        if not call.patient:
            raise SlowError
        if len(tried) < 3:
            raise LaterError
        return Reply(3)

    served, listening = tree(handle)
    served.serve(listening.receive())
    while not served.later:
        served.settle()
    served.retry_later_calls()
    assert listening.answered.wait(20)
    assert tried == [False, True, False, True]
    assert listening.answers == [(1, 3, 0)]
    while served.busy:
        pass


def test_who_does_not_wait_any_more_is_not_tried_for() -> None:
    tried: list[int] = []

    def handle(call: PendingCall, world: HandlerContext) -> Reply:
        tried.append(call.id)
        raise LaterError

    served, listening = tree(handle)
    served.serve(listening.receive())
    listening.is_valid = lambda id_: False
    served.retry_later_calls()
    assert tried == [1]
    assert not served.later

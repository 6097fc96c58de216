"""Walking along the history of a workspace, back and forward: by the undo log where steps lie, else by checkpoints."""

from __future__ import annotations

from itertools import groupby
from operator import ne
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.engine.foreseeing import foreseen
from holdfast.engine.journal import Journal
from holdfast.engine.restore import REDO_COMMAND, UNDO_COMMAND, carry_out, new_nonce, preview
from holdfast.engine.results import RestoreResult
from holdfast.engine.reversing import bring_forward, refuse_open, steps_since, take_back
from holdfast.engine.states import ahead, came_to_light, kept, nothing, out_of_sight
from holdfast.engine.status import present
from holdfast.engine.steps import infos
from holdfast.model.errors import NotFoundError
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.store import manifest
from holdfast.store.records import HistoryEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import Hash
    from holdfast.model.sinks import Progress
    from holdfast.store.records import Cursor
    from holdfast.undo.service import StepInfo, UndoService

_LOG = Log(__name__)


class _Target(NamedTuple):
    """Where an undo leads next."""

    state: HistoryEvent
    back: int
    """How many changes lie between, which checkpoints take back."""
    steps: Sequence[StepInfo]
    """With ``back`` 0: the steps, newest first, of which the first is to be taken back, and what is connected to it."""


class Walk:
    """Goes along the history of one workspace, whose lock is held."""

    def __init__(
        self, context: Context, service: UndoService | None, *, force: bool, progress: Progress | None
    ) -> None:
        self._context = context
        self._service = service
        self._force = force
        self._progress = progress
        self.new: Checkpoint | None = None
        """The checkpoint that was made for what was not saved yet, if one was."""

    def is_out_of_sight(self, before: Cursor, saved: Checkpoint) -> bool:
        """Whether a state that was saved just now is new, and only by what went out of sight."""
        if before.head is None or before.head == saved.id or steps_since(self._context, self._service, self._now()):
            return False
        head = self._context.catalog.checkpoint(before.head)
        return out_of_sight(self._context, manifest.diff(self._context.store.pages, head.root, saved.root))

    def back(self, count: int) -> RestoreResult:
        """Take back ``count`` changes, from the state that was just saved."""
        done: list[RestoreResult] = []
        start = self._now()
        while count:
            now = self._now()
            try:
                target = self._next(now, self._root(now), count)
            except NotFoundError as error:
                raise _short(error, done) from None
            if target.back:
                checkpoint = self._context.catalog.checkpoint(target.state.checkpoint)
                done.append(self._go("undo", now, target.state, checkpoint))
                count -= target.back
            else:
                done.append(self._take_back(target.steps[0]))
                count -= 1
        result = together(done)
        if result.skipped or not any(one.undo_command for one in done):
            return result
        cursor = self._context.catalog.cursor(self._context.workspace.id)
        assert cursor.position is not None
        assert cursor.redo_tip is not None
        onward = [state.seq for state in ahead(self._context, cursor.position, cursor.redo_tip)]
        if start.seq not in onward:
            return result  # the checkpoint that it began with was forgotten
        return result._replace(undo_command=_in_turn([REDO_COMMAND] * (onward.index(start.seq) + 1)))

    def forward(self, states: Sequence[HistoryEvent]) -> RestoreResult:
        """Go to the last of ``states``, which lie ahead, one behind the other."""
        done: list[RestoreResult] = []
        ways_back: list[str] = []
        at = 0
        while at < len(states):
            now = self._now()
            if now.steps and now.ahead == states[at].seq:
                result = self._bring_forward(states[at])
                if result is not None:
                    done.append(result)
                    ways_back.append(result.undo_command or UNDO_COMMAND)
                    at += 1
                    continue
            first = at
            at += 1
            while at < len(states) and not (states[at - 1].steps and states[at - 1].ahead == states[at].seq):
                at += 1
            state = states[at - 1]
            done.append(self._go("redo", now, state, self._context.catalog.checkpoint(state.checkpoint)))
            roots = [self._root(one) for one in (now, *states[first:at])]
            ways_back += [UNDO_COMMAND] * sum(map(ne, roots, roots[1:]))
        result = together(done)
        if result.skipped or not any(one.undo_command for one in done):
            return result
        return result._replace(undo_command=_in_turn(reversed(ways_back)))

    def foresee(self, count: int) -> RestoreResult:
        """What `back` would do, as far as it can be told without doing it. Changes nothing."""
        context = self._context
        cursor = context.catalog.cursor(context.workspace.id)
        now = None if cursor.position is None else context.catalog.event(cursor.position)
        at_present = present(context, gone_is_empty=True)
        root, target = at_present.root, None
        written, deleted, steps = list[bytes](), list[bytes](), list[int]()
        groups: list[Sequence[int]] = []
        changes = at_present.changes()
        if changes and not came_to_light(context, cursor) and not out_of_sight(context, changes):
            now = HistoryEvent(0, context.clock.now(), "checkpoint", CheckpointId(""), cursor.position)
        if now is None:
            raise nothing("undo", self.new)
        while count:
            found = self._next(now, root, count, done=steps)
            if found.back:
                now, count = found.state, count - found.back
                target = context.catalog.checkpoint(now.checkpoint)
                root = target.root
            else:
                assert self._service is not None
                ids = [step for step in self._service.connected(found.steps[0].id) if step not in steps]
                lists = foreseen(self._service, ids)
                written, deleted, steps = [*written, *lists[0]], [*deleted, *lists[1]], [*steps, *ids]
                groups += _groups(ids)
                count -= 1
        shown = None if target is None else preview(context, target)
        return RestoreResult(
            checkpoint=now.checkpoint or cursor.head or CheckpointId("") if shown is None else shown.checkpoint,
            rescue=None,
            written=sorted({*written, *(shown.written if shown else ())}),
            deleted=sorted({*deleted, *(shown.deleted if shown else ())}),
            skipped=[],
            dry_run=True,
            undo_command=None,
            steps=steps,
            together=groups,
        )

    def _take_back(self, newest: StepInfo) -> RestoreResult:
        """Undo a step, and those without which it cannot be."""
        assert self._service is not None
        steps = infos(self._service, self._service.connected(newest.id))
        done = take_back(self._context, self._service, steps, force=self._force, progress=self._progress)
        return done._replace(together=_groups(done.steps))

    def _now(self) -> HistoryEvent:
        cursor = self._context.catalog.cursor(self._context.workspace.id)
        if cursor.position is None:
            raise nothing("undo", self.new)
        return self._context.catalog.event(cursor.position)

    def _root(self, state: HistoryEvent) -> Hash:
        return self._context.catalog.checkpoint(state.checkpoint).root

    def _next(self, now: HistoryEvent, root: Hash, most: int, done: Sequence[int] = ()) -> _Target:
        """Where to go from ``now``: to where a step has to be taken back, or ``most`` changes back."""
        state, back = now, 0
        while True:
            steps = [step for step in steps_since(self._context, self._service, state) if step.id not in done]
            if steps:
                return _Target(state, back, steps)
            if not self._force:
                refuse_open(self._context, self._service, state)
            while True:
                if state.previous is None:
                    raise nothing("undo", self.new)
                state = self._context.catalog.event(state.previous)
                checkpoint = kept(self._context, state)
                if checkpoint is not None:
                    break
            if checkpoint.root != root:
                root, back = checkpoint.root, back + 1
            if back == most:
                return _Target(state, back, ())

    def _bring_forward(self, target: HistoryEvent) -> RestoreResult | None:
        """Redo by the undo log; None if it does not hold the steps any more."""
        try:
            if self._service is not None:
                return bring_forward(self._context, self._service, target, force=self._force, progress=self._progress)
        except NotFoundError:
            pass
        _LOG.warning(
            "the undo log does not hold the steps any more: "
            "what checkpoints hold is brought back, ignored files are not"
        )
        return None

    def _go(
        self, operation: Literal["undo", "redo"], now: HistoryEvent, state: HistoryEvent, target: Checkpoint
    ) -> RestoreResult:
        context = self._context
        journal = Journal(
            operation=operation,
            target=target.id,
            rescue=now.checkpoint,
            position=now.seq,
            state=state.seq,
            paths=(),
            nonce=new_nonce(context),
            at=context.clock.now(),
            redo_tip=context.catalog.cursor(context.workspace.id).redo_tip,
        )
        return carry_out(context, journal, context.catalog.checkpoint(now.checkpoint), target, self._progress)


def together(done: Sequence[RestoreResult]) -> RestoreResult:
    """What several moves did, one after the other."""
    last = done[-1]
    if len(done) == 1:
        return last
    there: dict[bytes, bool] = {}
    for result in done:
        there |= dict.fromkeys(result.written, True) | dict.fromkeys(result.deleted, False)
    return last._replace(
        rescue=done[0].rescue,
        written=sorted(path for path, is_there in there.items() if is_there),
        deleted=sorted(path for path, is_there in there.items() if not is_there),
        skipped=[item for result in done for item in result.skipped],
        steps=[step for result in done for step in result.steps],
        together=[group for result in done for group in result.together],
    )


def _in_turn(commands: Iterable[str]) -> str:
    """One command line for several; what undoes one change, several times over, with their number."""
    said: list[str] = []
    for command, same in groupby(commands):
        number = len(list(same))
        said.append(command if number == 1 else f"{command} {number}")
    return " && ".join(said)


def _groups(steps: Sequence[int]) -> list[Sequence[int]]:
    return [tuple(sorted(steps))] if len(steps) > 1 else []


def _short(error: NotFoundError, done: Sequence[RestoreResult]) -> NotFoundError:
    if not done:
        return error
    back = ", ".join(str(step) for result in done for step in result.steps)
    return NotFoundError(
        f"there is nothing more to undo; step {back} was taken back",
        hint="`holdfast redo` brings it forward again",
        code="nothing_to_undo",
    )

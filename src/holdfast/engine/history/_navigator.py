"""Walking along the history of a workspace, back and forward: by the undo log where steps lie, else by checkpoints."""

from __future__ import annotations

from itertools import count as count_from
from itertools import groupby
from operator import ne

from holdfast.engine.history._step_reversal import (
    Effect,
    combine_effects,
    dry_run_result,
    files_at,
    reapply_steps,
    redo_effect,
    reverse_steps,
    reversible_steps,
    undo_effect,
    with_files_before,
    without_left_alone,
)
from holdfast.engine.history._undo_guards import (
    RunningSteps,
    StateChange,
    check_reversal,
    is_before_set_aside,
    is_only_late_writes,
    kept_checkpoint,
    nothing_error,
    nothing_since_error,
    only_ignored_files,
    only_unignored_files,
    redo_chain,
    refuse_mixed_writes,
    refuse_set_aside_redo,
    refuse_set_aside_state,
    steps_since,
    steps_that_wrote_late,
)
from holdfast.engine.history.history_writer import record_end
from holdfast.engine.history.restore import REDO_COMMAND, UNDO_COMMAND, carry_out, preview
from holdfast.engine.history.status import scan_tree
from holdfast.engine.opening.operation_journal import new_operation, read_operation, refuse_unfinished
from holdfast.engine.opening.undo_log import find_steps, has_ended, require_service, touched_paths
from holdfast.model.checkpoint import HistoryEvent
from holdfast.model.command_results import RestoreResult
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, rebuilt
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.model.message_text import named_steps, step_options
from holdfast.model.paths import display, parents
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from holdfast.engine.history._undo_guards import Floor
    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.content import Progress
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash
    from holdfast.store.catalog_records import Cursor
    from holdfast.undo.service import ConflictInfo, StepInfo, UndoService

_LOG = Log(__name__)

_OWN = ("restore", "redo", "promote")
"""Operations whose new state holds only their own changes. The state after an undo may hold others' changes as well."""
_SHOWN = 5
_MAX_PATHS = 100


class _Target(NamedTuple):
    """Where an undo leads next."""

    state: HistoryEvent
    back: int
    """Number of changes in between, which checkpoints reverse."""
    steps: Sequence[StepInfo]
    """With ``back`` 0: the steps, newest first. The first must be undone together with the steps connected to it."""


class HistoryNavigator:
    """Goes along the history of one workspace, whose lock is held."""

    def __init__(
        self,
        context: Context,
        service: UndoService | None,
        *,
        force: bool,
        progress: Progress | None,
        recorded_only: bool = False,
        floor: Floor | None = None,
    ) -> None:
        """``recorded_only``: `back` reverses changes by steps and Holdfast itself, and refuses those by others
        (``barrier``). ``floor``: it goes no further.
        """
        self._context = context
        self._service = service
        self._force = force
        self._progress = progress
        self._recorded_only = recorded_only
        self._floor = floor
        self._pages = context.store.pages
        self._running = RunningSteps(service, force=force)
        self.rescue: Checkpoint | None = None
        """The checkpoint of unsaved changes, if one was made."""

    def refuse_too_many(self, count: int | None, *, hidden: int) -> None:
        """Raise `NotFoundError` if there are fewer than ``count`` changes to undo from the state that was just saved
        (None: if there is none above the floor). ``hidden`` of them do not count for a person. Changes nothing.

        Other obstacles are left to `back`, which then redoes what it has undone; with ``recorded_only`` others' changes
        are refused already here. This count knows steps' changes only by their paths, so one change may occasionally
        count as two.
        """
        now = self.current_state()
        try:
            for _ in self._targets_back(now, self._root(now), count, hidden=hidden):
                pass
        except HoldfastError as error:
            if error.code == "nothing_to_undo" or (error.code == "barrier" and self._recorded_only):
                raise

    def is_only_hidden(self, before: Cursor, saved: Checkpoint) -> bool:
        """Whether a newly saved state differs from the one before only by files that are ignored now."""
        if (
            before.head is None
            or before.head == saved.id
            or steps_since(self._context, self._service, self.current_state())
        ):
            return False
        head = self._context.catalog.checkpoint(before.head)
        return only_ignored_files(self._context, manifest.diff(self._context.store.pages, head.root, saved.root))

    def touched(self, before: Cursor) -> set[bytes]:
        """The paths that the newest change's steps changed, if steps made it. ``before`` is the history's position when
        none of them was saved.
        """
        unsaved = HistoryEvent(0, self._context.clock.now(), "checkpoint", CheckpointId(""), before.position)
        return touched_paths(self._service, (step.id for step in steps_since(self._context, self._service, unsaved)))

    def current_state(self) -> HistoryEvent:
        """The state that the tree is in."""
        cursor = self._context.catalog.cursor(self._context.workspace.id)
        if cursor.position is None:
            raise nothing_error("undo", self.rescue)
        return self._context.catalog.event(cursor.position)

    def refuse_unsaved(self) -> None:
        """With ``recorded_only``, refuse before anything is saved if the unsaved changes, which are the newest change,
        are others'.
        """
        cursor = self._context.catalog.cursor(self._context.workspace.id)
        if not self._recorded_only or cursor.position is None:
            return
        found = scan_tree(self._context, gone_is_empty=True)
        changes = found.changes()
        if not changes or only_ignored_files(self._context, changes):
            return
        unsaved = HistoryEvent(0, self._context.clock.now(), "checkpoint", CheckpointId(""), cursor.position)
        if steps_since(self._context, self._service, unsaved):
            return
        if found.head is not None and steps_that_wrote_late(self._service, found.pages, found.head.root, found.root):
            return
        if rest := self._running.rest(changes):
            raise _foreign_edits_error([change.path for change in rest])

    def back(self, count: int | None, *, hidden: int = 0) -> RestoreResult:
        """Reverse ``count`` changes (None: all down to the floor), from the state that was just saved: all of them, or
        none. ``hidden`` as for `refuse_too_many`.
        """
        done: list[RestoreResult] = []
        start, left = self.current_state(), count
        try:
            while left is None or left:
                went = self._back(left, done)
                if not went:
                    break
                left = None if left is None else left - went
        except HoldfastError as error:
            if error.code == "nothing_to_undo" and count is not None and left is not None:
                error = nothing_error("undo", self.rescue, available=count - left - hidden)
            raise self.bring_forward_again(start, done, error) from error
        if not done:
            raise self._nothing_since()
        if self._floor is not None:
            self._running.warn_since(self._floor.prompt)
        result = merge_results(done)
        if not any(one.undo_command for one in done):
            return result
        if _leaves_changes(done[-1]):
            return result._replace(undo_command=_way_back(done, REDO_COMMAND))
        onward = self._onward(start)
        if not onward:
            return result  # the checkpoint that it began with was forgotten
        return result._replace(undo_command=_in_turn([REDO_COMMAND] * len(onward)))

    def _nothing_since(self) -> NotFoundError:
        """The error that nothing is left above the floor; raises `RefusedError` if any step is still running."""
        assert self._floor is not None
        self._running.refuse_all()
        return nothing_since_error(self._floor.prompt, self.rescue)

    def _back(self, most: int | None, done: list[RestoreResult]) -> int:
        """Reverse one step, or up to ``most`` changes known to checkpoints; returns the number: 0 at the floor."""
        now = self.current_state()
        target = self._next(now, self._root(now), most)
        if target is None:
            return 0
        if not target.back:
            done.append(self._take_back(target.steps[0]))
            return 1
        checkpoint = self._context.catalog.checkpoint(target.state.checkpoint)
        self._warn_of_forgotten_steps(now, target.state)
        done.append(self._go("undo", now, target.state, checkpoint))
        return target.back

    def _warn_of_forgotten_steps(self, now: HistoryEvent, target: HistoryEvent) -> None:
        """Report it if only checkpoints lead back past steps that the undo log lacks."""
        if is_before_set_aside(self._context, target):
            _LOG.warning(
                "checkpoints take back the changes in an undo log of another version, which was set "
                "aside; ignored files that its steps changed stay as they are"
            )
            return
        steps = () if self._service is None else self._service.steps()
        known = {step.id for step in steps}
        at = now
        while at.seq != target.seq and at.previous is not None:
            if at.operation == "run" and not known.issuperset(at.steps):
                _LOG.warning(
                    "the undo log has forgotten steps of the run %s: checkpoints take it back; "
                    "ignored files that it changed stay as they are",
                    at.run,
                )
            at = self._context.catalog.event(at.previous)

    def _onward(self, start: HistoryEvent) -> list[HistoryEvent]:
        """The states from just after the present one to ``start``, which lies ahead; empty if they are not kept."""
        cursor = self._context.catalog.cursor(self._context.workspace.id)
        assert cursor.position is not None
        assert cursor.redo_tip is not None
        onward = redo_chain(self._context, cursor.position, cursor.redo_tip)
        return onward[: [state.seq for state in onward].index(start.seq) + 1] if start in onward else []

    def bring_forward_again(
        self, start: HistoryEvent, done: Sequence[RestoreResult], error: HoldfastError
    ) -> HoldfastError:
        """Redo the finished part of an undo, up to the state ``start``, after ``error`` stopped it. Returns the error
        to raise; if the redo fails too, its message says so.
        """
        if not done:
            return error
        try:
            refuse_unfinished(self._context.folder)
            onward = self._onward(start)
            if read_operation(self._context.folder) is None and onward and not self.forward(onward).skipped:
                return error
        except HoldfastError as failure:
            _LOG.warning("could not bring the changes forward again: %s", failure.message)
        redo = len(self._onward(start))
        steps = sorted(step for result in done for step in result.steps)
        what = named_steps(steps) if steps else f"{len(done)} of the changes"
        return rebuilt(
            type(error).__name__,
            f"{error.message}; {what} stay taken back",
            hint=f"`{_in_turn([REDO_COMMAND] * redo)}` brings it forward" if redo else error.hint,
            code=error.code,
            data={**(error.data or {}), "taken_back": steps, "redo": redo},
        )

    def forward(self, states: Sequence[HistoryEvent]) -> RestoreResult:
        """Go to the last of ``states``, which are ahead, one after the other."""
        done: list[RestoreResult] = []
        ways_back: list[str] = []
        at = 0
        while at < len(states):
            now = self.current_state()
            if now.steps and now.ahead == states[at].seq:
                groups = self._depending(now.steps)
                result = self._bring_forward(states[at])
                if result is not None:
                    done.append(result._replace(together=groups))
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
        result = merge_results(done)
        if not any(one.undo_command for one in done):
            return result
        if _leaves_changes(done[-1]):
            return result._replace(undo_command=_way_back(done, UNDO_COMMAND))
        return result._replace(undo_command=_in_turn(reversed(ways_back)))

    def preview_back(self, count: int | None) -> RestoreResult:
        """The result that `back` would have, as far as it can be predicted. Changes nothing.

        Refuses the same as `back`, except conflicts of steps after checkpoints: the tree will have changed by then.
        """
        context = self._context
        cursor = context.catalog.cursor(context.workspace.id)
        now = None if cursor.position is None else context.catalog.event(cursor.position)
        at_present = scan_tree(context, gone_is_empty=True)
        self._pages = at_present.pages
        target: Checkpoint | None = None
        effects: list[Effect] = []
        steps: list[int] = []
        went_back = 0
        groups: list[Sequence[int]] = []
        alone: Sequence[ConflictInfo] = ()
        changes = at_present.changes()
        if changes and not only_unignored_files(context, cursor) and not only_ignored_files(context, changes):
            now = HistoryEvent(0, context.clock.now(), "checkpoint", CheckpointId(""), cursor.position)
        if now is None:
            raise nothing_error("undo", self.rescue)
        for at, ids in self._targets_back(now, at_present.root, count):
            if at.back:
                now = at.state
                target, went_back = context.catalog.checkpoint(now.checkpoint), len(effects)
                continue
            assert self._service is not None
            if target is None:
                alone = check_reversal(self._context, self._service, [*steps, *ids], force=self._force)
            effect = undo_effect(self._service, ids)
            effect = with_files_before(context, self._service, effect, ids, [*steps, *ids])
            effects.append(without_left_alone(self._service, effect, ids, alone))
            steps += ids
            if not self._force:
                self._service.check_connected(steps)
            groups += _groups(ids)
        if self._floor is not None:
            self._running.warn_since(self._floor.prompt)
        if target is not None:
            before, seen = combine_effects(effects[:went_back]), self._previewed(target)
            if self._service is not None:
                # The plan lacks paths that end as they are now; the steps' effect has other contents for them.
                reached = files_at(context, self._service, target, before, steps)
                seen = seen._replace(foreseen=reached | {**seen.foreseen})
            effects.insert(went_back, seen)
        reached = now.checkpoint or cursor.head or CheckpointId("") if target is None else target.id
        return dry_run_result(self._context, reached, effects, steps, alone)._replace(together=groups)

    def preview_forward(self, states: Sequence[HistoryEvent]) -> RestoreResult:
        """The result that `forward` would have. Changes nothing.

        Others' changes are refused for the first of the steps only: the tree will have changed for later ones.
        """
        effects: list[Effect] = []
        steps: list[int] = []
        groups: list[Sequence[int]] = []
        alone: Sequence[ConflictInfo] = ()
        by_checkpoints = False
        now = self.current_state()
        for state in states:
            if now.steps and now.ahead == state.seq and self._service is not None and self._can_redo(now.steps):
                chosen = reversible_steps(self._service, now.steps, backward=False)
                ids = [step.id for step in chosen]
                if not by_checkpoints and not steps:
                    alone = check_reversal(self._context, self._service, ids, forward=True, force=self._force)
                effect, reached = redo_effect(self._service, ids), kept_checkpoint(self._context, state)
                if reached is not None:
                    effect = effect._replace(foreseen=files_at(self._context, self._service, reached, effect, ids))
                effects.append(without_left_alone(self._service, effect, ids, alone))
                steps += ids
                groups += self._depending(now.steps)
                if not self._force:
                    self._service.check_connected(steps)
            else:
                if now.steps and now.ahead == state.seq and not self._force:
                    refuse_set_aside_redo(self._context, now)
                by_checkpoints = True
            now = state
        if by_checkpoints:
            # The last checkpoint decides the contents of captured files.
            effects.append(self._previewed(self._context.catalog.checkpoint(states[-1].checkpoint)))
        result = dry_run_result(self._context, states[-1].checkpoint, effects, steps, alone)
        return result._replace(together=groups)

    def _previewed(self, target: Checkpoint) -> Effect:
        """The effect of a move to a checkpoint."""
        if self._running:
            found = scan_tree(self._context, gone_is_empty=True)
            self._running.refuse_in_place(manifest.diff(found.pages, found.root, target.root))
        shown, held = preview(self._context, target), self._running.paths
        return Effect(
            [path for path in shown.written if path not in held],
            [path for path in shown.deleted if path not in held],
            shown.letters,
            shown.foreseen,
        )

    def has_changed(self, changes: Sequence[Change]) -> bool:
        """Whether there are changes besides those of running steps."""
        return bool(self._running.rest(changes))

    def _can_redo(self, steps: Sequence[int]) -> bool:
        assert self._service is not None
        return set(steps).issubset(step.id for step in self._service.steps())

    def _depending(self, steps: Sequence[int]) -> list[Sequence[int]]:
        """The undone steps as a group, if each of them depends on all the others, so that they were one change."""
        if self._service is None or len(steps) < 2 or not self._can_redo(steps):
            return []
        is_one = all(set(self._service.connected(step)) == set(steps) for step in steps)
        return _groups(steps) if is_one else []

    def _take_back(self, newest: StepInfo) -> RestoreResult:
        """Undo a step, and the steps without which it cannot be undone."""
        assert self._service is not None
        steps = find_steps(self._service, self._service.connected(newest.id))
        done = reverse_steps(self._context, self._service, steps, force=self._force, progress=self._progress)
        return done._replace(together=_groups(done.steps))

    def _root(self, state: HistoryEvent) -> Hash:
        return self._context.catalog.checkpoint(state.checkpoint).root

    def _targets_back(
        self, now: HistoryEvent, root: Hash, count: int | None, *, hidden: int = 0
    ) -> Generator[tuple[_Target, list[int]]]:
        """The targets of an undo of ``count`` changes (None: all above the floor) from ``now``, in order, each with its
        steps; nothing is undone. Raises as `_next`; the error for too few changes gives their number, without
        ``hidden``.
        """
        done: list[int] = []
        for found in count_from() if count is None else range(count):
            try:
                target = self._next(now, root, 1, done)
            except NotFoundError as error:
                if error.code == "nothing_to_undo":
                    raise nothing_error("undo", self.rescue, available=found - hidden) from None
                raise
            if target is None:
                if not found:
                    raise self._nothing_since()
                return
            steps: list[int] = []
            if target.back:
                now, root = target.state, self._root(target.state)
            else:
                assert self._service is not None
                steps = [step for step in self._service.connected(target.steps[0].id) if step not in done]
                done += steps
            yield target, steps

    def _next(self, now: HistoryEvent, root: Hash, most: int | None, done: Sequence[int] = ()) -> _Target | None:
        """Where to go from ``now``: to a state where a step must be reversed, or ``most`` changes back, or as many as
        there are (None: to the floor). None where that is at the floor already.
        """
        state, back = now, 0
        floor = self._floor
        while True:
            since = None if floor is None else floor.prompt
            steps = [step for step in steps_since(self._context, self._service, state, since) if step.id not in done]
            if steps:
                return _Target(state, back, steps)
            if floor is not None and state.seq == floor.state.seq:
                return _Target(state, back, ()) if back else None
            leaving, left = state, [state]
            while True:
                if floor is not None and (state.previous or 0) < floor.state.seq:
                    # Steps that began before the floor's state leave a state whose predecessor is older than that.
                    state = floor.state
                elif state.previous is None:
                    if back:
                        return _Target(leaving, back, ())  # a request for more changes fails in the next call
                    self._running.refuse_all()
                    raise nothing_error("undo", self.rescue)
                else:
                    state = self._context.catalog.event(state.previous)
                if not self._force:
                    refuse_set_aside_state(self._context, state)
                checkpoint = kept_checkpoint(self._context, state)
                if checkpoint is not None:
                    break
                left.append(state)
            if checkpoint.root != root:
                if self._running:
                    changes = manifest.diff(self._pages, checkpoint.root, root)
                    if not self._running.rest(changes):
                        # Running steps made all of it: it stays, and does not block older changes.
                        self._running.refuse_edited(changes, state)
                        root = checkpoint.root
                        continue
                if done and self._is_by_steps(state, leaving, checkpoint.root, root, done):
                    root = checkpoint.root
                    continue
                self._running.refuse_older(leaving)
                late = steps_that_wrote_late(
                    self._service, self._pages, checkpoint.root, root, (*done, *self._running.ids)
                )
                if since is not None:
                    # Steps that had ended before the prompt stay, but their writes since then are undone.
                    late = [step for step in late if not has_ended(step, since)]
                between = StateChange(state, checkpoint.root, root, self._pages)
                is_ours = (
                    bool(late)
                    and not self._force
                    and is_only_late_writes(self._context, require_service(self._service), late[0], between, done)
                )
                if late and not is_ours:
                    return _Target(leaving, back, late)
                if not self._force and self._context.settings.undo.outside != "warn":
                    refuse_mixed_writes(self._service, between, done)
                if self._recorded_only and not is_ours and not all(one.operation in _OWN for one in left):
                    self._refuse_others(checkpoint.root, root, done)
                root, back = checkpoint.root, back + 1
            if back == most:
                return _Target(state, back, ())

    def _is_by_steps(
        self, earlier: HistoryEvent, later: HistoryEvent, before: Hash, after: Hash, steps: Sequence[int]
    ) -> bool:
        """Whether the steps made all differences between two states, so that undoing the steps removes them. Judged by
        paths, so False where others are known to have edited one. Steps that began after ``later`` made none of them.
        """
        if self._service is not None and later.undo_seq is not None:
            began = {step.id for step in self._service.steps() if step.begun > later.undo_seq}
            steps = [step for step in steps if step not in began]
        by_steps = touched_paths(self._service, steps)
        changes = manifest.diff(self._pages, before, after)
        if any(by_steps.isdisjoint((change.path, *parents(change.path))) for change in changes):
            return False
        edits = () if self._service is None else self._service.barriers()
        edited = {path for edit in edits if edit.id > (earlier.undo_seq or 0) for path in edit.paths}
        return b"" not in edited and edited.isdisjoint(change.path for change in changes)

    def _refuse_others(self, before: Hash, after: Hash, done: Sequence[int]) -> None:
        """Raise `RefusedError` if others made differences between two states: those that no step in the undo log made.
        ``done``: steps that are assumed to be undone already.
        """
        changes = self._running.rest(manifest.diff(self._pages, before, after))
        if done and self._service is not None:
            by_steps = {change.path for step in done for change in self._service.changes(step)}
            changes = [change for change in changes if change.path not in by_steps]
        if changes and not only_ignored_files(self._context, changes):
            raise _foreign_edits_error([change.path for change in changes])

    def _bring_forward(self, target: HistoryEvent) -> RestoreResult | None:
        """Redo by the undo log; None if it does not hold the steps any more."""
        try:
            if self._service is not None:
                steps = self.current_state().steps
                return reapply_steps(
                    self._context, self._service, steps, target.seq, force=self._force, progress=self._progress
                )
        except NotFoundError:
            if not self._force:
                refuse_set_aside_redo(self._context, self.current_state())
        _LOG.warning("the undo log no longer holds the steps: checkpoints bring their files back, but no ignored files")
        return None

    def _go(
        self, operation: Literal["undo", "redo"], now: HistoryEvent, state: HistoryEvent, target: Checkpoint
    ) -> RestoreResult:
        context = self._context
        paths: tuple[bytes, ...] = ()
        if self._running:
            changes = manifest.diff(context.store.pages, self._root(now), target.root)
            rest = self._running.rest(changes)
            if changes and not rest:
                return self._move_only(operation, now, state, target)
            # Paths of a restore include everything below them.
            self._running.refuse_in_place(changes)
            if len(rest) < len(changes):
                paths = tuple(change.path for change in rest)
        going = new_operation(context, operation, target.id, rescue=now.checkpoint, state=state.seq, paths=paths)
        return carry_out(context, going, context.catalog.checkpoint(now.checkpoint), target, self._progress)

    def _move_only(
        self, operation: Literal["undo", "redo"], now: HistoryEvent, state: HistoryEvent, target: Checkpoint
    ) -> RestoreResult:
        """Go to a state that differs only in what steps hold, which stays as it is."""
        record_end(self._context, new_operation(self._context, operation, target.id, state=state.seq))
        return RestoreResult(target.id, now.checkpoint, [], [], [], dry_run=False, undo_command=None)


def merge_results(done: Sequence[RestoreResult]) -> RestoreResult:
    """The combined result of several moves in sequence."""
    last = done[-1]
    if len(done) == 1:
        return last
    effect = combine_effects(Effect([*one.written], [*one.deleted], one.letters, one.foreseen) for one in done)
    return last._replace(
        rescue=done[0].rescue,
        written=effect.written,
        deleted=effect.deleted,
        letters=effect.letters,
        foreseen=effect.foreseen,
        skipped=[item for result in done for item in result.skipped],
        steps=[step for result in done for step in result.steps],
        together=[group for result in done for group in result.together],
        refused=[step for result in done for step in result.refused],
    )


def _in_turn(commands: Iterable[str]) -> str:
    """One command line for several; what undoes one change, several times over, with their number."""
    said: list[str] = []
    for command, same in groupby(commands):
        number = len(list(same))
        said.append(command if number == 1 else f"{command} {number}")
    return " && ".join(said)


def _leaves_changes(move: RestoreResult) -> bool:
    """Whether a move by checkpoints skipped paths: they are unsaved changes then, and stop further moves."""
    return bool(move.skipped) and not move.steps


def _way_back(done: Sequence[RestoreResult], reverse: str) -> str | None:
    """The command that reverses all of ``done`` when the tree is at no state of the history: ``reverse`` is the command
    for steps.
    """
    said: list[str] = []
    for by_steps, moves in groupby(done, lambda move: bool(move.steps)):
        changed = [move for move in moves if move.undo_command]
        if changed and by_steps:
            said.append(reverse + step_options(sorted(step for move in changed for step in move.steps)))
        elif changed and changed[0].rescue is not None:
            said.append(f"holdfast restore {changed[0].rescue[:12]}")
    return " && ".join(reversed(said)) or None


def _groups(steps: Sequence[int]) -> list[Sequence[int]]:
    return [tuple(sorted(steps))] if len(steps) > 1 else []


def _foreign_edits_error(paths: Sequence[bytes]) -> RefusedError:
    shown = [display(path) for path in paths[:_SHOWN]]
    return RefusedError(
        "another process has changed "
        f"{', '.join(shown)}{', …' if len(paths) > _SHOWN else ''}; undo would take that back",
        code="barrier",
        data={"paths": [display(path) for path in paths[:_MAX_PATHS]]},
    )

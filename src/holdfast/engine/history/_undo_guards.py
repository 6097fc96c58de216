"""The limits of undo and redo: states ahead, open steps, others' changes (`undo.outside`), a log of another version."""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.engine.history.status import ignored_paths, scan_tree
from holdfast.engine.opening.undo_log import has_ended, log_directory
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.message_text import named_processes, named_steps, plural, process_details
from holdfast.model.paths import display, parents
from holdfast.model.timeline import prompt_of
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint, HistoryEvent
    from holdfast.model.entries import Change, Entry
    from holdfast.model.ids import Hash
    from holdfast.store.catalog_records import Cursor
    from holdfast.store.manifests.manifest import PageSource
    from holdfast.undo.service import ConflictInfo, StepInfo, UndoService, UnfinishedStep

_LOG = Log(__name__)

_SHOWN = 5
_MAX_HELD_PATHS_SHOWN = 3
_MAX_PATHS = 100
_MOST_EVENTS = 1 << 62
"""No event has such a number; a larger one no database takes."""


def reverse_past_edits(
    context: Context, service: UndoService, steps: Sequence[int], change: Callable[..., object], *, force: bool
) -> None:
    """Have ``change(steps, force=…)`` done by the undo log, past what others have changed if that is only to be listed:
    then it is, with where it is kept. Raises what the log raises.
    """
    try:
        change(steps, force=force)
    except RefusedError as error:
        # Other obstacles were refused before this one.
        from holdfast.engine.history.outside_policy import warn_of_overwriting, where_kept

        kept = where_kept(context, service, steps, error, forward=change == service.redo)
        change(steps, force=True)
        warn_of_overwriting(error, f"was overwritten, as undo.outside is warn; {kept}")


def check_reversal(
    context: Context, service: UndoService, steps: Sequence[int], *, forward: bool = False, force: bool = False
) -> Sequence[ConflictInfo]:
    """`UndoService.foresee`, by the policy."""
    try:
        return service.foresee(steps, forward=forward, force=force)
    except RefusedError as error:
        from holdfast.engine.history.outside_policy import warn_of_overwriting, where_kept

        kept = where_kept(context, service, steps, error, forward=forward)
        warn_of_overwriting(error, f"would be overwritten, as undo.outside is warn; {kept}")
        return service.foresee(steps, forward=forward, force=True)


class RunningSteps:
    """Files of steps that are still running, such as a server left over from a run: undo and redo by checkpoints do not
    change them.
    """

    def __init__(self, service: UndoService | None, *, force: bool = False) -> None:
        """With ``force`` nothing is held."""
        self._service = service
        self._steps: Sequence[UnfinishedStep] = () if service is None or force else service.going_on()
        self.paths = frozenset(path for step in self._steps for path in step.paths)
        self.ids = frozenset(step.step for step in self._steps)

    def __bool__(self) -> bool:
        return bool(self._steps)

    def rest(self, changes: Sequence[Change]) -> list[Change]:
        """The changes of paths that no running step has."""
        return [change for change in changes if change.path not in self.paths]

    def refuse_older(self, leaving: HistoryEvent) -> None:
        """Raise `RefusedError` if a running step began after a state: its change is newer than that state's and cannot
        be undone.
        """
        seq = leaving.undo_seq
        self._refuse([] if seq is None else [step for step in self._steps if step.begun > seq])

    def warn_since(self, prompt: HistoryEvent) -> None:
        """Warn of running steps that began after a prompt: an undo to the prompt leaves their files."""
        seq = prompt.undo_seq
        steps = [] if seq is None else [step for step in self._steps if step.begun > seq and step.paths]
        for step in steps:
            shown = ", ".join(display(path) for path in step.paths[:_MAX_HELD_PATHS_SHOWN])
            _LOG.warning(
                "step %d is still running, and its changes stay: %s%s; when it has ended, "
                "`holdfast undo --to prompt:%d` takes them back",
                step.step,
                shown,
                ", …" if len(step.paths) > _MAX_HELD_PATHS_SHOWN else "",
                prompt.seq,
            )

    def refuse_edited(self, changes: Sequence[Change], since: HistoryEvent) -> None:
        """Raise `RefusedError` if others are known to have changed files of a running step since a state: neither
        change can be undone without the other, nor skipped.
        """
        if self._service is None:
            return
        edits = [barrier for barrier in self._service.barriers() if barrier.id > (since.undo_seq or 0)]
        edited = {path for barrier in edits for path in barrier.paths}.intersection(one.path for one in changes)
        steps = [step for step in self._steps if not edited.isdisjoint(step.paths)]
        if steps:
            found = step_open_error(self._service, steps)
            raise RefusedError(
                "another process has changed "
                f"{', '.join(map(display, sorted(edited)[:_MAX_HELD_PATHS_SHOWN]))} "
                f"too; {found.message}",
                hint=found.hint,
                code="barrier",
                data=found.data,
            )

    def refuse_in_place(self, changes: Sequence[Change]) -> None:
        """Raise `RefusedError` if one of the `rest` of ``changes`` would replace files of a running step: a file in the
        place of their parent directory, or a directory in the place of one of the files.
        """
        rest = {change.path: change for change in self.rest(changes)}
        holders = {path: step for step in self._steps for path in step.paths}
        in_place = {above: step for path, step in holders.items() for above in parents(path) if above in rest}
        # A directory of a running step may still get new files.
        files = {change.path for change in changes if change.path in holders and change.before is not None}
        made = [path for path, change in rest.items() if change.before is None]
        in_place |= {path: holders[above] for path in made for above in parents(path) if above in files}
        if in_place and self._service is not None:
            found = step_open_error(self._service, [*in_place.values()])
            shown = ", ".join(map(display, sorted(in_place)[:_MAX_HELD_PATHS_SHOWN]))
            raise RefusedError(
                f"{shown}{', …' if len(in_place) > _MAX_HELD_PATHS_SHOWN else ''} would "
                f"replace files of a step; {found.message}",
                hint=found.hint,
                code=found.code,
                data=found.data,
            )

    def refuse_all(self) -> None:
        """Raise `RefusedError` if any step is going on."""
        self._refuse(self._steps)

    def _refuse(self, steps: Sequence[UnfinishedStep]) -> None:
        if steps and self._service is not None:
            raise step_open_error(self._service, steps)


def step_open_error(service: UndoService, steps: Sequence[UnfinishedStep]) -> RefusedError:
    """The error that says which step is going on, by which processes."""
    step = max(steps, key=lambda one: one.begun)
    found = service.processes(step.run) if step.run else ()
    found = [one for one in found if one.step == step.step] or found
    paths = ", ".join(display(path) for path in step.paths[:_MAX_HELD_PATHS_SHOWN]) + (
        ", …" if len(step.paths) > _MAX_HELD_PATHS_SHOWN else ""
    )
    by = f": {named_processes(found)} may change {paths} at any time" if found else f", and has changed {paths}"
    stop = f"`holdfast undo --run {step.run} --stop` ends it, and takes back all of its run; " if found else ""
    return RefusedError(
        f"step {step.step} is still running{by}",
        hint=f"{stop}wait until it ends (background writes: until some seconds of "
        "quiet); --force takes it back by checkpoints",
        code="step_open",
        data={"step": step.step, "run": step.run, "processes": process_details(found)},
    )


def with_processes(service: UndoService, error: RefusedError) -> RefusedError:
    """The error with the processes that cause it, if a step is still running or a file is still written to."""
    if error.code not in ("step_open", "still_written") or "processes" in (error.data or {}):
        return error
    runs = sorted({step.run for step in service.going_on() if step.run})
    found = [process for run in runs for process in service.processes(run)]
    if not found:
        return error
    stop = f"`holdfast undo --run {runs[0]} --stop` ends {'it' if len(found) == 1 else 'them'}"
    return RefusedError(
        f"{error.message}: {named_processes(found)}",
        hint=f"{error.hint}; {stop}" if error.hint else stop,
        code=error.code,
        data={**(error.data or {}), "processes": process_details(found)},
    )


@contextmanager
def naming_processes(service: UndoService | None) -> Generator[None]:
    """Within the block a `RefusedError` names the processes that cause it, as `with_processes` does."""
    try:
        yield
    except RefusedError as error:
        raise error if service is None else with_processes(service, error) from None


# The states of a workspace's history: which lie ahead, which are kept, and where nothing more is.


def redo_chain(context: Context, position: int, tip: int) -> list[HistoryEvent]:
    """The states from just after ``position`` on the way to ``tip``, the next first, that are still kept."""
    path: list[HistoryEvent] = []
    while (onward := _replacements(context, position, tip)) is None:
        undone_from = context.catalog.event(position).ahead
        if undone_from is None:
            return []
        path.append(context.catalog.event(undone_from))
        position = undone_from
    return [event for event in (*path, *onward) if kept_checkpoint(context, event) is not None]


def _replacements(context: Context, position: int, tip: int) -> list[HistoryEvent] | None:
    """The states after ``position`` up to ``tip``, each of which replaced the one before; None if they do not."""
    path: list[HistoryEvent] = []
    seq: int | None = tip
    while seq is not None and seq > position:  # an event replaces an older one, so older events cannot lead there
        event = context.catalog.event(seq)
        path.append(event)
        seq = event.previous
    return path[::-1] if seq == position else None


def only_unignored_files(context: Context, cursor: Cursor) -> bool:
    """True if all that is unsaved are files that a state which was undone ignores: the undo took its rules away, and
    others have changed nothing.
    """
    if cursor.position is None or cursor.redo_tip is None or cursor.position == cursor.redo_tip:
        return False
    changes = scan_tree(context, gone_is_empty=True).changes()
    left = {change.path for change in changes}
    if not changes or any(change.before is not None for change in changes):
        return False
    for state in redo_chain(context, cursor.position, cursor.redo_tip):
        left -= ignored_paths(context, context.catalog.checkpoint(state.checkpoint).root, left)
        if not left:
            return True
    return False


def only_ignored_files(context: Context, changes: Sequence[Change]) -> bool:
    """True if all seemingly deleted files exist: the rules on the disk, which no state holds, leave it out."""
    return all(change.after is None for change in changes) and all(
        context.tree.is_there(change.path) for change in changes
    )


def kept_checkpoint(context: Context, state: HistoryEvent) -> Checkpoint | None:
    """The checkpoint of a state, or None if it was forgotten since."""
    try:
        return context.catalog.checkpoint(state.checkpoint)
    except NotFoundError:
        return None


def check_count(count: int) -> None:
    if count < 1:
        raise UsageError(f"cannot go {count} states; give a number from 1")


def nothing_error(verb: str, saved: Checkpoint | None = None, *, available: int = 0) -> NotFoundError:
    """The error; ``saved`` is the checkpoint that was made just before, if one was, and ``available`` how many changes
    there are, which are not enough.
    """
    known = "" if saved is None else f"checkpoint {saved.id[:12]} now holds the unsaved changes; "
    number = f" {available}" if available > 1 else ""
    few = f"`holdfast {verb}{number}` goes as far as there is; " if available else ""
    return NotFoundError(
        f"there {'is' if available == 1 else 'are'} only {plural(available, 'change')} to {verb}"
        if available
        else f"there is nothing to {verb}",
        hint=f"{known}{few}`holdfast log` lists the states",
        code=f"nothing_to_{verb}",
        data={"available": available},
    )


def nothing_since_error(prompt: HistoryEvent, saved: Checkpoint | None) -> NotFoundError:
    """The error that nothing has changed since a prompt; ``saved`` as in `nothing_error`."""
    error = nothing_error("undo", saved)
    return NotFoundError(
        f"nothing has changed since prompt {prompt.seq}", hint=error.hint, code=error.code, data=error.data
    )


# Steps in a set-aside undo log of another version: undo and redo do not go past them without force.


def refuse_set_aside_steps(context: Context, service: UndoService | None, steps: Collection[int]) -> None:
    """Raise `VersionMismatchError` if the undo log lacks one of ``steps``, and a log was set aside that may hold it."""
    if service is None or _last_set_aside(context) is None:
        return
    if missing := set(steps).difference(step.id for step in service.steps()):
        raise _set_aside_error(f"the undo log does not hold step {min(missing)}")


def refuse_set_aside_run(context: Context, events: Sequence[HistoryEvent]) -> None:
    """Raise `VersionMismatchError` if steps of a run are in a log that was set aside. ``events``: its, newest first."""
    if is_set_aside_run(context, events):
        run, first = events[-1].run, events[-1]
        way = (
            f"; `holdfast restore {first.checkpoint[:12]}` is one"
            if kept_checkpoint(context, first) is not None
            else ""
        )
        raise _set_aside_error(f"the undo log does not hold the run {run}", way)


def is_set_aside_run(context: Context, events: Sequence[HistoryEvent]) -> bool:
    """Whether a run, of which the history has ``events``, newest first, began before a log was set aside."""
    return bool(events) and (last := _last_set_aside(context)) is not None and (events[-1].undo_seq or 0) <= last


def refuse_set_aside_redo(context: Context, undone: HistoryEvent) -> None:
    """Raise `VersionMismatchError` if the steps that ``undone`` has reversed are in a log that was set aside."""
    last = _last_set_aside(context)
    if last is not None and (undone.undo_seq or 0) <= last:
        raise _set_aside_error("the undo log does not hold the steps that were undone")


def refuse_set_aside_state(context: Context, state: HistoryEvent) -> None:
    """Raise `VersionMismatchError` if the way back to ``state`` passes steps in a set-aside log: only checkpoints could
    undo them, and they leave ignored files unchanged.
    """
    if is_before_set_aside(context, state):
        raise _set_aside_error(
            "undo reaches states older than the undo log", f"; `holdfast restore {state.checkpoint[:12]}` would lead on"
        )


def is_before_set_aside(context: Context, state: HistoryEvent) -> bool:
    """Whether steps that are in a log which was set aside may have ended after ``state``."""
    last = _last_set_aside(context)
    return last is not None and (state.undo_seq or 0) < last


def _last_set_aside(context: Context) -> int | None:
    from holdfast.undo.journal.log_ownership import last_of_others

    return last_of_others(log_directory(context))


def _set_aside_error(what: str, way: str = "") -> Exception:
    from holdfast.undo.journal.log_ownership import VersionMismatchError

    return VersionMismatchError(
        f"{what}, and an undo log of another version of Holdfast was set aside: only that version can undo its steps",
        hint=f"checkpoints lead back, except for ignored files: `holdfast restore CHECKPOINT`{way}. "
        "`holdfast steps --discard` forgets all steps",
    )


# Which steps of the undo log the changes belong to that lie between two states of the history.


def steps_since(
    context: Context, service: UndoService | None, state: HistoryEvent, since: HistoryEvent | None = None
) -> list[StepInfo]:
    """The finished steps of a state, without those of its predecessor, newest first. Steps that had ended by the event
    ``since`` are left out.
    """
    if service is None:
        return []
    before = None if state.previous is None else context.catalog.event(state.previous)
    events = [event for event in (before, since) if event is not None]
    brought = state.steps if state.operation == "redo" and (since is None or state.seq > since.seq) else ()
    found = [
        step
        for step in service.steps()
        if step.state == "done"
        and step.paths
        and (step.id in brought or not any(has_ended(step, event) for event in events))
    ]
    return sorted(found, key=lambda step: step.acted, reverse=True)


class Floor(NamedTuple):
    """How far an undo goes back at most: to where a prompt came in."""

    prompt: HistoryEvent
    state: HistoryEvent
    """The state that the tree was in."""


def floor_at(context: Context, service: UndoService | None, prompt: int) -> Floor:
    """The floor at the prompt with this number. Raises `NotFoundError` if there is none, or its checkpoint is not kept;
    `RefusedError` (``undone_before``) if the tree has been undone past it since.
    """
    some = context.catalog.events(context.workspace.id, before=prompt + 1, limit=1) if 0 < prompt < _MOST_EVENTS else []
    event = next(iter(some), None)
    if event is None or event.seq != prompt or not is_prompt(context, event):
        raise NotFoundError(f"there is no prompt {prompt}", hint="`holdfast log` lists them")
    state = event if event.ahead is None else context.catalog.event(event.ahead)
    named = f"the state from before prompt {prompt}"
    if kept_checkpoint(context, state) is None:
        raise NotFoundError(f"{named} was forgotten", hint="`holdfast log` lists the states")
    if not _stands_on(context, service, state, event):
        raise RefusedError(
            f"{named} has been undone since",
            hint="`holdfast redo` leads to it if it is ahead; `holdfast restore "
            f"{state.checkpoint[:12]}` goes there in any case",
            code="undone_before",
        )
    return Floor(event, state)


def _stands_on(context: Context, service: UndoService | None, state: HistoryEvent, prompt: HistoryEvent) -> bool:
    """Whether the tree's state follows from ``state``, which the prompt found."""
    steps = {step.id: step for step in service.steps()} if service is not None else {}
    at = context.catalog.cursor(context.workspace.id).position
    while at is not None and at > state.seq:
        event = context.catalog.event(at)
        known = [steps[step] for step in event.steps if step in steps]
        if event.operation == "undo" and event.ahead is not None and known:
            # This undo continues from the state that it undid, without these steps.
            if any(has_ended(step, prompt) for step in known):
                return False
            at = event.ahead
        else:
            at = event.previous
    return at == state.seq


def is_prompt(context: Context, event: HistoryEvent) -> bool:
    """Whether a prompt came in then; earlier versions noted it by the message of the checkpoint alone."""
    if event.operation != "checkpoint":
        return event.operation == "prompt"
    made = kept_checkpoint(context, event)
    return made is not None and made.created_at == event.at and prompt_of(made.provenance.message) is not None


def steps_that_wrote_late(
    service: UndoService | None, pages: PageSource, before: Hash, after: Hash, done: Collection[int] = ()
) -> list[StepInfo]:
    """Finished steps whose late writes are part of the difference between two states: a process that had a file of
    theirs open wrote to it after the step's end. Newest first; without those in ``done``.
    """
    late = [] if service is None else [one for one in service.written_late() if one[0] not in done]
    if service is None or not late:
        return []
    paths = sorted({path for _, path in late})
    was, now = manifest.get_many(pages, before, paths), manifest.get_many(pages, after, paths)
    chosen = {step for step, path in late if was.get(path) != now.get(path)}
    found = [step for step in service.steps() if step.id in chosen and step.state == "done"]
    return sorted(found, key=lambda step: step.acted, reverse=True)


class StateChange(NamedTuple):
    """Two states, one of which leads to the other."""

    state: HistoryEvent
    """The earlier one."""
    before: Hash
    after: Hash
    pages: PageSource


def is_only_late_writes(
    context: Context, service: UndoService, late: StepInfo, between: StateChange, done: Sequence[int] = ()
) -> bool:
    """Whether a step's late writes are undone alone, as the newest change: the step itself must wait for later changes,
    and the two states differ only by late writes and by files that Holdfast restored.
    """
    try:
        service.foresee([*done, *(one for one in service.connected(late.id) if one not in done)])
    except RefusedError as error:
        if error.code != "barrier":
            return False
    else:
        return False
    written = {path for _, path in service.written_late()}
    changes = manifest.diff(between.pages, between.before, between.after)
    others: dict[bytes, Entry | None] = {one.path: one.after for one in changes if one.path not in written}
    if others:
        others = {path: others[path] for path in others.keys() - service.still_brought(sorted(others))}
    if not others:
        return True
    for event in context.catalog.events(context.workspace.id):
        if event.seq <= between.state.seq:
            break
        if event.operation == "restore" and (target := kept_checkpoint(context, event)) is not None:
            held = manifest.get_many(between.pages, target.root, sorted(others))
            others = {path: entry for path, entry in others.items() if held.get(path) != entry}
    return not others


def refuse_mixed_writes(service: UndoService | None, between: StateChange, done: Collection[int] = ()) -> None:
    """Raise `RefusedError` where others have edited what a step's processes may have written to since the earlier
    state: its checkpoint would take back both (I8).
    """
    at, seq = between.state.at * 1000, between.state.undo_seq
    mixed = [] if service is None else [one for one in service.mixed_since(at, seq) if one[0] not in done]
    if not mixed:
        return
    paths = sorted({path for _, path in mixed})
    old = manifest.get_many(between.pages, between.before, paths)
    new = manifest.get_many(between.pages, between.after, paths)
    lost = [path for path in paths if old.get(path) != new.get(path)]
    if lost:
        steps = named_steps(step for step, path in mixed if path in lost)
        shown = [display(path) for path in lost]
        raise RefusedError(
            f"processes of {steps} may have written to "
            f"{', '.join(shown[:_SHOWN])}{', …' if len(shown) > _SHOWN else ''}, and other "
            "processes have too: undo cannot separate the two",
            hint="--force takes back both; redo brings them forward",
            code="barrier",
            data={"paths": shown[:_MAX_PATHS]},
        )

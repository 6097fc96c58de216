"""Which steps of the undo log the changes belong to that lie between two states of the history."""

from __future__ import annotations

from holdfast.engine.history.states import kept
from holdfast.engine.opening.undo_log import has_ended
from holdfast.model.errors import RefusedError
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.model.typed import TYPE_CHECKING
from holdfast.model.wording import named_steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.manifest import Pages
    from holdfast.store.records import HistoryEvent
    from holdfast.undo.service import StepInfo, UndoService

_SHOWN = 5
_TOLD = 100


def steps_since(context: Context, service: UndoService | None, state: HistoryEvent) -> list[StepInfo]:
    """The steps that belong to a state and not to the one that it replaced, the newest first; finished ones."""
    if service is None:
        return []
    return [step for step in _since(context, service, state) if step.state == "done" and step.paths]


def _since(context: Context, service: UndoService, state: HistoryEvent) -> list[StepInfo]:
    before = None if state.previous is None else context.catalog.event(state.previous)
    brought = state.steps if state.operation == "redo" else ()
    found = [step for step in service.steps() if before is None or not has_ended(step, before) or step.id in brought]
    return sorted(found, key=lambda step: step.acted, reverse=True)


def steps_that_wrote_late(
    service: UndoService | None, pages: Pages, before: Hash, after: Hash, done: Collection[int] = ()
) -> list[StepInfo]:
    """The steps that ended earlier, and to which some of the changes belong all the same that make one state into the
    other: what had a file of theirs open has written to it after their ends, last of all. The newest first; without
    those of ``done``.
    """
    from holdfast.store import manifest

    late = [] if service is None else [one for one in service.written_late() if one[0] not in done]
    if service is None or not late:
        return []
    paths = sorted({path for _, path in late})
    was, now = manifest.get_many(pages, before, paths), manifest.get_many(pages, after, paths)
    chosen = {step for step, path in late if was.get(path) != now.get(path)}
    found = [step for step in service.steps() if step.id in chosen and step.state == "done"]
    return sorted(found, key=lambda step: step.acted, reverse=True)


class Between(NamedTuple):
    """Two states, one of which leads to the other."""

    state: HistoryEvent
    """The earlier one."""
    before: Hash
    after: Hash
    pages: Pages


def goes_by_itself(
    context: Context, service: UndoService, late: StepInfo, between: Between, done: Sequence[int] = ()
) -> bool:
    """Whether what a step has written late is taken back by itself, as the newest change: where the step has to wait
    for what came in between, and nothing was changed but by such writes and by what Holdfast has brought back.
    """
    from holdfast.store import manifest

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
        if event.operation == "restore" and (target := kept(context, event)) is not None:
            held = manifest.get_many(between.pages, target.root, sorted(others))
            others = {path: entry for path, entry in others.items() if held.get(path) != entry}
    return not others


def refuse_mixed(service: UndoService | None, between: Between, done: Collection[int] = ()) -> None:
    """Raise `RefusedError` where somebody has edited what a step's processes may have written to since the earlier
    state: its checkpoint would take back both (I8).
    """
    from holdfast.store import manifest

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
            f"what {steps} left running may have written to {', '.join(shown[:_SHOWN])}"
            f"{', …' if len(shown) > _SHOWN else ''}, and somebody else has changed that too: "
            "the one cannot be taken back without the other",
            hint="--force takes back both; redo brings them forward",
            code="barrier",
            data={"paths": shown[:_TOLD]},
        )

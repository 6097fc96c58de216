"""Which steps of the undo log the changes belong to that lie between two states of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.engine.context import Context
    from holdfast.model.ids import Hash
    from holdfast.store.manifest import Pages
    from holdfast.store.records import HistoryEvent
    from holdfast.undo.service import StepInfo, UndoService


def steps_since(context: Context, service: UndoService | None, state: HistoryEvent) -> list[StepInfo]:
    """The steps that belong to a state and not to the one that it replaced, the newest first; finished ones."""
    if service is None:
        return []
    return [step for step in _since(context, service, state) if step.state == "done" and step.paths]


def refuse_open(context: Context, service: UndoService | None, state: HistoryEvent) -> None:
    """Raise `RefusedError` if a step that is not at its end has changed the tree since the state before: what it did
    is no finished change, and must not be taken away from under it.
    """
    if service is None:
        return
    for step in _since(context, service, state):
        if step.state == "open" and step.paths:
            raise RefusedError(
                f"step {step.id} is still going on, and has changed the tree",
                hint="wait until it ends (what an agent writes by itself: some seconds of quiet); "
                "--force takes back what checkpoints hold of it",
                code="step_open",
            )


def _since(context: Context, service: UndoService, state: HistoryEvent) -> list[StepInfo]:
    since = 0 if state.previous is None else context.catalog.event(state.previous).at * 1000
    brought = state.steps if state.operation == "redo" else ()
    found = [step for step in service.steps() if step.ended_at is None or step.ended_at > since or step.id in brought]
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

"""Going through the ladder: each small change of a file to the first rung that can apply it anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.merging.reapply.check import refusal
from holdfast.engine.merging.reapply.port import Answer, Declined, Pending, Task
from holdfast.engine.merging.reapply.record import FileRecord, Tried
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.model.sinks import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.merging.classification import Overlap, Small
    from holdfast.engine.merging.reapply.port import Outcome, Rung
    from holdfast.engine.merging.stacked import MergePlan
    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Entry


class Ladder(NamedTuple):
    """The rungs that there are, the first one first."""

    rungs: Sequence[Rung]
    max_bytes: int
    """A larger file is for a person."""


class SettledFile(NamedTuple):
    """What came of one file."""

    record: FileRecord
    content: bytes | None
    """Its new content; None for no file, or if it is not ``answered``."""

    @property
    def answered(self) -> bool:
        """True if all of the fork's changes to it were applied."""
        return self.record.outcome == "reapplied"


def settle(context: Context, plan: MergePlan, one: Overlap, ladder: Ladder | None) -> SettledFile:
    """Apply what the fork has done to one file to what production has made of it, as far as the ladder leads.

    All of it as one change first, by the rungs that take that, up to the first that wants small ones. Then one small
    change after the other, each to the first rung that answers. Raises as reading content does.
    """

    def ended(outcome: Any, tried: Sequence[Tried], content: bytes | None = None) -> SettledFile:
        return SettledFile(FileRecord(one.path, one.why, one.version, outcome, tried), content)

    if ladder is None or not ladder.rungs:
        return ended("open", [])
    tried: list[Tried] = []
    if is_for_a_person(one, ladder):
        if any(rung.name == "person" for rung in ladder.rungs):
            tried.append(Tried("person", one.numbers, "pending", "waits for a person", one.version))
        return ended("open", tried)
    read = _reader(context)
    now = read(one.production)
    together = Task(one.path, one.why, now, read(one.base), read(one.fork), one.numbers, _about(plan, one))
    asked = 0
    for rung in ladder.rungs:
        if not rung.takes_all:
            break
        asked += 1
        found = _ask(rung, together, ladder, tried)
        if isinstance(found, Answer):
            return ended("reapplied", tried, found.content)
    # (A single change is the same as all of them: who was asked for that is not asked again.)
    rungs = ladder.rungs[asked:] if len(one.small) == 1 else ladder.rungs
    for small in one.small:
        task = together._replace(
            now=now,
            before=read(small.before),
            after=read(small.after),
            numbers=[small.number] if small.number else one.numbers,
        )
        if one.why == "content" and task.now in (task.before, task.after):
            now = task.after  # (Of a file that a side has deleted, content is not all that matters.)
            continue
        found = _first(rungs, task, ladder, tried)
        if not isinstance(found, Answer):
            return ended("pending" if isinstance(found, Pending) and found.id != task.version else "open", tried)
        now = found.content
    return ended("reapplied", tried, now)


def is_for_a_person(one: Overlap, ladder: Ladder) -> bool:
    """Whether nobody but a person can decide: it is no matter of content, or too much of it."""
    sizes = [side.size for side in (one.base, one.production, one.fork, *_states(one.small)) if side is not None]
    return not one.is_applicable or max(sizes) > ladder.max_bytes


def _first(rungs: Sequence[Rung], task: Task, ladder: Ladder, tried: list[Tried]) -> Outcome:
    """What the first rung says that does not decline."""
    found: Outcome = Declined("nobody is there to be asked")
    for rung in rungs:
        found = _ask(rung, task, ladder, tried)
        if not isinstance(found, Declined):
            break
    return found


def _ask(rung: Rung, task: Task, ladder: Ladder, tried: list[Tried]) -> Outcome:
    found = rung.apply(task)
    if isinstance(found, Declined):
        tried.append(Tried(rung.name, task.numbers, "declined", found.reason))
    elif isinstance(found, Pending):
        tried.append(Tried(rung.name, task.numbers, "pending", found.reason, found.id))
    elif (reason := refusal(task, found.content, ladder.max_bytes)) is not None:
        tried.append(Tried(rung.name, task.numbers, "refused", reason))
        return Declined(reason)
    else:
        tried.append(Tried(rung.name, task.numbers, "answered", found.said))
    return found


def _states(small: Sequence[Small]) -> list[Entry | None]:
    return [side for one in small for side in (one.before, one.after)]


def _reader(context: Context) -> Callable[[Entry | None], bytes | None]:
    def read(entry: Entry | None) -> bytes | None:
        return None if entry is None else whole(next(context.store.reader.fetch((entry,))))

    return read


def _about(plan: MergePlan, one: Overlap) -> dict[str, Any]:
    """What surrounds the change."""
    beside = {path for number in one.numbers for path, _ in plan.stacked.sets[number - 1]}
    return {
        "fork_checkpoint": plan.base,
        "production_checkpoint": plan.production,
        "promote_checkpoint": plan.fork,
        "changesets": plan.changesets,
        "beside": [display(path) for path in sorted(beside - {one.path, one.base_path})[:100]],
    }

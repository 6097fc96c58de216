"""Going through the ladder: each small change of a file to the first rung that can apply it anew."""

from __future__ import annotations

import os
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from holdfast.engine.merging.reapply._strategy import Declined, NewContent, Pending, ReapplyTask, refusal
from holdfast.model.content import whole
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.engine.merging.reapply._strategy import Rung, RungName, RungOutcome
    from holdfast.engine.merging.stacked_plan import MergePlan, Overlap, SmallChange
    from holdfast.engine.merging.three_way import ConflictKind, Decision, Prefer
    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Entry


_LOOK_SECONDS = 0.5

# The result for one overlapping file, with the work of each rung: kept with the merge.

Result = Literal["answered", "declined", "pending", "refused"]


class RungAttempt(NamedTuple):
    """The outcome of one rung for one change."""

    rung: RungName
    numbers: Sequence[int]
    """The changesets that the change is from."""
    result: Result
    """``refused``: it gave an answer that was not taken."""
    said: str
    """The reason or the method; may be empty."""
    id: str = ""
    """The id of a pending question."""


class FileRecord(NamedTuple):
    """The result for one file."""

    path: bytes
    why: ConflictKind
    version: str
    """As `Overlap.version`."""
    outcome: Literal["reapplied", "decided", "pending", "open"]
    """Applied anew by rungs; decided by a person; waiting for an agent; no rung could apply it."""
    tried: Sequence[RungAttempt]


def record_decision(one: Overlap, settled: Decision, before: Sequence[RungAttempt] = ()) -> FileRecord:
    """The record of a person's decision, after the rungs that were tried ``before``."""
    said = {"ours": "the version here", "theirs": "the fork's version", None: "a resolution"}[settled.prefer]
    tried = RungAttempt("person", one.numbers, "answered", said)
    return FileRecord(one.path, one.why, one.version, "decided", [*before, tried])


class PersonRung:
    """The rung of a person, who decides in a later merge: nothing can come of it at once."""

    name: RungName = "person"
    takes_all = False

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """See `Rung.apply`."""
        return Pending(task.version, "waits for a person")


class Ladder(NamedTuple):
    """The rungs that there are, the first one first."""

    rungs: Sequence[Rung]
    max_bytes: int
    """A larger file is for a person."""
    prefer: Prefer | None = None
    """The side that a person prefers for any file that no rung applies."""
    workers: LadderWorkers | None = None
    """None: no rung has to wait for an agent, and each file is done by itself."""


class LadderWorkers(NamedTuple):
    """Threads that go up a ladder with a file each. One of them works at a time; what lets others do is a rung that
    waits for an agent.
    """

    number: int
    turn: threading.Lock
    stop: threading.Event
    """Set to end what rungs wait for."""
    resources: ExitStack
    """To be closed when the ladder is of no more use: what rungs have written down for agents."""


class ReappliedFile(NamedTuple):
    """The result for one file."""

    record: FileRecord
    content: bytes | None
    """Its new content; None for no file, or if it is not ``answered``."""

    @property
    def answered(self) -> bool:
        """True if all of the fork's changes to it were applied."""
        return self.record.outcome == "reapplied"


def reapply(context: Context, plan: MergePlan, one: Overlap, ladder: Ladder | None) -> ReappliedFile:
    """Apply what the fork has done to one file to what production has made of it, as far as the ladder leads.

    All of it as one change first, by the rungs that take that, up to the first that wants small ones. Then one small
    change after the other, each to the first rung that answers. Raises as reading content does.
    """

    def ended(outcome: Any, tried: Sequence[RungAttempt], content: bytes | None = None) -> ReappliedFile:
        return ReappliedFile(FileRecord(one.path, one.why, one.version, outcome, tried), content)

    if ladder is None or not ladder.rungs:
        return ended("open", [])
    tried: list[RungAttempt] = []
    if needs_person(one, ladder):
        if any(rung.name == "person" for rung in ladder.rungs):
            tried.append(RungAttempt("person", one.numbers, "pending", "waits for a person", one.version))
        return ended("open", tried)
    read = _reader(context)
    now = read(one.production)
    together = ReapplyTask(one.path, one.why, now, read(one.base), read(one.fork), one.numbers, _about(plan, one))
    asked = 0
    for rung in ladder.rungs:
        if not rung.takes_all:
            break
        asked += 1
        found = _ask(rung, together, ladder, tried)
        if isinstance(found, NewContent):
            return ended("reapplied", tried, found.content)
    # For a single change the rungs above have been asked the same question already.
    rungs = ladder.rungs[asked:] if len(one.small) == 1 else ladder.rungs
    for small in one.small:
        task = together._replace(
            now=now,
            before=read(small.before),
            after=read(small.after),
            numbers=[small.number] if small.number else one.numbers,
        )
        if one.why == "content" and task.now in (task.before, task.after):
            now = task.after  # For a file that a side has deleted, more than content counts.
            continue
        found = _first(rungs, task, ladder, tried)
        if not isinstance(found, NewContent):
            return ended("pending" if isinstance(found, Pending) and found.id != task.version else "open", tried)
        now = found.content
    return ended("reapplied", tried, now)


def reapply_all(
    context: Context, plan: MergePlan, overlaps: Sequence[Overlap], ladder: Ladder | None
) -> list[ReappliedFile]:
    """`reapply` for each of ``overlaps``, in their order; those that wait for an agent run concurrently."""
    workers = None if ladder is None else ladder.workers
    if workers is None or len(overlaps) < 2:
        with nullcontext() if workers is None else workers.turn:
            return [reapply(context, plan, one, ladder) for one in overlaps]

    def work(one: Overlap) -> ReappliedFile:
        with workers.turn:
            return reapply(context, plan, one, ladder)

    pool = ThreadPoolExecutor(min(workers.number, len(overlaps)), "reapply")
    try:
        going = [pool.submit(work, one) for one in overlaps]
        # The timeout matters: an interrupt may go to another thread, and then nothing else wakes this one.
        while (found := wait(going, _LOOK_SECONDS, FIRST_EXCEPTION)).not_done:
            for one in found.done:
                one.result()
        return [one.result() for one in going]
    except BaseException:
        workers.stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def needs_person(one: Overlap, ladder: Ladder) -> bool:
    """Whether only a person can decide: it is no matter of content, or too much of it."""
    sizes = [side.size for side in (one.base, one.production, one.fork, *_states(one.small)) if side is not None]
    return not one.is_applicable or max(sizes) > ladder.max_bytes


def _first(rungs: Sequence[Rung], task: ReapplyTask, ladder: Ladder, tried: list[RungAttempt]) -> RungOutcome:
    """The outcome of the first rung that does not decline."""
    found: RungOutcome = Declined("no agent or person can be asked")
    for rung in rungs:
        found = _ask(rung, task, ladder, tried)
        if not isinstance(found, Declined):
            break
    return found


def _ask(rung: Rung, task: ReapplyTask, ladder: Ladder, tried: list[RungAttempt]) -> RungOutcome:
    found = rung.apply(task)
    if isinstance(found, Declined):
        tried.append(RungAttempt(rung.name, task.numbers, "declined", found.reason))
    elif isinstance(found, Pending):
        tried.append(RungAttempt(rung.name, task.numbers, "pending", found.reason, found.id))
    elif (reason := refusal(task, found.content, ladder.max_bytes)) is not None:
        tried.append(RungAttempt(rung.name, task.numbers, "refused", reason))
        return Declined(reason)
    else:
        tried.append(RungAttempt(rung.name, task.numbers, "answered", found.said))
    return found


def _states(small: Sequence[SmallChange]) -> list[Entry | None]:
    return [side for one in small for side in (one.before, one.after)]


def _reader(context: Context) -> Callable[[Entry | None], bytes | None]:
    def read(entry: Entry | None) -> bytes | None:
        return None if entry is None else whole(next(context.store.reader.fetch((entry,))))

    return read


def _about(plan: MergePlan, one: Overlap) -> dict[str, Any]:
    """The context of the change."""
    beside = {path for number in one.numbers for path, _ in plan.stacked.sets[number - 1]}
    return {
        "fork_checkpoint": plan.base,
        "production_checkpoint": plan.production,
        "promote_checkpoint": plan.fork,
        "changesets": plan.changesets,
        "beside": [display(path) for path in sorted(beside - {one.path, one.base_path})[:100]],
    }


# The ladder that the settings ask for.


def ladder_of(
    context: Context,
    names: Sequence[str] | None = None,
    *,
    prefer: Prefer | None = None,
    stop: threading.Event | None = None,
    environment: Mapping[bytes, bytes] | None = None,
) -> Ladder:
    """The ladder of ``merge.ladder``, or of ``names``; without a configured command that rung is left out. Setting
    ``stop`` ends a running command; it gets the ``environment`` (None: this process's).

    With ``prefer``, only the rungs that ask neither an agent nor a person: the preferred side decides the rest.
    """
    settings = context.settings.merge
    rungs: list[Rung] = []
    workers = LadderWorkers(settings.calls, threading.Lock(), stop or threading.Event(), ExitStack())
    for name in dict.fromkeys(settings.ladder if names is None else names):
        if prefer is not None and name not in _COMPUTED:
            continue
        rung = _rung(context, name, workers, environment)
        if rung is not None:
            rungs.append(rung)
    asks = any(rung.name == "command" for rung in rungs)
    return Ladder(rungs, settings.max_bytes, prefer, workers if asks else None)


def _rung(
    context: Context, name: str, workers: LadderWorkers, environment: Mapping[bytes, bytes] | None
) -> Rung | None:
    settings = context.settings.merge
    match name:
        case "command":
            if not settings.command:
                return None
            from holdfast.engine.merging.reapply._agent_command import AgentCommand, CommandRung

            if environment is not None:  # It has none of our variables, and `holdfast cat` needs this one.
                tenant = os.fsencode(context.settings.store.tenant)
                environment = {**environment, b"HOLDFAST_STORE_TENANT": tenant}
            command = AgentCommand(
                settings.command,
                home=context.home,
                timeout=settings.timeout,
                total_timeout=settings.total_timeout,
                max_bytes=settings.max_bytes,
                stop=workers.stop,
                environment=environment,
            )
            return CommandRung(context, command, turn=workers.turn, resources=workers.resources)
        case "queue":
            from holdfast.engine.merging.reapply.answer_queue import QueueRung

            return QueueRung(context.store, context.workspace.id, context.clock, settings)
        case "structure":
            from holdfast.engine.merging.reapply._structured_merge import StructureRung

            return StructureRung()
        case "text":
            from holdfast.engine.merging.reapply._text_merge import TextRung

            return TextRung()
        case _:
            return PersonRung()


_COMPUTED: frozenset[RungName] = frozenset(("structure", "text"))
"""The rungs that a dry run tries; the others are only predicted to be asked."""


class RungForecast(NamedTuple):
    """The expected outcome of one rung, if it received all of the file's changes."""

    rung: RungName
    result: Literal["applies", "declines", "asked"]
    said: str = ""
    """Why it declines."""


class FileForecast(NamedTuple):
    """The prediction for one file."""

    applies: bool
    """Whether all changes would be applied without an agent or a person."""
    rungs: Sequence[RungForecast]
    """In the ladder's order: the first would be tried or asked first."""


class _UnaskedRung:
    """Takes the place of a rung that would have to ask."""

    takes_all = False

    def __init__(self, name: RungName) -> None:
        self.name: RungName = name

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """See `Rung.apply`."""
        return Pending(task.version, "would be asked")


def foresee(context: Context, plan: MergePlan, one: Overlap, ladder: Ladder) -> FileForecast:
    """The prediction for one file on ``ladder``. Asks no agent and records nothing. Raises as reading content does."""
    if needs_person(one, ladder):
        return FileForecast(False, [RungForecast(rung.name, "asked") for rung in ladder.rungs if rung.name == "person"])
    silent = [_not_asked(rung) for rung in ladder.rungs]
    found: list[RungForecast] = []
    for rung in silent:
        if rung.name not in _COMPUTED:
            found.append(RungForecast(rung.name, "asked"))
            continue
        alone = reapply(context, plan, one, Ladder([rung], ladder.max_bytes))
        if alone.answered:
            found.append(RungForecast(rung.name, "applies"))
        else:
            found.append(RungForecast(rung.name, "declines", alone.record.tried[-1].said if alone.record.tried else ""))
    return FileForecast(reapply(context, plan, one, Ladder(silent, ladder.max_bytes)).answered, found)


def _not_asked(rung: Rung) -> Rung:
    if rung.name in _COMPUTED:
        return rung
    return _UnaskedRung(rung.name)

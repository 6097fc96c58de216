"""The timeline of any history, with a clock that goes anywhere: pages together are all of it, every item is there once,
filters find what a look at each item finds, and what came before what is told by numbers.
"""

from __future__ import annotations

import os
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from holdfast.engine.history.timeline import SessionCommands, timeline
from holdfast.engine.opening.opener import Opener
from holdfast.engine.running.run import begin_run, end_run
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import HoldfastError
from holdfast.model.session_types import CommandEntry
from holdfast.model.timeline import TimelineFilter
from holdfast.store.manifests import manifest
from holdfast.testing.clocks import ManualClock
from holdfast.testing.crash_points import without_syncs
from holdfast.testing.workspace_step import do_step

from ..sampling import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.timeline import TimelineItem, TimelineKind
    from holdfast.testing.tree_actor import InterceptedActor

PATHS = [b"a", b"b", b"d/e", b"d/f"]
AUTHORS = ["", "ada", "claude", "me"]
WORDS = ["", "Count", "prompt", "step"]
EVENTS: tuple[TimelineKind, ...] = ("checkpoint", "prompt", "restore", "undo", "redo", "fork", "run", "promote")

action = some.one_of(
    some.tuples(some.just("save"), some.sampled_from(PATHS), some.sampled_from(AUTHORS), some.sampled_from(WORDS)),
    some.tuples(some.just("noted"), some.sampled_from(PATHS), some.just("claude"), some.just("count the items")),
    some.tuples(some.just("prompt"), some.sampled_from(PATHS) | some.none(), some.just("claude")),
    some.tuples(some.just("step"), some.sampled_from(PATHS)),
    some.tuples(some.just("run"), some.sampled_from(PATHS)),
    some.tuples(some.just("command"), some.sampled_from(PATHS), some.sampled_from(["one", "two"])),
    some.tuples(some.just("look"), some.just(b""), some.sampled_from(["one", "two"])),
    some.tuples(some.just("restore"), some.integers(0, 9)),
    some.tuples(some.just("undo")),
    some.tuples(some.just("redo")),
)
filters = some.builds(
    TimelineFilter,
    path=some.sampled_from([b"", b"", b"d", *PATHS]),
    author=some.sampled_from(AUTHORS),
    kinds=some.sampled_from([(), (), ("step",), ("command", "undo"), ("prompt", "checkpoint"), ("run",)]),
    since=some.none() | some.integers(-50, 50),
    until=some.none() | some.integers(-50, 50),
    text=some.sampled_from(["", "", "COUNT", "do", "w"]),
)


class Life:
    """A workspace in which things happen, while the clock is set."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        (self.tree / "d").mkdir(parents=True)
        self.clock = ManualClock()
        opener = Opener(home=os.fsencode(base / "home"), clock=self.clock)
        self.workspace = Workspace(opener, opener.init(os.fsencode(self.tree))[0])
        self.context = self.workspace._context
        self.commands: dict[str, list[CommandEntry]] = {"one": [], "two": []}
        self._number = 0
        self.workspace.checkpoint("first")

    def do(self, what: str, *more: Any) -> None:
        try:
            getattr(self, f"_{what}")(*more)
        except HoldfastError:
            pass  # there was nothing to undo

    def _write(self, path: bytes) -> None:
        self._number += 1
        target = self.tree / os.fsdecode(path)
        target.parent.mkdir(exist_ok=True)
        target.write_text(str(self._number))

    def _save(self, path: bytes, author: str, word: str) -> None:
        self._write(path)
        self.workspace.checkpoint(word, author=author)

    def _prompt(self, path: bytes | None, author: str) -> None:
        if path is not None:
            self._write(path)
        self.workspace.prompt("count what is left", author=author)

    def _noted(self, path: bytes, author: str, prompt: str) -> None:
        """As earlier versions did it."""
        self._write(path)
        self.workspace.checkpoint(kind="auto", message=f"prompt: {prompt}", author=author)

    def _change(self, path: bytes) -> Callable[[InterceptedActor], object]:
        self._number += 1
        needed = [parent for parent in [os.path.dirname(path)] if not (self.tree / os.fsdecode(parent)).exists()]
        return lambda actor: (*map(actor.mkdir, needed), actor.write(path, b"%d" % self._number))

    def _step(self, path: bytes) -> None:
        do_step(self.context, self._change(path))

    def _run(self, path: bytes) -> None:
        run = begin_run(self.context, "do Count")
        do_step(self.context, self._change(path), run=run)
        end_run(self.context, run, "do Count")

    def _command(self, path: bytes, session: str) -> None:
        before, at = self.workspace.checkpoint().checkpoint.id, self.clock.now()
        self._write(path)
        self._note(session, before, self.workspace.checkpoint().checkpoint.id, at)

    def _look(self, _path: bytes, session: str) -> None:
        saved = self.workspace.checkpoint().checkpoint.id
        self._note(session, saved, saved, self.clock.now())

    def _note(self, session: str, before: Any, after: Any, at: int) -> None:
        number = len(self.commands[session]) + 1
        entry = CommandEntry(
            id=f"{number:016x}",
            seq=number,
            input="w",
            command=f"w {number}",
            generated=False,
            level="safe",
            started_at=at,
            before=before,
            after=after,
        )
        self.commands[session].append(entry)

    def _restore(self, which: int) -> None:
        saved = self.workspace.log().checkpoints
        self.workspace.restore(saved[which % len(saved)].id)

    def _undo(self) -> None:
        self.workspace.undo()

    def _redo(self) -> None:
        self.workspace.redo()

    @property
    def sessions(self) -> list[SessionCommands]:
        return [SessionCommands(name, "me", lambda ran=ran: iter(ran[::-1])) for name, ran in self.commands.items()]

    def pages(self, wanted: TimelineFilter, limit: int) -> list[TimelineItem]:
        found: list[TimelineItem] = []
        cursor = None
        while True:
            page = timeline(self.context, wanted, limit=limit, cursor=cursor, sessions=self.sessions)
            assert len(page.items) == limit or page.cursor is None
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    def holds(self, item: TimelineItem, wanted: TimelineFilter, before: dict[int, Any]) -> bool:
        """Whether a filter finds an item, by a look at it alone."""
        said = f"{item.label}\0{item.text}\0{item.command}".lower()
        return (
            (not wanted.kinds or item.kind in wanted.kinds)
            and (not wanted.author or item.author == wanted.author)
            and (wanted.since is None or item.at >= wanted.since)
            and (wanted.until is None or item.at <= wanted.until)
            and wanted.text.lower() in said
            and (not wanted.path or any(self._lies(path, wanted.path) for path in self._changed(item, before)))
        )

    def _changed(self, item: TimelineItem, before: dict[int, Any]) -> set[bytes]:
        """The paths that an item has to do with, from all that is known of it."""
        found = {change.path for step in item.steps for change in self.workspace.step(step)[1]}
        if item.kind in EVENTS:
            states = before.get(item.number), item.checkpoint
        elif item.kind == "command":
            entry = self.commands[item.session][item.number - 1]
            states = entry.before, entry.after
        else:
            return found
        held = [self._held(state) for state in states]
        return found | {path for path in {*held[0], *held[1]} if held[0].get(path) != held[1].get(path)}

    def _held(self, state: Any) -> dict[bytes, Any]:
        if state is None:
            return {}
        return dict(manifest.iterate(self.context.store.pages, self.context.catalog.checkpoint(state).root))

    @staticmethod
    def _lies(path: bytes, wanted: bytes) -> bool:
        return path == wanted or path.startswith(wanted + b"/") or wanted.startswith(path + b"/")


@given(
    some.lists(some.tuples(action, some.integers(-40, 40)), max_size=14),
    some.lists(some.tuples(filters, some.integers(1, 7)), min_size=3, max_size=6),
)
@settings(max_examples=examples(150, 20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_pages_and_filters(
    actions: list[tuple[tuple[Any, ...], int]], questions: list[tuple[TimelineFilter, int]]
) -> None:
    with TemporaryDirectory() as base, without_syncs():
        life = Life(Path(base))
        with closing(life.workspace):
            for did, seconds in actions:
                life.clock.advance(seconds)
                life.do(*did)
            everything = life.pages(TimelineFilter(), 1000)
            every_item_once(life, everything)
            ordered_by_numbers(life, everything)
            log = life.workspace.log().events
            before = {event.seq: earlier.checkpoint for event, earlier in pairwise(log)}
            now = everything[0].at
            for wanted, limit in questions:
                asked = wanted._replace(
                    since=None if wanted.since is None else now + wanted.since * 1_000_000,
                    until=None if wanted.until is None else now + wanted.until * 1_000_000,
                )
                expected = [item for item in everything if life.holds(item, asked, before)]
                assert life.pages(asked, limit) == expected


def every_item_once(life: Life, items: Sequence[TimelineItem]) -> None:
    found = [(item.kind if item.kind not in EVENTS else "event", item.session, item.number) for item in items]
    assert len(set(found)) == len(found)
    expected = {("event", "", event.seq) for event in life.workspace.log().events}
    expected |= {("step", "", step.id) for step in life.workspace.steps()}
    expected |= {("barrier", "", barrier.id) for barrier in life.workspace.barriers()}
    expected |= {("command", name, entry.seq) for name, ran in life.commands.items() for entry in ran}
    assert set(found) == expected


def ordered_by_numbers(life: Life, items: Sequence[TimelineItem]) -> None:
    """Each item comes before all that its numbers say to be earlier."""
    log = {event.seq: event for event in life.workspace.log().events}
    begun = {step.id: step.begun for step in life.workspace.steps()}
    sequence = [item.number for item in items if item.kind in EVENTS]
    assert sequence == sorted(log, reverse=True)
    numbers = [begun[item.number] for item in items if item.kind == "step"]
    assert numbers == sorted(numbers, reverse=True)
    for name in life.commands:
        ran = [item.number for item in items if item.session == name]
        assert ran == sorted(ran, reverse=True)
    after: list[int] = []
    for item in items:
        if item.kind in EVENTS:
            known = log[item.number].undo_seq
            assert known is not None
            assert all(number > known for number in after)
            assert all(begun[one.number] <= known for one in items[items.index(item) :] if one.kind == "step")
        elif item.kind == "step":
            after.append(begun[item.number])
    for at, item in enumerate(items):
        if item.kind != "command":
            continue
        entry = life.commands[item.session][item.number - 1]
        earlier = [one.checkpoint for one in items[at:] if one.kind in EVENTS]
        assert entry.before in earlier, "the state that it began in was there"
        if entry.after != entry.before:
            assert entry.after in [one.checkpoint for one in items[:at] if one.kind in EVENTS], (
                "what it did came after it"
            )

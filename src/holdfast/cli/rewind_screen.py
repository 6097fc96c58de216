"""The screen of `rewind`: the timeline, the changes of each row, and the confirmation of each act.

A workspace is for one thread, and its operations may be slow: it lives in a thread of its own (`_WorkspaceThread`), and
the screen stays responsive. Rows are read as far as a person scrolls. All text comes from functions that also print it,
and they escape terminal control characters. This module splits it at their colours and never reads it as markup.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeVar

from rich.ansi import AnsiDecoder
from rich.console import Console as RichConsole
from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import Container, Horizontal, Vertical
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

import holdfast
from holdfast import HoldfastError, NotFoundError
from holdfast.cli.colored_patch import for_terminal
from holdfast.cli.console import current_directory
from holdfast.cli.log_show import details_lines, filtered_rows, names_width, row_lines, row_pieces, teller
from holdfast.cli.phrases import short
from holdfast.cli.restore_undo_redo import FORWARD, result_lines
from holdfast.cli.steps_barriers_safeguard import step_lines
from holdfast.cli.terminal import fit, show_path
from holdfast.model.errors import unexpected
from holdfast.model.log import set_sender
from holdfast.model.message_text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from holdfast import RestoreResult, Workspace
    from holdfast.cli.console import Console
    from holdfast.model.content import Progress
    from holdfast.model.timeline import TimelineItem

T = TypeVar("T")

_ROWS_AT_ONCE = 200
_ROWS_AHEAD = 50
"""More rows are read when fewer than these are left below the visible ones."""
_MOST_LINES = 5000
"""Of what a row changed, and of what a dry run tells."""
_MOST_CHARACTERS = 2000
"""Of a line."""
_ALIGNED_BY = 50
"""As many of the newest rows tell how wide the column of names is."""
_REST = 0.05
"""Seconds that the cursor rests on a row before its details are read: it may only pass."""
_STYLES = RichConsole(force_terminal=True)
"""Knows what styles mean."""
_WIDE = 110
"""The number of columns from which the halves are side by side."""


def show(console: Console, arguments: Namespace) -> Sequence[Sequence[str]]:
    """Fill the screen until a person leaves it: what the changes to the tree that were made there have told, each a few
    lines. ``arguments`` has the filter of `add_filters`. Raises what opening the workspace raises.
    """
    warnings = _Warnings()
    # Warnings about its configuration were printed when `rewind` opened it before.
    where = console.directory or current_directory()
    with _WorkspaceThread(lambda: holdfast.open(where, home=console.home, lenient=True)) as thread:
        warnings.collect()
        try:
            app = Rewind(console, thread, arguments, warnings)
            app.run()
        finally:
            console.prepare_log()
    for text in warnings.lines:
        console.warn(text)
    return app.done


class _Cancelled(Exception):
    """A query is wanted no more."""


class _Warnings:
    """Collects log records while the screen is full: written to standard error they would garble it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def collect(self) -> None:
        """Begin to; `Console.prepare_log` ends it."""
        set_sender("warn", self._begin)

    def _begin(self) -> None:
        from holdfast.model.log_format import LineHandler, send

        handler = LineHandler(as_json=False)
        handler.emit = lambda record: self.lines.append(record.getMessage())
        send("warn", handler)


class _WorkspaceThread:
    """A workspace in a thread of its own, which does one task after the other. A context manager: its end waits for the
    thread and closes the workspace.
    """

    def __init__(self, opened: Callable[[], Workspace]) -> None:
        """``opened`` opens the workspace; raises its errors."""
        self._executor = ThreadPoolExecutor(1, "workspace")
        try:
            self._workspace = self._executor.submit(opened).result()
            self.path = self._workspace.path
            """The root of the workspace."""
        except BaseException:
            self._executor.shutdown()
            raise

    def __enter__(self) -> _WorkspaceThread:
        return self

    def __exit__(self, *_error: object) -> None:
        self._executor.submit(self._workspace.close).result()
        self._executor.shutdown()

    async def call(self, work: Callable[[Workspace], T]) -> T:
        """The result of ``work``, called in the thread. Cancelling it while it waits drops it; later it completes."""
        return await asyncio.wrap_future(self._executor.submit(work, self._workspace))


class _Rows:
    """The rows that a filter leaves, read piece by piece in the thread of the workspace."""

    def __init__(self, console: Console, arguments: Namespace) -> None:
        self._console = console
        self._arguments = arguments
        self._found: Iterator[TimelineItem] | None = None
        self._new: deque[TimelineItem] = deque()
        """Rows that the screen has not taken yet."""
        self.looked_at = 0
        self.cancelled = False
        self.head: str | None = None
        """The tree's state when the first rows were read."""

    def read(self, workspace: Workspace) -> bool:
        """Read some more; False if these are the last. Raises `_Cancelled`, and `HoldfastError`."""
        if self._found is None:
            try:
                self.head = workspace.resolve("@")
            except NotFoundError:
                self.head = None
            self._found = filtered_rows(self._console, workspace, self._arguments, self._note)
        number = 0
        for item in islice(self._found, _ROWS_AT_ONCE):
            self._new.append(item)
            number += 1
        return number == _ROWS_AT_ONCE

    def take(self) -> list[TimelineItem]:
        """The rows since the last call, also while more are being read: a search may find few for a long time."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def _note(self, _phase: str, number: int, _total: int) -> None:
        self.looked_at = number
        if self.cancelled:
            raise _Cancelled


# -- ways back --------------------------------------------------------------------------------------------------------


class _Work(Protocol):
    """A change of the tree, or a dry run of it."""

    def __call__(self, workspace: Workspace, *, dry_run: bool, progress: Progress | None) -> RestoreResult: ...


class Way(NamedTuple):
    """An act that can be done from a row."""

    title: str
    command: str
    """The command that does the same."""
    verb: str
    """As `result_lines` takes it."""
    work: _Work


def _undo(
    title: str, options: str = "", *, to: int | None = None, step: int | None = None, run: str | None = None
) -> Way:
    def work(workspace: Workspace, *, dry_run: bool, progress: Progress | None) -> RestoreResult:
        return workspace.undo(to=to, step=step, run=run, dry_run=dry_run, progress=progress)

    return Way(title, f"holdfast undo{options}", "Went back", work)


def _redo(title: str, options: str = "", *, step: int | None = None) -> Way:
    def work(workspace: Workspace, *, dry_run: bool, progress: Progress | None) -> RestoreResult:
        return workspace.redo(step=step, dry_run=dry_run, progress=progress)

    return Way(title, f"holdfast redo{options}", FORWARD, work)


def _restore(title: str, name: str) -> Way:
    def work(workspace: Workspace, *, dry_run: bool, progress: Progress | None) -> RestoreResult:
        return workspace.restore(name, dry_run=dry_run, progress=progress)

    return Way(title, f"holdfast restore {short(name)}", "Restored", work)


UNDO = _undo("Take the newest change back")
REDO = _redo("Bring back the last change that undo took back")


def ways(item: TimelineItem) -> Sequence[Way]:
    """The acts of a row, the likeliest first; none for rows of the undo log only."""
    match item.kind:
        case "barrier" | "held":
            return ()
        case "step" if item.state == "undone":
            return (_redo(f"Bring step {item.number} forward again", f" --step {item.number}", step=item.number),)
        case "step":
            return (_undo(f"Take step {item.number} back", f" --step {item.number}", step=item.number),)
        case _:
            pass
    found: list[Way] = []
    if item.kind == "prompt":
        found.append(_undo("Go back to before this prompt", f" --to {item.name}", to=item.number))
    if item.kind == "run":
        found.append(_undo("Take back all of this run", f" --run {item.run}", run=item.run))
    if item.checkpoint is not None:
        found.append(_restore("Go to the state after it" if found else "Go to this state", item.checkpoint))
    if item.before is not None and item.before != item.checkpoint and item.kind not in ("prompt", "run"):
        found.append(_restore("Go to the state before it", item.before))
    return found


# -- what a row changed -----------------------------------------------------------------------------------------------


def _details(console: Console, item: TimelineItem, workspace: Workspace) -> Iterator[str]:
    """The lines of `show` for a row, then its changes as a patch."""
    paint = console.paint
    if item.kind == "step":
        yield from step_lines(workspace, item.number)
        return
    found = workspace.row_details(item)
    if item.kind == "checkpoint" and item.made is not None:
        yield from details_lines(paint, workspace.show(item.made.id))
    else:
        yield from row_lines(paint, found)
    if found.changes:
        yield ""
        yield from for_terminal(paint, workspace.patch(workspace.row_diff(found)))


def _planned(console: Console, way: Way, workspace: Workspace) -> tuple[RestoreResult, Iterator[str]]:
    """A dry run and its report, with a patch as far as checkpoints hold the contents."""
    result = way.work(workspace, dry_run=True, progress=None)
    lines = result_lines(console, result, way.verb)
    if not (result.written or result.deleted):
        return result, lines
    planned = workspace.planned_diff(result)
    return result, chain(lines, ("",), for_terminal(console.paint, workspace.planned_patch(planned)))


def _is_same(one: RestoreResult, other: RestoreResult) -> bool:
    """Whether two dry runs come to the same."""
    keys = [(run.checkpoint, list(run.written), list(run.deleted), list(run.steps)) for run in (one, other)]
    return keys[0] == keys[1]


def _some(lines: Iterator[str], is_wanted: Callable[[], bool]) -> list[str]:
    """The first lines; none once ``is_wanted`` returns False."""
    found: list[str] = []
    for line in lines:
        if not is_wanted():
            return []
        if len(found) == _MOST_LINES:
            return [*found, "", f"… only the first {_MOST_LINES:,} lines are shown"]
        found.append(line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…")
    return found


def _error_lines(error: Exception) -> list[str]:
    failure = error if isinstance(error, HoldfastError) else unexpected(error)
    return [visible(failure.message), *([f"hint: {visible(failure.hint)}"] if failure.hint else [])]


# -- widgets ----------------------------------------------------------------------------------------------------------


class Lines(ScrollView, can_focus=True):
    """Lines that are coloured by escape sequences of our own, each of them drawn when it comes into view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("space", "page_down", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: Sequence[str] = ()

    @property
    def lines(self) -> Sequence[str]:
        """Its lines."""
        return self._lines

    @lines.setter
    def lines(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self.virtual_size = Size(max(map(len, lines), default=0), len(lines))
        self.scroll_to(0, 0, animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """See `Widget.render_line`."""
        at, start, width = y + round(self.scroll_y), round(self.scroll_x), self.size.width
        if at >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        return _strip(self._lines[at]).crop_extend(start, start + width, self.rich_style)


def _strip(line: str) -> Strip:
    """A line, by the escape sequences of our own that it has, as cells."""
    text = AnsiDecoder().decode_line(line)
    text.expand_tabs(8)
    return Strip(text.render(_STYLES))


class Timeline(ScrollView, can_focus=True):
    """The rows that have been read, one of which the cursor is on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown,space", "move_page(1)", show=False),
        Binding("home,g", "move(-1000000000)", show=False),
        Binding("end,G", "move(1000000000)", show=False),
        Binding("enter", "choose", "Go back"),
    ]

    class Moved(Message):
        """The cursor is on another row."""

    class Chosen(Message):
        """A person wants to go to the row that the cursor is on."""

    class Short(Message):
        """`is_short` has become true."""

    def __init__(self, cli: Console) -> None:
        super().__init__(id="timeline")
        self._cli = cli
        self._told = teller(cli)
        self._names = 0
        self._head: str | None = None
        self.rows: list[TimelineItem] = []
        self.cursor = 0

    @property
    def current(self) -> TimelineItem | None:
        """The row that the cursor is on."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def clear(self) -> None:
        """Begin anew."""
        self.rows = []
        self._told = teller(self._cli)
        self.cursor = 0
        self.virtual_size = Size(0, 0)
        self.scroll_to(0, 0, animate=False)
        self.refresh()

    def extend(self, rows: Sequence[TimelineItem], head: str | None) -> None:
        """Add rows below; ``head`` is the tree's present state."""
        was_empty = not self.rows
        self._head = head
        self.rows += rows
        if len(self.rows) - len(rows) < _ALIGNED_BY:
            self._names = names_width(self.rows[:_ALIGNED_BY])
        self.virtual_size = Size(0, len(self.rows))
        self.refresh()
        if was_empty and rows:
            self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        to = min(max(self.cursor + by, 0), max(len(self.rows) - 1, 0))
        if to != self.cursor:
            self.cursor = to
            self._follow()
            self.refresh()
            self.post_message(self.Moved())
        self._ask_for_more()

    def action_move_page(self, by: int) -> None:
        """Move the cursor by ``by`` pages."""
        self.action_move(by * max(self.size.height - 1, 1))

    def action_choose(self) -> None:
        """See `Chosen`."""
        self.post_message(self.Chosen())

    def on_click(self, event: object) -> None:
        """Put the cursor where the mouse is."""
        self.action_move(round(self.scroll_y) + int(getattr(event, "y", 0)) - self.gutter.top - self.cursor)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """See `ScrollView`."""
        super().watch_scroll_y(old_value, new_value)
        self._ask_for_more()

    def on_resize(self) -> None:
        """Keep the cursor in view."""
        self._follow()
        self._ask_for_more()

    def _follow(self) -> None:
        top, height = round(self.scroll_y), max(self.size.height, 1)
        if not top <= self.cursor < top + height:
            self.scroll_to(0, self.cursor if self.cursor < top else self.cursor - height + 1, animate=False)

    @property
    def is_short(self) -> bool:
        """Whether few rows are left below the visible ones."""
        return max(self.cursor, round(self.scroll_y) + self.size.height) + _ROWS_AHEAD > len(self.rows)

    def _ask_for_more(self) -> None:
        if self.is_short:
            self.post_message(self.Short())

    def render_line(self, y: int) -> Strip:
        """See `Widget.render_line`."""
        at, width = y + round(self.scroll_y), self.size.width
        if at >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        pieces = row_pieces(self.rows[at], self._head, self._told, self._names)
        strip = _strip(fit(self._cli.paint, pieces, width)).crop_extend(0, width, self.rich_style)
        return strip.apply_style(Style(reverse=True)) if at == self.cursor else strip


class GoScreen(ModalScreen[bool]):
    """Asks before an act: it shows the dry run and, after consent, the result. Its value tells whether the tree
    changed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,y", "agree", show=False),
        Binding("escape,n,q,ctrl+c", "leave", show=False),
        Binding("tab", "other", show=False, priority=True),
    ]

    def __init__(self, app: Rewind, found: Sequence[Way]) -> None:
        super().__init__(id="go")
        self._rewind = app
        self._ways = list(found)
        self.state: str = ""
        """``planning``, ``asking``, ``refused``, ``working`` or ``done``."""
        self._progress = ("", 0, 0)
        self._note = ""
        """A note above the next plan."""
        self._planned: RestoreResult | None = None
        """The plan that was shown, to which the consent applies."""
        self._title, self.plan, self._keys = Static(id="title"), Lines(id="plan"), Static(id="keys")

    def compose(self) -> ComposeResult:
        """See `Widget.compose`."""
        with Vertical(id="box"):
            yield self._title
            yield self.plan
            yield self._keys

    def on_mount(self) -> None:
        """Begin with the first way."""
        self.set_interval(0.25, self._tick)
        self._look()

    def action_agree(self) -> None:
        """Do it; after the report, close."""
        if self.state == "asking":
            self._be("working")
            self.run_worker(self._work(self._ways[0]))
        elif self.state in ("done", "refused"):
            self.action_leave()

    def action_leave(self) -> None:
        """Close, but not in the middle of the work."""
        if self.state != "working":
            self.dismiss(self.state == "done")

    def action_other(self) -> None:
        """Take the next way."""
        if self.state in ("planning", "asking", "refused") and len(self._ways) > 1:
            self._ways.append(self._ways.pop(0))
            self._look()

    def _look(self) -> None:
        way = self._ways[0]
        self._title.update(Text.assemble((way.title, "bold"), f"  ({way.command})"))
        self._be("planning")
        self.plan.lines = ()
        self.run_worker(self._plan(way), exclusive=True, group="plan")

    async def _plan(self, way: Way) -> None:
        def wanted() -> bool:
            return self.is_attached and self._ways[0] is way

        def plan(workspace: Workspace) -> tuple[RestoreResult, list[str]]:
            result, lines = _planned(self._rewind.cli, way, workspace)
            return result, _some(lines, wanted)

        result: RestoreResult | None = None
        try:
            result, lines = await self._rewind.thread.call(plan)
        except Exception as error:  # noqa: BLE001 - it is told, whatever it is
            lines = _error_lines(error)
        if wanted():
            self._planned = result
            self.plan.lines = [*([self._note, ""] if self._note else []), *lines]
            self._note = ""
            is_something = result is not None and bool(result.written or result.deleted or result.steps)
            self._be("asking" if is_something else "refused")

    async def _work(self, way: Way) -> None:
        def note(phase: str, done: int, total: int) -> None:
            self._progress = (phase, done, total)

        def work(workspace: Workspace) -> RestoreResult | None:
            again = way.work(workspace, dry_run=True, progress=None)
            if self._planned is None or not _is_same(again, self._planned):
                return None
            return way.work(workspace, dry_run=False, progress=note)

        console = self._rewind.cli
        try:
            result = await self._rewind.thread.call(work)
        except Exception as error:  # noqa: BLE001 - see above
            self.plan.lines = _error_lines(error)
            self._be("refused")
            return
        if result is None:
            self._note = "The workspace has changed since you were asked. Now it would be this:"
            self._look()
            return
        lines = list(result_lines(console, result, way.verb))
        self._rewind.done.append(lines)
        self.plan.lines = lines
        self._be("done")

    def _be(self, state: str) -> None:
        self.state = state
        other = f"  Tab: {self._ways[1].title}" if len(self._ways) > 1 else ""
        keys = {
            "planning": f"Looking…  Escape: leave it{other}",
            "asking": f"Enter: do it  Escape: leave it{other}",
            "refused": f"Escape: back{other}",
            "working": "At work…",
            "done": "Enter: back to the timeline",
        }[state]
        self._keys.update(Text(keys, "bold"))
        self.plan.focus()

    def _tick(self) -> None:
        phase, done, total = self._progress
        if self.state == "working" and phase:
            of = f" of {total:,}" if total else ""
            self._keys.update(Text(f"At work: {phase} {done:,}{of}", "bold"))


class Rewind(App[None]):
    """The screen."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_WIDE, "-wide")]  # noqa: RUF012 - as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        # Before the widgets see it, so that the next key already goes to the field.
        Binding("slash", "search", "Search", key_display="/", priority=True),
        Binding("u", "undo", "Undo"),
        Binding("r", "redo", "Redo"),
        Binding("s", "steps", "Steps"),
        Binding("f5", "reload", "Read anew", show=False),
        Binding("q", "leave", "Leave"),
        Binding("ctrl+c", "leave", show=False, priority=True),
        Binding("escape", "end_search", show=False),
    ]
    # The terminal's own colours, so that light and dark themes both fit.
    CSS = """
    Screen, ModalScreen { background: ansi_default; color: ansi_default; }
    #where, #status { height: 1; text-style: bold; }
    #search { height: 1; display: none; }
    #search Static { width: auto; }
    #search Input, #search Input:focus { width: 1fr; height: 1; border: none; padding: 0 1; background: ansi_default; }
    #panes { height: 1fr; layout: vertical; }
    Lines, Timeline { width: 1fr; height: 1fr; background: ansi_default; color: ansi_default;
                      scrollbar-size-horizontal: 0; scrollbar-size-vertical: 1; overflow-y: auto; }
    #timeline, #details { border-top: solid ansi_bright_black; }
    #timeline:focus, #details:focus { border-top: solid ansi_blue; }
    .-narrow #details { height: 2fr; }
    .-wide #panes { layout: horizontal; }
    .-wide #details { border-left: solid ansi_bright_black; }
    .-wide #details:focus { border-left: solid ansi_blue; }
    #go { align: center middle; }
    #box { width: 90%; height: 90%; border: solid ansi_blue; padding: 0 1; background: ansi_default; }
    #title, #keys { height: auto; }
    """

    def __init__(
        self, cli: Console, thread: _WorkspaceThread, arguments: Namespace, warnings: _Warnings | None = None
    ) -> None:
        super().__init__(ansi_color=True)
        self.cli = cli
        self.thread = thread
        self.done: list[Sequence[str]] = []
        """The report of each change of the tree."""
        self._arguments = Namespace(**vars(arguments))
        self._warnings = warnings or _Warnings()
        self._rows = _Rows(cli, self._arguments)
        self._is_reading = False
        self._are_all = False
        self._wanted: TimelineItem | None = None
        """The row whose details are wanted."""
        # Kept, since a query by id fails when the thread's results come after the screen was closed.
        self.timeline = Timeline(cli)
        self.details = Lines(id="details")
        self._where, self._status = Static(id="where"), Static(id="status")
        self._search = Horizontal(id="search")
        self._text, self._path = Input(id="text", select_on_focus=False), Input(id="path", select_on_focus=False)

    def compose(self) -> ComposeResult:
        """See `Widget.compose`."""
        yield self._where
        with self._search:
            yield Static(Text("text "))
            yield self._text
            yield Static(Text("path "))
            yield self._path
        with Container(id="panes"):
            yield self.timeline
            yield self.details
        yield self._status
        yield Footer()

    def on_mount(self) -> None:
        """Read the newest rows."""
        self.theme = next(one for one in ("ansi-dark", "textual-ansi") if one in self.available_themes)
        self.timeline.focus()
        self.set_interval(0.25, self._tick)
        self._begin()

    # -- reading ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Read the rows anew, by the filter as it is now."""
        self._rows.cancelled = True
        self._rows = _Rows(self.cli, Namespace(**vars(self._arguments)))
        self._is_reading = self._are_all = False
        self._wanted = None
        self.timeline.clear()
        self.details.lines = ()
        self._read_more()

    def _read_more(self) -> None:
        if not self._is_reading and not self._are_all:
            self._is_reading = True
            self.run_worker(self._read(self._rows), group="rows")

    async def _read(self, rows: _Rows) -> None:
        more, said = False, ""
        try:
            more = await self.thread.call(rows.read)
        except _Cancelled:
            pass
        except Exception as error:  # noqa: BLE001 - it is told, whatever it is
            said = "  ".join(_error_lines(error))
        if rows is not self._rows:
            return
        self._is_reading, self._are_all = False, not more
        self.timeline.extend(rows.take(), rows.head)
        if not self.timeline.rows and not said:
            said = "No row matches." if self._filter() else "No checkpoint yet; `holdfast checkpoint` makes one."
        self._say(said)

    async def _read_details(self, item: TimelineItem) -> None:
        def wanted() -> bool:
            return self._wanted is item

        await asyncio.sleep(_REST)
        try:
            lines = await self.thread.call(lambda workspace: _some(_details(self.cli, item, workspace), wanted))
        except Exception as error:  # noqa: BLE001 - see above
            lines = _error_lines(error)
        if wanted():
            self.details.lines = lines

    def on_timeline_moved(self) -> None:
        """Show what the row has changed."""
        self._wanted = item = self.timeline.current
        if item is not None:
            self.run_worker(self._read_details(item), exclusive=True, group="details")

    def on_timeline_short(self) -> None:
        """Read more rows."""
        if self.timeline.is_short:  # more rows may have come since
            self._read_more()

    # -- words --------------------------------------------------------------------------------------------------

    def _filter(self) -> str:
        arguments = self._arguments
        given = [(name, getattr(arguments, name)) for name in ("since", "until", "author", "grep")]
        parts = [f"{name} {visible(value)}" for name, value in given if value]
        parts += [f"path {', '.join(map(visible, arguments.paths))}"] if arguments.paths else []
        return ", ".join(parts).replace("grep ", "text ")

    def _say(self, text: str) -> None:
        self._status.update(Text(text, no_wrap=True, overflow="ellipsis"))

    def _tick(self) -> None:
        shown = self._filter()
        parts = [*([f"{shown} (Escape: all rows)"] if shown else []), *(["steps too"] if self._arguments.steps else [])]
        text = "  ".join([*parts, show_path(self.thread.path)])
        self._where.update(Text(text, no_wrap=True, overflow="ellipsis"))
        if self._is_reading and (found := self._rows.take()):
            self.timeline.extend(found, self._rows.head)
        if self._is_reading and self._rows.looked_at:
            self._say(f"Reading… {self._rows.looked_at:,} rows looked at")
        elif self._warnings.lines and not self._is_reading:
            self._say(f"warning: {visible(self._warnings.lines[-1])}")

    # -- keys ---------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - as Textual calls it
        """See `DOMNode.check_action`: in a field a slash is a slash."""
        return not (action == "search" and (isinstance(self.focused, Input) or isinstance(self.screen, GoScreen)))

    def action_search(self) -> None:
        """Ask for a text and a path."""
        self._search.display = True
        self.screen.set_focus(self._text)  # at once: the next key is for it

    def action_end_search(self) -> None:
        """Close the search; where it is closed, show all rows again."""
        if self._search.display:
            self._search.display = False
            self.screen.set_focus(self.timeline)
        elif self._filter():
            vars(self._arguments).update(since=None, until=None, author="", grep="", paths=[])
            self._text.value = self._path.value = ""
            self._begin()

    def on_input_submitted(self) -> None:
        """Search."""
        self._arguments.grep = self._text.value
        self._arguments.paths = [self._path.value] if self._path.value else []
        self._search.display = False
        self.screen.set_focus(self.timeline)
        self._begin()

    def action_steps(self) -> None:
        """Show or hide steps."""
        self._arguments.steps = not self._arguments.steps
        self._begin()

    def action_reload(self) -> None:
        """Read anew."""
        self._begin()

    def on_timeline_chosen(self) -> None:
        """Ask where to go from the row."""
        item = self.timeline.current
        if item is not None and (found := ways(item)):
            self._go(found)
        else:
            self._say("From this row there is nowhere to go.")

    def action_undo(self) -> None:
        """Take the newest change back."""
        self._go([UNDO])

    def action_redo(self) -> None:
        """Bring it again."""
        self._go([REDO])

    def _go(self, found: Sequence[Way]) -> None:
        self.push_screen(GoScreen(self, found), self._went)

    def _went(self, changed: bool | None) -> None:
        if changed:
            self._begin()

    def action_leave(self) -> None:
        """End it."""
        if isinstance(self.screen, GoScreen):
            self.screen.action_leave()
            return
        self._rows.cancelled = True
        self._wanted = None
        self.exit()

"""The timeline: what each row says, and the links that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from holdfast.api.web.graph import Lanes
from holdfast.api.web.words import lines_text, moment, parse_moment, path_text, short
from holdfast.model.errors import UsageError
from holdfast.model.message_text import first_line, named_steps, plural, visible

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from holdfast.api.web.addresses import Addresses, Query
    from holdfast.api.web.graph import GraphRow
    from holdfast.api.web.words import Moment
    from holdfast.engine.history.queries import HistoryPosition, Relatives
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.entries import Counts
    from holdfast.model.ids import CheckpointId
    from holdfast.model.timeline import TimelineItem, TimelineKind, TimelinePage

KINDS: Final[tuple[TimelineKind, ...]] = (
    *("checkpoint", "prompt", "run", "step", "command", "undo", "redo", "restore", "merge", "fork", "promote"),
    *("barrier", "held"),
)
PAGE_ROWS: Final = 60
_MOST_REFRESHED: Final = 300
"""The most rows of a page to refresh after an event; with more, the page starts at the newest row again."""
_MOST_OF_LINE: Final = 240
_MOST_PATHS: Final = 3
_MOVES: Final = ("restore", "undo", "redo")


class Filters(NamedTuple):
    """The wanted rows, as in the form."""

    path: bytes = b""
    author: str = ""
    kind: str = ""
    since: str = ""
    until: str = ""
    text: str = ""

    @classmethod
    def of(cls, query: Query) -> Filters:
        """The filters of an address. Raises `UsageError`."""
        kind = query.choice("kind", ("", *KINDS))
        texts = {name: query.text(name) for name in ("author", "since", "until", "text")}
        return cls(path=query.path("path"), kind=kind, **texts)

    @property
    def path_text(self) -> str:
        """The path as the form shows it."""
        return path_text(self.path)

    def arguments(self, now: int) -> dict[str, Any]:
        """The same for `Workspace.log_page`. Raises `UsageError`."""
        return {
            "path": self.path,
            "author": self.author,
            "kinds": [cast("TimelineKind", self.kind)] if self.kind else [],
            "since": parse_moment(self.since, now),
            "until": parse_moment(self.until, now),
            "text": self.text,
        }


class Link(NamedTuple):
    """A link."""

    text: str
    address: str
    title: str = ""


class Row(NamedTuple):
    """One row."""

    name: str
    """By which `show` finds it; also what tells it apart on the page."""
    kind: str
    word: str
    """The kind as people read it."""
    at: Moment
    new_day: bool
    """The first of its day on the page."""
    labels: Sequence[str]
    text: str
    """Its text in one line."""
    more: str
    """The whole text, where that has more to say."""
    is_command: bool
    author: str
    counts: Counts | None
    state: Link | None
    changes: Link | None
    """The difference that it made."""
    steps: Link | None
    """Where its steps are listed."""
    exit_code: int | None
    condition: str
    """An unusual end or state: ``open``, ``killed``, ``partly``, …; otherwise empty."""
    forks: Sequence[Link]
    merged: Sequence[Link]
    is_here: bool
    is_ahead: bool
    before_prompt: str
    """Of a prompt: the address of the page that goes back to before it."""
    graph: GraphRow | None


class Timeline(NamedTuple):
    """A part of the timeline."""

    rows: Sequence[Row]
    filters: Filters
    is_filtered: bool
    more: str | None
    """The address of the rows that follow; None at the end."""
    end: str | None
    """The cursor after the last row; None at the end."""
    refresh: str
    """The address that refreshes this part, with newer events at its beginning."""
    is_first: bool
    """This part begins with the newest row."""
    is_refresh: bool
    """This part replaces its own older version."""
    lane_count: int
    revision: str


def timeline(workspace: Workspace, addresses: Addresses, query: Query, now: int) -> Timeline:
    """The rows that an address asks for: from its cursor on, or the newest. Raises `UsageError`."""
    filters = Filters.of(query)
    cursor = query.text("cursor") or None
    down_to = query.text("down_to") or None
    # Before the rows are read: an event meanwhile is shown twice rather than never.
    revision = workspace.history_revision()
    limit = PAGE_ROWS if down_to is None else _MOST_REFRESHED
    is_filtered = filters != Filters()
    page = workspace.log_page(limit=limit, cursor=cursor, down_to=down_to, **filters.arguments(now))
    lanes = Lanes(query.text("lanes"))
    rows = list(_rows(workspace, addresses, page, None if is_filtered else lanes, query.text("day")))
    said = {**filters._asdict()}
    end = page.cursor
    more = None
    if end is not None:
        day = rows[-1].at.day if rows else query.text("day")
        more = addresses.page("rows", cursor=end, lanes=lanes.text(), day=day, **said)
    started = not cursor
    return Timeline(
        rows=rows,
        filters=filters,
        is_filtered=is_filtered,
        more=more,
        end=end,
        refresh=addresses.page("rows", down_to=end, **said) if started else "",
        is_first=started,
        is_refresh=down_to is not None,
        lane_count=max((row.graph.width for row in rows if row.graph), default=2),
        revision=revision,
    )


def _rows(
    workspace: Workspace, addresses: Addresses, page: TimelinePage, lanes: Lanes | None, day: str
) -> Iterator[Row]:
    items = page.items
    position = workspace.position()
    relatives = workspace.relatives({item.checkpoint for item in items if item.checkpoint is not None})
    here = next((item.name for item in items if item.made is not None and item.made.id == position.head), None)
    for item in items:
        graph = None if lanes is None else _graph_row(lanes, item, relatives)
        row = _row(addresses, item, position, relatives, graph)
        yield row._replace(is_here=item.name == here, new_day=row.at.day != day)
        day = row.at.day


def _graph_row(lanes: Lanes, item: TimelineItem, relatives: Mapping[CheckpointId, Relatives]) -> GraphRow:
    made = item.made
    if made is None:
        return lanes.move(item.checkpoint, relatives.keys())
    found = relatives.get(made.id)
    # The first state of a fork has a parent in another workspace, which this timeline does not have.
    parent = None if made.kind == "fork" else made.parent
    return lanes.state(
        made.id,
        parent,
        has_fork=found is not None and bool(found.forks),
        has_merge=found is not None and bool(found.merged),
    )


def _row(
    addresses: Addresses,
    item: TimelineItem,
    position: HistoryPosition,
    relatives: Mapping[CheckpointId, Relatives],
    graph: GraphRow | None,
) -> Row:
    made, checkpoint = item.made, item.checkpoint
    found = None if made is None else relatives.get(made.id)
    text, is_command = _said(item)
    line = visible(first_line(text, _MOST_OF_LINE))
    is_kept = checkpoint is not None and checkpoint in relatives
    changes = None
    before = made.parent if made is not None else item.before
    if is_kept and checkpoint != before and (made is None or made.changes.total):
        changes = Link("changes", addresses.page("diff", from_=before or "nothing", to=checkpoint))
    return Row(
        name=item.name,
        kind=item.kind,
        word=_word(item),
        at=moment(item.at),
        new_day=False,
        labels=[visible(label) for label in item.labels],
        text=line,
        more=lines_text(text) if text.strip() != line else "",
        is_command=is_command,
        author=visible(item.author),
        counts=made.changes if made is not None and made.changes.total else None,
        state=Link(short(checkpoint), addresses.page(f"state/{checkpoint}")) if checkpoint and is_kept else None,
        changes=changes,
        steps=_steps(addresses, item),
        exit_code=item.exit_code,
        condition=_condition(item, relatives),
        forks=[_place(addresses, path, one) for path, one in found.forks] if found is not None else [],
        merged=[_place(addresses, path, one) for path, one in found.merged] if found is not None else [],
        is_here=False,
        is_ahead=made is not None and made.id in position.ahead,
        before_prompt=addresses.page("act/undo", to=item.number) if item.kind == "prompt" and item.number else "",
        graph=graph,
    )


def _place(addresses: Addresses, path: bytes, checkpoint: CheckpointId) -> Link:
    name = path_text(path.rstrip(b"/").rpartition(b"/")[2] or path)
    return Link(name, addresses.page(f"state/{checkpoint}"), title=path_text(path))


def _steps(addresses: Addresses, item: TimelineItem) -> Link | None:
    if item.kind == "run" and (item.steps or item.state):
        return Link(plural(len(item.steps), "step") if item.steps else "steps", addresses.page(f"run/{item.run}"))
    if item.kind == "step":
        return Link("paths", addresses.page(f"step/{item.number}"))
    return None


_WORDS: Final = {"barrier": "edit by others", "held": "waits for you"}
_MADE: Final = {"manual": "checkpoint", "auto": "saved", "rescue": "rescue", "import": "import", "fork": "fork"}


def _word(item: TimelineItem) -> str:
    if item.kind == "checkpoint" and item.made is not None:
        return _MADE.get(item.made.kind, item.made.kind)
    return _WORDS.get(item.kind, item.kind)


def _condition(item: TimelineItem, relatives: Collection[CheckpointId]) -> str:
    if item.state not in ("", "done"):
        return "goes on" if item.kind == "run" and item.state == "open" else item.state
    if item.made is None and item.kind in ("checkpoint", "promote", "fork") and item.checkpoint not in relatives:
        return "forgotten"
    return ""


def _said(item: TimelineItem) -> tuple[str, bool]:
    """The text of a row beside its kind, and whether that is a command line."""
    where = "" if item.checkpoint is None else short(item.checkpoint)
    match item.kind:
        case "undo" | "redo" if item.steps:
            of = f"of {named_steps(item.steps)}{f' of run {short(item.run)}' if item.run else ''}"
            return f"{of}{f': {item.command}' if item.command else ''}", False
        case "undo" if item.of:
            return f"of {_row_name(item.of)}, back to {where}", False
        case "redo" if item.of:
            return f"of {_row_name(item.of)}", False
        case "undo" | "redo" | "restore":
            return item.text or f"to {where}", False
        case "run" | "step" | "command":
            return item.command or item.text, bool(item.command)
        case "barrier":
            shown = ", ".join(map(path_text, item.paths[:_MOST_PATHS]))
            more = len(item.paths) - _MOST_PATHS
            return f"{shown} and {more} more" if more > 0 else shown, False
        case _:
            if item.made is not None and item.made.kind == "fork" and item.made.parent is not None:
                return f"of {short(item.made.parent)}", False
            return item.text or item.command, not item.text and bool(item.command)


def _row_name(name: str) -> str:
    return name if ":" in name else short(name)


class Step(NamedTuple):
    """A step of a run."""

    number: int
    at: Moment
    command: str
    paths: int
    exit_code: int | None
    condition: str
    address: str


class Run(NamedTuple):
    """A run and its steps."""

    name: str
    steps: Sequence[Step]


def run(workspace: Workspace, addresses: Addresses, name: str) -> Run:
    """The steps of a run that the undo log has, the first first."""
    steps = [
        Step(
            number=step.id,
            at=moment(step.started_at // 1000),
            command=visible(first_line(b" ".join(step.command).decode("utf-8", "surrogateescape"), _MOST_OF_LINE)),
            paths=step.paths,
            exit_code=step.exit_code,
            condition="" if step.state == "done" else step.state,
            address=addresses.page(f"step/{step.id}"),
        )
        for step in workspace.steps()
        if step.run == name
    ]
    return Run(visible(name), steps)


class StepPath(NamedTuple):
    """A step's change of one path."""

    change: str
    path: str
    source: str


class StepPaths(NamedTuple):
    """The changes of a step."""

    number: int
    command: str
    paths: Sequence[StepPath]
    more: int
    """How many paths are left out."""
    is_undone: bool


_MOST_STEP_PATHS: Final = 500


def step(workspace: Workspace, number: str) -> StepPaths:
    """The paths that a step changed. Raises `NotFoundError`, `UsageError`."""
    try:
        found, changes = workspace.step(int(number))
    except ValueError:
        raise UsageError(f"{number!r} is no number of a step") from None
    paths = [
        StepPath(one.change, path_text(one.path), "" if one.source is None else path_text(one.source))
        for one in changes[:_MOST_STEP_PATHS]
    ]
    command = visible(b" ".join(found.command).decode("utf-8", "surrogateescape"))
    return StepPaths(found.id, command, paths, max(0, len(changes) - _MOST_STEP_PATHS), found.state == "undone")

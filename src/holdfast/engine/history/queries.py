"""Queries about saved states: the log, one checkpoint, the content of one file."""

from __future__ import annotations

from holdfast.model.command_results import Details, Log, beginnings
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.engine.history.timeline import SessionCommands
    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.command_results import Read
    from holdfast.model.entries import Change, Entry
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.model.timeline import TimelineItem
    from holdfast.undo.service import StepInfo


class RowDetails(NamedTuple):
    """All that is known of a row of the log."""

    item: TimelineItem
    changes: Sequence[Change]
    """The differences between its state and the one before, if both are kept; for a run, since its beginning. Where
    that is forgotten, the changes of the checkpoint that the row made.
    """
    steps: Sequence[StepInfo]
    """Its steps, oldest first, as far as the undo log holds them."""
    began: int | None = None
    """Of a run: when it began, in microseconds since 1970-01-01 UTC."""
    before: CheckpointId | None = None
    """The state that ``changes`` are against; None: nothing at all."""


class HistoryPosition(NamedTuple):
    """A tree's position in its history."""

    head: CheckpointId | None
    """The tree's checkpoint; None before the first."""
    ahead: Sequence[CheckpointId]
    """The states that were undone and that `redo` leads to, the next first."""


def position(context: Context) -> HistoryPosition:
    """The tree's position according to the catalog; unsaved changes do not matter."""
    at = context.catalog.cursor(context.workspace.id)
    if at.position is None or at.redo_tip is None or at.position == at.redo_tip:
        return HistoryPosition(at.head, ())
    from holdfast.engine.history._undo_guards import redo_chain

    return HistoryPosition(at.head, [event.checkpoint for event in redo_chain(context, at.position, at.redo_tip)])


def history_revision(context: Context) -> str:
    """A text that changes with every event, step, edit by others and command of a session. Reads no undo log."""
    newest = context.catalog.events(context.workspace.id, limit=1)
    revisions = context.catalog.session_revisions(context.workspace.id)
    return f"{newest[0].seq if newest else 0}.{context.undo_seq()}.{revisions}"


class Relatives(NamedTuple):
    """The relations of a checkpoint to other workspaces."""

    forks: Sequence[tuple[bytes, CheckpointId]]
    """The forks that began with it: where each is, and its first checkpoint."""
    merged: Sequence[tuple[bytes, CheckpointId]]
    """The merges into it: the path of each source, and its state."""


def relatives(context: Context, checkpoints: Iterable[CheckpointId]) -> dict[CheckpointId, Relatives]:
    """The relations of those of ``checkpoints`` that are kept."""
    catalog, own = context.catalog, context.workspace.id
    kept = catalog.checkpoints_named(checkpoints)
    children = {name: catalog.children(name) for name in kept}
    taken_in = {name: [one.other for one in catalog.merge_parents(name)] for name in kept}
    others = catalog.checkpoints_named({one for many in (*children.values(), *taken_in.values()) for one in many})
    paths = {one: catalog.workspace(one).path for one in {other.workspace for other in others.values()} if one != own}

    def elsewhere(names: Iterable[CheckpointId]) -> list[tuple[bytes, CheckpointId]]:
        return [
            (paths[others[name].workspace], name)
            for name in names
            if name in others and others[name].workspace in paths
        ]

    return {name: Relatives(elsewhere(children[name]), elsewhere(taken_in[name])) for name in kept}


def checkpoints_holding(context: Context, paths: Iterable[bytes]) -> Iterator[Checkpoint]:
    """The kept checkpoints of the workspace that hold one of ``paths`` or something below it, newest first. Reads a few
    pages of each state; equal states are read once.
    """
    from holdfast.store.manifests import manifest

    pages, wanted = context.store.pages, list(paths)
    holds: dict[Hash, bool] = {}
    for one in context.catalog.checkpoints(context.workspace.id):
        if one.root not in holds:
            holds[one.root] = any(next(manifest.iterate(pages, one.root, path), None) is not None for path in wanted)
        if holds[one.root]:
            yield one


class StateItem(NamedTuple):
    """An entry of a directory in a state: a file, a link, or a directory with all its contents."""

    name: bytes
    entry: Entry | None
    """None: it is a directory."""
    files: int
    size: int
    """In bytes; of a directory that of all below it."""


class StatePlace(NamedTuple):
    """The file or directory at a path of a state."""

    checkpoint: Checkpoint
    path: bytes
    entry: Entry | None
    """None: it is a directory."""
    items: Sequence[StateItem]
    """The entries of a directory, directories first."""


def browse(context: Context, name: CheckpointId, path: bytes) -> StatePlace:
    """The file or directory at ``path`` (empty: the root) in a checkpoint. For a directory, everything below it is
    read. Raises `NotFoundError`.
    """
    from holdfast.store.manifests import manifest

    checkpoint, pages = context.catalog.checkpoint(name), context.store.pages
    if path and (entry := manifest.get(pages, checkpoint.root, path)) is not None:
        return StatePlace(checkpoint, path, entry, ())
    items: dict[bytes, StateItem] = {}
    skip = len(path) + 1 if path else 0
    for below, entry in manifest.iterate(pages, checkpoint.root, path):
        child, is_deeper, _ = below[skip:].partition(b"/")
        known = items.get(child)
        if known is None:
            items[child] = StateItem(child, None if is_deeper else entry, 1, entry.size)
        else:
            items[child] = known._replace(files=known.files + 1, size=known.size + entry.size)
    if path and not items:
        _entry(context, name, path)  # raises with a helpful hint
    found = sorted(items.values(), key=lambda item: (item.entry is not None, item.name))
    return StatePlace(checkpoint, path, None, found)


def log(context: Context, limit: int | None = None, *, everything: bool = False) -> Log:
    """The checkpoints of the workspace (``everything``: of all in the home) and what happened to its tree.

    At most ``limit`` checkpoints, newest first, and the events since the oldest of them; None means all.
    """
    catalog, own = context.catalog, context.workspace
    if everything:
        found = log_of_home(context, limit)
    else:
        checkpoints = catalog.checkpoints(own.id, limit=_checked(limit))
        found = Log(checkpoints, None, (), {own.id: own.path} if checkpoints else {})
    events = catalog.events(own.id)
    if limit is not None:
        made = beginnings(events)
        since = min((made[item.id] for item in found.checkpoints if item.id in made), default=None)
        events = [event for event in events if since is not None and event.seq >= since]
    return found._replace(head=catalog.cursor(own.id).head, events=events)


def log_of_home(context: StoreContext, limit: int | None = None) -> Log:
    """The checkpoints of all workspaces in the home, at most ``limit``, newest first."""
    checkpoints = context.store.catalog.checkpoints(limit=_checked(limit))
    belong = {item.workspace for item in checkpoints}
    paths = {known.id: known.path for known in context.store.catalog.workspaces(everywhere=True) if known.id in belong}
    return Log(checkpoints, None, (), paths)


def _checked(limit: int | None) -> int | None:
    if limit is not None and limit < 0:
        raise UsageError(f"cannot list {limit} checkpoints; give a number from 0")
    return limit


def show(context: Context, name: CheckpointId) -> Details:
    """Everything about one checkpoint: its record, its changes, its uncaptured paths."""
    from holdfast.engine.opening.context import checkpoint_changes

    checkpoint = context.catalog.checkpoint(name)
    return Details(checkpoint, checkpoint_changes(context, checkpoint), context.catalog.not_captured(name))


def show_row(context: Context, name: str, sessions: Sequence[SessionCommands] = ()) -> RowDetails:
    """The details of the log's row with this name; raises `NotFoundError`."""
    from holdfast.engine.history.timeline import log_rows

    item = next((one for one in log_rows(context, steps=True, sessions=sessions) if one.name == name), None)
    if item is None:
        raise NotFoundError(f"there is no {name!r}", hint="`holdfast log --steps` lists every row")
    return row_details(context, item)


def row_details(context: Context, item: TimelineItem) -> RowDetails:
    """All that is known of a row of the log."""
    from holdfast.store.manifests import manifest

    before, after, began = item.before, item.checkpoint, None
    kept = context.catalog.checkpoints_named(one for one in (before, after) if one is not None)
    if item.kind == "run":
        # The row is the event of its end; others may have made changes between its beginning and that.
        first = context.catalog.events(context.workspace.id, run=item.run)[-1]
        began = first.at
        found = context.catalog.checkpoints_named([first.checkpoint])
        if found or item.made is None:
            before, kept = first.checkpoint, kept | found
    changes: Sequence[Change] = ()
    if after is not None and after in kept and (before is None or before in kept):
        changes = manifest.diff(context.store.pages, None if before is None else kept[before].root, kept[after].root)
    return RowDetails(item, changes, _steps(context, item), began, before)


def _steps(context: Context, item: TimelineItem) -> list[StepInfo]:
    if not item.steps:
        return []
    from holdfast.engine.opening.undo_log import list_steps

    return [step for step in list_steps(context) if step.id in item.steps]


def cat(context: StoreContext, name: CheckpointId, path: bytes) -> Iterator[bytes]:
    """The content of ``path`` in a checkpoint, in pieces; raises `NotFoundError` if it is no file there."""
    return _content(context, _entry(context, name, path))


def read_part(context: Context, name: CheckpointId, path: bytes, offset: int, limit: int) -> Read:
    """At most ``limit`` bytes of the file ``path`` in a checkpoint from ``offset``, verified: all of it is read for
    that, however small the part. Raises as `cat`, and `RefusedError` (``not_a_file``) for a link.
    """
    from holdfast.model.command_results import Read

    entry = _entry(context, name, path)
    if entry.is_symlink:
        target = display(b"".join(_content(context, entry)))
        raise RefusedError(f"{display(path)} is a link to {target} in {name[:12]}", code="not_a_file")
    part, at = bytearray(), 0
    for piece in _content(context, entry):
        part += piece[max(0, offset - at) : max(0, offset + limit - at)]
        at += len(piece)
    return Read(bytes(part), offset, entry.size, entry.hash if len(part) == entry.size else None)


def _entry(context: StoreContext, name: CheckpointId, path: bytes) -> Entry:
    from holdfast.store.manifests import manifest

    pages, root = context.store.pages, context.store.catalog.checkpoint(name).root
    entry = manifest.get(pages, root, path)
    if entry is None:
        below = next(manifest.iterate(pages, root, path), None)
        if below is not None:
            raise NotFoundError(
                f"{display(path) or '.'} is a directory in {name[:12]}",
                hint=f"name a file in it, such as {display(below[0])}",
                code="no_such_path",
            )
        raise NotFoundError(
            f"{display(path)} is not in {name[:12]}",
            hint=f"`holdfast diff {name[:12]}` shows how the tree differs from it",
            code="no_such_path",
        )
    return entry


def _content(context: StoreContext, entry: Entry) -> Iterator[bytes]:
    content = next(context.store.reader.fetch((entry,)))
    return iter((content,)) if isinstance(content, bytes) else content

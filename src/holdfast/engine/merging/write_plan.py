"""Writing and deleting a workspace's files by a plan: by content, or by the hash of stored content.

The result of the plan is a checkpoint before any change of the tree, as for a merge; then the tree is brought to it as
by any restore: undoable, and finished or reversed after an interruption. Only the paths in the plan are touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.engine.history import operations
from holdfast.engine.history.checkpoint import make_room_for
from holdfast.engine.history.derived_state import create_derived_checkpoint, forgotten_if_unreached
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES
from holdfast.model.entries import Change, file_entry, symlink_entry
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import format_hash
from holdfast.model.paths import check_path, display
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint, Provenance
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.content import Progress
    from holdfast.model.entries import Entry, NotCaptured
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.blobs.content_writer import WrittenBlobs

MOST_FILES = 100_000


class PlannedWrite(NamedTuple):
    """A file, or a symbolic link, to write."""

    path: bytes
    content: bytes | Hash
    """Its content, or with ``stored`` its hash."""
    stored: bool
    permissions: int = 0o644
    link: bool = False
    """Its content is the target of a symbolic link."""


class WrittenPlan(NamedTuple):
    """The result of a plan."""

    before: CheckpointId
    """The state before it."""
    state: CheckpointId
    """The state that it leads to."""
    restored: RestoreResult | None
    """The changes of the tree; None if it already matched the plan."""
    errors: Sequence[NotCaptured]
    """Paths that were not changed, with the reasons."""


def carry_out(
    context: Context,
    writes: Sequence[PlannedWrite],
    deletes: Sequence[bytes],
    provenance: Provenance,
    *,
    source: CheckpointId | None = None,
    kind: Literal["merge", "rescue"] = "merge",
    found: Mapping[bytes, Entry | None] | None = None,
    progress: Progress | None = None,
) -> WrittenPlan:
    """Apply ``writes`` and ``deletes`` to the workspace, whose present state is saved first.

    ``source``: the checkpoint that must contain contents given by hash. ``kind``: that of the new state; ``rescue`` for
    a part of a restore, and then of the present state, too. ``found``: the entries that paths must still have (None: no
    file). A missing path to delete is listed in the errors. Raises `EscapeError` for a path that is never allowed,
    `UsageError` for a plan that contradicts itself, `NotFoundError` (code ``no_blob``) for content that is not stored,
    `RefusedError` (``in_the_way``) where a file would have to be a directory too, or another process changes the tree
    meanwhile (``changed_meanwhile``), or no path of the plan can be changed (``left_alone``).
    """
    _check(writes, deletes)
    sizes = _sizes(context, writes, source)
    if kind == "rescue" or context.misconfigured is not None:
        ours = operations.checkpoint(context, CheckpointRequest("rescue"), progress).checkpoint
    else:
        ours = operations.save(context).checkpoint
    pages = context.store.pages
    present = manifest.get_many(pages, ours.root, [*(write.path for write in writes), *deletes, *(found or ())])
    for path, entry in (found or {}).items():
        if present.get(path) != entry:
            raise RefusedError(
                f"{display(path)} has changed meanwhile; nothing was written",
                hint="run the same command again",
                code="changed_meanwhile",
            )
    gone = {path for path in deletes if path in present}
    errors = [_left(path) for path in deletes if path not in present]
    for write in writes:
        _refuse_in_the_way(context, ours, write.path, gone)
    with context.lock():
        written, added = _store(context, writes)
        wanted: dict[bytes, Entry | None] = dict.fromkeys(gone)
        for write, given in zip(writes, added, strict=True):
            name, size = (given[0], given[1]) if given else (_hash_of(write), sizes[_hash_of(write)])
            wanted[write.path] = symlink_entry(name, size) if write.link else file_entry(name, size, write.permissions)
        changes = [
            Change(path, present.get(path), after)
            for path, after in sorted(wanted.items())
            if present.get(path) != after
        ]
        if not changes:
            return WrittenPlan(ours.id, ours.id, None, errors)
        state = create_derived_checkpoint(context, ours.id, changes, provenance, content=written, kind=kind)
    with forgotten_if_unreached(context, state):
        restored = operations.restore(context, state, expected=ours.id, progress=progress)
    return WrittenPlan(ours.id, state, restored, [*errors, *restored.skipped])


def _check(writes: Sequence[PlannedWrite], deletes: Sequence[bytes]) -> None:
    if len(writes) + len(deletes) > MOST_FILES:
        raise UsageError(f"a plan has at most {MOST_FILES} files", hint="send several, one after the other")
    paths = [write.path for write in writes]
    for path in (*paths, *deletes):
        check_path(path)
    named = {*paths, *deletes}
    if len(named) != len(paths) + len(deletes):
        raise UsageError("the plan names a path twice", hint="each path is written once, or deleted once")
    files = set(paths)
    for path in paths:
        for above in _above(path):
            if above in files:
                raise UsageError(f"the plan has {display(above)} as a file, and {display(path)} below it")
    for write in writes:
        content = write.content
        if write.link and not write.stored and (not content or b"\0" in content or len(content) > 4095):
            raise UsageError(f"{display(write.path)} cannot be a link to that: a target has 1 to 4095 bytes, no NUL")


def _sizes(context: Context, writes: Sequence[PlannedWrite], source: CheckpointId | None) -> Mapping[Hash, int]:
    """The sizes of stored contents; raises `NotFoundError` for a missing one."""
    hashes = {_hash_of(write) for write in writes if write.stored}
    if not hashes:
        return {}
    if source is not None:
        root = context.catalog.checkpoint(source).root
        found = {entry.hash: entry.size for _, entry in manifest.iterate(context.store.pages, root)}
    else:
        known = context.catalog.known(hashes) - context.catalog.known(hashes, pages=True)
        found = {name: location.size for name, location in context.catalog.locate(known).items()}
    missing = sorted(hashes - found.keys())
    if missing:
        where = "" if source is None else f" in {source[:12]}"
        raise NotFoundError(
            f"there is no content {format_hash(missing[0])}{where}", hint="send the content itself", code="no_blob"
        )
    return found


def _hash_of(write: PlannedWrite) -> Hash:
    from holdfast.model.ids import Hash

    return Hash(write.content)


def _refuse_in_the_way(context: Context, ours: Checkpoint, path: bytes, gone: set[bytes]) -> None:
    pages = context.store.pages
    above = [one for one in _above(path) if one not in gone]
    in_the_way = list(manifest.get_many(pages, ours.root, above)) if above else []
    in_the_way += (
        below for below, _ in manifest.iterate(pages, ours.root, path) if below != path and below not in gone
    )
    if in_the_way:
        raise RefusedError(
            f"{display(path)} cannot be a file: {display(in_the_way[0])} is in the way",
            hint="delete that in the same plan",
            code="in_the_way",
        )


def _above(path: bytes) -> Iterator[bytes]:
    at = path.find(b"/")
    while at >= 0:
        yield path[:at]
        at = path.find(b"/", at + 1)


def _left(path: bytes) -> NotCaptured:
    from holdfast.model.entries import NotCaptured

    return NotCaptured(path, "it is not there, or no checkpoint holds it")


def _store(context: Context, writes: Sequence[PlannedWrite]) -> tuple[WrittenBlobs, list[tuple[Hash, int] | None]]:
    """Store the contents that are given; hash and size of each, None for one that is stored already."""
    writer = context.store.writer()
    added: list[tuple[Hash, int] | None] = []
    try:
        for write in writes:
            content = bytes(write.content)
            if write.stored:
                added.append(None)
            elif len(content) <= SMALL_BLOB_BYTES:
                added.append((writer.add(content), len(content)))
            else:
                pieces = (content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES))
                added.append(writer.add_stream(pieces))
        written = writer.finish()
    except BaseException:
        writer.abort()
        raise
    make_room_for(context, written)
    return written, added

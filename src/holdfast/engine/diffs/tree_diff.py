"""How two checkpoints differ, or a checkpoint and the tree as it is now."""

from __future__ import annotations

from holdfast.model.command_results import Diff
from holdfast.model.content import whole
from holdfast.model.entries import Change
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display, parents, under
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.entries import Entry
    from holdfast.model.ids import CheckpointId, Hash


def diff(
    context: Context,
    base: CheckpointId | None,
    target: CheckpointId | None,
    *,
    paths: Sequence[bytes] = (),
    renames: bool = True,
) -> Diff:
    """The differences of ``target`` (None: the tree) from ``base`` (None: the empty tree), limited to ``paths``.

    Shared pages are not read. ``renames`` finds renamed files among deleted and added ones: first those with the same
    content, then those that share at least half of it.
    """
    before = None if base is None else context.catalog.checkpoint(base)
    if target is None:
        from holdfast.engine.history.status import scan_tree

        with context.lock():
            now = scan_tree(context)
        pages, root, files = now.pages, now.root, now.files
    else:
        after = context.catalog.checkpoint(target)
        pages, root, files = context.store.pages, after.root, after.total_files
    changes = None if target is None or base is None else _recorded_changes(context, base, target)
    if changes is None:
        changes = manifest.diff(pages, None if before is None else before.root, root)
    unchanged = files - sum(1 for change in changes if change.after is not None)
    if paths:
        changes = [change for change in changes if any(under(change.path, path) for path in paths)]
        for path in paths:
            # A path without changes exists in the target as well.
            if not path or any(under(change.path, path) for change in changes):
                continue
            if not any(manifest.iterate(pages, root, path)):
                raise NotFoundError(
                    f"{display(path)} is in neither state",
                    hint="paths are relative to the current directory; no state holds ignored files",
                    code="no_such_path",
                )
    renamed = []
    if renames and any(change.before is None for change in changes) and any(change.after is None for change in changes):
        from holdfast.engine.diffs.renames import detect

        found = Diff(base, target, changes, [], unchanged)
        changes, renamed = detect(changes, DiffContents(context, found).read_small)
    return Diff(base, target, changes, renamed, unchanged)


def _recorded_changes(context: Context, base: CheckpointId, target: CheckpointId) -> list[Change] | None:
    """The changes that are recorded with ``target``, if they are against ``base``: then no page is read at all."""
    from holdfast.store.codecs.changeset import decode_changeset

    if context.catalog.checkpoint(target).parent != base:
        return None
    stored = context.catalog.changeset(target)
    return None if stored is None else decode_changeset(stored)


class PlannedDiff(NamedTuple):
    """How the tree is to change, by what a dry run has told."""

    diff: Diff
    """From the tree to the state that would result."""
    unknown: Sequence[bytes]
    """Paths in the dry run that no checkpoint holds, sorted: they would be written or deleted as well."""
    contents: DiffContents
    """Of both sides."""


def planned_diff(context: Context, planned: RestoreResult, *, renames: bool = True) -> PlannedDiff:
    """The differences of the tree from ``planned``, a dry run; ``renames`` as `diff`. Raises as that."""
    from holdfast.engine.history.status import scan_tree

    with context.lock():
        now = scan_tree(context, gone_is_empty=True)
    named, tree = sorted({*planned.written, *planned.deleted}), context.tree
    directories = {path for path in named if tree.is_there(path, directories=True) and not tree.is_there(path)}
    files = {path: entry for path, entry in planned.foreseen.items() if not path.endswith(b"/")}
    for path in planned.foreseen.keys() - files.keys():
        for below, _ in manifest.iterate(now.pages, now.root, path[:-1]):
            if below.startswith(path):
                files.setdefault(below, None)
    present = manifest.get_many(now.pages, now.root, sorted({*files, *named}))
    changes = [
        Change(path, present.get(path), entry) for path, entry in sorted(files.items()) if present.get(path) != entry
    ]
    told = {above for change in changes for above in (change.path, *parents(change.path))} | directories
    told |= {path for path in present if files.get(path) == present[path]}
    unknown = [path for path in named if path not in told]
    contents = DiffContents(
        context, Diff(None, None, [Change(path, after, before) for path, before, after in changes], [], 0)
    )
    renamed = []
    if renames and any(change.before is None for change in changes) and any(one.after is None for one in changes):
        from holdfast.engine.diffs.renames import detect

        changes, renamed = detect(changes, contents.read_small)
    return PlannedDiff(Diff(None, planned.checkpoint, changes, renamed, now.files - len(changes)), unknown, contents)


class DiffContents:
    """The content of both sides of a diff: blobs of the store, or files of the tree where that is the target."""

    def __init__(self, context: Context, diff: Diff) -> None:
        self._context = context
        self._in_tree: dict[Hash, bytes] = {}
        if diff.target is None:
            for change in diff.changes:
                if change.after is not None:
                    self._in_tree[change.after.hash] = change.path
            for renamed in diff.renamed:
                self._in_tree[renamed.after.hash] = renamed.path
            for side in (*diff.changes, *diff.renamed):
                if side.before is not None:
                    self._in_tree.pop(side.before.hash, None)

    def fetch(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """The whole content of each of ``entries``, in their order.

        Raises `RefusedError` if a file of the tree has changed since it was read.
        """
        for entry in entries:
            path = self._in_tree.get(entry.hash)
            content = (
                next(self._context.store.reader.fetch((entry,))) if path is None else self._context.tree.read(path)
            )
            data = whole(content)
            if path is not None and hash_bytes(data) != entry.hash:
                raise RefusedError(f"{display(path)} changed while the diff was made", hint="run the same diff again")
            yield data

    def read_small(self, entries: Sequence[Entry]) -> list[bytes | None]:
        """The content of each entry that is small enough to compare, None for the others and for what changed
        meanwhile.
        """
        from holdfast.model.content import SMALL_BLOB_BYTES

        out: list[bytes | None] = []
        for entry in entries:
            try:
                out.append(next(self.fetch((entry,))) if entry.size <= SMALL_BLOB_BYTES else None)
            except (RefusedError, NotFoundError):
                out.append(None)
        return out

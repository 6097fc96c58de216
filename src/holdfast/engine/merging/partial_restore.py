"""Restoring a part of a checkpoint's differences from the tree: single hunks, files and permissions.

A person's choice becomes a state of its own, which is written like any plan (`write_plan`): the tree is saved first,
one restore brings it there, and an undo reverses that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.engine.diffs import git_patch
from holdfast.engine.diffs.patch_text import MAX_TEXT_BYTES, patch
from holdfast.engine.diffs.tree_diff import planned_diff
from holdfast.engine.history import operations
from holdfast.engine.history.revisions import resolve_name_for_restore
from holdfast.engine.merging.write_plan import PlannedWrite, carry_out
from holdfast.files.ignore.sqlite_files import database_of
from holdfast.model.checkpoint import Provenance
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from holdfast.engine.diffs.git_patch import Hunk
    from holdfast.engine.diffs.tree_diff import PlannedDiff
    from holdfast.engine.opening.context import Context
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.content import Progress
    from holdfast.model.entries import Change
    from holdfast.model.ids import CheckpointId


class RestorePart(NamedTuple):
    """A part of a file's difference that can be chosen."""

    kind: Literal["add", "delete", "whole", "mode", "hunk"]
    """``whole``: all of a file that is on both sides, and has no hunks."""
    text: bytes
    """Of the patch; that of the first part of a file begins with the file's header."""
    hunk: Hunk | None = None


class RestoreFile(NamedTuple):
    """A file that the tree and a checkpoint differ in; ``before`` is what the tree has."""

    change: Change
    before: bytes
    after: bytes
    """The contents, of a file that has hunks."""
    parts: Sequence[RestorePart]
    logs: Sequence[Change] = ()
    """Of a database: what belongs to it, and goes with it."""


class PartialRestore(NamedTuple):
    """The parts of a restore."""

    target: CheckpointId
    planned: PlannedDiff

    def files(self) -> Iterator[RestoreFile]:
        """The files, sorted by path, each loaded as it comes. Raises as `DiffContents.fetch`."""
        changes = {change.path: change for change in self.planned.diff.changes}
        for path, change in changes.items():
            base = database_of(path)
            if base in changes and not self._hunks(changes[base])[2]:
                continue  # a database goes with its logs, or is malformed
            before, after, hunks = self._hunks(change)
            logs = [] if hunks else [one for one in changes.values() if database_of(one.path) == path]
            yield RestoreFile(change, before, after, self._parts(change, hunks), logs)

    def _hunks(self, change: Change) -> tuple[bytes, bytes, Sequence[Hunk]]:
        one, other = change.before, change.after
        if one is None or other is None or one.is_symlink or other.is_symlink or one.hash == other.hash:
            return b"", b"", ()
        if max(one.size, other.size) > MAX_TEXT_BYTES:
            return b"", b"", ()
        before, after = self.planned.contents.fetch([one, other])
        if git_patch.is_binary(before) or git_patch.is_binary(after):
            return b"", b"", ()
        return before, after, list(git_patch.split_hunks(before, after))

    def _parts(self, change: Change, hunks: Sequence[Hunk]) -> list[RestorePart]:
        text = b"".join(patch(self.planned.diff._replace(changes=[change]), self.planned.contents.fetch))
        one, other = change.before, change.after
        if one is None or other is None:
            return [RestorePart("delete" if other is None else "add", text)]
        if not hunks:
            return [RestorePart("mode" if one.hash == other.hash else "whole", text)]
        head = text[: text.index(b"\n@@ ") + 1]
        parts = [RestorePart("hunk", hunk.text, hunk) for hunk in hunks]
        if one.mode != other.mode:
            parts.insert(0, RestorePart("mode", b""))
        parts[0] = parts[0]._replace(text=head + parts[0].text)
        return parts


def differences(context: Context, name: str, paths: Sequence[bytes] = ()) -> PartialRestore:
    """The parts of a restore of ``paths`` (none: of all) to the checkpoint ``name``. Changes nothing; raises as
    `operations.restore`.
    """
    target = resolve_name_for_restore(context, name)
    planned = operations.restore(context, target, paths, dry_run=True)
    return PartialRestore(target, planned_diff(context, planned, renames=False))


def restore_parts(
    context: Context,
    target: CheckpointId,
    chosen: Sequence[tuple[RestoreFile, Collection[RestorePart]]],
    progress: Progress | None = None,
) -> RestoreResult | None:
    """Apply the ``chosen`` differences to ``target`` to the tree, which is saved first; None if the tree has all of
    them.

    Raises `RefusedError` (``changed_meanwhile``), and writes nothing, if one of the files has changed since it was
    shown; and as `write_plan.carry_out`.
    """
    writes: list[PlannedWrite] = []
    deletes: list[bytes] = []
    found = {change.path: change.before for file, _ in chosen for change in (file.change, *file.logs)}
    for file, parts in chosen:
        if len(parts) == len(file.parts):
            for path, _, after in (file.change, *file.logs):
                if after is None:
                    deletes.append(path)
                else:
                    writes.append(
                        PlannedWrite(
                            path, after.hash, stored=True, permissions=after.permissions, link=after.is_symlink
                        )
                    )
        elif parts:
            writes.append(_partly(file, parts))
    who = Provenance(context.settings.identity.author, f"a part of {target[:12]}")
    done = carry_out(context, writes, deletes, who, kind="rescue", found=found, progress=progress)
    return done.restored


def _partly(file: RestoreFile, parts: Collection[RestorePart]) -> PlannedWrite:
    before, after = file.change.before, file.change.after
    assert before is not None, "a file that the tree lacks has one part"
    assert after is not None, "a file that the state lacks has one part"
    content = git_patch.apply_hunks(
        file.before, file.after, [part.hunk for part in file.parts if part in parts and part.hunk]
    )
    mode = after if any(part.kind == "mode" for part in parts) else before
    return PlannedWrite(file.change.path, content, stored=False, permissions=mode.permissions)

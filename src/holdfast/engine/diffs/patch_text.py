"""A `Diff` as text: a patch that ``git apply`` accepts, the lines it adds and removes, and its JSON object."""

from __future__ import annotations

import base64

from holdfast.engine.diffs import git_patch
from holdfast.model.content import whole
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, TypeAlias

    from holdfast.model.answers import workspace as answers
    from holdfast.model.command_results import Diff, Renamed
    from holdfast.model.content import Content
    from holdfast.model.entries import Entry


Fetch: TypeAlias = "Callable[[Sequence[Entry]], Iterator[Content]]"
"""Gives the content of entries, in their order, as `BlobReader.fetch` does."""

MAX_TEXT_BYTES = 16 << 20
"""Content beyond this size counts as binary, and is read only to be put into a binary patch."""

MAX_BINARY_PATCH_BYTES = 128 << 20
"""Content beyond this size is not put into a binary patch: all of it would have to be in memory."""

_BATCH_BYTES = 16 << 20
_BATCH_FILES = 256


class FileStat(NamedTuple):
    """How many lines one file gains and loses."""

    path: bytes
    before_path: bytes
    """Where it was before a rename; else the same as ``path``."""
    status: str
    """``A``, ``D``, ``M``, ``T`` as in `Change.status`, or ``R`` for a rename."""
    added: int
    removed: int
    binary: bool
    """Then no lines are counted."""
    before_size: int
    after_size: int
    """Bytes; 0 where there is no file."""


class _Item(NamedTuple):
    """One change or rename."""

    path: bytes
    before_path: bytes
    before: Entry | None
    after: Entry | None
    similarity: int
    status: str

    @property
    def same_content(self) -> bool:
        return self.before is not None and self.after is not None and self.before.hash == self.after.hash

    def larger(self) -> int:
        return max(self.before.size if self.before else 0, self.after.size if self.after else 0)


class _Loaded(NamedTuple):
    item: _Item
    before: bytes
    after: bytes
    opaque: bool
    """Too large to be read; ``before`` and ``after`` are then empty."""

    @property
    def binary(self) -> bool:
        return self.opaque or git_patch.is_binary(self.before) or git_patch.is_binary(self.after)


def describe_binary(before_size: int, after_size: int) -> str:
    """``Binary file changed (8192 → 8448 bytes)``: what people read in place of lines."""
    return f"Binary file changed ({before_size} → {after_size} bytes)"


def patch(
    diff: Diff,
    fetch: Fetch,
    *,
    context: int = 3,
    binary: bool = False,
) -> Iterator[bytes]:
    """The patch from the base to the target of ``diff``, sorted by path, in pieces; nothing if they are the same.

    ``git apply`` takes it and makes exactly the target, except permissions beyond the owner's execute bit, which no Git
    patch contains, and binary files unless ``binary`` is set. Text keeps its bytes, whatever its encoding and line
    ends. ``context`` is in lines. Content is fetched in batches as the patch is read; of a file beyond `MAX_TEXT_BYTES`
    (with ``binary``: `MAX_BINARY_PATCH_BYTES`) it only says that it differs.

    Raises the errors of ``fetch``.
    """
    for loaded in _load(_items(diff), fetch, MAX_BINARY_PATCH_BYTES if binary else MAX_TEXT_BYTES):
        item = loaded.item
        before = git_patch.Side(item.before_path, item.before.mode, loaded.before) if item.before else None
        after = git_patch.Side(item.path, item.after.mode, loaded.after) if item.after else None
        sides = [(before, None), (None, after)] if item.status == "T" else [(before, after)]
        for one, other in sides:
            yield from git_patch.file_patch(
                one,
                other,
                similarity=item.similarity,
                context=context,
                binary=binary and not loaded.opaque,
                opaque=loaded.opaque or (not item.same_content and item.larger() > MAX_TEXT_BYTES),
            )


def stat(diff: Diff, fetch: Fetch) -> list[FileStat]:
    """Lines added and removed by each file of ``diff``, sorted by path; the counts are those of `patch`."""
    stats: list[FileStat] = []
    for loaded in _load(_items(diff), fetch, MAX_TEXT_BYTES):
        item = loaded.item
        added, removed = (0, 0) if loaded.binary else git_patch.count_lines(loaded.before, loaded.after)
        if item.status == "T" and not loaded.binary:
            added = len(git_patch.split_lines(loaded.after))
            removed = len(git_patch.split_lines(loaded.before))
        stats.append(
            FileStat(
                item.path,
                item.before_path,
                item.status,
                added,
                removed,
                loaded.binary,
                item.before.size if item.before else 0,
                item.after.size if item.after else 0,
            )
        )
    return stats


def to_json(diff: Diff, fetch: Fetch | None) -> answers.Diff:
    """The JSON object of ``diff``; without ``fetch``, without the contents of files.

    Its ``diff`` is the hunks of a unified diff. If they are not UTF-8, ``diff_base64`` has them in full, and ``diff``
    has a replacement character for each invalid byte.
    """
    # A patch does not load how answers are made.
    from holdfast.model.answers import workspace as answers
    from holdfast.model.json_encoder import encode

    items = _items(diff)
    added = [item for item in items if item.before is None]
    deleted = [item for item in items if item.after is None]
    both = [item for item in items if item.before is not None and item.after is not None]
    loaded: Iterable[_Loaded] = () if fetch is None else _load(both, fetch, MAX_TEXT_BYTES)
    said = {one.item.path: _difference(one) for one in loaded}
    modified = [encode(answers.ModifiedFile, item, **said.get(item.path, {})) for item in both if item.status != "R"]
    renamed = [encode(answers.RenamedFile, item, **said.get(item.path, {})) for item in both if item.status == "R"]
    numbers = {"added": added, "deleted": deleted, "modified": modified, "renamed": renamed}
    return encode(
        answers.Diff,
        diff,
        **numbers,
        stats=encode(answers.DiffStats, diff, **{name: len(found) for name, found in numbers.items()}),
    )


def _difference(loaded: _Loaded) -> dict[str, Any]:
    """The fields of an `answers.Difference` for a file that both sides have."""
    item = loaded.item
    found: dict[str, Any] = {} if item.status == "R" and item.same_content else _content(loaded)
    if item.before is not None and item.after is not None and item.before.mode != item.after.mode:
        found["mode"] = item
    return found


def _content(loaded: _Loaded) -> dict[str, Any]:
    if loaded.binary:
        before, after = loaded.item.before, loaded.item.after
        sizes = (before.size if before else 0, after.size if after else 0)
        return {"binary": describe_binary(*sizes), "before_size": sizes[0], "after_size": sizes[1]}
    text = b"".join(git_patch.hunks(loaded.before, loaded.after))
    try:
        return {"diff": text.decode()}
    except UnicodeDecodeError:
        return {"diff": text.decode(errors="replace"), "diff_base64": base64.b64encode(text).decode("ascii")}


def _items(diff: Diff) -> list[_Item]:
    items = [_Item(c.path, c.path, c.before, c.after, 0, c.status) for c in diff.changes]
    items += [_rename(renamed) for renamed in diff.renamed]
    return sorted(items, key=lambda item: item.path)


def _rename(renamed: Renamed) -> _Item:
    return _Item(renamed.path, renamed.before_path, renamed.before, renamed.after, renamed.similarity, "R")


def _load(items: Iterable[_Item], fetch: Fetch, limit: int) -> Iterator[_Loaded]:
    """Each item with the content that its text needs, some hundred at a time; none where both sides have the same."""
    batch: list[_Item] = []
    size = 0
    for item in items:
        if batch and (size + item.larger() > _BATCH_BYTES or len(batch) == _BATCH_FILES):
            yield from _load_batch(batch, fetch, limit)
            batch, size = [], 0
        batch.append(item)
        size += min(item.larger(), limit)
    yield from _load_batch(batch, fetch, limit)


def _load_batch(batch: list[_Item], fetch: Fetch, limit: int) -> Iterator[_Loaded]:
    wanted = [
        entry
        for item in batch
        if not item.same_content and item.larger() <= limit
        for entry in (item.before, item.after)
        if entry is not None
    ]
    contents = map(whole, fetch(wanted)) if wanted else iter(())
    for item in batch:
        if item.same_content:
            yield _Loaded(item, b"", b"", opaque=False)
        elif item.larger() > limit:
            yield _Loaded(item, b"", b"", opaque=True)
        else:
            before = next(contents) if item.before else b""
            after = next(contents) if item.after else b""
            yield _Loaded(item, before, after, opaque=False)

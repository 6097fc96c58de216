"""A difference between two states: the list of its files, and each file as lines, images, or a note."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.api.web.file_kinds import image_type
from holdfast.api.web.highlight import line_html, pieces, text_lines
from holdfast.api.web.words import moment, path_text, short
from holdfast.engine.diffs.git_patch import is_binary, split_lines
from holdfast.engine.diffs.line_diff import Region, changed_regions
from holdfast.engine.diffs.renames import detect
from holdfast.model.content import whole
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.model.message_text import size, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from holdfast.api.web.addresses import Addresses, Query
    from holdfast.api.web.highlight import Piece
    from holdfast.engine.diffs.tree_diff import DiffContents
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.command_results import Diff
    from holdfast.model.entries import Entry

NOTHING: Final = "nothing"
"""The name of the state before the first one."""
NOW: Final = "now"
"""The name of the tree as it is."""

CONTEXT: Final = 3
_MOST_BYTES: Final = 2 << 20
"""Of one side of a text whose lines are compared without being asked for."""
_MOST_BYTES_ASKED: Final = 16 << 20
_MOST_LINES: Final = 600
"""Lines of a file that are shown without being asked for."""
_MOST_DELETED: Final = 40
"""Lines of a deleted file that are not folded."""
_MOST_LINES_ASKED: Final = 20_000
_INLINE_SECONDS: Final = 0.05
_MOST_INLINE: Final = 40
"""Limits of time and number for files in the page itself; the others load when they are opened."""
_MOST_LISTED: Final = 2000
_MOST_STEPS: Final = 400_000
_MOST_CANDIDATES: Final = 30
"""Of more files that came and went, the page is shown before it is known which were renamed."""
_MOST_INLINE_BYTES: Final = 40_000
"""Of a file among many that is put on the page itself."""
_MANY: Final = 20
_KEPT: Final = 8


class DiffKey(NamedTuple):
    """Identifies a difference."""

    base: str
    target: str
    number: int
    """Of one to the tree as it is, which is another one each time."""
    renames: bool
    """Whether files that came and went are compared, however many they are."""


class Differences:
    """The differences shown last, so that the files of a page need no new comparison."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[DiffKey, Diff] = OrderedDict()
        self._number = 0

    def begin(self, workspace: Workspace, base: str, target: str, *, renames: bool) -> tuple[DiffKey, Diff]:
        """The difference as it is now."""
        is_fixed = target != NOW
        base, target = _resolved(workspace, base), _resolved(workspace, target)
        with self._lock:
            self._number += 1
            key = DiffKey(base, target, 0 if is_fixed else self._number, renames)
        return key, self.get(workspace, key)

    def get(self, workspace: Workspace, key: DiffKey) -> Diff:
        """The same as shown before, if that is still known, otherwise as it is now."""
        with self._lock:
            found = self._kept.pop(key, None)
        if found is None:
            found = _diff(workspace, key)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


def _resolved(workspace: Workspace, name: str) -> str:
    return name if name in (NOTHING, NOW) else workspace.resolve(name)


def _diff(workspace: Workspace, key: DiffKey) -> Diff:
    if key.base == NOW:
        raise NotFoundError("the tree as it is can only be the newer side", hint="exchange the two states")
    if key.base == NOTHING:
        if key.target in (NOW, NOTHING):
            raise NotFoundError(f"nothing can be compared with a checkpoint, not with {key.target}")
        return workspace.diff_from_nothing(key.target)
    if key.target == NOTHING:
        raise NotFoundError("nothing can only be the older side", hint="exchange the two states")
    found = workspace.diff(key.base, None if key.target == NOW else key.target, renames=False)
    if not key.renames and _has_many_candidates(found):
        return found
    changes, renamed = detect(found.changes, workspace.diff_contents(found).read_small)
    return found._replace(changes=changes, renamed=renamed)


def _has_many_candidates(diff: Diff) -> bool:
    """Whether it takes long to find out which files were renamed."""
    came = sum(change.before is None for change in diff.changes)
    return min(came, sum(change.after is None for change in diff.changes)) > _MOST_CANDIDATES


class Side(NamedTuple):
    """One of the two states."""

    name: str
    text: str
    when: str
    label: str


class Word(NamedTuple):
    """A line of one side."""

    number: int
    html: Markup


class LineRow(NamedTuple):
    """A row of lines side by side; None where a side has none."""

    kind: str
    """``same``, ``changed``, ``removed``, ``added``"""
    before: Word | None
    after: Word | None


class Hunk(NamedTuple):
    """Changed lines, with some around them."""

    header: str
    rows: Sequence[LineRow]

    def unified(self) -> Iterator[tuple[str, Word, int | None, int | None]]:
        """The lines below each other: sign, line, its number before, its number after."""
        removed: list[LineRow] = []
        added: list[LineRow] = []
        for row in (*self.rows, None):
            if row is not None and row.kind != "same":
                removed += [row] if row.before else []
                added += [row] if row.after else []
                continue
            yield from (("-", one.before, one.before.number, None) for one in removed if one.before)
            yield from (("+", one.after, None, one.after.number) for one in added if one.after)
            removed, added = [], []
            if row is not None and row.before and row.after:
                yield " ", row.after, row.before.number, row.after.number


class FileItem(NamedTuple):
    """A file in the list of a difference."""

    path: str
    before_path: str
    """Where it was before a rename; empty where it was not renamed."""
    status: str
    similarity: int
    added: int | None
    """Lines; None where they were not counted."""
    removed: int | None
    note: str
    """Further differences: sizes, the mode."""
    anchor: str
    address: str
    """Of the file alone."""


class FileView(NamedTuple):
    """The difference of one file, for its template."""

    item: FileItem
    kind: str
    """``text``, ``images``, ``binary``, ``large``, ``same`` (the content is), ``changed`` (while it was looked at)"""
    hunks: Sequence[Hunk]
    folded: int
    """The number of changed lines that are folded."""
    whole: str
    """The address with all lines; empty if they are all here."""
    before_raw: str
    after_raw: str
    ends: str
    """A note about the last line."""
    history: str
    is_two_sided: bool
    """False for an added or deleted file, which has only one side."""

    @property
    def is_long_deletion(self) -> bool:
        """Whether there is little to see in it but that it is gone."""
        return self.item.status == "D" and (self.item.removed or 0) > _MOST_DELETED


class Difference(NamedTuple):
    """A page with a difference."""

    before: Side
    after: Side
    files: Sequence[FileItem]
    more: int
    """Files that are not in the list."""
    views: Sequence[FileView | FileItem]
    """Each file, as far as it is on the page itself."""
    counts: dict[str, int]
    split: bool
    other_view: str
    """The address of the other way to show it."""
    exchanged: str
    """The address of the opposite difference; empty where there is none."""
    is_now: bool
    paths: str
    path_query: bytes
    """The same as an address says it."""
    with_renames: str
    """The address of the same once renames are found; empty where they are."""


class Item(NamedTuple):
    """A file of a difference."""

    path: bytes
    before_path: bytes
    before: Entry | None
    after: Entry | None
    status: str
    similarity: int


def _largest(item: Item) -> int:
    return max(item.before.size if item.before else 0, item.after.size if item.after else 0)


def items_of(diff: Diff) -> list[Item]:
    """The files of a difference, in the order of their paths."""
    items = [Item(one.path, one.path, one.before, one.after, one.status, 0) for one in diff.changes]
    items += [Item(one.path, one.before_path, one.before, one.after, "R", one.similarity) for one in diff.renamed]
    return sorted(items)


def difference(workspace: Workspace, known: Differences, addresses: Addresses, query: Query) -> Difference:
    """The page of a difference. Raises `NotFoundError`, `LockedError` where the tree is in use."""
    base, target = query.text("from") or "@", query.text("to") or NOW
    key, diff = known.begin(workspace, base, target, renames=query.choice("renames", ("", "yes")) == "yes")
    split = query.choice("view", ("split", "unified")) == "split"
    below = query.path("path")
    items = [one for one in items_of(diff) if not below or one.path == below or one.path.startswith(below + b"/")]
    page = FileViews(workspace.diff_contents(diff), addresses, key, split=split)
    until = time.monotonic() + _INLINE_SECONDS
    views: list[FileView | FileItem] = []
    listed: list[FileItem] = []
    for number, item in enumerate(items[:_MOST_LISTED]):
        is_small = len(items) <= _MANY or _largest(item) <= _MOST_INLINE_BYTES
        if number < _MOST_INLINE and is_small and time.monotonic() < until:
            view = page.view(item)
            views.append(view)
            listed.append(view.item)
        else:
            listed.append(page.item(item))
            views.append(listed[-1])
    counts: dict[str, int] = {}
    for item in items:
        counts[item.status] = counts.get(item.status, 0) + 1
    said = {"path": below}
    return Difference(
        before=_side(workspace, key.base),
        after=_side(workspace, key.target),
        files=listed,
        more=len(items) - len(listed),
        views=views,
        counts=counts,
        split=split,
        other_view=addresses.page("diff", from_=key.base, to=key.target, view="unified" if split else "split", **said),
        exchanged=""
        if key.target == NOW or key.base == NOTHING
        else addresses.page("diff", from_=key.target, to=key.base, view="" if split else "unified", **said),
        is_now=key.target == NOW,
        paths=path_text(below),
        path_query=below,
        with_renames=""
        if key.renames or not _has_many_candidates(diff)
        else addresses.page(
            "diff", from_=key.base, to=key.target, view="" if split else "unified", renames="yes", **said
        ),
    )


def file_view(workspace: Workspace, known: Differences, addresses: Addresses, query: Query) -> tuple[FileView, bool]:
    """One file of a difference, and whether its sides are shown side by side. Raises `NotFoundError`."""
    base, target = _resolved(workspace, query.text("from")), _resolved(workspace, query.text("to"))
    renames = query.choice("renames", ("", "yes")) == "yes"
    key = DiffKey(base, target, query.number("number", 0, 999_999_999), renames)
    diff = known.get(workspace, key)
    path = query.path("path")
    split = query.choice("view", ("split", "unified")) == "split"
    item = next((one for one in items_of(diff) if one.path == path), None)
    if item is None:
        raise NotFoundError(f"{path_text(path)} is the same in both", code="no_such_path")
    page = FileViews(workspace.diff_contents(diff), addresses, key, split=split)
    return page.view(item, asked=query.choice("all", ("", "yes")) == "yes"), split


def _side(workspace: Workspace, name: str) -> Side:
    if name == NOW:
        return Side(name, "the tree as it is", "", "")
    if name == NOTHING:
        return Side(name, "nothing", "", "")
    checkpoint = workspace.show(name).checkpoint
    at = moment(checkpoint.created_at)
    return Side(name, short(name), f"{at.day} {at.clock}", visible(checkpoint.label))


class FileViews:
    """Makes what a page shows of the files of a difference."""

    def __init__(
        self, contents: DiffContents, addresses: Addresses, key: DiffKey | None = None, *, split: bool = False
    ) -> None:
        """``key``: which difference it is; None: one that is only planned, so no address leads to its files."""
        self._contents = contents
        self._addresses = addresses
        self._key = key
        self._split = split

    def item(self, item: Item, added: int | None = None, removed: int | None = None) -> FileItem:
        notes: list[str] = []
        if item.before and item.after and item.before.mode != item.after.mode and item.status != "T":
            notes.append(f"mode {item.before.permissions:o} → {item.after.permissions:o}")
        if item.status == "T":
            notes.append("now a link" if item.after and item.after.is_symlink else "was a link")
        return FileItem(
            path=path_text(item.path),
            before_path=path_text(item.before_path) if item.before_path != item.path else "",
            status=item.status,
            similarity=item.similarity,
            added=added,
            removed=removed,
            note=", ".join(notes),
            anchor=f"file-{hashlib.blake2b(item.path, digest_size=6).hexdigest()}",
            address=self._address(item),
        )

    def _address(self, item: Item, *, everything: bool = False) -> str:
        if self._key is None:
            return ""
        return self._addresses.page(
            "diff/file",
            from_=self._key.base,
            to=self._key.target,
            number=self._key.number,
            path=item.path,
            view="" if self._split else "unified",
            renames="yes" if self._key.renames else "",
            all="yes" if everything else "",
        )

    def view(self, item: Item, *, asked: bool = False) -> FileView:
        """A file as it is shown; ``asked``: all of it is wanted."""
        view = FileView(
            item=self.item(item),
            kind="same",
            hunks=(),
            folded=0,
            whole=self._address(item, everything=True),
            before_raw="" if self._key is None else self._raw(self._key.base, item.before_path, item.before),
            after_raw="" if self._key is None else self._raw(self._key.target, item.path, item.after),
            ends="",
            history=self._addresses.page("", path=item.path),
            is_two_sided=item.before is not None and item.after is not None,
        )
        before, after = item.before, item.after
        if before is not None and after is not None and before.hash == after.hash:
            return view
        sizes = f"{_size_of(before)} → {_size_of(after)}"
        if _largest(item) > (_MOST_BYTES_ASKED if asked else _MOST_BYTES):
            return view._replace(kind="large", item=_noted(view.item, sizes))
        try:
            old, new = self._read(before), self._read(after)
        except HoldfastError as error:
            return view._replace(kind="changed", item=_noted(view.item, visible(error.message)))
        kinds = {image_type(item.before_path, old) if before else None, image_type(item.path, new) if after else None}
        if kinds - {None, "image/svg+xml"} and (None not in kinds or not (before and after)):
            return view._replace(kind="images", item=_noted(view.item, sizes))
        if is_binary(old) or is_binary(new):
            return view._replace(kind="binary", item=_noted(view.item, sizes))
        return self._text(view, item, old, new, asked=asked)

    def _read(self, entry: Entry | None) -> bytes:
        return b"" if entry is None else whole(next(self._contents.fetch((entry,))))

    def _raw(self, state: str, path: bytes, entry: Entry | None) -> str:
        return "" if entry is None or entry.is_symlink else self._addresses.page(f"raw/{state}", path=path)

    def _text(self, view: FileView, item: Item, old: bytes, new: bytes, *, asked: bool) -> FileView:
        old_lines, new_lines = split_lines(old), split_lines(new)
        regions = changed_regions(old_lines, new_lines, max_steps=_MOST_STEPS)
        added = sum(one.after_end - one.after_start for one in regions)
        removed = sum(one.before_end - one.before_start for one in regions)
        crlf = all(line.endswith(b"\r\n") for line in (*old_lines, *new_lines))
        last = regions[-1] if regions else Region(0, 0, 0, 0)
        # Lines after the last change's context are not shown, so they need no highlighting.
        before = pieces(item.before_path, text_lines(old, crlf=crlf)[: last.before_end + CONTEXT])
        after = pieces(item.path, text_lines(new, crlf=crlf)[: last.after_end + CONTEXT])
        most = _MOST_LINES_ASKED if asked else _MOST_LINES
        hunks: list[Hunk] = []
        shown = 0
        for group in _groups(regions):
            if shown >= most:
                break
            hunk = _hunk(group, before, after, most - shown)
            shown += len(hunk.rows)
            hunks.append(hunk)
        told = sum(row.before is not None for one in hunks for row in one.rows if row.kind != "same")
        told += sum(row.after is not None for one in hunks for row in one.rows if row.kind != "same")
        ends = [
            f"no newline at the end {when}"
            for when, content in (("before", old), ("after", new))
            if content and not content.endswith(b"\n")
        ]
        return view._replace(
            kind="text",
            item=view.item._replace(added=added, removed=removed),
            hunks=hunks,
            folded=added + removed - told,
            ends=", ".join(ends) if len(ends) == 1 or (ends and not hunks) else "",
        )


def _noted(item: FileItem, note: str) -> FileItem:
    return item._replace(note=", ".join(filter(None, (item.note, note))))


def _size_of(entry: Entry | None) -> str:
    return "nothing" if entry is None else size(entry.size)


def _groups(regions: Sequence[Region]) -> Iterator[list[Region]]:
    """Regions that are shown in one hunk."""
    group: list[Region] = []
    for region in regions:
        if group and region.before_start - group[-1].before_end > 2 * CONTEXT:
            yield group
            group = []
        group.append(region)
    if group:
        yield group


def _hunk(group: Sequence[Region], before: list[list[Piece]], after: list[list[Piece]], most: int) -> Hunk:
    first, last = group[0], group[-1]
    lead = min(CONTEXT, first.before_start, first.after_start)
    a, b = first.before_start - lead, first.after_start - lead
    rows: list[LineRow] = []
    for region in group:
        rows += _same(before, after, a, b, region.before_start - a)
        rows += _changed(
            before[region.before_start : region.before_end], after[region.after_start : region.after_end], region
        )
        a, b = region.before_end, region.after_end
        if len(rows) > most:
            break
    else:
        rows += _same(before, after, a, b, min(CONTEXT, len(before) - last.before_end, len(after) - last.after_end))
    numbers = (first.before_start - lead + 1, first.after_start - lead + 1)
    return Hunk(f"line {numbers[1]}", rows[:most])


def _same(before: list[list[Piece]], after: list[list[Piece]], a: int, b: int, count: int) -> Iterator[LineRow]:
    for at in range(count):
        yield LineRow(
            "same",
            Word(a + at + 1, line_html(before[a + at])),
            Word(b + at + 1, line_html(after[b + at])),
        )


def _changed(before: list[list[Piece]], after: list[list[Piece]], region: Region) -> Iterator[LineRow]:
    for at in range(max(len(before), len(after))):
        one = before[at] if at < len(before) else None
        other = after[at] if at < len(after) else None
        marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        if one is not None and other is not None:
            marks = changed_words(_text_of(one), _text_of(other))
        yield LineRow(
            "changed" if one is not None and other is not None else "removed" if one is not None else "added",
            None if one is None else Word(region.before_start + at + 1, line_html(one, marks[0])),
            None if other is None else Word(region.after_start + at + 1, line_html(other, marks[1])),
        )


def _text_of(line: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in line)


_TOKEN: Final = re.compile(r"\w+|\s+|.", re.DOTALL)
_MOST_WORDS: Final = 400
_LEAST_ALIKE: Final = 0.3
"""Lines that share less than this are two lines: marks all over would say nothing."""


def changed_words(before: str, after: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The characters of two lines that differ, as ranges of each; none where the lines have too little in common."""
    one, other = _TOKEN.findall(before), _TOKEN.findall(after)
    if len(one) > _MOST_WORDS or len(other) > _MOST_WORDS:
        return [], []
    encoded = [[token.encode("utf-8", "surrogatepass") for token in tokens] for tokens in (one, other)]
    regions = changed_regions(*encoded, max_steps=20_000)
    starts = _starts(one), _starts(other)
    marks = (
        [(starts[0][region.before_start], starts[0][region.before_end]) for region in regions],
        [(starts[1][region.after_start], starts[1][region.after_end]) for region in regions],
    )
    marked = sum(end - start for side in marks for start, end in side)
    if marked > (1 - _LEAST_ALIKE) * (len(before) + len(after)):
        return [], []
    return [each for each in marks[0] if each[0] < each[1]], [each for each in marks[1] if each[0] < each[1]]


def _starts(tokens: Sequence[str]) -> list[int]:
    at, starts = 0, [0]
    for token in tokens:
        at += len(token)
        starts.append(at)
    return starts

"""The change of the history that each line of a file comes from, by comparing consecutive versions of the file.

It goes from a state back over its parents. A line that is in a version and not in the one before comes from the state
that made that version. Lines that a merge brought in come from the merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.engine.diffs.git_patch import is_binary, split_lines
from holdfast.engine.diffs.line_diff import changed_regions
from holdfast.engine.history.timeline import read_undo_log
from holdfast.model.content import whole
from holdfast.model.errors import RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.model.timeline import prompt_of
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Entry
    from holdfast.model.ids import CheckpointId
    from holdfast.undo.service import StepInfo

_MOST_BYTES: Final = 1 << 20
"""Of a version that is compared."""
_MOST_COMPARED: Final = 32 << 20
"""Of all versions together."""
_MOST_VERSIONS: Final = 300
_MOST_STATES: Final = 5000
_MOST_STEPS: Final = 400_000
"""Of the comparison of two versions."""
_MOST_CHANGES: Final = 2000
"""Of a state in which a file may have been renamed."""
_MOST_EVENTS: Final = 5000
"""The most events to search for a prompt."""
_BATCH: Final = 200


class LineOrigin(NamedTuple):
    """A change that lines come from."""

    checkpoint: Checkpoint
    """The state that it made."""
    path: bytes
    """The path of the file there."""
    steps: Sequence[StepInfo]
    """The steps of the undo log that changed the file between the state before and this one, as far as it has them."""
    prompt: int | None
    """The number of the last prompt before it, by which undo goes back; None if there was none."""
    asked: str
    """The text of that prompt."""
    lines: int
    """How many lines come from it."""


class LineOrigins(NamedTuple):
    """Where the lines of a file come from."""

    origins: Sequence[LineOrigin]
    """The newest first."""
    of_lines: Sequence[int | None]
    """For each line the place of its origin; None for one that is older than all examined versions."""
    limit: str
    """Why older versions were not examined, although they exist; empty if all that matter were."""


def line_origins(context: Context, state: CheckpointId, path: bytes) -> LineOrigins:
    """The origins of the lines of the file ``path`` in ``state``.

    The time depends on the number of the file's versions, within limits; ``limit`` names one that was reached. Raises
    `NotFoundError` if there is no such file, `RefusedError` (code ``no_text``) for one without lines.
    """
    from holdfast.engine.history.queries import browse

    entry = browse(context, state, path).entry
    text = None if entry is None else _text(context, entry)
    if entry is None or text is None:
        raise RefusedError(f"{display(path)} is no text of up to {_MOST_BYTES >> 20} MiB", code="no_text")
    walk = _Walk(context, state, path, entry, split_lines(text))
    walk.run()
    found = _Found(context, walk)
    order = list(walk.made)
    return LineOrigins(
        [found.origin(*walk.made[name]) for name in order],
        [None if one is None else order.index(one) for one in walk.origins],
        walk.limit,
    )


def _text(context: Context, entry: Entry) -> bytes | None:
    if entry.is_symlink or entry.size > _MOST_BYTES:
        return None
    content = whole(next(context.store.reader.fetch((entry,))))
    return None if is_binary(content) else content


class _Walk:
    """Goes back over the versions of a file."""

    def __init__(self, context: Context, state: CheckpointId, path: bytes, entry: Entry, lines: list[bytes]) -> None:
        self._context = context
        self._at = context.catalog.checkpoint(state)
        self._path = path
        self._renamed_from: bytes | None = None
        """Its path in the state before, if that differs."""
        self._entry = entry
        self._lines = lines
        self._places: list[int | None] = list(range(len(lines)))
        """For each line of the version: which line of the file it is; None for one that is gone since."""
        self.origins: list[CheckpointId | None] = [None] * len(lines)
        self.made: dict[CheckpointId, tuple[Checkpoint, bytes, bytes, int]] = {}
        """The states that lines come from, the newest first: each with the file's path before it and in it, and how
        many lines.
        """
        self.limit = ""

    def run(self) -> None:
        """Find out about all lines, as far as the limits allow."""
        compared = versions = states = 0
        while any(place is not None for place in self._places):
            before = self._parent()
            entry = None if before is None else self._entry if before.root == self._at.root else self._in(before)
            if before is None or entry is None:
                self._take(range(len(self._lines)))
                return
            if entry.hash != self._entry.hash:
                versions, compared = versions + 1, compared + entry.size
                if versions > _MOST_VERSIONS or compared > _MOST_COMPARED:
                    self.limit = f"{versions - 1:,} versions were compared"
                    return
                if not self._compare(entry):
                    return
            self._entry, self._at, states = entry, before, states + 1
            self._path, self._renamed_from = self._renamed_from or self._path, None
            if states > _MOST_STATES:
                self.limit = f"{_MOST_STATES:,} states were looked at"
                return

    def _parent(self) -> Checkpoint | None:
        """The state before; None at the beginning, or if it is not kept."""
        parent = self._at.parent
        return None if parent is None else self._context.catalog.checkpoints_named([parent]).get(parent)

    def _in(self, before: Checkpoint) -> Entry | None:
        """The file as the state before has it, under another name where it was renamed; None if it is new."""
        entry = manifest.get(self._context.store.pages, before.root, self._path)
        if entry is not None:
            return entry
        from itertools import islice

        from holdfast.engine.diffs.renames import detect
        from holdfast.engine.diffs.tree_diff import DiffContents
        from holdfast.model.command_results import Diff

        pages = self._context.store.pages
        changes = list(islice(manifest.diff(pages, before.root, self._at.root), _MOST_CHANGES + 1))
        if len(changes) > _MOST_CHANGES:
            return None
        contents = DiffContents(self._context, Diff(before.id, self._at.id, changes, [], 0))
        _, renamed = detect(changes, contents.read_small)
        found = next((one for one in renamed if one.path == self._path), None)
        if found is None:
            return None
        self._renamed_from = found.before_path
        return found.before

    def _compare(self, entry: Entry) -> bool:
        """Go back to the version ``entry``: the lines that it has not come from the state. False if it is no text: then
        all of them do.
        """
        text = _text(self._context, entry)
        if text is None:
            self._take(range(len(self._lines)))
            return False
        lines = split_lines(text)
        places: list[int | None] = [None] * len(lines)
        old = new = 0
        regions = changed_regions(lines, self._lines, max_steps=_MOST_STEPS)
        for region in regions:
            count = region.before_start - old
            places[old : region.before_start] = self._places[new : new + count]
            self._take(range(region.after_start, region.after_end))
            old, new = region.before_end, region.after_end
        places[old:] = self._places[new:]
        self._lines, self._places = lines, places
        return True

    def _take(self, lines: Sequence[int]) -> None:
        """Assign these lines of the version to the state."""
        found = [place for place in (self._places[line] for line in lines) if place is not None]
        for place in found:
            self.origins[place] = self._at.id
        if found:
            known = self.made.get(self._at.id)
            count = len(found) + (0 if known is None else known[-1])
            self.made[self._at.id] = (self._at, self._renamed_from or self._path, self._path, count)
        for line in lines:
            self._places[line] = None


class _Found:
    """Finds the events that made the states."""

    def __init__(self, context: Context, walk: _Walk) -> None:
        self._context = context
        self._own = context.workspace.id
        paths = {path for _, before, after, _ in walk.made.values() for path in (before, after)}
        self._undo_log = read_undo_log(context, paths)
        self._prompts = self._read_prompts()
        self._next: tuple[int, str] | None = None

    def origin(self, made: Checkpoint, before: bytes, path: bytes, lines: int) -> LineOrigin:
        """A state as the origin of lines. Call it in the states' order, newest first."""
        events = self._context.catalog.events(self._own, checkpoint=made.id) if made.workspace == self._own else ()
        if not events:
            return LineOrigin(made, path, (), None, "", lines)
        event = events[-1]
        steps: list[StepInfo] = []
        if event.undo_seq is not None:
            earlier = self._context.catalog.events(self._own, limit=1, before=event.seq)
            since = (earlier[0].undo_seq or 0) if earlier else 0
            touching = {step for name in (before, path) for step in self._undo_log.touching.get(name, ())}
            steps = [
                step
                for step in self._undo_log.steps.values()
                if step.id in touching and since < step.begun <= event.undo_seq
            ]
        number, asked = self._prompt_before(event.seq)
        return LineOrigin(made, path, steps, number, asked, lines)

    def _prompt_before(self, event: int) -> tuple[int | None, str]:
        while self._next is None or self._next[0] >= event:
            self._next = next(self._prompts, None)
            if self._next is None:
                return None, ""
        return self._next

    def _read_prompts(self) -> Iterator[tuple[int, str]]:
        """The prompts, the newest first."""
        catalog = self._context.catalog
        before: int | None = None
        for _ in range(_MOST_EVENTS // _BATCH):
            some = catalog.events(self._own, limit=_BATCH, before=before)
            if not some:
                return
            # Earlier versions recorded a prompt in the message of a checkpoint.
            made = catalog.checkpoints_named({one.checkpoint for one in some if one.operation == "checkpoint"})
            for one in some:
                asked = one.text if one.operation == "prompt" else None
                if one.operation == "checkpoint" and one.checkpoint in made:
                    asked = prompt_of(made[one.checkpoint].provenance.message)
                if asked is not None:
                    yield one.seq, asked
            before = some[-1].seq

"""What the tree holds now, compared with what was saved; nothing is stored for the asking."""

from __future__ import annotations

from holdfast.engine.opening import restore_journal as journals
from holdfast.engine.opening import undo_note
from holdfast.engine.opening.saved_state import saved_in
from holdfast.engine.results.results import Status
from holdfast.files.hashing import HashSink
from holdfast.files.tree import ROOT_GONE, Scan
from holdfast.model.errors import FormatError, NotFoundError
from holdfast.model.log import Log
from holdfast.model.named import NamedTuple
from holdfast.model.typed import TYPE_CHECKING
from holdfast.model.wording import named_steps
from holdfast.store import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change, NotCaptured
    from holdfast.model.ids import Hash
    from holdfast.store.manifest import Pages


_LOG = Log(__name__)


class Present(NamedTuple):
    """The tree's state as a manifest of which only the new pages are in memory."""

    head: Checkpoint | None
    root: Hash
    pages: Pages
    """Reads stored pages and the new ones alike."""
    files: int
    not_captured: Sequence[NotCaptured]
    new_pages: Mapping[Hash, bytes]
    """Those that are not stored."""

    def changes(self) -> list[Change]:
        """How the tree differs from the last checkpoint (from nothing, if there is none)."""
        return manifest.diff(self.pages, None if self.head is None else self.head.root, self.root)


def present(context: Context, *, gone_is_empty: bool = False) -> Present:
    """Look at the tree. Needs the lock, since the tree's index has one user at a time.

    Raises `NotFoundError` if its directory is gone; with ``gone_is_empty`` that is a tree without any file.
    """
    catalog = context.catalog
    head_id = catalog.cursor(context.workspace.id).head
    head = None if head_id is None else catalog.checkpoint(head_id)
    try:
        scan = context.tree.scan(HashSink(), base=None if head is None else head.root, saved=saved_in(context, head))
    except NotFoundError as error:
        if not gone_is_empty or error.code != ROOT_GONE:
            raise
        scan = Scan(None, {}, [], 0)
    if head is not None and scan.base is not None:
        if not scan.changes:
            context.tree.settle(head.root)
            return Present(head, head.root, context.store.pages, head.total_files, scan.not_captured, {})
        built = manifest.update(context.store.pages, head.root, scan.changes)
    else:
        built = manifest.build((path, entry) for path, entry in sorted(scan.changes.items()) if entry is not None)
    pages = context.store.pages_with(built.new_pages)
    return Present(head, built.root, pages, built.files, scan.not_captured, built.new_pages)


def _tell_undo(context: Context) -> None:
    """Say if an undo or a redo by the undo log was cut short."""
    try:
        note = undo_note.read(context.folder)
    except FormatError as error:
        _LOG.warning("%s", error)
        return
    if note is not None:
        _LOG.warning(
            "the %s of %s was cut short: the next command that changes anything finishes it first",
            note.operation,
            named_steps(note.steps),
        )


def status(context: Context, *, watching: bool) -> Status:
    """How the tree differs from the checkpoint that it stands on. Changes nothing."""
    with context.lock():
        now = present(context)
        unfinished = journals.read(context.folder)
        _tell_undo(context)
        return Status(
            workspace=context.workspace.path,
            last_checkpoint=now.head,
            changes=now.changes(),
            not_captured=now.not_captured,
            watching=watching,
            unfinished_restore=None if unfinished is None else unfinished.target,
        )

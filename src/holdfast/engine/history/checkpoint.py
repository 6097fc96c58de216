"""Taking a checkpoint: room, then tree → entries → blobs and pages → one catalog commit.

The order is I4's: the packs of content are durable before the pages that name it, the pages before the commit that
makes them known. After a kill at any time before the commit, only unreferenced objects are left, and collection removes
them.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.engine.history._git_heads import record_git_head
from holdfast.engine.history.history_writer import next_state, record, record_prompt
from holdfast.engine.history.status import scan_tree, with_hidden_files
from holdfast.engine.opening.context import saved_state
from holdfast.engine.opening.home import remember_folder
from holdfast.engine.opening.identity import refuse_other_mount
from holdfast.engine.opening.undo_log import report_saved
from holdfast.files.scan import parallel_scan
from holdfast.files.scan.secret_files import is_environment
from holdfast.model.checkpoint import KINDS, Checkpoint, Provenance
from holdfast.model.command_results import CheckpointRequest, CheckpointResult
from holdfast.model.entries import Change, Counts, count_changes
from holdfast.model.errors import (
    HoldfastError,
    LockedError,
    QuotaError,
    StorageError,
    UsageError,
    out_of_space_errno,
)
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import new_checkpoint_id, new_pack_id
from holdfast.model.log import Log
from holdfast.model.paths import display, under_any
from holdfast.store.blobs.lazy_writer import LazyWriter
from holdfast.store.catalog_records import CheckpointCommit, Cursor, VanishedError, pages_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator, Sequence

    from holdfast.engine.history.history_writer import HistoryEntry
    from holdfast.engine.opening.context import Context
    from holdfast.files.tree import ScanResult
    from holdfast.model.content import Content, Progress
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.blobs.content_writer import WrittenBlobs
    from holdfast.store.manifests.manifest import BuiltManifest


_TRIES = 3
_LOG = Log(__name__)


def make_room(context: Context, incoming: int, *, refuse: bool = True) -> None:
    """Raise `QuotaError` if ``incoming`` more bytes do not fit into ``store.max_bytes``, even after retention and
    collection. Without ``refuse``, only warn: a quota must not keep a user from going back.

    Retention removes only what it would remove at its next turn anyway.
    """
    quota = context.settings.store.max_bytes
    if not quota or context.store.used_bytes() + incoming <= quota:
        return
    from holdfast.engine.history.retention import thin_out

    _LOG.warning("the store is at its quota of %d bytes; thinning out and collecting", quota)
    thin_out(context)
    try:
        # The grace time protects against races that the catalog also excludes by itself; short of space it can be
        # short.
        context.store.collector().collect(0)
    except LockedError:
        _LOG.warning("another collection is running; not waiting for it")
    used = context.store.used_bytes()
    if used + incoming > quota:
        if not refuse:
            _LOG.warning("the store is beyond its quota of %d bytes, so that the change can be undone", quota)
            return
        raise QuotaError(
            f"the store holds {used:,} bytes; {incoming:,} more would exceed its quota of {quota:,}. Nothing was lost",
            hint="`holdfast forget --keep-last N` and `holdfast gc --grace 0` make room; store.max_bytes is the quota",
        )


def make_room_for(context: Context, written: WrittenBlobs, more: int = 0, *, refuse: bool = True) -> None:
    """`make_room` for what was just written, and ``more`` bytes to come. If it does not fit, its packs are deleted.

    They are in no commit yet. Large blobs stay for collection: another process may have written the same ones.
    """
    try:
        make_room(context, written.stored_bytes + more, refuse=refuse)
    except QuotaError:
        for pack in written.packs:
            context.store.objects.delete(pack.key)
        raise


def create_checkpoint(
    context: Context, request: CheckpointRequest, progress: Progress | None = None
) -> CheckpointResult:
    """Save the tree's present state, if it differs from the last one saved.

    Waits for the workspace's lock (`LockedError` when that takes too long). Durable when it returns; atomic: it exists
    completely or not at all. If nothing changed, no checkpoint is made (``created`` is False). A request by hand makes
    the existing one manual and adds the label (see ``labelled``), and author, message and command where it has none. A
    prompt always gets an event in the history. Raises `StorageError`, `QuotaError`: nothing is lost then; and
    `ConfigError` if a settings file has become wrong.
    """
    if request.kind not in KINDS:
        raise UsageError(f"there is no kind of checkpoint {request.kind!r}", hint=f"one of {', '.join(KINDS)}")
    if request.label:
        from holdfast.engine.history.revisions import check_label

        check_label(request.label)
    with context.lock():
        if request.kind != "rescue":  # a restore may follow that repairs the file
            context.require_configured()
        return create_checkpoint_locked(context, request, progress)


def create_checkpoint_locked(
    context: Context,
    request: CheckpointRequest,
    progress: Progress | None = None,
    *,
    meanwhile: Callable[[], None] | None = None,
    recorded: HistoryEntry | None = None,
    also: Container[bytes] = (),
) -> CheckpointResult:
    """`create_checkpoint`, for callers that hold the workspace's lock already; ``meanwhile`` and ``also`` as
    `Tree.scan` has them.

    With ``recorded`` the state is entered in the history so, also if it is the same as before.
    """
    started = context.clock.monotonic()
    refuse_other_mount(context.folder, context.workspace)  # since it was opened
    full_hash = request.full_hash
    for left in reversed(range(_TRIES)):
        try:
            with report_saved(context) as note, context.store.caching_bases():
                checkpoint, created, scan = _try_to_create(
                    context, request, full_hash, progress, meanwhile, recorded, also
                )
                note(checkpoint.root)
            record_git_head(context, checkpoint)
            if checkpoint.total_files >= parallel_scan.MIN_FILES:  # no early scan is started below this number
                remember_folder(context.home, context.workspace)
        except VanishedError:
            # Collection was just deleting content that this manifest names: read and store all of it again.
            full_hash = True
            if not left:
                raise
            continue
        finally:
            context.store.ahead.forget()
        if request.full_hash:
            _store_lost_content(context, checkpoint)
        elapsed = (context.clock.monotonic() - started) * 1000
        labelled = request.label in checkpoint.labels
        prompt = None if request.prompt is None else context.catalog.events(context.workspace.id, limit=1)[0].seq
        return CheckpointResult(checkpoint, created, scan.not_captured, elapsed, labelled, prompt)
    raise AssertionError("unreachable")


def create_checkpoint_or_part(
    context: Context,
    request: CheckpointRequest,
    touched: Callable[[], Collection[bytes]],
    progress: Progress | None = None,
    *,
    meanwhile: Callable[[], None] | None = None,
    recorded: HistoryEntry | None = None,
) -> Checkpoint:
    """`create_checkpoint_locked` before or after a restore or an undo. On a disk without room for all unsaved changes,
    only paths at or below those of ``touched`` are saved.

    Raises `StorageError`, with a hint, if even that does not fit, or ``touched`` returns no paths.
    """
    try:
        return create_checkpoint_locked(context, request, progress, meanwhile=meanwhile, recorded=recorded).checkpoint
    except StorageError as error:
        if not out_of_space_errno(error):
            raise
        try:
            saved = _create_part(context, request, touched(), recorded)
        except StorageError as still:
            if not out_of_space_errno(still):
                raise
            saved = None
        if saved is None:
            raise StorageError(
                f"no room to save the files that would be overwritten or deleted: {error.message}",
                hint=_what_makes_room(context),
                code=error.code,
            ) from error.__cause__
        _LOG.warning(
            "the disk is full: Holdfast saved only the files that this command changes; other changes stay unsaved"
        )
        return saved


def _create_part(
    context: Context, request: CheckpointRequest, paths: Collection[bytes], recorded: HistoryEntry | None
) -> Checkpoint | None:
    """Save the tree's contents at or below ``paths``; other paths keep their entries from the last checkpoint. None
    without such paths, or without a checkpoint.
    """
    from holdfast.files.tree import ScanResult
    from holdfast.store.manifests import manifest

    cursor = context.catalog.cursor(context.workspace.id)
    if cursor.head is None or not paths:
        return None
    parent = context.catalog.checkpoint(cursor.head)
    entry = _entry_from_now_on(context, request, cursor, recorded)
    now = scan_tree(context, gone_is_empty=True)
    writer = LazyWriter(context.store.writer)
    try:
        changes: list[Change] = []
        for change in now.changes():
            if not under_any(change.path, frozenset(paths)):
                continue
            if change.after is not None:
                content = context.tree.read(change.path)
                found = (
                    (writer.add(content), len(content)) if isinstance(content, bytes) else writer.add_stream(content)
                )
                change = change._replace(after=change.after._replace(hash=found[0], size=found[1]))
            changes.append(change)
        after = {change.path: change.after for change in changes}
        built = manifest.update(context.store.pages, parent.root, after)
        scan = ScanResult(parent.root, after, list(now.not_captured), 0)
        return _commit(context, request, cursor, parent, scan, built, changes, writer.finish(), entry)
    except BaseException:
        writer.abort()
        raise


def _what_makes_room(context: Context) -> str:
    """The hint for a home without room."""
    can_collect = 0
    with suppress(HoldfastError):
        can_collect = context.store.collector().preview(0).bytes_freed
    room = (
        f"`holdfast gc --grace 0` frees {can_collect:,} bytes"
        if can_collect
        else "`holdfast forget --keep-last N` and then `holdfast gc --grace 0` free some"
    )
    return f"{room}; `holdfast cat ID:PATH` and `holdfast fork ID DIR` onto another disk read stored files"


def _store_lost_content(context: Context, checkpoint: Checkpoint) -> None:
    """Store anew what the checkpoint holds and the store has lost, as far as the tree still has it."""
    from holdfast.store.manifests import manifest

    entries = manifest.iterate(context.store.pages, checkpoint.root)
    lost = dict(context.store.reader.lost(entry for _, entry in entries))
    if not lost:
        return

    def contents() -> Iterator[Content]:
        for path, entry in manifest.iterate(context.store.pages, checkpoint.root):
            if entry.hash in lost:
                try:
                    yield context.tree.read(path)
                except HoldfastError as error:
                    _LOG.warning("%s: its lost content cannot be stored anew: %s", display(path), error.message)

    mended = context.store.mend(contents())
    _LOG.warning("content was missing from the store: %d of %d blobs were stored anew", mended, len(lost))


def _try_to_create(
    context: Context,
    request: CheckpointRequest,
    full_hash: bool,
    progress: Progress | None,
    meanwhile: Callable[[], None] | None,
    recorded: HistoryEntry | None,
    also: Container[bytes],
) -> tuple[Checkpoint, bool, ScanResult]:
    catalog = context.catalog
    is_way_back = request.kind == "rescue" or (recorded is not None and recorded.is_way_back)
    cursor = catalog.cursor(context.workspace.id)
    parent = None if cursor.head is None else catalog.checkpoint(cursor.head)
    make_room(context, 0, refuse=not is_way_back)
    entry = _entry_from_now_on(context, request, cursor, recorded)
    writer = LazyWriter(context.store.writer)
    try:
        scan = context.tree.scan(
            writer,
            base=None if parent is None else parent.root,
            saved=saved_state(context, parent),
            full_hash=full_hash,
            progress=progress,
            meanwhile=meanwhile,
            also=also,
        )
        scan, hidden = with_hidden_files(context, parent, scan)
        unchanged = parent is not None and scan.base is not None and not scan.changes
        built, changes = (None, None) if unchanged else _build_manifest(context, parent, scan)
        if parent is not None and (built is None or built.root == parent.root):
            writer.abort()
            if not hidden:
                context.tree.settle(parent.root)
            if recorded is not None:
                record(context, entry, parent.id, expected=cursor)
            elif request.prompt is not None:
                record_prompt(context, request.prompt, request.provenance.author, expected=cursor)
            return _claim_existing(context, parent, request), False, scan
        assert built is not None
        written = writer.finish()
        make_room_for(context, written, refuse=not is_way_back)
        checkpoint = _commit(context, request, cursor, parent, scan, built, changes, written, entry)
    except BaseException:
        writer.abort()
        raise
    if not hidden:
        context.tree.settle(checkpoint.root)
    if parent is None:
        _warn_of_secrets(context, scan)
    return checkpoint, True, scan


def _warn_of_secrets(context: Context, scan: ScanResult) -> None:
    """At a first checkpoint: warn that settings files with secrets are being saved."""
    found = sorted(path for path, entry in scan.changes.items() if entry is not None and is_environment(path))
    if found:
        import shlex

        from holdfast.model.message_text import plural

        more = f" and {plural(len(found) - 1, 'more file')} like it" if len(found) > 1 else ""
        _LOG.warning(
            "the first checkpoint saved %s%s, which may hold secrets. To leave such files out, run `holdfast init %s "
            "--write-ignore` and add `.env*` to .checkpointignore; `store.encryption_key` encrypts the store",
            display(found[0]),
            more,
            # The command may run anywhere, and a new .checkpointignore of one line would end the default exclusions.
            shlex.quote(display(context.workspace.path)),
        )


def _build_manifest(
    context: Context, parent: Checkpoint | None, scan: ScanResult
) -> tuple[BuiltManifest, Sequence[Change] | None]:
    """The manifest of what the scan found, and how it differs from the parent's (None: there is no parent)."""
    from holdfast.store.manifests import manifest

    pages = context.store.pages
    if parent is not None and scan.base is not None:
        before = manifest.get_many(pages, parent.root, sorted(scan.changes))
        changes = [Change(path, before.get(path), after) for path, after in sorted(scan.changes.items())]
        changes = [change for change in changes if change.before != change.after]
        foreseen = context.store.ahead.manifest(parent.root, scan.changes)
        return foreseen or manifest.update(pages, parent.root, scan.changes), changes
    built = manifest.build((path, entry) for path, entry in sorted(scan.changes.items()) if entry is not None)
    if parent is None:
        return built, None
    return built, manifest.diff(context.store.pages_with(built.new_pages), parent.root, built.root)


def _entry_from_now_on(
    context: Context, request: CheckpointRequest, cursor: Cursor, recorded: HistoryEntry | None
) -> HistoryEntry:
    """The history's entry for a new state, made before the tree is scanned for it."""
    entry = recorded
    if entry is None and request.prompt is not None:
        entry = next_state(cursor, "prompt", author=request.provenance.author, text=request.prompt)
    return (entry or next_state(cursor))._replace(undo_seq=context.undo_seq())


def _commit(
    context: Context,
    request: CheckpointRequest,
    cursor: Cursor,
    parent: Checkpoint | None,
    scan: ScanResult,
    built: BuiltManifest,
    changes: Sequence[Change] | None,
    written: WrittenBlobs,
    entry: HistoryEntry,
) -> Checkpoint:
    """Write the pages and commit. After a failure the written objects stay, unreferenced."""
    from holdfast.store.blobs.content_writer import write_pages
    from holdfast.store.codecs.changeset import encode_changeset
    from holdfast.store.manifests.checkpoint_header import encode_header, header_of

    store = context.store
    checkpoint_id = new_checkpoint_id(context.random)
    fresh = {blob.hash for blob in written.blobs}
    # No race: if a shared page is gone by the time of the commit, the commit fails with `VanishedError`.
    shared = context.catalog.known(built.new_pages, pages=True)
    pages = [(page, data, built.previous.get(page)) for page, data in built.new_pages.items() if page not in shared]
    named: set[Hash] = set()
    if changes is None:
        named.update(entry.hash for entry in scan.changes.values() if entry is not None)
        counts = Counts(added=built.files)
    else:
        named.update(change.after.hash for change in changes if change.after is not None)
        counts = count_changes(list(changes))
    checkpoint = Checkpoint(
        id=checkpoint_id,
        workspace=context.workspace.id,
        parent=None if parent is None else parent.id,
        root=built.root,
        kind=request.kind,
        labels=(request.label,) if request.label else (),
        created_at=context.clock.now(),
        changes=counts,
        total_files=built.files,
        total_bytes=built.bytes,
        new_blobs=sum(1 for blob in written.blobs if blob.kind == "blob"),
        stored_bytes=written.stored_bytes,
        not_captured=len(scan.not_captured),
        provenance=request.provenance,
    )
    pages_written = write_pages(
        store.objects,
        pages_key(store.tenant, checkpoint_id),
        new_pack_id(context.random),
        pages,
        store.page_bases,
        store.ahead.pages,
        encode_header(header_of(checkpoint, context.workspace.path, is_state=True)),
    )
    checkpoint = checkpoint._replace(stored_bytes=written.stored_bytes + pages_written.stored_bytes)
    context.catalog.commit(
        CheckpointCommit(
            checkpoint=checkpoint,
            changeset=None if changes is None else encode_changeset(list(changes)),
            not_captured=scan.not_captured,
            packs=[*written.packs, *pages_written.packs],
            blobs=[*written.blobs, *pages_written.blobs],
            # All content that is new in this manifest: the commit verifies it, since the index may be wrong.
            relied_on=frozenset(named - fresh) | written.relied_on | shared,
            expected=cursor,
            event=entry.event(context, checkpoint_id, checkpoint.created_at),
            redo_tip=entry.redo_tip,
        )
    )
    return checkpoint


def label_checkpoint(context: Context, name: CheckpointId, label: str) -> Checkpoint:
    """Add ``label`` to a checkpoint, which becomes manual; returns its record. Raises `UsageError` for an invalid
    label, `NotFoundError`.
    """
    from holdfast.engine.history.revisions import check_label

    if not check_label(label):
        raise UsageError("a label has at least one character")
    with context.lock():
        existing = context.catalog.checkpoint(name)
        return _claim_existing(context, existing, CheckpointRequest(label=label, provenance=existing.provenance))


def _claim_existing(context: Context, existing: Checkpoint, request: CheckpointRequest) -> Checkpoint:
    """Make the checkpoint that already holds this state manual, as the user asked for one: it is not thinned out any
    more.

    The label is added; author, message and command are set where they are empty.
    """
    if request.kind != "manual" or (existing.kind in ("fork", "import") and not request.label):
        return existing  # a fork's first and an imported one are always kept
    theirs = existing.kind == "manual"
    labels = existing.labels
    if labels and not theirs:
        from holdfast.engine.history.retention import is_user_label

        labels = tuple(filter(is_user_label, labels))
    if request.label and request.label not in labels:
        labels += (request.label,)
    said = (mine or new for mine, new in zip(existing.provenance, request.provenance, strict=True))
    provenance = Provenance(*said) if theirs else request.provenance
    if theirs and (labels, provenance) == (existing.labels, existing.provenance):
        return existing
    return context.catalog.claim(existing.id, labels, provenance)

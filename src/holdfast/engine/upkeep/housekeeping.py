"""Keeping house: collection, verification, statistics, and the quota."""

from __future__ import annotations

from holdfast.engine.opening.context import retry_with_reserve
from holdfast.model.errors import StorageError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.model.content import Progress
    from holdfast.model.entries import Entry
    from holdfast.store.catalog.usage_statistics import Stats
    from holdfast.store.collection.collector import Collected
    from holdfast.store.verification.verifier import Verified

_LOG = Log(__name__)
_LARGEST = 12


def collect(
    context: StoreContext,
    *,
    grace: float | None = None,
    recount: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Collected:
    """Delete what nothing has needed for ``grace`` seconds (None: ``gc.grace``), in the whole home.

    Before that, with ``recount`` or where it was not done for 30 days, correct counts that a full mark contradicts.
    With ``dry_run`` only say what would be done.

    Interruptible at any point. Raises `LockedError` while another collection or a verification runs.
    """
    seconds = context.settings.gc.grace if grace is None else grace
    collector = context.store.collector()
    if dry_run:
        return collector.preview(seconds, recount=recount, progress=progress)
    from holdfast.engine.history.mount_pins import release_dead_pins

    release_dead_pins(context)
    done = retry_with_reserve(
        context, lambda: collector.collect(seconds, recount="now" if recount else "due", progress=progress)
    )
    _tidy_sessions(context, seconds)
    context.store.take_spare_if_due()
    return done


def _tidy_sessions(context: StoreContext, grace: float) -> None:
    """Remove objects of states of sessions that nothing names, if there is any of sessions."""
    from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers

    SessionCheckpointTiers(context).remove_orphans(grace)


def verify(context: StoreContext, *, read_data: bool = False, progress: Progress | None = None) -> Verified:
    """Check every reference, count and object of the home; with ``read_data`` also every stored byte.

    Raises `LockedError` while a collection runs.
    """
    return context.store.verifier().verify(read_data=read_data, progress=progress)


def stats_of_home(context: StoreContext) -> Stats:
    """The use of space in the whole home."""
    try:
        context.store.collector().settle()
    except StorageError as error:
        _LOG.warning("the count of dead bytes may be too low: %s", error.message)
    return context.store.catalog.stats()


def stats(context: Context) -> Stats:
    """`stats_of_home`, with the space by directory in the tree's checkpoint."""
    from holdfast.store.manifests import manifest

    counted = stats_of_home(context)
    head = context.catalog.cursor(context.workspace.id).head
    largest: list[tuple[bytes, int]] = []
    if head is not None:
        entries = manifest.iterate(context.store.pages, context.catalog.checkpoint(head).root)
        largest = _largest(entries)
    return counted._replace(largest=largest)


def _largest(entries: Iterable[tuple[bytes, Entry]]) -> list[tuple[bytes, int]]:
    """The first two levels of the tree with the most content below them."""
    sums: dict[bytes, int] = {}
    for path, entry in entries:
        parts = path.split(b"/", 2)
        for depth in range(1, min(len(parts), 2) + 1):
            place = b"/".join(parts[:depth])
            sums[place] = sums.get(place, 0) + entry.size
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST]

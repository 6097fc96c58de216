"""Keeping house: collection, verification, statistics, and the quota."""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.model.errors import LockedError, QuotaError, StorageError
from holdfast.model.log import Log
from holdfast.model.typed import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from holdfast.engine.opening.context import Context, Shared
    from holdfast.model.entries import Entry
    from holdfast.model.sinks import Progress
    from holdfast.store.blobs import Written
    from holdfast.store.collect import Collected
    from holdfast.store.usage import Stats
    from holdfast.store.verify import Verified

T = TypeVar("T")

_LOG = Log(__name__)
_LARGEST = 12


def collect(
    context: Shared, *, grace: float | None = None, dry_run: bool = False, progress: Progress | None = None
) -> Collected:
    """Delete what nothing has needed for ``grace`` seconds (None: ``gc.grace``), in the whole home.

    With ``dry_run`` only say what that would be.

    Interruptible at any point. Raises `LockedError` while another collection or a verification runs.
    """
    seconds = context.settings.gc.grace if grace is None else grace
    collector = context.store.collector()
    if dry_run:
        return collector.foresee(seconds, progress=progress)
    from holdfast.engine.forks.pins import release_dead

    release_dead(context)
    done = freeing(context, lambda: collector.collect(seconds, progress=progress))
    _tidy_sessions(context, seconds)
    return done


def _tidy_sessions(context: Shared, grace: float) -> None:
    """Remove objects of states of sessions that nothing names, if there is any of sessions."""
    from holdfast.engine.sessions.keeping import Shelf

    Shelf(context).remove_orphans(grace)


def freeing(context: Shared, work: Callable[[], T]) -> T:
    """Do ``work``, which frees room; if the disk is too full for it, once more with the ballast given up."""
    try:
        done = work()
    except StorageError:
        if not context.store.give_way():
            raise
        _LOG.info("the disk is full: using what was kept back for that")
        done = work()
    context.store.lay_ballast()
    return done


@contextmanager
def with_ballast(context: Shared) -> Generator[None]:
    """For what must not fail because of a full disk, and cannot simply be done again (a restore, an undo): if the disk
    is full, the ballast is given up before, and what is left of its room is taken back afterwards.
    """
    gave_way = context.store.give_way()
    if gave_way:
        _LOG.info("the disk is full: using what was kept back for that")
    try:
        yield
    finally:
        if gave_way:
            context.store.lay_ballast()


def verify(context: Shared, *, read_data: bool = False, progress: Progress | None = None) -> Verified:
    """Check every reference, count and object of the home; with ``read_data`` also every stored byte.

    Raises `LockedError` while a collection runs.
    """
    return context.store.verifier().verify(read_data=read_data, progress=progress)


def stats_of_home(context: Shared) -> Stats:
    """What takes the space in the whole home."""
    try:
        context.store.collector().settle()
    except StorageError as error:
        _LOG.warning("what is dead may be less than it says: %s", error.message)
    return context.store.catalog.stats()


def stats(context: Context) -> Stats:
    """`stats_of_home`, and what takes it by directory in the checkpoint that the tree stands on."""
    from holdfast.store import manifest

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


def make_room(context: Context, incoming: int, *, refuse: bool = True) -> None:
    """Raise `QuotaError` if ``incoming`` more bytes do not fit into ``store.max_bytes``, even after retention and
    collection. Without ``refuse`` a warning says so: nobody is kept from going back by a quota.

    What retention removes is what it would have removed anyway at its next turn; nothing else is.
    """
    quota = context.settings.store.max_bytes
    if not quota or context.store.used_bytes() + incoming <= quota:
        return
    from holdfast.engine.upkeep.forget import forget

    _LOG.warning("the store is at its quota of %d bytes; thinning out and collecting", quota)
    if context.misconfigured is None:
        forget(context, ())
    try:
        # The grace time protects against races that the catalog also excludes by itself; short of space it can be
        # short.
        context.store.collector().collect(0)
    except LockedError:
        _LOG.warning("another collection is running; not waiting for it")
    used = context.store.used_bytes()
    if used + incoming > quota:
        if not refuse:
            _LOG.warning("the store is beyond its quota of %d bytes, for the sake of what can be taken back", quota)
            return
        raise QuotaError(
            f"the store holds {used:,} bytes; {incoming:,} more would exceed its quota of {quota:,}. Nothing was lost",
            hint="`holdfast forget --keep-last N` and `holdfast gc --grace 0` make room; store.max_bytes is the quota",
        )


def make_room_for(context: Context, written: Written, more: int = 0, *, refuse: bool = True) -> None:
    """`make_room` for what was just written, and ``more`` bytes to come. If it does not fit, its packs are deleted.

    No commit knows them yet. Large blobs stay for collection: another process may have written the same ones.
    """
    try:
        make_room(context, written.stored_bytes + more, refuse=refuse)
    except QuotaError:
        for pack in written.packs:
            context.store.objects.delete(pack.key)
        raise

"""Room in the store, within its quota."""

from __future__ import annotations

from holdfast.model.errors import LockedError, QuotaError
from holdfast.model.log import Log
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.store.blobs import Written

_LOG = Log(__name__)


def make_room(context: Context, incoming: int, *, refuse: bool = True) -> None:
    """Raise `QuotaError` if ``incoming`` more bytes do not fit into ``store.max_bytes``, even after retention and
    collection. Without ``refuse`` a warning says so: nobody is kept from going back by a quota.

    What retention removes is what it would have removed anyway at its next turn; nothing else is.
    """
    quota = context.settings.store.max_bytes
    if not quota or context.store.used_bytes() + incoming <= quota:
        return
    from holdfast.engine.history.thinning import thin_out

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

"""The context of every step of a promotion: its row, production opened, its folder in the home, its lease."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.opening.home import make_private
from holdfast.engine.opening.opener import Opener
from holdfast.engine.promotion.spec import decode_facts, decode_spec, encode_json
from holdfast.files.directories.directory_exchange import DirectoryIdentity, directory_identity, is_same_directory
from holdfast.model.errors import HoldfastError, LockedError, RefusedError, StorageError, unexpected
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.store.catalog.promotion_rows import PromotionRows
from holdfast.store.catalog.work_lease import Lease
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from holdfast.engine.opening.context import Context
    from holdfast.engine.promotion.spec import PromotionAnswer, PromotionFacts, PromotionSpec
    from holdfast.model.ids import WorkspaceId
    from holdfast.store.catalog.promotion_rows import Phase, PromotionRow, Result

_LOG = Log(__name__)
PROMOTIONS = b"promotions"
"""The directory in the home with a folder for each promotion: outputs and stamps."""
_RENEW_SECONDS = 20.0
_PAUSE_SECONDS = 0.25
_SILENT_SECONDS = 1.0


class PromotionSite:
    """Where promotions are made: a home, and the environment of this process. For any thread; each opens for itself."""

    def __init__(self, home: bytes, environ: Mapping[str, str], flags: Mapping[str, object]) -> None:
        self.home = home
        self.environ = environ
        self.flags = flags
        self.stop = threading.Event()
        """Set when the user wants what runs to end."""

    def folder(self, promotion: str) -> bytes:
        """The folder of a promotion, made if it is not there."""
        above = os.path.join(self.home, PROMOTIONS)
        make_private(above)
        path = os.path.join(above, promotion.encode())
        make_private(path)
        return path

    @contextmanager
    def open_home(self) -> Generator[Opener]:
        """The home, opened for the length of the block."""
        opener = Opener(home=self.home, environ=self.environ, flags=self.flags, lenient=True)
        try:
            yield opener
        finally:
            opener.close()

    @contextmanager
    def open_job(self, promotion: str) -> Generator[PromotionJob]:
        """A promotion, opened for the length of the block."""
        with self.open_home() as opener:
            yield PromotionJob(self, opener, promotion)


def open_named(
    opener: Opener,
    production: WorkspaceId,
    place: tuple[int, int] | None,
    known: Iterable[DirectoryIdentity] = (),
) -> Context:
    """The workspace of an id, if its directory has this ``place`` (device and inode; None: any), or is one of the
    ``known``, which are recognised after another mount too. Any other is not even taken for it.

    Raises `RefusedError` (code ``production_replaced``), and as `Opener.open_known`.
    """
    if place is None:
        return opener.open_known(production)
    _check_place(last_seen_path(opener.store().catalog.workspace(production).path), place, known)
    context = opener.open_known(production)
    _check_place(context.workspace.path, place, known)
    return context


def _check_place(path: bytes, place: tuple[int, int], known: Iterable[DirectoryIdentity]) -> None:
    try:
        here = directory_identity(path)
    except OSError as error:
        raise StorageError(f"{display(path)} cannot be looked at: {error.strerror}") from error
    if here is None:
        return  # it was moved: then it is looked for by its inode
    if (here.device, here.inode) != place and not any(is_same_directory(here, one) for one in known):
        raise RefusedError(
            f"another directory is at {display(path)} than at the start of the promotion",
            hint="put production back; or promote again if this directory is production now",
            code="production_replaced",
        )


class PromotionJob:
    """One promotion, opened. Steps are functions over it; it has no logic of its own."""

    def __init__(self, site: PromotionSite, opener: Opener, promotion: str) -> None:
        self.site = site
        self.opener = opener
        self.rows = PromotionRows(opener.store().catalog)
        self.row: PromotionRow = self.rows.get(promotion)
        self.spec: PromotionSpec = decode_spec(self.row.spec)
        self.facts: PromotionFacts = decode_facts(self.row.facts)
        self.folder = site.folder(promotion)
        self._context: Context | None = None

    @property
    def context(self) -> Context:
        """Production, opened on first use. Raises `NotFoundError` if its directory is missing, and `RefusedError` (code
        ``production_replaced``) if its path has another directory than the recorded one.
        """
        if self._context is None:
            place = self.spec.place if self.row.phase in ("building", "swapping") else None
            # Its identity at the build's beginning, in case device numbers have changed since.
            known = [DirectoryIdentity(*one) for one in (self.facts.old, self.facts.built) if one is not None]
            self._context = open_named(self.opener, self.row.workspace, place, known)
        return self._context

    @property
    def pins(self) -> str:
        """The reason of the promotion's pins."""
        return f"the promotion {self.row.id}"

    def save(self, phase: Phase | None = None, result: Result | None = None) -> None:
        """Save the known facts. Raises `LockedError` if another process has taken over the promotion."""
        self.row = self.rows.change(
            self.row._replace(
                phase=phase or self.row.phase, result=result or self.row.result, facts=encode_json(self.facts)
            )
        )

    def end(self, answer: PromotionAnswer) -> PromotionAnswer:
        """Save the result, and release the promotion's pins."""
        from typing import cast

        self.facts.answer = answer
        self.save("ended", cast("Result", answer.result))
        self.opener.store().catalog.unpin_all(self.pins)
        return answer


class ProductionLease:
    """The lease of one production: only its holder promotes to it. Another process takes it over after the holder has
    died, or (on another machine) has not renewed it in time.

    A thread renews it; `lost` tells if another process has taken it.
    """

    def __init__(self, site: PromotionSite, production: WorkspaceId) -> None:
        self._site = site
        self._name = f"promotion {production}"
        self._done = threading.Event()
        self._taken = threading.Event()
        self._error: HoldfastError | None = None
        self._thread = threading.Thread(target=self._keep, name="promotion lease", daemon=True)
        self.lost = False

    def acquire(self) -> ProductionLease:
        """Take it. Raises `LockedError` if another process, which may still run, has it."""
        self._thread.start()
        self._taken.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def release(self) -> None:
        """Give it back. Harmless a second time."""
        self._done.set()
        self._thread.join()

    def _keep(self) -> None:
        try:
            with self._site.open_home() as opener:
                catalog = opener.store().catalog
                lease = Lease(catalog.database, catalog.tenant, self._name, catalog.clock)
                lease.acquire()
                self._taken.set()
                try:
                    while not self._done.wait(_RENEW_SECONDS):
                        self._renew(lease)
                finally:
                    lease.release()
        except Exception as error:  # noqa: BLE001 - whatever it is: nothing keeps the lease any more
            self._error = error if isinstance(error, HoldfastError) else unexpected(error)
            self.lost = True
            if self._taken.is_set():  # no caller waits for it to report that
                _LOG.warning("the lease of the production is lost: %s", self._error.message)
        finally:
            self._taken.set()

    def _renew(self, lease: Lease) -> None:
        try:
            lease.renew()
        except LockedError:
            raise
        except HoldfastError as error:
            _LOG.warning("the lease of the production cannot be renewed now: %s", error.message)


@contextmanager
def hold_production(
    site: PromotionSite, production: WorkspaceId, *, wait: float, who: str
) -> Generator[ProductionLease]:
    """Be the one process that promotes to a production for the length of the block. Waits ``wait`` seconds for another
    one, and says so.

    Raises `LockedError` (code ``promotion_busy``).
    """
    import time

    began = time.monotonic()
    told = False
    while True:
        try:
            lease = ProductionLease(site, production).acquire()
            break
        except LockedError:
            waited = time.monotonic() - began
            if waited >= wait:
                raise LockedError(
                    f"another promotion to {who} is under way, and has not ended within {wait:g} s",
                    hint="try again later; `holdfast promote --list` shows it, and promote.wait sets how long to wait",
                    code="promotion_busy",
                ) from None
            if waited >= _SILENT_SECONDS and not told:
                told = True
                _LOG.warning("another promotion to %s is under way; waiting at most %g s", who, wait)
            time.sleep(_PAUSE_SECONDS)
    try:
        yield lease
    finally:
        lease.release()

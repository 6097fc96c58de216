"""The upkeep of all exports of a home: automatic saves, retention, collection, sessions.

One thread only waits for all of them; a bounded number of workers does the work, one for an export at a time, so that a
broken, missing or slow export delays no other. Four more threads handle leases and the list of exports, collection,
idle sessions, and the search for moved directories. Of several processes on one catalog, the holder of a tenant's lease
does the work; another takes over when it ends.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.engine.exports._export_worker import ExportWorker
from holdfast.engine.opening.home import workspace_folder
from holdfast.engine.opening.missing_workspaces import find_moved
from holdfast.engine.sessions.idle.idle_schedule import IdleSaver
from holdfast.engine.upkeep.housekeeping import collect
from holdfast.files.tree import ROOT_GONE
from holdfast.model.errors import HoldfastError, LockedError, NotFoundError
from holdfast.model.log import Log
from holdfast.store.catalog.export_rows import ExportRows, tenants_that_serve
from holdfast.store.catalog.work_lease import Lease
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.engine.exports._export_worker import ExportListener
    from holdfast.engine.opening.opener import Opener
    from holdfast.model.clock import Clock
    from holdfast.model.ids import WorkspaceId
    from holdfast.store.catalog.export_rows import ExportRow
    from holdfast.store.catalog_records import WorkspaceRow


_Missing = tuple[str, "WorkspaceId"]
"""A tenant, and a workspace of it."""


class MissingExportFinder:
    """Searches for missing directories of exports, so that no request has to wait for that.

    One walk of their file systems looks for all of them. It looks again for those that it does not find, after growing
    pauses. For one thread.
    """

    def __init__(self, open_tenant: Callable[[str], Opener], clock: Clock, retry: Callable[[int], float]) -> None:
        """``retry`` returns the pause, in seconds, after this number of failed searches."""
        self._open_tenant = open_tenant
        self._clock = clock
        self._retry = retry
        self._tried: dict[_Missing, tuple[int, float]] = {}
        """The number of searches for each, and the time of the next."""

    def find_due(self, missing: Iterable[_Missing]) -> None:
        """Look for those of the ``missing`` whose time has come, and note where one is. Raises `HoldfastError`."""
        now = self._clock.monotonic()
        known = {one: self._tried.get(one, (0, now)) for one in missing}
        due = sorted(one for one, (_, at) in known.items() if at <= now)
        self._tried = known | {one: (known[one][0] + 1, now + self._retry(known[one][0])) for one in due}
        for tenant in dict.fromkeys(tenant for tenant, _ in due):
            with closing(self._open_tenant(tenant)) as opener:
                self._look_for(opener, [workspace for of, workspace in due if of == tenant])

    def _look_for(self, opener: Opener, names: Iterable[WorkspaceId]) -> None:
        catalog = opener.store().catalog
        records: list[WorkspaceRow] = []
        for name in names:
            try:
                record = catalog.workspace(name)
            except NotFoundError:
                continue
            if not os.path.lexists(last_seen_path(record.path)):
                records.append(record)
        for path in find_moved(records, lambda one: workspace_folder(opener.home, one)).values():
            opener.open(path)  # which records that it exists


_LOG = Log(__name__)

LEASE = "exports"
"""With the machine behind it where several share a catalog: each sees to its own directories."""
_LAST_RETRY = 300.0
_LONGEST_WAIT = 30.0
_LEASE_EVERY = 10.0

State = Literal["beginning", "watching", "broken", "elsewhere"]


class UpkeepCondition(NamedTuple):
    """How the upkeep of one export goes."""

    state: State
    """``elsewhere``: another process does it. ``beginning``: also until that is known."""
    backend: str
    """How its changes are noticed; empty while they are not."""
    problem: str | None


class MaintenanceLimits(NamedTuple):
    """Limits of concurrent work, and intervals; times in seconds."""

    workers: int = 4
    look_interval: float = 2.0
    """How often the list of exports is read, for what other processes have changed."""
    collect_interval: float = 3600.0
    first_collect: float = 60.0
    first_retry: float = 2.0
    """The first pause for a broken export; it doubles with each try."""
    end_limit: float = 30.0
    """How long ending may take all in all."""


class _MaintainedExport:
    """One export in our care. ``busy``: one of the workers has it."""

    __slots__ = ("busy", "care", "due", "failures", "fileno", "is_gone", "problem", "row", "tenant", "turn", "wanted")

    def __init__(self, tenant: str, row: ExportRow, due: float) -> None:
        self.tenant = tenant
        self.row = row
        self.care: ExportWorker | None = None
        self.busy = False
        self.wanted = True
        self.due = due
        self.failures = 0
        self.fileno = -1
        """While it is in the selector."""
        self.problem: str | None = None
        self.is_gone = False
        """Whether the problem is that its directory is not where it was."""
        self.turn = threading.Lock()
        """Held by the worker that has it."""


class Maintenance:
    """Sees to all exports from `start` to `stop`."""

    def __init__(
        self, open_tenant: Callable[[str], Opener], told: ExportListener, clock: Clock, setup: MaintenanceLimits
    ) -> None:
        """``open_tenant`` gives a new opener of a tenant (empty: of the settings' own)."""
        self._open_tenant = open_tenant
        self._told = told
        self._clock = clock
        self._setup = setup
        self._lock = threading.Lock()
        self._charges: dict[tuple[str, str], _MaintainedExport] = {}
        self._done: deque[_MaintainedExport] = deque()
        self._stopping = threading.Event()
        self._look_now = threading.Event()
        self._ours: set[str] = set()
        self._others: set[str] | None = None
        """The tenants that other processes see to; None before `start`, which need never come."""
        self._pool = ThreadPoolExecutor(setup.workers, thread_name_prefix="holdfast-care")
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._threads = [
            threading.Thread(target=work, name=f"holdfast-{name}", daemon=True)
            for name, work in (
                ("loop", self._loop),
                ("leases", self._keep_leases),
                ("collection", self._collect),
                ("idle", self._save_idle),
                ("finder", self._find),
            )
        ]

    def start(self) -> None:
        """Begin."""
        self._others = set()
        for thread in self._threads:
            thread.start()

    def reread_exports(self) -> None:
        """The list of exports was changed: read it soon."""
        self._look_now.set()

    def stop(self) -> list[str]:
        """Save the unsaved changes of exports that save automatically, and end; returns those that could not be saved,
        with the reasons.

        Idempotent.
        """
        if self._stopping.is_set():
            return []
        self._stopping.set()
        self._look_now.set()
        self._wake()
        end = self._clock.monotonic() + self._setup.end_limit
        for thread in self._threads:
            thread.join(max(0.1, end - self._clock.monotonic()))
        unsaved: list[str] = []
        with self._lock:
            charges = list(self._charges.values())
        ends = [(charge, self._pool.submit(self._end_last, charge)) for charge in charges]
        for charge, ending in ends:
            name = f"{charge.tenant}/{charge.row.name}"
            try:
                why = ending.result(max(0.1, end - self._clock.monotonic()))
            except TimeoutError:
                why = "it takes too long"
            except Exception as error:  # noqa: BLE001 - the others have to be ended as well
                why = str(error)
            if why is not None:
                unsaved.append(f"{name}: {why}")
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
        return unsaved

    def condition(self, tenant: str, export: str) -> UpkeepCondition:
        """How the upkeep of one export goes."""
        with self._lock:
            charge = self._charges.get((tenant, export))
            if charge is None:  # a new export is not in the list before the next look
                is_others = self._others is None or tenant in self._others
                return UpkeepCondition("elsewhere" if is_others else "beginning", "", None)
            if charge.care is not None:
                return UpkeepCondition("watching", charge.care.backend, charge.care.service.failure)
            return UpkeepCondition("broken" if charge.problem else "beginning", "", charge.problem)

    def counts(self) -> Mapping[State, int]:
        """How many exports are in which state."""
        found: dict[State, int] = {"beginning": 0, "watching": 0, "broken": 0, "elsewhere": 0}
        with self._lock:
            for charge in self._charges.values():
                found["watching" if charge.care else "broken" if charge.problem else "beginning"] += 1
        return found

    # -- the loop -----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - all exports depend on this thread
                _LOG.exception("the upkeep of exports failed")
                self._stopping.wait(1.0)

    def _turn(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            waiting = [charge for charge in self._charges.values() if not charge.busy]
        wait = min((charge.due - now for charge in waiting), default=_LONGEST_WAIT)
        ready: set[_MaintainedExport] = set()
        for key, _ in self._selector.select(max(0.0, min(wait, _LONGEST_WAIT))):
            if key.data is None:
                with suppress(BlockingIOError):
                    while self._wake_read.recv(4096):
                        pass
            else:
                ready.add(key.data)
        while self._done:
            self._take_back(self._done.popleft())
        now = self._clock.monotonic()
        with self._lock:
            for charge in self._charges.values():
                if not charge.busy and (charge in ready or charge.due <= now or not charge.wanted):
                    charge.busy = True
                    ready.add(charge)
                else:
                    ready.discard(charge)
        for charge in ready:
            self._unregister(charge)
            self._pool.submit(self._work, charge)

    def _take_back(self, charge: _MaintainedExport) -> None:
        """A worker is done with it."""
        with self._lock:
            charge.busy = False
            if charge.care is None and not charge.wanted:
                self._charges.pop((charge.tenant, charge.row.name), None)
                self._look_now.set()  # it may be a new export of the same name
            elif charge.care is not None:
                charge.fileno = charge.care.service.fileno()
        if charge.fileno >= 0:
            self._selector.register(charge.fileno, selectors.EVENT_READ, charge)

    def _unregister(self, charge: _MaintainedExport) -> None:
        if charge.fileno >= 0:
            self._selector.unregister(charge.fileno)
            charge.fileno = -1

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._wake_write.send(b"\0")

    # -- the work -----------------------------------------------------------------------------------------------

    def _work(self, charge: _MaintainedExport) -> None:
        try:
            with charge.turn:
                if not self._stopping.is_set():
                    self._work_on(charge)
        except Exception as error:  # noqa: BLE001 - nothing that one export does may end a worker
            self._failed(charge, error)
        finally:
            self._done.append(charge)
            self._wake()

    def _work_on(self, charge: _MaintainedExport) -> None:
        row = charge.row
        if not charge.wanted:
            self._release(charge)
            return
        if charge.care is None:
            opener = self._open_tenant(charge.tenant)
            care = ExportWorker(opener, charge.tenant, row, self._told)
            with self._lock:
                charge.care, charge.problem, charge.failures = care, None, 0
        care = charge.care
        assert care is not None
        care.service.set_auto_save(row.saves_itself)
        care.turn()
        if care.service.stopping:
            self._release(charge)
            charge.due = self._clock.monotonic() + _LAST_RETRY  # another process wants to watch it in our stead
            return
        if care.has_moved():
            _LOG.info("the export %s was moved, and is watched where it is now", row.name)
            self._end(charge)  # this saves its unsaved changes
            charge.due = self._clock.monotonic()
            return
        charge.due = self._clock.monotonic() + care.wait_seconds()

    def _failed(self, charge: _MaintainedExport, error: Exception) -> None:
        message = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, HoldfastError):
            _LOG.exception("the upkeep of the export %s failed", charge.row.name)
        elif charge.problem != message:
            _LOG.warning("the export %s cannot be watched: %s", charge.row.name, message)
        try:
            self._end(charge)
        except Exception:  # noqa: BLE001 - likewise
            _LOG.exception("the upkeep of the export %s cannot be ended", charge.row.name)
        with self._lock:
            charge.problem = message
            charge.is_gone = isinstance(error, HoldfastError) and error.code == ROOT_GONE
            charge.due = self._clock.monotonic() + _retry(self._setup.first_retry, charge.failures)
            charge.failures += 1

    def _release(self, charge: _MaintainedExport) -> None:
        """Stop its maintenance; failures to save are logged, as no caller waits."""
        why = self._end(charge)
        if why is not None:
            _LOG.warning("the export %s has unsaved changes: %s", charge.row.name, why)

    def _end(self, charge: _MaintainedExport) -> str | None:
        with self._lock:
            care, charge.care = charge.care, None
        return None if care is None else care.end()

    def _end_last(self, charge: _MaintainedExport) -> str | None:
        with charge.turn:
            return self._end(charge)

    # -- which exports there are, and whose they are ------------------------------------------------------------

    def _keep_leases(self) -> None:
        openers: dict[str, Opener] = {}
        leases: dict[str, Lease] = {}
        renew_at = 0.0
        try:
            while not self._stopping.is_set():
                self._look_now.clear()
                try:
                    now = self._clock.monotonic()
                    self._look(openers, leases, renew=now >= renew_at)
                    if now >= renew_at:
                        renew_at = now + _LEASE_EVERY
                except HoldfastError as error:
                    _LOG.warning("the list of exports cannot be read: %s", error.message)
                except Exception:  # noqa: BLE001 - likewise
                    _LOG.exception("the list of exports cannot be read")
                self._look_now.wait(self._setup.look_interval)
        finally:
            for lease in leases.values():
                with suppress(HoldfastError):
                    lease.release()
            for opener in openers.values():
                opener.close()

    def _look(self, openers: dict[str, Opener], leases: dict[str, Lease], *, renew: bool) -> None:
        if "" not in openers:
            openers[""] = self._open_tenant("")
        serving = set(tenants_that_serve(openers[""].store().catalog.database))
        for tenant in serving | set(leases):
            if tenant not in openers:
                openers[tenant] = self._open_tenant(tenant)
            catalog = openers[tenant].store().catalog
            if renew or tenant not in leases:
                self._hold(
                    leases,
                    tenant,
                    Lease(catalog.database, catalog.tenant, f"{LEASE} {catalog.home_id}".strip(), self._clock),
                )
            rows = ExportRows(catalog).list() if tenant in leases and tenant in serving else []
            self._adopt(tenant, rows)
            if not rows and tenant in leases:
                leases.pop(tenant).release()
        self._ours = set(leases)
        self._others = serving - self._ours

    def _hold(self, leases: dict[str, Lease], tenant: str, new: Lease) -> None:
        """Get the lease, or keep it."""
        try:
            if tenant in leases:
                leases[tenant].renew()
            else:
                new.acquire()
                leases[tenant] = new
                _LOG.info("seeing to the exports", tenant=tenant)
        except LockedError:
            if leases.pop(tenant, None) is not None:
                _LOG.warning("another process sees to the exports now", tenant=tenant)

    def _adopt(self, tenant: str, rows: Iterable[ExportRow]) -> None:
        """From now on ``rows`` are the tenant's exports that are in our care."""
        now = self._clock.monotonic()
        wanted = {(tenant, row.name): row for row in rows}
        with self._lock:
            for key, charge in self._charges.items():
                if key[0] != tenant:
                    continue
                row = wanted.get(key)
                charge.wanted = row is not None and row.workspace == charge.row.workspace
                if row is not None and charge.wanted and row != charge.row:
                    charge.row, charge.due = row, now
            for key, row in wanted.items():
                if key not in self._charges:
                    self._charges[key] = _MaintainedExport(tenant, row, now)
        self._wake()

    # -- sessions -----------------------------------------------------------------------------------------------

    def _save_idle(self) -> None:
        found: dict[str, tuple[Opener, IdleSaver]] = {}
        wait = self._setup.look_interval
        try:
            while not self._stopping.wait(wait):
                for tenant in sorted(self._ours - found.keys()):
                    self._begin_idling(tenant, found)
                for _, idling in found.values():
                    idling.turn()
                wait = min([self._setup.look_interval, *(idling.due_in() for _, idling in found.values())])
        finally:
            for opener, idling in found.values():
                idling.end()
                opener.close()

    def _begin_idling(self, tenant: str, found: dict[str, tuple[Opener, IdleSaver]]) -> None:
        with ExitStack() as undo:
            try:
                opener = self._open_tenant(tenant)
                undo.callback(opener.close)
                found[tenant] = opener, IdleSaver(opener, partial(self._saving, tenant))
                undo.pop_all()
            except HoldfastError as error:
                _LOG.warning("sessions that are idle are not seen to yet: %s", error.message, tenant=tenant)

    def _saving(self, tenant: str) -> list[WorkspaceId]:
        """The workspaces of a tenant that are watched here and save by themselves."""
        with self._lock:
            charges = [one for one in self._charges.values() if one.tenant == tenant and one.care is not None]
        return [one.row.workspace for one in charges if one.row.saves_itself]

    # -- directories that are gone ------------------------------------------------------------------------------

    def _find(self) -> None:
        finder = MissingExportFinder(self._open_tenant, self._clock, partial(_retry, self._setup.first_retry))
        while not self._stopping.wait(self._setup.look_interval):
            try:
                finder.find_due(self._missing())
            except HoldfastError as error:
                _LOG.warning("cannot search for exports that were moved: %s", error.message)
            except Exception:  # noqa: BLE001 - it is tried again
                _LOG.exception("cannot search for exports that were moved")

    def _missing(self) -> list[tuple[str, WorkspaceId]]:
        with self._lock:
            charges = [(charge, charge.care) for charge in self._charges.values() if charge.wanted]
        return [
            (charge.tenant, charge.row.workspace)
            for charge, care in charges
            if (charge.is_gone if care is None else not os.path.isdir(care.root))
        ]

    # -- collection ---------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        wait = self._setup.first_collect
        while not self._stopping.wait(wait):
            wait = self._setup.collect_interval
            for tenant in sorted(self._ours):
                if self._stopping.is_set():
                    return
                self._collect_of(tenant)

    def _collect_of(self, tenant: str) -> None:
        from holdfast.engine.sessions.lifecycle.sweep import sweep_if_due

        try:
            opener = self._open_tenant(tenant)
            try:
                sweep_if_due(opener)
                freed = collect(opener.open_home())
            finally:
                opener.close()
        except LockedError:
            return  # another process is at it
        except HoldfastError as error:
            _LOG.warning("collection failed: %s", error.message, tenant=tenant)
        except Exception:  # noqa: BLE001 - likewise
            _LOG.exception("collection failed", tenant=tenant)
        else:
            _LOG.info("collection: %d bytes freed", freed.bytes_freed, tenant=tenant)


def _retry(first: float, failures: int) -> float:
    """Seconds until the next try."""
    return min(first * 2.0 ** min(failures, 20), _LAST_RETRY)


def raise_limit_of_files() -> int:
    """Let this process have as many open files as it may: each export takes about ten. How many that is."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return min(soft, os.sysconf("SC_OPEN_MAX")) if soft < 0 else soft

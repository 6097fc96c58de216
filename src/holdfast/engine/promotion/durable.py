"""dbos, the library that carries a promotion's workflow, over the catalog's own database.

On PostgreSQL its tables are in a schema of their own, in SQLite they lie beside the catalog's. They are shared by all
promotions, and nobody is handed what is another's to do: a process has an identity of its own, which is that of its
leases, takes no work but what it has begun or taken over itself, and whoever was taken over can write nothing more
(dbos lets only the last owner of a workflow record a step). What a workflow's steps hold is JSON.

If those rows are lost, nothing is: the catalog's row of a promotion is enough to go on.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import HoldfastError, LockedError, StorageError, UnsupportedError
from holdfast.model.log import Log
from holdfast.store.lease import LASTS, may_run, this_process
from holdfast.store.promotion_rows import PromotionRows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from holdfast.engine.promotion.work import Site
    from holdfast.store.catalog import Catalog
    from holdfast.store.database import Connector

_LOG = Log(__name__)

SCHEMA = "holdfast_workflows"
"""On PostgreSQL."""
_VERSION = "holdfast-promotion-1"
"""Of the steps and their order: a workflow is gone on with by those that know the same."""
_POLL_SECONDS = 0.25
_GOES_ON = ("PENDING", "ENQUEUED")
_IDLE_MILLISECONDS = 60_000
"""After which the server ends a transaction whose process does nothing in it, as one that is stopped."""
_REFUSED = "42501"
"""PostgreSQL's insufficient_privilege."""
_SUBSECONDS = (3, 42, 0)
"""Before, SQLite knows no ``unixepoch('subsec')``: it is NULL."""
_ONE_AT_A_TIME = threading.Lock()
"""dbos is one to a process."""


class Flows:
    """dbos, launched in this process for one home. For one thread; one workflow at a time."""

    def __init__(self, dbos: Any, prefix: str) -> None:
        self._dbos = dbos
        self._prefix = prefix

    def is_over(self, promotion: str, start: int) -> bool:
        """Whether the workflow that was begun as the ``start``-th for this promotion can be gone on with by nobody."""
        status = self._dbos.get_workflow_status(self._name(promotion, start))
        return status is not None and (status.status not in _GOES_ON or status.app_version != _VERSION)

    def run(
        self,
        promotion: str,
        start: int,
        doing: tuple[Callable[[str, int], str], Callable[[str], str]],
        interrupted: Callable[[], None],
    ) -> str:
        """Go through the steps, from the first that has not come to its end; what the last has said.

        ``doing`` is what does a step, and what takes back. Blocks until it has ended: a `KeyboardInterrupt` is told by
        calling ``interrupted``, and raised afterwards. Raises `StorageError` if the database is gone for too long.
        """
        name = self._name(promotion, start)
        workflow, set_id = _registered(self._dbos)
        _DOING[name] = doing
        queue = ""
        try:
            if self._dbos.get_workflow_status(name) is None:
                with set_id(name):
                    handle = self._dbos.start_workflow(workflow, name)
            else:
                # By a queue that nobody else looks at: whoever had it before is not handed it again.
                queue = _queue(self._prefix)
                self._dbos.register_queue(queue, polling_interval_sec=_POLL_SECONDS, on_conflict="always_update")
                handle = self._dbos.resume_workflow(name, queue_name=queue)
            return _awaited(handle, interrupted)
        except Exception as error:
            if self._dbos.get_workflow_status(name) is not None:
                raise
            raise LockedError(
                "another process has taken this promotion over, and ended it",
                hint="see `holdfast promote --list`",
                code="taken_over",
            ) from error
        finally:
            del _DOING[name]
            if queue:
                self._dbos.delete_queue(queue)

    def forget(self, promotion: str) -> None:
        """Remove what is kept of a promotion that has ended; that is for nobody to go on with. (Whoever has taken it
        over waits for the end of it there, and removes it.)
        """
        there = self._listed(f"{self._prefix}{promotion}.")
        ours = this_process()
        self._delete(one.workflow_id for one in there if one.executor_id == ours or not may_run(one.executor_id or ""))

    def tidy(self, catalog: Catalog) -> None:
        """Remove what is kept of promotions that were ended by others than those who began them, and the queues of
        processes that are gone.
        """
        there = self._listed(self._prefix)
        rows = {row.id: row for row in PromotionRows(catalog).list()} if there else {}
        now = catalog.clock.now()
        dead: list[str] = []
        for status in there:
            row = rows.get(status.workflow_id.removeprefix(self._prefix).rpartition(".")[0])
            # (One that has ended just now may belong to a process which is about to write that down here as well.)
            since = (status.updated_at or 0) * 1000 if row is None else row.updated_at
            if (row is None or row.phase == "ended") and (
                not may_run(status.executor_id or "") or not now - LASTS < since <= now + LASTS
            ):
                dead.append(status.workflow_id)
        self._delete(dead)
        for queue in self._dbos.list_queues():
            if queue.name.startswith(self._prefix) and not may_run(queue.name.removeprefix(self._prefix)):
                self._dbos.delete_queue(queue.name)

    def _listed(self, prefix: str) -> Sequence[Any]:
        return self._dbos.list_workflows(workflow_id_prefix=prefix, load_input=False, load_output=False)

    def _delete(self, names: Iterable[str]) -> None:
        if there := list(names):
            self._dbos.delete_workflows(there)

    def _name(self, promotion: str, start: int) -> str:
        return f"{self._prefix}{promotion}.{start}"


@contextmanager
def launched(site: Site) -> Generator[Flows]:
    """dbos, for the length of the block. Raises `UnsupportedError` where its tables cannot be made, or it is not
    installed, and `StorageError`.
    """
    require_dbos()
    for noisy in ("dbos", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    from dbos import DBOS, DBOSPortableJSONSerializer
    from dbos import error as failures
    from sqlalchemy.exc import DBAPIError

    with _ONE_AT_A_TIME, site.opened() as opener:
        catalog = opener.store().catalog
        connector = catalog.database.connector
        prefix = f"{catalog.tenant}.{catalog.machine}."
        engine = _engine(connector)
        try:
            _registered(DBOS)
            DBOS(
                config={
                    "name": "holdfast",
                    "system_database_url": f"{connector.dialect}:///catalog",  # by its scheme: there is an engine
                    "system_database_engine": engine,
                    "dbos_system_schema": SCHEMA,
                    "executor_id": this_process(),
                    "application_version": _VERSION,
                    "serializer": DBOSPortableJSONSerializer(),
                    "use_listen_notify": False,
                    "log_level": "CRITICAL",
                    "enable_otlp": False,
                }
            )
            DBOS.listen_queues([_queue(prefix)])
            flows = Flows(DBOS, prefix)
            DBOS.launch()
            flows.tidy(catalog)
            yield flows
        except DBAPIError as error:
            raise _translated(error, connector) from error
        except failures.DBOSException as error:
            raise HoldfastError(
                f"the workflow of the promotion cannot be gone on with here: {error}",
                hint="`holdfast promote --list` shows how far it is",
                code="promotion_stopped",
            ) from error
        finally:
            DBOS.destroy()
            engine.dispose()


def require_dbos() -> None:
    """Raise `UnsupportedError` if the library is not installed."""
    try:
        import dbos  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise UnsupportedError(
            f"promotions need a library that is not installed: {error.name}",
            hint="pip install 'holdfast[server]'",
            code="no_dbos",
        ) from error


def _queue(prefix: str) -> str:
    """That of this process."""
    return prefix + this_process()


def _awaited(handle: Any, interrupted: Callable[[], None]) -> str:
    stopped = False
    while True:
        try:
            said: str = handle.get_result(polling_interval_sec=_POLL_SECONDS)
            break
        except KeyboardInterrupt:
            stopped = True
            interrupted()
    if stopped:
        raise KeyboardInterrupt
    return said


_DOING: dict[str, tuple[Callable[[str, int], str], Callable[[str], str]]] = {}
"""What does the steps of a workflow, and what takes back: of those that run in this process, by name."""
_registered_once: list[Any] = []


def _registered(dbos: Any) -> Any:
    """The workflow, and what gives it an id; registered once in a process."""
    if not _registered_once:
        from dbos import SetWorkflowID

        from holdfast.engine.promotion.workflow import steps_of

        @dbos.step(name="step")
        def step(flow: str, name: str, attempt: int) -> str:
            return _DOING[flow][0](name, attempt)

        @dbos.step(name="undo")
        def undo(flow: str, found: str) -> str:
            return _DOING[flow][1](found)

        @dbos.workflow(name="promotion")
        def promotion(flow: str) -> str:
            return steps_of(lambda name, attempt: step(flow, name, attempt), lambda found: undo(flow, found))

        _registered_once.extend((promotion, SetWorkflowID))
    return _registered_once


def _engine(connector: Connector) -> Any:
    """What dbos reaches the database by: connections of the driver, made as the catalog's own are."""
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import QueuePool

    postgresql = connector.dialect == "postgresql"
    engine = create_engine(
        "postgresql+psycopg://" if postgresql else "sqlite://",
        creator=connector.connect,
        poolclass=QueuePool,
        pool_size=3,
        max_overflow=5,
        **({"use_native_hstore": False} if postgresql else {}),
    )
    if postgresql:

        def limit(connection: Any) -> None:
            connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MILLISECONDS}")

        event.listen(engine, "begin", limit)
    elif sqlite3.sqlite_version_info < _SUBSECONDS:

        def tell_time(connection: sqlite3.Connection, _: object) -> None:
            connection.create_function("unixepoch", 1, _unix_time)

        event.listen(engine, "connect", tell_time)
    return engine


def _unix_time(what: str) -> float:
    """``unixepoch('subsec')``, which dbos asks of SQLite where Python is 3.12 or newer, however old SQLite is."""
    if what != "subsec":
        raise ValueError(what)
    return round(time.time(), 3)


def _translated(error: Any, connector: Connector) -> HoldfastError:
    if getattr(error.orig, "sqlstate", None) == _REFUSED:
        return UnsupportedError(
            f"promotions keep their workflow in the schema {SCHEMA} of {connector.shown}, which this role may not make "
            "or change",
            hint=f"have an administrator do once: CREATE SCHEMA {SCHEMA} AUTHORIZATION the role; nothing was begun",
            code="no_workflow_schema",
        )
    text = " ".join(str(error.orig).split())
    return StorageError(
        f"the workflow of a promotion cannot be kept in {connector.shown}: {text}",
        hint="see that the database is sound and has room; what was begun goes on with `holdfast promote --resume`",
    )

"""A promotion's steps as a durable workflow: what was done is not done again by whoever goes on after a crash.

The library is dbos, imported by whoever promotes and nobody else. Each promotion has a database file of its own in its
folder, so that no process is ever handed another one's work; who works on it is decided by the production's lease. A
process has an identity of its own to dbos, the same that its lease has.

Every step can be repeated: the catalog's row says how far it is, and dbos, which of them have come to their end.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.promotion.planning import UNCHANGED
from holdfast.engine.promotion.spec import STAGES, Answer
from holdfast.model.errors import HoldfastError, UnsupportedError, unexpected
from holdfast.model.log import Log
from holdfast.store.lease import this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from holdfast.engine.promotion.spec import Stage
    from holdfast.engine.promotion.work import Held, Site, Work

_LOG = Log(__name__)
_DATABASE = b"workflow.sqlite"
_VERSION = "holdfast-promotion-1"
"""Of the steps and their order: a workflow is gone on with by those that know the same."""
_POLL_SECONDS = 0.05
_ONE_AT_A_TIME = threading.Lock()
"""dbos is one to a process."""

AGAIN, CHANGED, OK = "again", "changed", "ok"


class Running:
    """A promotion that this process works on: what its steps need and cannot be handed as arguments."""

    def __init__(self, site: Site, lease: Held, promotion: str, tell: Callable[[str], None]) -> None:
        self.site = site
        self.lease = lease
        self.promotion = promotion
        self.tell = tell

    def step(self, name: str, attempt: int) -> str:
        """Do one step: ``ok``, ``changed``, ``again``, or how it all ended, as JSON. Raises nothing of ours."""
        from holdfast.engine.promotion.swapping import check_lease

        self.tell(name)
        try:
            check_lease(self.lease.lost)
            with self.site.work(self.promotion) as work:
                if work.row.phase == "ended":  # killed between that and its being told so
                    return _encoded(work.facts.answer)
                return _encoded(_STEPS[name](work, attempt))
        except Exception as error:  # noqa: BLE001 - dbos would keep it as a pickle, which later versions may not read
            failure = error if isinstance(error, HoldfastError) else unexpected(error)
            if failure.code == "bug":
                _LOG.exception("the step %s has failed", name)
            return _encoded(
                Answer(
                    result="failed",
                    code=failure.code,
                    message=failure.message,
                    recovery=failure.hint or "",
                    ends_with=failure.exit_code,
                )
            )


def _encoded(found: Answer | str | None) -> str:
    return OK if found is None else found if isinstance(found, str) else msgspec.json.encode(found).decode()


def _plan(work: Work, attempt: int) -> Answer | str | None:
    from holdfast.engine.promotion import planning

    del attempt
    return planning.plan(work) if work.row.phase == "building" else None


def _copy(work: Work, attempt: int) -> Answer | str | None:
    from holdfast.engine.promotion import building

    del attempt
    return _counted(work, building.copy(work)) if work.row.phase == "building" else None


def _stage(stage: Stage) -> Callable[[Work, int], Answer | str | None]:
    def run(work: Work, attempt: int) -> Answer | str | None:
        from holdfast.engine.promotion import building

        del attempt
        return building.run(work, stage) if work.row.phase == "building" else None

    return run


def _swap(work: Work, attempt: int) -> Answer | str | None:
    from holdfast.engine.promotion import swapping

    del attempt
    return _counted(work, swapping.swap(work) if work.row.phase != "swapped" else swapping.record(work))


def _counted(work: Work, found: Answer | str | None) -> Answer | str | None:
    """``found``, or, where production was changed for the last time that is allowed, how it ends."""
    if found == CHANGED:
        work.facts.replans += 1
        work.save()
        if work.facts.replans >= work.spec.tries:
            return Answer(
                result="failed",
                code="changed_meanwhile",
                message=f"production was changed {work.facts.replans} times while it was built",
                recovery=f"{UNCHANGED} Promote again when nobody edits it.",
                ends_with=4,
            )
    return found


def _restart(work: Work, attempt: int) -> None:
    from holdfast.engine.promotion import finishing

    del attempt
    finishing.restart(work)


def _finish(work: Work, attempt: int) -> Answer:
    from holdfast.engine.promotion import finishing

    del attempt
    return finishing.finish(work)


_STEPS: dict[str, Callable[[Work, int], Answer | str | None]] = {
    "plan": _plan,
    "copy": _copy,
    **{stage: _stage(stage) for stage in STAGES},
    "swap": _swap,
    "restart": _restart,
    "finish": _finish,
}


def steps_of(step: Callable[[str, int], str], undo: Callable[[str], str]) -> str:
    """The whole way, given what does a step and what takes back what was built: how it ended, as JSON.

    Deterministic: what it does next depends on what steps have answered alone.
    """
    attempt = 0
    while True:
        attempt += 1
        for name in ("plan", "copy", *STAGES, "swap"):
            found = step(name, attempt)
            if found in (AGAIN, CHANGED):
                break
            if found != OK:
                return undo(found)
        else:
            break
    for name in ("restart", "finish"):
        found = step(name, attempt)
    return found


_RUNNING: dict[str, Running] = {}


def run_workflow(running: Running, start: int) -> Answer:
    """Go through the steps, from the first that has not come to its end; how it ended.

    ``start`` counts the workflows that were begun for it. Blocks until it has ended; `KeyboardInterrupt` ends what
    runs, and is raised when that is cleared away. Raises `UnsupportedError` without dbos.
    """
    with _ONE_AT_A_TIME, _launched(running) as dbos:
        name = f"{running.promotion}-{start}"
        workflow, set_id = _registered(dbos)
        if dbos.get_workflow_status(name) is None:
            with set_id(name):
                handle = dbos.start_workflow(workflow, running.promotion)
        else:
            handle = dbos.resume_workflow(name)
        interrupted = False
        while True:
            try:
                said: str = handle.get_result(polling_interval_sec=_POLL_SECONDS)
                break
            except KeyboardInterrupt:
                interrupted = True
                running.site.stop.set()
        if interrupted:
            raise KeyboardInterrupt
        return msgspec.json.decode(said.encode(), type=Answer)


def is_over(site: Site, promotion: str, start: int) -> bool:
    """Whether the workflow has come to an end, so that only another one can go on. Reads its file, without dbos."""
    import sqlite3
    from contextlib import closing

    path = os.path.join(site.folder(promotion), _DATABASE)
    if not os.path.lexists(path):
        return False
    try:
        with closing(sqlite3.connect(path, timeout=5)) as connection:
            row = connection.execute(
                "SELECT status FROM workflow_status WHERE workflow_uuid = ?", (f"{promotion}-{start}",)
            ).fetchone()
    except sqlite3.DatabaseError:
        os.unlink(path)  # damaged, or never finished: the catalog's row says enough to go on
        return False
    return row is not None and row[0] not in ("PENDING", "ENQUEUED")


def forget(site: Site, promotion: str) -> None:
    """Remove the file of a promotion that has ended; that is for nobody to go on with."""
    path = os.path.join(site.folder(promotion), _DATABASE)
    for suffix in (b"", b"-journal", b"-wal", b"-shm"):
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)


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


_registered_once: list[Any] = []


def _registered(dbos: Any) -> Any:
    """The workflow, and what gives it an id; registered once in a process."""
    if not _registered_once:
        from dbos import SetWorkflowID

        @dbos.step(name="step")
        def step(promotion: str, name: str, attempt: int) -> str:
            return _RUNNING[promotion].step(name, attempt)

        @dbos.step(name="undo")
        def undo(promotion: str, found: str) -> str:
            return _undone(_RUNNING[promotion], found)

        @dbos.workflow(name="promotion")
        def promotion(identity: str) -> str:
            return steps_of(lambda name, attempt: step(identity, name, attempt), lambda found: undo(identity, found))

        _registered_once.extend((promotion, SetWorkflowID))
    return _registered_once


def _undone(running: Running, found: str) -> str:
    """Take back what was built; after the swap there is nothing to take back, and the rest is done when it goes on."""
    from holdfast.engine.promotion import finishing

    answer = msgspec.json.decode(found.encode(), type=Answer)
    try:
        with running.site.work(running.promotion) as work:
            if work.row.phase == "building" and not running.lease.lost:
                finishing.undo(work, answer)
            elif work.row.phase in ("swapping", "swapped"):
                answer.recovery = f"`holdfast promote --resume {running.promotion}` goes on"
    except HoldfastError as error:
        _LOG.warning("what was built is not cleared away: %s; `holdfast promote --sweep` does that", error.message)
    return msgspec.json.encode(answer).decode()


@contextmanager
def _launched(running: Running) -> Generator[Any]:
    """dbos, over the database of one promotion, for the length of the block."""
    require_dbos()
    for noisy in ("dbos", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    from dbos import DBOS

    path = os.path.join(running.site.folder(running.promotion), _DATABASE)
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    _registered(DBOS)
    _RUNNING[running.promotion] = running
    DBOS(
        config={
            "name": "holdfast",
            "system_database_url": "sqlite:///" + os.fsdecode(path),
            "executor_id": this_process(),
            "application_version": _VERSION,
            "log_level": "CRITICAL",
            "notification_listener_polling_interval_sec": _POLL_SECONDS,
            "enable_otlp": False,
        }
    )
    try:
        DBOS.launch()
        yield DBOS
    finally:
        DBOS.destroy()
        del _RUNNING[running.promotion]

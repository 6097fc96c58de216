"""The steps of a promotion. Its only record is the catalog's row, with its progress and its facts.

Every step can be repeated. Its end is written to the row before the next one begins, so after a crash another process
with the lease of the production continues by the row. Each write names the revision of the row that it follows, and
each step first compares it: a process that lost its lease does no further step.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.promotion import _build as build
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.promotion import _cleanup as cleanup
from holdfast.engine.promotion import _swap as swap
from holdfast.engine.promotion import _target_state as target_state
from holdfast.engine.promotion._target_state import UNCHANGED
from holdfast.engine.promotion.spec import STAGES, PromotionAnswer
from holdfast.model.errors import HoldfastError, LockedError, unexpected
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Literal

    from holdfast.engine.promotion._job_context import ProductionLease, PromotionJob, PromotionSite

    Found = PromotionAnswer | Literal["again", "changed"] | None
    """Of a step: None if the next one is to be done; else how it all ended, or why the way begins anew."""

_LOG = Log(__name__)

_LOOK_SECONDS = 0.5


def _swap(job: PromotionJob) -> Found:
    if job.row.phase == "building":
        build_directory.remove_home(job)
    return _counted(job, swap.swap(job) if job.row.phase != "swapped" else swap.record(job))


def _counted(job: PromotionJob, found: Found) -> Found:
    """``found``, or, where production was changed for the last time that is allowed, how it ends."""
    if found == "changed":
        job.facts.replans += 1
        if job.facts.replans >= job.spec.tries:
            return PromotionAnswer(
                result="failed",
                code="changed_meanwhile",
                message=f"production was changed {job.facts.replans} times while it was built",
                recovery=f"{UNCHANGED} Promote again when no process edits it.",
                ends_with=4,
            )
    return found


STEPS: dict[str, Callable[[PromotionJob], Found]] = {
    "plan": target_state.plan,
    "copy": lambda job: _counted(job, build.copy_production(job)),
    **{stage: partial(build.run_stage, stage=stage) for stage in STAGES},
    "swap": _swap,
    "restart": cleanup.restart,
    "finish": cleanup.finish_promotion,
}
"""In their order."""


class PromotionRun:
    """A promotion that this process works on."""

    def __init__(
        self, site: PromotionSite, lease: ProductionLease, promotion: str, tell: Callable[[str], None]
    ) -> None:
        self._site = site
        self._lease = lease
        self._promotion = promotion
        self._tell = tell
        self._revision = 0

    def run(self) -> PromotionAnswer:
        """Do the steps that are left; how it ended, or, where the row says that it has not, why it stops here.

        `KeyboardInterrupt` ends what runs, and is raised when that is cleared away.
        """
        interrupted = False
        # On a thread of its own: an interrupt must not stop in the middle of a step.
        with ThreadPoolExecutor(1, "promotion") as pool:
            going = pool.submit(self._go_on)
            while True:
                try:
                    # The timeout matters: the signal may go to the other thread, and then nothing wakes this one.
                    if wait([going], _LOOK_SECONDS).done:
                        answer = going.result()
                        break
                except KeyboardInterrupt:
                    interrupted = True
                    self._site.stop.set()
        if interrupted:
            raise KeyboardInterrupt
        return answer

    def _go_on(self) -> PromotionAnswer:
        answer = None
        while answer is None:
            try:
                with self._ours() as job:
                    answer = self._step(job)
            except Exception as error:  # noqa: BLE001 - whatever it was, what was built is cleared away
                answer = _failure(error)
                try:
                    with self._ours() as job:
                        answer = _fail(job, answer)
                except HoldfastError as then:
                    _LOG.warning("the build is not removed: %s; `holdfast promote --sweep` does that", then.message)
        return answer

    @contextmanager
    def _ours(self) -> Generator[PromotionJob]:
        """The promotion, opened. Raises `LockedError` (code ``taken_over``) if another process works on it by now."""
        with self._site.open_job(self._promotion) as job:
            if self._lease.lost or self._revision not in (0, job.row.revision):
                raise LockedError(
                    "another process has taken over this promotion",
                    hint="nothing is lost; it continues there",
                    code="taken_over",
                )
            try:
                yield job
            finally:
                self._revision = job.row.revision

    def _step(self, job: PromotionJob) -> PromotionAnswer | None:
        """Do the next step, and note that; how it all ended, or None."""
        if (ended := job.facts.failure or (job.facts.answer if job.row.phase == "ended" else None)) is not None:
            return _fail(job, ended)
        names = list(STEPS)
        # A row of a former version does not name the next step: its build is repeated.
        at = max(names.index(job.facts.next), 0 if job.row.phase == "building" else names.index("swap"))
        self._tell(names[at])
        found = STEPS[names[at]](job)
        if isinstance(found, PromotionAnswer):
            return _fail(job, found)
        job.facts.next = names[0 if found else at + 1]
        job.save()
        return None


def _fail(job: PromotionJob, answer: PromotionAnswer) -> PromotionAnswer:
    """Remove the build. After the swap nothing can be reversed: a later continuation does the rest."""
    if job.row.phase == "ended":
        return answer
    if job.row.phase != "building":
        answer.recovery = f"`holdfast promote --resume {job.row.id}` goes on"
        return answer
    # Recorded before anything is removed: after a kill, it ends with the same answer.
    answer = job.facts.failure or answer
    job.facts.failure = answer
    job.save()
    job.facts.failure = None
    return cleanup.discard_build(job, answer)


def _failure(error: Exception) -> PromotionAnswer:
    failure = error if isinstance(error, HoldfastError) else unexpected(error)
    if failure.code == "bug":
        _LOG.error("a step of a promotion has failed", exc_info=error)
    return PromotionAnswer(
        result="failed",
        code=failure.code,
        message=failure.message,
        recovery=failure.hint or "",
        ends_with=failure.exit_code,
    )

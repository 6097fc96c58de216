"""A promotion's way, step by step. The catalog's row is all that is kept of it: how far it is, and what was found.

Every step can be repeated. That it has ended is written to the row before the next one begins, so another process that
has the lease of the production goes on by the row after a crash. Each write names the revision of the row that it
follows, and each step begins by comparing it: a process that was taken over does no further step.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.promotion import _build as build
from holdfast.engine.promotion import _cleanup as cleanup
from holdfast.engine.promotion import _swap as swap
from holdfast.engine.promotion import _target_state as target_state
from holdfast.engine.promotion._target_state import UNCHANGED
from holdfast.engine.promotion.spec import STAGES, Answer
from holdfast.model.errors import HoldfastError, LockedError, unexpected
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Literal

    from holdfast.engine.promotion._job_context import Held, Site, Work

    Found = Answer | Literal["again", "changed"] | None
    """Of a step: None if the next one is to be done; else how it all ended, or why the way begins anew."""

_LOG = Log(__name__)


def _swap(work: Work) -> Found:
    return _counted(work, swap.swap(work) if work.row.phase != "swapped" else swap.record(work))


def _counted(work: Work, found: Found) -> Found:
    """``found``, or, where production was changed for the last time that is allowed, how it ends."""
    if found == "changed":
        work.facts.replans += 1
        if work.facts.replans >= work.spec.tries:
            return Answer(
                result="failed",
                code="changed_meanwhile",
                message=f"production was changed {work.facts.replans} times while it was built",
                recovery=f"{UNCHANGED} Promote again when nobody edits it.",
                ends_with=4,
            )
    return found


STEPS: dict[str, Callable[[Work], Found]] = {
    "plan": target_state.plan,
    "copy": lambda work: _counted(work, build.copy(work)),
    **{stage: partial(build.run, stage=stage) for stage in STAGES},
    "swap": _swap,
    "restart": cleanup.restart,
    "finish": cleanup.finish,
}
"""In their order."""


class Running:
    """A promotion that this process works on."""

    def __init__(self, site: Site, lease: Held, promotion: str, tell: Callable[[str], None]) -> None:
        self._site = site
        self._lease = lease
        self._promotion = promotion
        self._tell = tell
        self._revision = 0

    def run(self) -> Answer:
        """Do the steps that are left; how it ended, or, where the row says that it has not, why it stops here.

        `KeyboardInterrupt` ends what runs, and is raised when that is cleared away.
        """
        interrupted = False
        # (On a thread of its own: no step is left half way by an interrupt.)
        with ThreadPoolExecutor(1, "promotion") as pool:
            going = pool.submit(self._go_on)
            while True:
                try:
                    answer = going.result()
                    break
                except KeyboardInterrupt:
                    interrupted = True
                    self._site.stop.set()
        if interrupted:
            raise KeyboardInterrupt
        return answer

    def _go_on(self) -> Answer:
        answer = None
        while answer is None:
            try:
                with self._ours() as work:
                    answer = self._step(work)
            except Exception as error:  # noqa: BLE001 - whatever it was, what was built is cleared away
                answer = _failure(error)
                try:
                    with self._ours() as work:
                        answer = _fail(work, answer)
                except HoldfastError as then:
                    _LOG.warning(
                        "what was built is not cleared away: %s; `holdfast promote --sweep` does that", then.message
                    )
        return answer

    @contextmanager
    def _ours(self) -> Generator[Work]:
        """The promotion, opened. Raises `LockedError` (code ``taken_over``) if another process works on it by now."""
        with self._site.work(self._promotion) as work:
            if self._lease.lost or self._revision not in (0, work.row.revision):
                raise LockedError(
                    "another process has taken this promotion over",
                    hint="nothing is lost; it goes on there",
                    code="taken_over",
                )
            try:
                yield work
            finally:
                self._revision = work.row.revision

    def _step(self, work: Work) -> Answer | None:
        """Do the next step, and note that; how it all ended, or None."""
        if (ended := work.facts.failure or (work.facts.answer if work.row.phase == "ended" else None)) is not None:
            return _fail(work, ended)
        names = list(STEPS)
        # (The row of a former version does not say which step is next: what was built by it is built anew.)
        at = max(names.index(work.facts.next), 0 if work.row.phase == "building" else names.index("swap"))
        self._tell(names[at])
        found = STEPS[names[at]](work)
        if isinstance(found, Answer):
            return _fail(work, found)
        work.facts.next = names[0 if found else at + 1]
        work.save()
        return None


def _fail(work: Work, answer: Answer) -> Answer:
    """Take back what was built. After the swap there is nothing to take back: the rest is done when it goes on."""
    if work.row.phase == "ended":
        return answer
    if work.row.phase != "building":
        answer.recovery = f"`holdfast promote --resume {work.row.id}` goes on"
        return answer
    # (Noted before anything is removed: killed on the way, it ends with the same answer.)
    answer = work.facts.failure or answer
    work.facts.failure = answer
    work.save()
    work.facts.failure = None
    return cleanup.undo(work, answer)


def _failure(error: Exception) -> Answer:
    failure = error if isinstance(error, HoldfastError) else unexpected(error)
    if failure.code == "bug":
        _LOG.error("a step of a promotion has failed", exc_info=error)
    return Answer(
        result="failed",
        code=failure.code,
        message=failure.message,
        recovery=failure.hint or "",
        ends_with=failure.exit_code,
    )

"""A promotion's steps as a durable workflow: what was done is not done again by whoever goes on after a crash.

What keeps them is `holdfast.engine.promotion.durable`; who works on them is decided by the production's lease.

Every step can be repeated: the catalog's row says how far it is, and dbos, which of them have come to their end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.promotion.planning import UNCHANGED
from holdfast.engine.promotion.spec import STAGES, Answer
from holdfast.model.errors import HoldfastError, unexpected
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.promotion.durable import Flows
    from holdfast.engine.promotion.spec import Stage
    from holdfast.engine.promotion.work import Held, Site, Work

_LOG = Log(__name__)

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


def run_workflow(flows: Flows, running: Running) -> Answer:
    """Go through the steps, from the first that has not come to its end; how it ended.

    Blocks until it has ended; `KeyboardInterrupt` ends what runs, and is raised when that is cleared away.
    """
    promotion = running.promotion
    with running.site.work(promotion) as work:
        while flows.is_over(promotion, work.facts.starts):
            work.facts.starts += 1
            work.save()
        start = work.facts.starts
    said = flows.run(promotion, start, (running.step, partial(_undone, running)), running.site.stop.set)
    return msgspec.json.decode(said.encode(), type=Answer)


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

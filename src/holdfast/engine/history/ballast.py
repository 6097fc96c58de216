"""What the store keeps back for a full disk, given up for what must not fail because of one."""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.model.errors import StorageError
from holdfast.model.log import Log
from holdfast.model.typed import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.engine.opening.context import Shared

T = TypeVar("T")

_LOG = Log(__name__)


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

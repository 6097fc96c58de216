"""How a child of a session is started: as it is, or so that all that it changes is recorded."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.engine.opening.context import Context
    from holdfast.engine.running._checkpoint_server import CheckpointServer


def refused_call(exit_code: int) -> str:
    """Why a supervised command ended with this ``exit_code``, where that is the filter of its system calls; empty where
    it is not. A 32-bit program says nothing before it is ended.
    """
    if exit_code != 128 + signal.SIGSYS:
        return ""
    return "the command ended with SIGSYS, as every 32-bit program does where it is supervised"


class ChildStart(NamedTuple):
    """How to start a child."""

    words: Sequence[bytes]
    """The argument list."""
    directory: bytes
    """Where."""
    environment: Mapping[bytes, bytes]
    descriptors: tuple[int, ...] = ()
    """To be passed on to it."""
    run: str = ""
    """The run that it is, if it is recorded."""
    undo_log: bytes = b""
    """The real path of the undo log's directory: it holds the files that the command removes."""
    server: CheckpointServer | None = None
    """Where it asks for checkpoints then: to be served meanwhile."""


def recorded_where(
    context: Context | None,
    start: ChildStart,
    *,
    called: Sequence[bytes] = (),
    one_step: bool = True,
    ends_whole: bool = False,
) -> AbstractContextManager[ChildStart]:
    """`holdfast.engine.running.recorded_command.recorded`, which is loaded only where there is a ``context`` to record
    in; ``start`` as it is without.
    """
    if context is None:
        return nullcontext(start)
    from holdfast.engine.running.recorded_command import recorded

    return recorded(context, start, called=called, one_step=one_step, ends_whole=ends_whole)

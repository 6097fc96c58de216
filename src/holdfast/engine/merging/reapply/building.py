"""The ladder that the settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.merging.reapply.ladder import Ladder

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from holdfast.engine.merging.reapply.port import Rung
    from holdfast.engine.opening.context import Context


def ladder_of(
    context: Context,
    names: Sequence[str] | None = None,
    *,
    stop: threading.Event | None = None,
    environment: Mapping[bytes, bytes] | None = None,
) -> Ladder:
    """The ladder of ``merge.ladder``, or of ``names``; a command that is not configured is left out. Setting ``stop``
    ends one that runs; it gets the ``environment`` (None: this process's, as commands are handed it).
    """
    settings = context.settings.merge
    rungs: list[Rung] = []
    for name in dict.fromkeys(settings.ladder if names is None else names):
        rung = _rung(context, name, stop, environment)
        if rung is not None:
            rungs.append(rung)
    return Ladder(rungs, settings.max_bytes)


def _rung(
    context: Context, name: str, stop: threading.Event | None, environment: Mapping[bytes, bytes] | None
) -> Rung | None:
    settings = context.settings.merge
    match name:
        case "command":
            if not settings.command:
                return None
            from holdfast.engine.merging.reapply.command import Command

            return Command(
                settings.command,
                home=context.home,
                timeout=settings.timeout,
                max_bytes=settings.max_bytes,
                stop=stop,
                environment=environment,
            )
        case "queue":
            from holdfast.engine.merging.reapply.queue import Queue

            return Queue(context.store, context.workspace.id, context.clock, settings)
        case "structure":
            from holdfast.engine.merging.reapply.structure import Structure

            return Structure()
        case "text":
            from holdfast.engine.merging.reapply.text import Text

            return Text()
        case _:
            from holdfast.engine.merging.reapply.person import Person

            return Person()

"""Telling the undo log what checkpoints hold and bring back, so that it knows again what its steps have left.

Every checkpoint that is taken while the log is at hand tells it the hashes of what steps have left since the last one,
and whatever brings the tree to a checkpoint tells it what it has brought where: neither is an edit by others.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress

from holdfast.engine.opening.undo_log import kept
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.model.log import Log
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash
    from holdfast.undo.service import UndoService

_LOG = Log(__name__)

_MOST_BYTES = 1 << 19
"""What the undo log is told at once: less than a request to a keeper may have."""
_ENTRY_BYTES = 32


@contextmanager
def noting(context: Context) -> Generator[Callable[[Hash], None]]:
    """To be entered before the tree is looked at: what it yields is called with the manifest of what was seen.

    A step can then still be undone when somebody has changed its files and a checkpoint has brought them back. What was
    saved is saved, also if the log cannot be told.
    """
    with ExitStack() as reached:
        service, steps = None, ()
        try:
            service = reached.enter_context(kept(context))
            steps = service.unnoted() if service is not None else ()
        except HoldfastError as error:
            _say(error)

        def note(root: Hash) -> None:
            try:
                for step in steps:
                    assert service is not None
                    with suppress(NotFoundError):  # it is forgotten by now
                        _note(context, service, step, root)
            except HoldfastError as error:
                _say(error)

        yield note


def tell_brought_back(context: Context, changes: Iterable[Change]) -> None:
    """Tell the undo log, if it is at hand, what the tree was just brought to, as far as it was; `quiet` is entered."""
    service = context.undo_log
    if service is None:
        return
    brought: list[tuple[bytes, bytes | None]] = []
    room = _MOST_BYTES
    try:
        for path, _, after in changes:
            if (room := room - len(path) - _ENTRY_BYTES) < 0:
                service.brought_back(brought)
                brought, room = [], _MOST_BYTES
            brought.append((path, None if after is None else after.hash))
        if brought:
            service.brought_back(brought)
    except HoldfastError as error:
        _say(error)


def _note(context: Context, service: UndoService, step: int, root: Hash) -> None:
    from holdfast.store import manifest

    room = _MOST_BYTES
    noted: list[tuple[bytes, bytes]] = []
    for path, entry in manifest.get_many(context.store.pages, root, service.left_files(step)).items():
        if (room := room - len(path) - _ENTRY_BYTES) < 0:
            break  # a step of very many files is not known again whole: then it is forced, or restored
        noted.append((path, entry.hash))
    service.note_contents(step, noted)


def _say(error: HoldfastError) -> None:
    _LOG.warning("what steps have left may not be known again, and undo may have to be forced: %s", error.message)

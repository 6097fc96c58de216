"""The keeper's own parts, as each tree that it serves uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import select
    from collections.abc import Callable

    from holdfast.supervisor.keeper._background_thread import BackgroundThread
    from holdfast.supervisor.keeper._step_lifecycle import StepLifecycle
    from holdfast.supervisor.keeper.native_loop import NativeLoop
    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.journal.preimages import Preimages
    from holdfast.undo.local_service.undo_service import LocalUndoService


class ServedWorkspace(NamedTuple):
    """The workspace, the paths that its trees cannot reach, and the recorder of their changes."""

    root_fd: int
    forbidden: tuple[int, ...]
    """See `HandlerContext.forbidden`."""
    interceptor: Interceptor
    preimages: Preimages


class KeeperContext(NamedTuple):
    """The parts that there is one of in a keeper."""

    workspace: ServedWorkspace
    service: LocalUndoService
    steps: StepLifecycle
    worker: BackgroundThread
    selector: select.epoll
    """The events that the serving thread waits for, besides calls."""
    lapse: Callable[[int], None]
    """Rolls back the step of a ticket that cannot wait any longer. From any thread."""
    deny: Callable[[int], None]
    """Denies what waits under a ticket, if that waits. From any thread."""
    native: NativeLoop | None = None
    """None: Python alone carries calls out."""

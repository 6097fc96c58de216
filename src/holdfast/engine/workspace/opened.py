"""What a workspace and a whole home have in common when they are open: they are closed, collected and verified."""

from __future__ import annotations

from holdfast.engine.opening.current_run import forbid_inside_run
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from holdfast.engine.opening.context import Context, Shared
    from holdfast.engine.opening.opening import Opener
    from holdfast.model.sinks import Progress
    from holdfast.store.collect import Collected
    from holdfast.store.verify import Verified


class Opened:
    """See the module. Base of the two public faces of the engine."""

    def __init__(self, opener: Opener, shared: Shared) -> None:
        self._opener = opener
        self._shared = shared

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store. Harmless a second time."""
        self._opener.close()

    def gc(self, *, grace: float | None = None, dry_run: bool = False, progress: Progress | None = None) -> Collected:
        """Delete what nothing has needed for ``grace`` seconds (None: ``gc.grace``). Interruptible at any point
        (I11). ``dry_run`` says what would go, and deletes nothing.
        """
        forbid_inside_run(self._shared, "a collection")
        from holdfast.engine.upkeep.upkeep import collect

        return collect(self._shared, grace=grace, dry_run=dry_run, progress=progress)

    def verify(self, *, read_data: bool = False, progress: Progress | None = None) -> Verified:
        """Prove the store sound, or name what is not; ``read_data`` reads and hashes every stored byte."""
        from holdfast.engine.upkeep.upkeep import verify

        return verify(self._shared, read_data=read_data, progress=progress)


class OpenedWorkspace(Opened):
    """An `Opened` that has a workspace. Base of the parts of its public face."""

    def __init__(self, opener: Opener, context: Context) -> None:
        super().__init__(opener, context)
        self._context = context

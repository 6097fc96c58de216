"""What the names of checkpoints mean in one workspace: its own labels, and the ids of its home."""

from __future__ import annotations

from holdfast.engine.opening import revisions
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.ids import CheckpointId


def resolve(context: Context, name: str) -> CheckpointId:
    """See `revisions.resolve`."""
    return revisions.resolve(name, _Names(context))


def resolve_for_restore(context: Context, name: str) -> CheckpointId:
    """The same, but ``@`` is no rescue checkpoint, as long as there is another in the line that the tree stands on."""
    return revisions.resolve(name, _NamesForRestore(context))


class _Names:
    def __init__(self, context: Context) -> None:
        self._catalog = context.catalog
        self._workspace = context.workspace.id

    def head(self) -> CheckpointId | None:
        return self._catalog.cursor(self._workspace).head

    def by_prefix(self, prefix: str) -> Sequence[CheckpointId]:
        return self._catalog.by_prefix(prefix)

    def by_label(self, label: str) -> CheckpointId | None:
        found = self._catalog.by_label(label, self._workspace)
        return found[0].id if found else None

    def labels(self) -> Iterable[str]:
        return [checkpoint.label for checkpoint in self._catalog.checkpoints(self._workspace) if checkpoint.label]

    def parent(self, checkpoint: CheckpointId) -> CheckpointId | None:
        return self._catalog.checkpoint(checkpoint).parent


class _NamesForRestore(_Names):
    def head(self) -> CheckpointId | None:
        head = at = super().head()
        while at is not None and self._catalog.checkpoint(at).kind == "rescue":
            at = self.parent(at)
        return head if at is None else at

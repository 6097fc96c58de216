"""What a checkpoint changed against its parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store import manifest
from holdfast.store.changeset import decode_changeset

if TYPE_CHECKING:
    from holdfast.engine.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change


def changes_of(context: Context, checkpoint: Checkpoint) -> list[Change]:
    """The changeset of ``checkpoint``, sorted by path; for one without a parent, everything it holds as added."""
    stored = context.catalog.changeset(checkpoint.id)
    return manifest.diff(context.store.pages, None, checkpoint.root) if stored is None else decode_changeset(stored)

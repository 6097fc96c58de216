"""What a checkpoint changed against its parent, and what the parent says of that which cannot be read now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.context import Context
    from holdfast.files.tree import Saved
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change, Entry


def changes_of(context: Context, checkpoint: Checkpoint) -> list[Change]:
    """The changeset of ``checkpoint``, sorted by path; for one without a parent, everything it holds as added."""
    from holdfast.store import manifest
    from holdfast.store.changeset import decode_changeset

    stored = context.catalog.changeset(checkpoint.id)
    return manifest.diff(context.store.pages, None, checkpoint.root) if stored is None else decode_changeset(stored)


def saved_in(context: Context, checkpoint: Checkpoint | None) -> Saved | None:
    """For `Tree.scan`: what ``checkpoint`` holds at and below a path; None if there is no checkpoint."""
    if checkpoint is None:
        return None
    root = checkpoint.root

    def saved(path: bytes) -> Iterator[tuple[bytes, Entry]]:
        from holdfast.store import manifest

        return manifest.iterate(context.store.pages, root, path)

    return saved

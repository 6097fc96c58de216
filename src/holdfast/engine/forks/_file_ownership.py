"""How a checkpoint looks where it is mounted: whose its files are, and with which permissions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.files.write.ownership import inherited_mode
from holdfast.vfs.checkpoint_appearance import CheckpointAppearance

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint


def shown_ownership(context: Context, checkpoint: Checkpoint) -> CheckpointAppearance:
    """As a fork would look: owned by the owner of the workspace, or, if we may give nothing away, by ourselves."""
    files = context.settings.files
    try:
        about = os.stat(context.workspace.path)
    except OSError:
        about = None
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and about is not None:
        uid, gid = about.st_uid, about.st_gid
    if os.geteuid() == 0:
        uid, gid = uid if files.uid < 0 else files.uid, gid if files.gid < 0 else files.gid
    if about is None:
        return CheckpointAppearance(uid, gid, checkpoint.created_at)
    return CheckpointAppearance(uid, gid, checkpoint.created_at, about.st_mode & 0o777, inherited_mode(about))

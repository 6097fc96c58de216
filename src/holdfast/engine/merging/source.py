"""What `holdfast merge FORK` names: a fork's directory, the id of a workspace, or a checkpoint."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from holdfast.engine.history.names import resolve
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.opening import Opener
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId

_WORKSPACE = re.compile(r"[0-9a-f]{16}\Z")


class Source(NamedTuple):
    """What is to be merged."""

    state: CheckpointId
    called: str
    """What to call it, for people."""
    not_captured: Sequence[NotCaptured] = ()
    """What the fork has in its directory, and neither a checkpoint nor the workspace that it is merged into."""


def find(opener: Opener, into: Context, name: str) -> Source:
    """The state that ``name`` means. What a fork's directory holds is saved first.

    In this order: the id of a workspace, a checkpoint of any workspace, a directory that a fork is in. Raises
    `NotFoundError`, `RefusedError` (code ``itself``).
    """
    known = None
    if _WORKSPACE.match(name):
        known = next((one for one in opener.store().catalog.workspaces() if one.id == name), None)
    if known is not None:
        return _newest(into, opener.open_known(known.id), f"the fork {name}")
    try:
        return Source(resolve(into, name), f"the checkpoint {name}")
    except NotFoundError:
        if not os.path.isdir(name):
            raise
    context = opener.open(os.fsencode(name))
    return _newest(into, context, f"the fork {display(context.workspace.path)}")


def _newest(into: Context, context: Context, called: str) -> Source:
    from holdfast.engine.history.operations import save
    from holdfast.engine.history.uncaptured import only_there

    if context.workspace.id == into.workspace.id:
        raise RefusedError("a workspace cannot be merged into itself", code="itself")
    made = save(context)
    missed = only_there(context.workspace.path, into.workspace.path, made.not_captured)
    return Source(made.checkpoint.id, called, missed)

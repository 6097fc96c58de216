"""A workspace with Holdfast's own checkpoints as its snapshots."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.forks._checkpoint_provider import OwnCheckpoints
from holdfast.engine.opening.opener import Opener
from holdfast.model.clock import SystemClock
from holdfast.snapshot.checkpoints import own_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.testing.provider_contract import Ground, lay

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.snapshot.port import Provider
    from holdfast.store.catalog_records import WorkspaceRow


def make_provider(workspace: WorkspaceRow, base: bytes, session: str, *, mounts: bool) -> Provider:
    """The provider ``holdfast`` of a workspace of the home ``base``/home."""
    own = OwnCheckpoints(
        workspace,
        home=base + b"/home",
        directory=base + b"/home-forks",
        clock=SystemClock(),
        random=os.urandom,
        mounts=mounts,
    )
    return own_provider(ProviderContext(workspace.path, base + b"/state", session), own)


def own_ground(base: Path, *, mounts: bool) -> Ground:
    """The directory ``base``/tree as a workspace."""
    top, root, state = os.fsencode(base), base / "tree", base / "state"
    root.mkdir()
    lay(root)
    opener = Opener(home=top + b"/home")
    context, _ = opener.init(bytes(root))
    workspace = context.workspace
    opener.close()

    def left() -> list[str]:
        files = [str(path) for path in state.rglob("*") if path.is_file() and path.suffix not in (".lock", ".new")]
        opener = Opener(home=top + b"/home")
        catalog = opener.open_home().store.catalog
        live = [str(one) for one in catalog.workspaces() if one.live and one.id != workspace.id]
        kept = [
            str(reason) for reasons in catalog.protections().values() for reason in reasons if reason.kind != "head"
        ]
        others = [str(one) for one in catalog.workspaces() if one.id != workspace.id and catalog.checkpoints(one.id)]
        opener.close()
        folders = [name for name in os.listdir(base / "home/workspaces") if name != workspace.id]
        with open("/proc/self/mountinfo", "rb") as file:
            mounted = [line.decode() for line in file if os.fsencode(base) in line]
        forks = [str(path) for path in (base / "home-forks",) if path.exists()]
        return [*files, *live, *kept, *others, *folders, *mounted, *forks]

    script = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from holdfast.engine.opening.opener import Opener
from own_snapshots import make_provider
opener = Opener(home={top!r} + b"/home")
workspace = opener.open({bytes(root)!r}).workspace
opener.close()
def make(session):
    return make_provider(workspace, {top!r}, session, mounts={mounts})
"""
    return Ground(root, lambda session: make_provider(workspace, top, session, mounts=mounts), left, script)

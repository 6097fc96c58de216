"""The snapshot providers of a workspace, as the settings have them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.folder import SNAPSHOTS
from holdfast.engine.home import forks_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.context import Context
    from holdfast.snapshot.port import Provider


def providers_of(context: Context, session: str) -> Sequence[Provider]:
    """Every provider, for a session in the workspace, whether it can be used there or not. Makes nothing.

    Raises `UsageError` if no session can be called ``session``.
    """
    from holdfast.engine.own_checkpoints import OwnCheckpoints
    from holdfast.snapshot.checkpoints import own_provider
    from holdfast.snapshot.git.technique import GitOptions, git_provider
    from holdfast.snapshot.place import Place
    from holdfast.snapshot.reflink import reflink_provider
    from holdfast.snapshot.zfs import zfs_provider

    def place(name: str) -> Place:
        return Place(
            root=context.workspace.path,
            state=os.path.join(context.folder, SNAPSHOTS, name.encode()),
            session=session,
            clock=context.clock,
            random=context.random,
            timeout=context.settings.lock.timeout,
        )

    of = context.settings.git
    options = GitOptions(of.include_untracked == "yes", of.trust_local_filters == "yes")
    own = OwnCheckpoints(
        context.workspace,
        home=context.home,
        directory=forks_directory(context.home, context.settings),
        clock=context.clock,
        random=context.random,
    )
    return (
        reflink_provider(place("reflink")),
        git_provider(place("git"), options),
        own_provider(place("holdfast"), own),
        zfs_provider(place("zfs")),
    )

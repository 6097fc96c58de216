"""The snapshot providers of a workspace, as the settings have them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.opening.home import SNAPSHOTS, forks_directory, own_directories

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.snapshot.port import Provider
    from holdfast.snapshot.provider_context import ProviderContext


def providers_of(context: Context, session: str) -> Sequence[Provider]:
    """Every provider, for a session in the workspace, usable there or not. Makes nothing. Ask them together, and once,
    whether they are usable: they share one scan of the workspace.

    Raises `UsageError` if no session can be called ``session``.
    """
    from holdfast.engine.forks._checkpoint_provider import OwnCheckpoints
    from holdfast.snapshot.btrfs import btrfs_provider
    from holdfast.snapshot.checkpoints import own_provider
    from holdfast.snapshot.full_copy import copy_provider, reflink_provider
    from holdfast.snapshot.git.provider import GitOptions, git_provider
    from holdfast.snapshot.overlay.provider import overlay_provider
    from holdfast.snapshot.zfs.provider import zfs_provider

    looked: dict[tuple[bytes, tuple[bytes, ...]], str] = {}

    def place(name: str) -> ProviderContext:
        return place_of(context, session, name)._replace(looked=looked)

    of = context.settings.git
    hidden = tuple(os.fsencode(os.path.expanduser(path)) for path in context.settings.isolation.hidden)
    options = GitOptions(
        include_untracked=of.include_untracked == "yes",
        include_conflicts=of.include_conflicts == "yes",
        trust_local_filters=of.trust_local_filters == "yes",
        hidden=hidden,
    )
    checkpoints = OwnCheckpoints(
        context.workspace,
        home=context.home,
        directory=forks_directory(context.home, context.settings),
        clock=context.clock,
        random=context.random,
    )
    return (
        btrfs_provider(place("btrfs")),
        zfs_provider(place("zfs")),
        overlay_provider(place("overlay")),
        reflink_provider(place("reflink")),
        git_provider(place("git"), options),
        own_provider(place("holdfast"), checkpoints),
        copy_provider(place("copy")),
    )


def place_of(context: Context, session: str, name: str) -> ProviderContext:
    """For what, and where, the provider ``name`` is."""
    from holdfast.snapshot.provider_context import ProviderContext

    return ProviderContext(
        root=context.workspace.path,
        state=os.path.join(context.folder, SNAPSHOTS, name.encode()),
        session=session,
        clock=context.clock,
        random=context.random,
        timeout=context.settings.lock.timeout,
        own=own_directories(context.home, context.settings),
        most_bytes=context.settings.snapshot.max_copy_bytes,
    )

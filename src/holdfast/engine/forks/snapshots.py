"""Snapshots by providers at a user's request: taken, listed, shown, discarded; and commands in their place.

All of them are of one session of the providers', `ASKED_FOR`, which shares nothing with the forks of sessions.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.forks.workspace_providers import providers_of
from holdfast.engine.opening.context import with_disk_reserve
from holdfast.engine.opening.current_run import forbid_inside_run
from holdfast.engine.opening.home import SNAPSHOTS
from holdfast.files.linux.process_lock import exclusive
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, StorageError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.snapshot.port import ASKED_FOR
from holdfast.snapshot.private_directories import make_private
from holdfast.snapshot.provider_selection import choose

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.snapshot.port import Mode, Prepared, Provider, Snapshot, Token
    from holdfast.snapshot.provider_selection import ProviderChoice

_LOG = Log(__name__)
_LEAST = 4
"""Digits of a token, for it to name a snapshot."""


class SnapshotInfo(NamedTuple):
    """An existing snapshot."""

    id: Token
    provider: str
    label: str
    created_at: int
    """Microseconds since 1970-01-01 UTC."""
    parent: Token | None
    """The snapshot before it, which may have been discarded since."""
    views: tuple[bytes, ...]
    """Directories that show it."""


class TakenSnapshot(NamedTuple):
    """A snapshot that was taken, and how."""

    snapshot: SnapshotInfo
    everything: bool
    """Whether it holds all that the workspace does, ignored files too."""
    notes: tuple[str, ...]
    """Remarks of its provider, such as files that it leaves out."""
    passed_over: tuple[str, ...]
    """The providers that can capture nothing at this moment, each with why."""


class Overlaid(NamedTuple):
    """The working copy for a command at the workspace's own path."""

    prepared: Prepared
    provider: Provider


class Snapshots:
    """The snapshots of one workspace. Methods that change anything raise `RefusedError` (``inside_run``) in a run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._providers = providers_of(context, ASKED_FOR)
        self._folder = os.path.join(context.folder, SNAPSHOTS)

    def list(self) -> Sequence[SnapshotInfo]:
        """All of them, oldest first."""
        found = [_info(provider, one) for provider in self._providers for one in provider.snapshots()]
        return sorted(found, key=lambda one: (one.created_at, one.id))

    def show(self, name: str) -> SnapshotInfo:
        """A snapshot by its id, a prefix of it (4 digits or more), or its label. Raises `NotFoundError`
        (``no_snapshot``), `UsageError` (``ambiguous``).
        """
        return _info(*self._find(name))

    def take(self, label: str = "", *, provider: str | None = None, with_ignored: bool = False) -> TakenSnapshot:
        """Take one of the workspace as it is now, by the best provider, or ``provider``. ``with_ignored``: it has to
        hold what ignore rules leave out, too. Raises `UnsupportedError` (``no_provider``), and what the provider does.
        """
        with self._changing():
            choice = self._chosen("in-place", provider, ignored=with_ignored)
            try:
                taken = choice.provider.snapshot(_in_place(choice.provider), label)
            finally:
                _clear_unused(choice.provider)
        able = choice.capabilities
        return TakenSnapshot(_info(choice.provider, taken), able.carries_ignored, able.notes, choice.passed_over)

    def mount(self, name: str) -> bytes:
        """Show one in a directory that is made for it in the home; its path. Nothing can be written there, but by root
        where it is a copy. Raises as `show`.
        """
        with self._changing():
            provider, snapshot = self._find(name)
            return provider.mount(snapshot).path

    def unmount(self, name: str) -> Sequence[bytes]:
        """Remove all that shows one; the paths. Raises as `show`."""
        with self._changing():
            provider, snapshot = self._find(name)
            views = provider.views(snapshot)
            for view in views:
                provider.cleanup(view.token)
            return [view.path for view in views]

    def discard(self, name: str) -> Token:
        """Remove a snapshot permanently; its id. If it is a checkpoint, that stays in the history. Raises as `show`;
        `RefusedError` (``in_use``) while it is mounted. Works on a full disk, where it frees room.
        """
        with with_disk_reserve(self._context), self._changing():
            provider, snapshot = self._find(name)
            if views := provider.views(snapshot):
                raise RefusedError(
                    f"the snapshot {snapshot.id} is shown in {display(views[0].path)}",
                    hint=f"`holdfast snapshot unmount {snapshot.id}` first",
                    code="in_use",
                )
            provider.discard(snapshot)
            _clear_unused(provider)
            return snapshot.id

    @contextmanager
    def overlay(self, name: str | None = None, *, provider: str | None = None) -> Generator[Overlaid]:
        """For the length of the block, a working copy at the workspace's own path, apart from the workspace, with the
        contents of the snapshot ``name`` or (None) of the present workspace. Commands find it by `Prepared.enter`.

        Raises as `show`; `UnsupportedError` (``no_provider``) where no provider has this mode, or the snapshot's
        provider has not.
        """
        forbid_inside_run(self._context, "a snapshot")
        make_private(self._folder)
        runs = os.open(os.path.join(self._folder, b"runs.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with self._changing():
                found = None if name is None else self._find(name)
                using = self._chosen("overlay", provider).provider if found is None else found[0]
                fcntl.flock(runs, fcntl.LOCK_SH)  # from now on no sweep removes it
                prepared = using.prepare("overlay", base=None if found is None else found[1])
            try:
                yield Overlaid(prepared, using)
            finally:
                using.cleanup(prepared.token)
        finally:
            os.close(runs)

    def keep(self, overlaid: Overlaid, label: str) -> SnapshotInfo:
        """Take a snapshot of the working copy."""
        with self._changing():
            return _info(overlaid.provider, overlaid.provider.snapshot(overlaid.prepared, label))

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _chosen(self, mode: Mode, provider: str | None, *, ignored: bool = False) -> ProviderChoice:
        wanted = provider or self._context.settings.snapshot.provider
        return choose(
            self._providers, wanted, mode=mode, ignored=ignored, key=None if provider else "snapshot.provider"
        )

    def _find(self, name: str) -> tuple[Provider, Snapshot]:
        everything = [(provider, one) for provider in self._providers for one in provider.snapshots()]
        by_token = [each for each in everything if len(name) >= _LEAST and each[1].id.startswith(name)]
        found = by_token or [each for each in everything if name and each[1].label == name]
        if not found:
            raise NotFoundError(
                f"there is no snapshot {name}", hint="`holdfast snapshot list` lists them", code="no_snapshot"
            )
        if len(found) > 1:
            raise UsageError(
                f"{name} could be {len(found)} snapshots",
                hint="name one by its id: " + ", ".join(each[1].id for each in found[:5]),
                code="ambiguous",
            )
        return found[0]

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Keep other processes from changing anything here, without what killed ones have left."""
        forbid_inside_run(self._context, "a snapshot")
        try:
            make_private(self._folder)
        except OSError as error:
            raise StorageError(f"cannot make {display(self._folder)}: {error.strerror}") from error
        path, timeout = os.path.join(self._folder, b"asked.lock"), self._context.settings.lock.timeout
        with exclusive(path, timeout=timeout, clock=self._context.clock, what="the workspace's snapshots"):
            self._sweep()
            yield

    def _sweep(self) -> None:
        """Remove the working copies of killed processes' commands: living processes hold the lock."""
        runs = os.open(os.path.join(self._folder, b"runs.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(runs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for provider in self._providers:
                for one in provider.tokens():
                    if one.kind == "workspace" and one.path is not None:
                        provider.cleanup(one.token)
        except BlockingIOError:
            return
        except HoldfastError as error:
            _LOG.warning("what a command was run in is not cleaned up yet; the next change tries again: %s", error)
        finally:
            os.close(runs)


def remove_all(context: Context) -> None:
    """Remove all snapshots that users took of a workspace that is deleted permanently, with their mounts. Other files
    of the providers, such as sessions', stay.
    """
    for provider in providers_of(context, ASKED_FOR):
        for one in provider.tokens():
            provider.cleanup(one.token)


def _in_place(provider: Provider) -> Prepared:
    """The workspace itself, as the provider knows it: the same for all snapshots, each of which follows the last."""
    for one in provider.tokens():
        if one.kind == "workspace" and one.path is None and one.complete:
            return provider.resume(one.token)
    return provider.prepare("in-place")


def _clear_unused(provider: Provider) -> None:
    """Remove everything of a provider without snapshots. The caller keeps others from taking one."""
    if not provider.snapshots():
        for one in provider.tokens():
            if one.kind == "workspace" and one.path is None:
                provider.cleanup(one.token)


def _info(provider: Provider, one: Snapshot) -> SnapshotInfo:
    views = tuple(view.path for view in provider.views(one))
    return SnapshotInfo(one.id, provider.name, one.label, one.created_at, one.parent, views)

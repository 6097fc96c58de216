"""Layers over a captured workspace: the working copy is a kernel overlay, visible at the workspace's own path.

Its lower layer is not the workspace, which may change, but a capture of it: a snapshot of its subvolume if it is one,
else a complete copy, which shares blocks where possible. A capture stays until the last overlay on it is gone. A
snapshot of an overlay is a copy of its changes, and so is an overlay that starts from it: no cost depends on the number
of snapshots.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast.bridge.mount.mount_namespaces import KEPT_FLAGS, may_mount
from holdfast.bridge.mount.overlayfs import Attributes, attributes_for, detach_overlays, mount_overlay
from holdfast.files.directories.btrfs_subvolume import is_subvolume, remove_subvolume, same_btrfs, snapshot_subvolume
from holdfast.files.directories.replication import make_read_only, remove_whole, replicate
from holdfast.files.linux import syscalls
from holdfast.files.linux.reflink import can_share
from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.paths import display
from holdfast.snapshot.copied_repositories import end_keeping_apart, keep_apart
from holdfast.snapshot.full_copy import refuse_huge
from holdfast.snapshot.overlay import _holder as holder
from holdfast.snapshot.overlay.layers import OverlayLayers
from holdfast.snapshot.port import Capabilities, Mode
from holdfast.snapshot.private_directories import make_private
from holdfast.snapshot.recorded_provider import RecordedProvider

if TYPE_CHECKING:
    from holdfast.snapshot.ledger import Ledger, LedgerEntry
    from holdfast.snapshot.provider_context import ProviderContext

_MOMENT_SCORE, _COPYING_SCORE = 70, 25
"""Where the workspace is captured in a moment; where it is copied, whether blocks are shared or not."""
_OVERLAY: Final = 0x794C7630
_PROBE: Final = "user.holdfast.probe"


class _Overlay:
    """See `Technique`."""

    name = "overlay"

    def __init__(self, context: ProviderContext, ledger: Ledger) -> None:
        self._context = context
        self._ledger = ledger
        # A mount at a path of its own is visible to all, which requires root.
        self._may_mount = may_mount()
        self.modes: tuple[Mode, ...] = (
            ("overlay", "worktree", "in-place") if self._may_mount else ("overlay", "in-place")
        )

    # -- what can be had ----------------------------------------------------------------------------------------------

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
        try:
            reason = self._lacking()
            if reason:
                return Capabilities(self.name, 0, notes=(reason,))
            holder.probe(self._context.nearest())
            moment = self._is_subvolume()
            shares = moment or can_share(self._context.root, self._context.nearest())
        except HoldfastError as error:
            return Capabilities(self.name, 0, notes=(f"no overlay can be mounted: {error.message}",))
        except OSError as error:
            return Capabilities(self.name, 0, notes=(f"the file system cannot be tried: {error.strerror}",))
        notes = ["the work directory has the workspace's own path, for the commands that run in it"]
        if not shares:
            notes.append("a snapshot of the workspace itself is a whole copy: it can share no blocks with the home")
        elif not moment:
            notes.append("taking the workspace itself takes time for each file, and no room for what does not change")
        if not self._may_mount:
            notes.append(
                "without root, directories cannot be renamed (programs copy them instead), and a file that has several "
                "names is changed under one of them"
            )
        score = _MOMENT_SCORE if moment else _COPYING_SCORE
        return Capabilities(self.name, score, self.modes, carries_ignored=True, keeps_path=True, notes=tuple(notes))

    def _lacking(self) -> str:
        """Why the home cannot hold layers; empty if it can."""
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        try:
            fd = os.open(self._context.nearest(), flags, 0o600)
        except OSError as error:
            return f"the home is on a file system that cannot hold layers: {error.strerror}"
        try:
            if syscalls.file_system(fd) == _OVERLAY:
                return "the home is itself in an overlay, as in a container: it cannot hold layers"
            os.setxattr(fd, _PROBE, b"")
        except OSError as error:
            return f"the home is on a file system without extended attributes: {error.strerror}"
        finally:
            os.close(fd)
        return ""

    def _is_subvolume(self) -> bool:
        root = self._context.root
        return (
            same_btrfs(root, self._context.nearest())
            and is_subvolume(root)
            and os.geteuid() in (0, os.stat(root).st_uid)
        )

    # -- planning -----------------------------------------------------------------------------------------------------

    def plan(self, entry: LedgerEntry, origin: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.plan`."""
        below = None if origin is None or origin.place is None else origin.facts["lower"]
        lower = below or entry.token
        path = os.path.join(self._context.state, b"layers", entry.token.encode())
        if below is None and entry.kind == "snapshot":
            path = self._lower(lower)
        return msgspec.structs.replace(entry, path=display(path), facts={"lower": lower})

    def _lower(self, name: str) -> bytes:
        return os.path.join(self._context.state, b"lower", name.encode())

    def _layers(self, entry: LedgerEntry) -> OverlayLayers:
        place = entry.place
        assert place is not None, "only in place there is none"
        attributes = cast("Attributes", entry.facts.get("attributes", "trusted"))
        return OverlayLayers(place, self._lower(entry.facts["lower"]), attributes)

    # -- making -------------------------------------------------------------------------------------------------------

    def workspace(self, entry: LedgerEntry, base: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.workspace`."""
        entry = self._made(entry, base)
        self.resume(entry)
        return entry

    def view(self, entry: LedgerEntry, snapshot: LedgerEntry) -> LedgerEntry:
        """See `Technique.view`."""
        entry = self._made(entry, snapshot)
        layers = self._layers(entry)
        if self._may_mount:
            self.resume(entry)
            return entry
        os.mkdir(layers.merged, 0o700)
        holder.write_out(layers.merged, layers.written_out, layers.words)
        make_read_only(layers.written_out)
        return entry

    def capture(self, entry: LedgerEntry, workspace: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.capture`."""
        del parent
        if workspace.place is None:
            self._capture(entry)
            return entry
        return self._made(entry, workspace)

    def _made(self, entry: LedgerEntry, origin: LedgerEntry | None) -> LedgerEntry:
        """Make the layers of the entry, as ``origin`` has them, or (None) over the workspace as it is now."""
        if origin is None:
            self._capture(entry)
        place = self._layers(entry).place
        self._make_directory(place)
        keep_apart(os.path.dirname(place))  # Git does not stop at an unmounted directory
        begun = origin is not None and "attributes" in origin.facts
        attributes = cast("Attributes", origin.facts["attributes"]) if origin and begun else attributes_for(place)
        entry = msgspec.structs.replace(entry, facts={**entry.facts, "attributes": attributes})
        layers = self._layers(entry)
        if origin is not None and begun:
            layers.copy(self._layers(origin))
        else:
            layers.make()
        os.close(os.open(layers.held, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return entry

    def _capture(self, entry: LedgerEntry) -> None:
        """Capture the workspace itself, as the entry's lower layer."""
        root, target = self._context.root, self._lower(entry.facts["lower"])
        self._make_directory(os.path.dirname(target))
        if self._is_subvolume():
            snapshot_subvolume(root, target, read_only=True, without=self._context.without(root))
        else:
            if not can_share(root, self._context.nearest()):
                refuse_huge(self._context, root)
            replicate(root, target, without=self._context.own_in(root))

    def _make_directory(self, path: bytes) -> None:
        with self._ledger.lock_shared():
            make_private(path)

    def resume(self, entry: LedgerEntry) -> None:
        """See `Technique.resume`."""
        layers, root = self._layers(entry), self._context.root
        if entry.mode == "overlay":
            if not holder.is_held(layers.held):
                holder.start(layers.held, root, layers.words)
        elif not layers.is_mounted():
            if not self._may_mount:
                raise UnsupportedError("an overlay at a path of its own needs root", hint="use the mode overlay")
            with suppress(FileExistsError):
                os.mkdir(layers.merged, 0o700)
            flags = os.statvfs(root).f_flag & KEPT_FLAGS | (os.ST_RDONLY if entry.kind == "view" else 0)
            lower, upper, work, _ = layers.words
            mount_overlay(lower, upper, work, layers.merged, layers.attributes, index=True, flags=flags)

    def where_to_work(self, entry: LedgerEntry) -> bytes:
        """See `Technique.where_to_work`."""
        if entry.mode == "overlay":
            return self._context.root
        layers = self._layers(entry)
        return layers.written_out if os.path.lexists(layers.written_out) else layers.merged

    def enter(self, entry: LedgerEntry) -> tuple[bytes, ...]:
        """See `Technique.enter`."""
        return holder.enter(self._layers(entry).held) if entry.mode == "overlay" else ()

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove(self, entry: LedgerEntry) -> None:
        """See `Technique.remove`."""
        if entry.place is None:
            return
        name = entry.facts["lower"]
        if entry.place != self._lower(name):
            layers = self._layers(entry)
            with holder.without_holder(layers.held):
                detach_overlays(layers.merged)
                remove_whole(layers.place)
        if not any(other.facts.get("lower") == name for other in self._ledger.entries() if other.token != entry.token):
            remove_subvolume(self._lower(name))

    def remove_shared(self) -> None:
        """See `Technique.remove_shared`."""
        end_keeping_apart(os.path.join(self._context.state, b"layers"))
        for name in (b"layers", b"lower"):
            with suppress(OSError):  # it is not there, or there are other things in it
                os.rmdir(os.path.join(self._context.state, name))


def overlay_provider(context: ProviderContext) -> RecordedProvider:
    """The provider ``overlay``. Raises `UsageError` for a session that cannot be called so."""
    ledger = context.ledger()
    return RecordedProvider(_Overlay(context, ledger), ledger, context.root, context.git_links)

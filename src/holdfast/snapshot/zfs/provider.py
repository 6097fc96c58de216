"""Snapshots and clones of a ZFS dataset, by the program ``zfs``: they are complete, and take no time.

A snapshot is one of the dataset. A working copy, or a view, is a clone of it, a dataset below the workspace's, mounted
in the state directory. A clone with existing snapshots cannot be destroyed: it is marked, and destroyed with them.
Source: zfs(8), zfs-snapshot(8), zfs-clone(8), zfs-destroy(8), zfsprops(7).
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux.mount_table import mounts
from holdfast.model.errors import HoldfastError, StorageError, UnsupportedError
from holdfast.model.log import Log
from holdfast.model.paths import COPIES_IN_TREE, display
from holdfast.snapshot.copied_repositories import end_keeping_apart, keep_apart
from holdfast.snapshot.port import Capabilities, Mode
from holdfast.snapshot.private_directories import make_private
from holdfast.snapshot.recorded_provider import RecordedProvider
from holdfast.snapshot.zfs._command import Zfs, find_zfs

if TYPE_CHECKING:
    from holdfast.snapshot.ledger import Ledger, LedgerEntry
    from holdfast.snapshot.provider_context import ProviderContext

_LOG = Log(__name__)
_SCORE = 90
_PREFIX = "holdfast-"
_TOKEN = "org.holdfast:token"  # noqa: S105 - the name of a property
_GONE = "org.holdfast:gone"
_MOST_NAME = 255
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class _Zfs:
    """See `Technique`."""

    name = "zfs"
    modes: tuple[Mode, ...] = ("worktree", "in-place")

    def __init__(self, context: ProviderContext, ledger: Ledger) -> None:
        self._context = context
        self._ledger = ledger

    # -- what can be had ----------------------------------------------------------------------------------------------

    def detect(self) -> Capabilities:
        """See `Technique.detect`."""
        try:
            refusal = self._refusal()
        except (HoldfastError, OSError) as error:
            refusal = f"ZFS does not answer: {error}"
        if refusal:
            return Capabilities(self.name, 0, notes=(refusal,))
        notes = ("datasets that are mounted below the workspace are not carried: they are empty directories in a copy",)
        return Capabilities(self.name, _SCORE, self.modes, carries_ignored=True, notes=notes)

    def _refusal(self) -> str:
        if find_zfs() is None:
            return "there is no program zfs"
        if os.geteuid():
            return "mounting clones needs root on Linux, even with `zfs allow`"
        dataset = self._dataset()
        if dataset is None:
            return "the workspace is not where a dataset of ZFS is mounted"
        if len(dataset) + 2 * (len(_PREFIX) + 17) > _MOST_NAME:
            return "the name of the dataset is too long to have others below it"
        if not _can_be_mounted_on(self._clones()):
            return "the path of the home cannot be a mountpoint of ZFS"
        return ""

    def _zfs(self) -> Zfs:
        return Zfs(self._context.nearest())

    def _dataset(self) -> str | None:
        """The dataset that is mounted on the workspace; None without one."""
        if not _is_mounted(self._context.root):
            return None
        found = self._zfs().at(self._context.root)
        return found.name if found is not None and os.fsencode(found.mountpoint) == self._context.root else None

    # -- planning -----------------------------------------------------------------------------------------------------

    def plan(self, entry: LedgerEntry, origin: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.plan`."""
        dataset = origin.facts["dataset"] if origin is not None and origin.facts else self._required()
        if entry.kind == "snapshot":
            of = origin.facts["clone"] if origin is not None and origin.facts else dataset
            facts = {"dataset": dataset, "snapshot": f"{of}@{_PREFIX}{entry.token}"}
            return msgspec.structs.replace(entry, facts=facts)
        facts = {
            "dataset": dataset,
            "clone": f"{dataset}/{_PREFIX}{entry.token}",
            "snapshot": f"{dataset}@{_PREFIX}{entry.token}" if origin is None else origin.facts["snapshot"],
        }
        path = display(os.path.join(self._clones(), entry.token.encode()))
        return msgspec.structs.replace(entry, path=path, facts=facts)

    def _required(self) -> str:
        refusal = self._refusal()
        dataset = self._dataset()
        if refusal or dataset is None:
            raise UnsupportedError(
                f"{display(self._context.root)}: {refusal}",
                hint="`holdfast doctor` says which providers of snapshots can be used",
            )
        return dataset

    def _clones(self) -> bytes:
        return os.path.join(self._context.state, b"clones")

    # -- making -------------------------------------------------------------------------------------------------------

    def workspace(self, entry: LedgerEntry, base: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.workspace`."""
        zfs = self._zfs()
        if base is None:
            zfs("snapshot", "-o", f"{_TOKEN}={entry.token}", entry.facts["snapshot"])
        self._clone(zfs, entry)
        if base is None:
            zfs("destroy", "-d", entry.facts["snapshot"])  # it goes with the clone
        return entry

    def view(self, entry: LedgerEntry, snapshot: LedgerEntry) -> LedgerEntry:
        """See `Technique.view`."""
        del snapshot
        zfs = self._zfs()
        self._clone(zfs, entry)
        zfs("set", "readonly=on", entry.facts["clone"])
        return entry

    def capture(self, entry: LedgerEntry, workspace: LedgerEntry, parent: LedgerEntry | None) -> LedgerEntry:
        """See `Technique.capture`."""
        del workspace, parent
        self._zfs()("snapshot", "-o", f"{_TOKEN}={entry.token}", entry.facts["snapshot"])
        return entry

    def where_to_work(self, entry: LedgerEntry) -> bytes:
        """See `Technique.where_to_work`."""
        return _of(entry)

    def enter(self, entry: LedgerEntry) -> tuple[bytes, ...]:
        """The prefix of a command in a clone: none, as every process sees it."""
        del entry
        return ()

    def resume(self, entry: LedgerEntry) -> None:
        """Mount a clone again, where that was not done when the machine began."""
        if not _is_mounted(_of(entry)):
            self._zfs()("mount", entry.facts["clone"])

    def _clone(self, zfs: Zfs, entry: LedgerEntry) -> None:
        path = _of(entry)
        with self._ledger.lock_shared():
            make_private(os.path.dirname(path))
            keep_apart(os.path.dirname(path))
        properties = {"mountpoint": os.fsdecode(path), "readonly": "off", "canmount": "on", _TOKEN: entry.token}
        options = [word for name, value in properties.items() for word in ("-o", f"{name}={value}")]
        zfs("clone", *options, entry.facts["snapshot"], entry.facts["clone"])
        if not _is_mounted(path):
            raise StorageError(f"{entry.facts['clone']} is not mounted", hint="is there a canmount above it?")
        for own in (os.path.dirname(COPIES_IN_TREE), os.path.relpath(self._context.state, self._context.root)):
            if not own.startswith(b".."):
                remove_whole(os.path.join(path, own))  # Holdfast's own files are not included

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove(self, entry: LedgerEntry) -> None:
        """See `Technique.remove`."""
        if not entry.facts:
            return  # in place
        zfs = self._zfs()
        if entry.kind == "snapshot":
            zfs.destroy_deferred(entry.facts["snapshot"])
        else:
            self._remove_clone(zfs, entry)
            if entry.facts["snapshot"].endswith(entry.token):
                zfs.destroy_deferred(entry.facts["snapshot"])
        self._sweep(zfs, entry.facts["dataset"])

    def _remove_clone(self, zfs: Zfs, entry: LedgerEntry) -> None:
        path, clone = _of(entry), entry.facts["clone"]
        while _is_mounted(path) and not _libc.umount2(path, _MNT_DETACH):
            pass
        with suppress(FileNotFoundError):
            os.rmdir(path)
        if zfs.exists(clone):
            zfs("set", f"{_GONE}=yes", clone)
            with suppress(StorageError):  # it may have to be unmounted, which it is
                zfs("set", "mountpoint=none", clone)

    def _sweep(self, zfs: Zfs, dataset: str) -> None:
        """Destroy the marked clones whose snapshots have no dependents any more."""
        if not zfs.exists(dataset):
            return
        left = [name for name in zfs.below(dataset, _GONE) if name.startswith(f"{dataset}/{_PREFIX}")]
        while left:
            stay = [name for name in left if not zfs.destroy(name)]
            if len(stay) == len(left):
                _LOG.debug("datasets that go with their snapshots: %s", ", ".join(stay))
                return
            left = stay

    def remove_shared(self) -> None:
        """See `Technique.remove_shared`."""
        end_keeping_apart(self._clones())
        with suppress(OSError):
            os.rmdir(self._clones())


def _of(entry: LedgerEntry) -> bytes:
    place = entry.place
    assert place is not None, "only in place there is none"
    return place


def _is_mounted(path: bytes) -> bool:
    return any(mount.point == path for mount in mounts())


def _can_be_mounted_on(path: bytes) -> bool:
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return text.isprintable()


def zfs_provider(context: ProviderContext) -> RecordedProvider:
    """The provider ``zfs``. Raises `UsageError` for a session that cannot be called so."""
    ledger = context.ledger()
    return RecordedProvider(_Zfs(context, ledger), ledger, context.root, context.git_links)

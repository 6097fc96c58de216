"""Deleting a session, with all that was made for it.

Killed anywhere, it is done again, by the next sweep at the latest. The caller holds the session.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.bridge.mount.overlayfs import detach_all
from holdfast.engine.history.status import only_in_directory
from holdfast.engine.opening import identity
from holdfast.engine.opening.home import SNAPSHOTS
from holdfast.engine.opening.identity import refuse_replaced_fork
from holdfast.engine.sessions.state.repair import known_providers, open_mounted, provider_of_fork, resume
from holdfast.files.directories.removal_obstacles import mounted_at, refuse_others, removal_hint
from holdfast.files.directories.replication import remove_whole
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, StorageError
from holdfast.model.log import Log
from holdfast.model.message_text import named_processes
from holdfast.model.paths import display, under
from holdfast.model.session_results import Deleted
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.opening.opener import Opener
    from holdfast.engine.upkeep.session_checkpoint_tiers import SessionCheckpointTiers
    from holdfast.model.entries import NotCaptured
    from holdfast.store.catalog.session_records import SessionRecord
    from holdfast.store.catalog_records import WorkspaceRow


_LOG = Log(__name__)


def only_in(opener: Opener, record: SessionRecord, here: bytes | None = None) -> Sequence[NotCaptured]:
    """Files in the directory of a session that no checkpoint holds, and that the directory ``here`` does not have
    (None: its origin, if known).

    If the directory cannot be read, the list in its newest checkpoint. Changes nothing.
    """
    if record.workspace is None:
        return []
    catalog = opener.store().catalog
    try:
        return find_only_in(opener, record, here)
    except (HoldfastError, OSError) as error:
        _LOG.debug("a directory could not be looked at: %s", error)
    head = catalog.cursor(record.workspace).head
    missed = [] if head is None else catalog.not_captured(head)
    return only_in_directory(
        last_seen_path(catalog.workspace(record.workspace).path), here or _origin(opener, record), missed
    )


def find_only_in(opener: Opener, record: SessionRecord, here: bytes | None = None) -> Sequence[NotCaptured]:
    """`only_in` of a live session; raises `HoldfastError` or `OSError` where it cannot be read."""
    from holdfast.engine.history.status import scan_tree

    assert record.workspace is not None, "it is live"
    context = open_mounted(opener, record.workspace)
    with context.lock():
        missed = scan_tree(context).not_captured
    return only_in_directory(context.workspace.path, here or _origin(opener, record), missed)


def _origin(opener: Opener, record: SessionRecord) -> bytes | None:
    """The directory that a fork was made from, where it was last seen."""
    try:
        return None if record.origin is None else last_seen_path(opener.store().catalog.workspace(record.origin).path)
    except NotFoundError:
        return None


def delete(opener: Opener, tiers: SessionCheckpointTiers, record: SessionRecord, *, look: bool = False) -> Deleted:
    """Delete a session; of a fork, its directory, its workspace, and that workspace's checkpoints as well. A directory
    that was moved elsewhere stays. ``look`` as in `preview_deletion`.

    Raises `RefusedError` while other forks depend on it (code ``has_forks``), or other sessions work in its directory
    (``in_use``), and as `preview_deletion`.
    """
    goes = preview_deletion(opener, record, look=look)
    end_machine(opener, record)
    if record.purpose != "session":
        workspaces = _workspaces(opener, record)
        _refuse_forks_of(opener, tiers, record, workspaces)
        if record.status == "live":
            tiers.rows.put(record._replace(status="going"))
        if record.purpose == "experiment":
            from holdfast.engine.sessions.holder.lock import end_leftovers

            end_leftovers(record.id)
        try:
            _remove_directory(opener, record, workspaces)
        except OSError as error:
            where = f": {display(os.fsencode(error.filename))}" if error.filename else ""
            raise StorageError(
                f"the fork {record.id} cannot be removed: {error.strerror or error}{where}", hint=removal_hint(error)
            ) from error
        tiers.discard(tiers.rows.clear(record.id))
        for workspace in workspaces:
            _let_go(opener, workspace)
    tiers.discard(tiers.rows.remove(record.id))
    return goes


def end_machine(opener: Opener, record: SessionRecord) -> bool:
    """End the virtual machine that the session's commands run in; whether there was one."""
    from holdfast.engine.running.session_machine import stop_machine
    from holdfast.engine.sessions.holder.background_processes import undo_logs_of
    from holdfast.engine.sessions.holder.lock import lock_path, machine_note_path

    home = opener.open_home()
    note = machine_note_path(lock_path(home.home, home.store.tenant, record.id))
    if record.workspace is None or not os.path.lexists(note):
        return False
    return stop_machine(note, undo_logs_of(home, home.store.catalog.workspace(record.workspace)))


def preview_deletion(opener: Opener, record: SessionRecord, *, look: bool) -> Deleted:
    """The result that a deletion would have now. ``look``: with the files of a fork's directory that no checkpoint
    holds, which requires a scan. Deletes nothing. Raises `RefusedError` if something is mounted over the directory
    (``mounted_over``), or a background process of a command uses it (``left_running``).
    """
    from holdfast.engine.opening.missing_workspaces import find_moved

    if record.purpose != "session":
        _refuse_mounted_over(opener, record)
    nothing = Deleted(record.id, None)
    if record.purpose == "session" or record.status != "live" or record.workspace is None:
        return nothing
    workspace = opener.store().catalog.workspace(record.workspace)
    path = seen = last_seen_path(workspace.path)
    made = _fork_paths(opener, record)
    if not _is_at(opener, path, workspace):
        moved = find_moved([workspace], opener.open_home().folder_of).get(workspace.id)
        if moved is None:
            with suppress(HoldfastError):
                resume(opener, record)  # it may only not be mounted any more
            if not os.path.ismount(path):
                return nothing._replace(not_found=path)
        path = moved or path
    if made and not any(under(os.path.realpath(path), place) for place in made):
        # A later use at the new place has recorded it.
        return nothing._replace(not_found=made[0] if path == seen else seen, now_at=path)
    if record.purpose == "fork":
        _refuse_running(opener, record, path)
    return nothing._replace(directory=path, not_captured=only_in(opener, record) if look else ())


def _refuse_running(opener: Opener, record: SessionRecord, path: bytes) -> None:
    """Raise `RefusedError` if a process that a command of the session has left works on in the directory ``path``."""
    from holdfast.engine.sessions.holder.background_processes import left_by, running_processes
    from holdfast.engine.sessions.holder.lock import lock_path

    assert record.workspace is not None, "it is live"
    home = opener.open_home()
    lock = lock_path(home.home, home.store.tenant, record.id)
    found = left_by(record.id, lock, home, home.store.catalog.workspace(record.workspace), running_processes())
    if found:
        numbers = " ".join(str(one.pid) for one in found[:10])
        raise RefusedError(
            f"{named_processes(found)} of the session {record.id} still runs in {display(path)}, its directory",
            hint=f"kill {numbers}",
            code="left_running",
        )


def _fork_paths(opener: Opener, record: SessionRecord) -> list[bytes]:
    """The real paths of the directories that were made for a fork."""
    places = [record.place] if record.place is not None else []
    for provider in provider_of_fork(opener, record):
        places += [one.path for one in provider.tokens() if one.path is not None]
    return [os.path.realpath(place) for place in places]


def _is_at(opener: Opener, path: bytes, workspace: WorkspaceRow) -> bool:
    """Whether ``path`` has a fork's own directory. Device numbers may change with a restart, others may have mounted
    the file system there, and inode numbers are reused.
    """
    if not os.path.lexists(path):
        return False
    if os.path.ismount(path):
        return True
    return os.lstat(path).st_ino == workspace.inode and identity.could_be(opener.open_home().folder_of(workspace), path)


def _workspaces(opener: Opener, record: SessionRecord) -> list[WorkspaceRow]:
    """The workspace that the session works in, also where it was killed before that was noted."""
    catalog = opener.store().catalog
    if record.workspace is not None:
        return [catalog.workspace(record.workspace)]
    made = _fork_paths(opener, record)
    return [
        one
        for one in catalog.workspaces()
        if one.live and any(under(last_seen_path(one.path), place) for place in made)
    ]


def _refuse_forks_of(
    opener: Opener, tiers: SessionCheckpointTiers, record: SessionRecord, workspaces: Iterable[WorkspaceRow]
) -> None:
    """Refuse while forks depend on the directory: the records of a fork's directory are in the workspace's folder, the
    directory itself may be in the session's, and its first checkpoint follows one of the workspace's.
    """
    catalog = opener.store().catalog
    mine = {one.id: last_seen_path(one.path) for one in workspaces}

    def stands_on_it(other: SessionRecord) -> bool:
        if other.id == record.id or other.purpose == "session" or other.workspace in mine:
            return False
        if other.origin in mine:
            return True
        return other.workspace is not None and any(
            under(last_seen_path(catalog.workspace(other.workspace).path), root) for root in mine.values()
        )

    sessions = tiers.rows.list()
    lodgers = [other.id for other in sessions if other.id != record.id and other.workspace in mine]
    if lodgers:
        raise RefusedError(
            f"the sessions {', '.join(lodgers)} work in the directory of {record.id}, which would be deleted",
            hint="delete those first",
            code="in_use",
        )
    forks = [other.id for other in sessions if stands_on_it(other)]
    if forks:
        raise RefusedError(
            f"the forks {', '.join(forks)} need data of {record.id}",
            hint="delete those first",
            code="has_forks",
        )


def _remove_directory(opener: Opener, record: SessionRecord, workspaces: Sequence[WorkspaceRow]) -> None:
    if record.status != "making":
        _refuse_others(opener, record, workspaces)
    _detach_inside(workspaces)
    for provider in known_providers(opener, record):  # one that was passed over may have been killed as it cleaned up
        for allocation in provider.tokens():
            provider.cleanup(allocation.token)
    place = record.place
    if place is None or not os.path.lexists(place):
        return
    if record.status == "making" and not workspaces:
        with suppress(OSError):
            os.rmdir(place)  # nothing was written there yet: its contents are not ours
        return
    remove_whole(place)


def _detach_inside(workspaces: Iterable[WorkspaceRow]) -> None:
    """Detach mounts inside, such as directories from other places: they are no part of a fork, and their files stay."""
    for one in workspaces:
        root = last_seen_path(one.path)
        for point in mounted_at(root, below=True):
            if point != root:
                detach_all(point)


def _refuse_mounted_over(opener: Opener, record: SessionRecord) -> None:
    """Raise `RefusedError` if something is mounted over a fork's directory."""
    for one in _workspaces(opener, record):
        refuse_others(last_seen_path(one.path), below=1 if record.provider == "zfs" else 0)  # (its dataset)


def _refuse_others(opener: Opener, record: SessionRecord, workspaces: Iterable[WorkspaceRow]) -> None:
    """Raise `RefusedError` if another directory has replaced the one that was made for a fork. An unmounted one is
    empty, and device numbers may change with a restart.
    """
    for one in workspaces:
        path = last_seen_path(one.path)
        if not os.path.lexists(path) or _is_at(opener, path, one):
            continue
        if os.path.islink(path) or not os.path.isdir(path) or os.listdir(path):
            refuse_replaced_fork(path, record.id)


def _let_go(opener: Opener, workspace: WorkspaceRow) -> None:
    """Release the workspace of a deleted fork, and forget its checkpoints that no other depends on."""
    from holdfast.engine.forks.unmount_to_directory import discard

    home = opener.open_home()
    catalog = home.store.catalog
    if _holds_snapshots(home.folder_of(workspace)):
        from holdfast.engine.forks.snapshots import remove_all

        try:
            remove_all(opener.context_of(workspace.id))
        except HoldfastError as error:
            _LOG.warning("snapshots of a deleted fork stay: %s", error.message)
    if workspace.live:
        catalog.let_go(workspace.id)
    discard(home, workspace)
    protections = catalog.protections()
    for checkpoint in catalog.checkpoints(workspace.id):
        if not any(reason.hard for reason in protections.get(checkpoint.id, ())):
            try:
                catalog.forget([checkpoint.id])
            except HoldfastError as error:
                _LOG.warning("a checkpoint of a deleted fork stays: %s", error.message)
    folder = home.folder_of(workspace)
    if not _holds_snapshots(folder):
        try:
            remove_whole(folder)
        except OSError as error:
            _LOG.warning("%s stays: %s", display(folder), error.strerror or error)


def _holds_snapshots(folder: bytes) -> bool:
    """Whether directories of other forks may lie in the workspace's folder."""
    for _, _, files in os.walk(os.path.join(folder, SNAPSHOTS)):
        if any(not name.endswith((b".lock", b".new")) for name in files):
            return True
    return False

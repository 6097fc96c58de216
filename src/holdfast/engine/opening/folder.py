"""A workspace's own folder of the home, and the names in it."""

from __future__ import annotations

import os

from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.store.records import Workspace

INDEX = b"index"
"""The stat index: docs/formats/index.md."""
DIRECTORIES = b"directories"
"""The permissions of directories that were removed: docs/formats/directory-modes.md."""
LOCK = b"lock"
"""Held while something changes the workspace or its history."""
ROOT_BIRTH = b"root"
"""When the root directory was born, in nanoseconds since 1970, as decimal digits and a line feed."""
DISK = b"disk"
"""Which file system the root directory is on: docs/formats/disk.md."""
OWN_MOUNT = b"mount"
"""There if the root directory is a mount of its own: docs/formats/disk.md."""
RESTORE_JOURNAL = b"restore"
"""There while a restore is under way: docs/formats/restore-journal.md."""
UNDO_NOTE = b"undoing"
"""There while steps are taken back and the history does not know it yet: docs/formats/undo-note.md."""
TOLD = b"told"
"""Which files of credentials the user was told of: docs/formats/told.md."""
GIT_HEADS = b"heads"
"""Where HEAD of a repository stood when states were saved: docs/formats/git-heads.md."""
UNDO_LOG = b"undo"
"""The directory of the undo log: docs/formats/undo-log.md."""
FORK_NOTE = b"fork"
"""There if the workspace is a fork by mount: docs/formats/mounted-fork.md."""
FORK_LOCK = b"fork.lock"
"""Held by whoever serves such a fork, for as long as it lives; the file holds its pid."""
OVERLAY = b"overlay"
"""The directory of such a fork's layers."""
LAYER = b"layer"
"""What its upper layer was when the index was written: docs/formats/layer.md."""
SNAPSHOTS = b"snapshots"
"""The directory of the snapshot providers, each with one of its own in it: docs/formats/snapshot-ledger.md."""
WATCH_SOCKET = b"watch.sock"
"""Where the watcher answers."""
WATCH_LOCK = b"watch.lock"
"""Held by the one watcher of the workspace for as long as it lives; the file holds its pid."""


def folder_in(home: bytes, workspace: Workspace) -> bytes:
    """The folder of a workspace in the home."""
    return os.path.join(home, b"workspaces", workspace.id.encode())

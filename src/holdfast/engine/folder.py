"""The names in a workspace's own folder of the home."""

from __future__ import annotations

INDEX = b"index"
"""The stat index: docs/formats/index.md."""
DIRECTORIES = b"directories"
"""The permissions of directories that were removed: docs/formats/directory-modes.md."""
LOCK = b"lock"
"""Held while something changes the workspace or its history."""
ROOT_BIRTH = b"root"
"""When the root directory was born, in nanoseconds since 1970, as decimal digits and a line feed."""
RESTORE_JOURNAL = b"restore"
"""There while a restore is under way: docs/formats/restore-journal.md."""
WATCH_SOCKET = b"watch.sock"
"""Where the watcher answers."""
WATCH_LOCK = b"watch.lock"
"""Held by the one watcher of the workspace for as long as it lives; the file holds its pid."""

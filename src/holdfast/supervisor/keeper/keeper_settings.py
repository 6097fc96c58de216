"""The settings of a keeper, from the process that starts it."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.model.log import Level
from holdfast.undo.journal.heartbeat import NONE
from holdfast.undo.service import LogLimits


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a keeper."""

    root: bytes
    log: bytes
    """The directory of the undo log, absolute."""
    forbidden: tuple[bytes, ...] = ()
    """More directories whose contents supervised processes may not change."""
    limits: LogLimits = LogLimits()
    least: tuple[int, int, int, int] = NONE
    """The numbers of the log that the history knows, as a `Heartbeat`; see `UndoLog`."""
    outside_blocks: bool = True
    """Whether undo refuses to cross what others have changed; else it is only listed."""
    exclude: tuple[str, ...] = ()
    """Patterns that checkpoints leave out, in addition to rule files."""
    user: tuple[bytes | None, bytes | None] = (None, None)
    """The home and the configuration directory of the user whose global rules of Git are obeyed."""
    watch: Literal["auto", "fanotify", "inotify"] = "auto"
    """How the changes of others are seen: by fanotify or inotify."""
    server: str = ""
    """The module whose `serve` (`holdfast.supervisor.keeper.mounted_trees.MountFactory`) serves the mounts of runs;
    empty without mounts.
    """
    log_level: Level = "warn"
    """From which level on the keeper logs."""
    notify: tuple[str, ...] = ()
    """A command, word by word, that is started when a safeguard begins to hold an operation. Never from a file of the
    workspace.
    """
    home: bytes = b""
    """The home that the command is to find."""

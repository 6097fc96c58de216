"""What events say has happened, in bits that inotify(7) and fanotify(7) have in common, and who hears of it."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from holdfast.files.linux.file_handle import Identity

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
Q_OVERFLOW = 0x4000

WRITTEN = MODIFY | CLOSE_WRITE | ATTRIB
"""Of a file: its content or its metadata may be others."""
NAMES = MOVED_FROM | MOVED_TO | CREATE | DELETE
"""Of a directory: the names in it are others."""

Notice: TypeAlias = "Callable[[bytes | None, int, int | None, Identity | None], None]"
"""Is told a path, what happened there (the bits above), the number of the process that did it (None where events do not
tell, 0 if it cannot be seen from here), and the object that had the path then, if events tell. The path is None where
an object that is `Wanted` was changed by a name outside of the tree."""

Wanted: TypeAlias = "Callable[[Identity], bool]"
"""Says whether to tell of changes of an object by names outside of the tree."""

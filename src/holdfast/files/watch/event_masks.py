"""Events in bits common to inotify(7) and fanotify(7), and their recipients."""

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
"""Gets a path, the kind of event (the bits above), the id of the process that caused it (None where events lack it, 0
if it is invisible from here), and the object that had the path then, if the event contains it. The path is None if a
`Wanted` object was changed by a name outside the tree.
"""

Wanted: TypeAlias = "Callable[[Identity], bool]"
"""Says whether to tell of changes of an object by names outside of the tree."""

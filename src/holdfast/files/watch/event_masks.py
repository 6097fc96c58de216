"""What events say has happened: bits that inotify(7) and fanotify(7) have in common."""

from __future__ import annotations

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

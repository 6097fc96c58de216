"""Overlays that are mounted where nobody sees them: who holds them."""

from __future__ import annotations

from pathlib import Path


def holders(state: Path) -> list[str]:
    """The processes that hold an overlay of the state directory's."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"hold" in words and any(word.startswith(bytes(state)) for word in words):
            found.append(str(words))
    return found

"""Loading msgspec without typing_extensions, for commands that begin with it.

msgspec asks typing_extensions, where that is installed, for what `typing` has in every Python that Holdfast runs on. To
load it, and `inspect` with it, takes 20 milliseconds, as long as to start Python twice.
"""

from __future__ import annotations

import sys

_NAME = "typing_extensions"


def load() -> None:
    """Load msgspec, if it is not loaded yet. No other thread may import anything meanwhile."""
    if "msgspec" in sys.modules or _NAME in sys.modules:
        return
    modules: dict[str, object] = sys.modules  # pyright: ignore[reportAssignmentType] - None: there is no such module
    modules[_NAME] = None
    try:
        import msgspec  # noqa: F401 # pyright: ignore[reportUnusedImport]
    finally:
        del modules[_NAME]

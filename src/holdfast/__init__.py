"""Holdfast: a memory for the directory that AI agents work in.

    import holdfast

    with holdfast.init("project") as workspace:
        saved = workspace.checkpoint("before the refactoring")
        ...
        workspace.restore(saved.checkpoint.id)

`init` and `open` give a `Workspace`; everything is a method of it. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.workspace import Workspace, init, open  # noqa: A004 - `holdfast.open` reads as what it does
    from holdfast.model.errors import HoldfastError

__version__ = "0.1.0"

__all__ = ["HoldfastError", "Workspace", "__version__", "init", "open"]


def __getattr__(name: str) -> object:
    if name in ("Workspace", "init", "open"):
        from holdfast.engine import workspace

        return getattr(workspace, name)
    if name == "HoldfastError":
        from holdfast.model.errors import HoldfastError

        return HoldfastError
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")

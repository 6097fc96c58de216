"""The native part of the keeper, where it was built: `holdfast._hot`."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

SWITCH = "HOLDFAST_NATIVE"
"""Set to 0 in the environment, everything is done in Python."""


class Native(NamedTuple):
    """Whether calls are carried out natively."""

    module: ModuleType | None
    why: str
    """Why not; empty if they are."""


@cache
def native() -> Native:
    """Found out once for a process."""
    if os.environ.get(SWITCH) == "0":
        return Native(None, f"{SWITCH}=0 is set")
    try:
        # (It is beside the packages, and in none of them.)
        return Native(import_module("holdfast._hot"), "")
    except ImportError as error:
        return Native(None, f"it was not built when Holdfast was installed: {error}")

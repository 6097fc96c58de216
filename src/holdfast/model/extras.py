"""Libraries of optional features: the extras of the distribution."""

from __future__ import annotations

import shlex
import sys
from importlib import metadata, util
from typing import Literal, TypeAlias

Extra: TypeAlias = Literal["encryption", "server", "structure", "tui", "vm"]


def install_command(extra: Extra) -> str:
    """The command that installs an extra's libraries beside this Holdfast, however that was installed.

    It names the libraries, as Holdfast is on no index, and the running Python, which a ``pip`` on the path may not
    belong to. Quoted for a shell.
    """
    marker = f"extra == '{extra}'"
    needed = [line.partition(";")[0].strip() for line in metadata.requires("holdfast") or () if line.endswith(marker)]
    python = sys.executable
    # Environments of uv have no pip.
    pip = (python, "-m", "pip", "install") if util.find_spec("pip") else ("uv", "pip", "install", "--python", python)
    return shlex.join((*pip, *needed))

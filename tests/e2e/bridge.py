"""Directories that are served over FUSE, by a process of their own, for as long as a test needs them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_MNT_DETACH = 2
_SECONDS = 120
_SOURCE = str(Path(__file__).parents[2] / "src")
_libc = ctypes.CDLL(None, use_errno=True)


class Served(NamedTuple):
    """A mount, and the process that serves it."""

    path: Path
    server: subprocess.Popen[str]


@contextmanager
def bridged(
    tree: Path, log: Path, mount: Path | None = None, *, passthrough: bool = True, says: str = ""
) -> Generator[Served]:
    """Serve ``tree`` on ``mount`` (by default over itself); afterwards nothing is left, whatever has happened.

    What the server logs must be ``says``.
    """
    path = mount or tree
    command = [sys.executable, "-P", "-m", "holdfast.testing.bridged", str(tree), str(path), "--log", str(log)]
    with subprocess.Popen(
        command if passthrough else [*command, "--no-passthrough"],
        env=os.environ | {"PYTHONPATH": _SOURCE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        # Whoever hangs on a mount is freed by the end of its server.
        watchdog = threading.Timer(_SECONDS, server.kill)
        watchdog.start()
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "mounted\n", server.communicate(timeout=30)
            yield Served(path, server)
            server.terminate()
            assert server.communicate(timeout=30) == ("", says)
        finally:
            watchdog.cancel()
            server.kill()
            _libc.umount2(bytes(path), _MNT_DETACH)
    assert f" {path} " not in Path("/proc/self/mountinfo").read_text()

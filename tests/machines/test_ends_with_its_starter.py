"""What is left of a machine when the process that started it is killed: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast.processes.process_tree import descendants
from holdfast.sandbox.images.image import Image

from ..e2e.isolated import need_namespaces
from ..waiting import has_ended, wait_until

pytestmark = pytest.mark.slow
STARTER = Path(__file__).with_name("starter.py")


def words(image: Image, folder: Path, network: Sequence[object], commands: list[str]) -> list[str]:
    """What starts a machine (`starter`)."""
    given = {
        "image": [os.fsdecode(path) for path in (image.kernel, image.initrd, image.root)],
        "log": str(folder),
        "network": network,
        "commands": commands,
        "source": str(Path(holdfast.__file__).parent.parent),
    }
    return [sys.executable, str(STARTER), json.dumps(given)]


@pytest.mark.parametrize("network", [["open"], ["allow", ["192.0.2.1"]]], ids=["open", "allow"])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_killing_the_starter_ends_all(built_image: Image, tmp_path: Path, network: list[object], when: str) -> None:
    need_namespaces()
    starting = words(built_image, tmp_path, network, [])
    with subprocess.Popen(starting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline().split()[1])

        def runs_qemu() -> bool:
            return any(Path(f"/proc/{pid}/comm").read_text().startswith("qemu") for pid in (child, *descendants(child)))

        if when == "later":
            wait_until(runs_qemu)
        below = [child, *descendants(child)]
        os.kill(starter.pid, signal.SIGKILL)
        # (What was started meanwhile belongs to the same group.)
        wait_until(lambda: all(map(has_ended, below)) and not group(child))


def group(number: int) -> list[int]:
    """The processes of a process group."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(") ")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == number and state not in "ZX":
            found.append(int(path.parent.name))
    return found

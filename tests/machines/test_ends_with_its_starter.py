"""Machines of another process: of a user without any privilege, and of a process that is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import qemu.qmp

import holdfast
from holdfast.processes.process_tree import descendants
from holdfast.sandbox.images.manifest import Image

from ..e2e.isolated import USERS, copied, need_namespaces, python_for, switch_to
from ..waiting import group, has_ended, process_name, wait_until

pytestmark = pytest.mark.slow
STARTER = Path(__file__).with_name("starter.py")


def words(
    image: Image,
    folder: Path,
    network: Sequence[object],
    commands: list[str],
    *,
    source: Path = Path(holdfast.__file__).parent.parent,
    python: str = sys.executable,
    starter: Path = STARTER,
) -> list[str]:
    """What starts a machine (`starter`)."""
    given = {
        "image": [os.fsdecode(path) for path in (image.kernel, image.initrd, image.root)],
        "log": str(folder),
        "network": network,
        "commands": commands,
        "source": str(source),
    }
    return [python, str(starter), json.dumps(given)]


@pytest.mark.parametrize("network", [["open"], ["allow", ["192.0.2.1"]]], ids=["open", "allow"])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_killing_the_starter_ends_all(built_image: Image, tmp_path: Path, network: list[object], when: str) -> None:
    need_namespaces()
    starting = words(built_image, tmp_path, network, [])
    with subprocess.Popen(starting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline().split()[1])

        if when == "later":
            wait_until(lambda: any(process_name(pid).startswith("qemu") for pid in (child, *descendants(child))))
        below = [child, *descendants(child)]
        os.kill(starter.pid, signal.SIGKILL)
        # (What was started meanwhile belongs to the same group.)
        wait_until(lambda: all(map(has_ended, below)) and not group(child))


def test_a_machine_needs_no_privilege(built_image: Image) -> None:
    need_namespaces()
    user = USERS[-1]
    python = python_for(user, compiled=True)
    with copied("holdfast", "msgspec", "blake3") as folder:
        shutil.copytree(Path(qemu.qmp.__file__).parent, folder / "src/qemu/qmp")
        image = built_image._replace(
            **{name: bytes(folder / name) for name in ("kernel", "initrd", "root")},
        )
        for name in ("kernel", "initrd", "root"):
            shutil.copyfile(getattr(built_image, name), folder / name)
        starter = shutil.copyfile(STARTER, folder / "starter.py")
        (folder / "log").mkdir()
        (folder / "log").chmod(0o777)
        given = words(
            image,
            folder / "log",
            ["allow", ["192.0.2.1"]],
            ["id -u; sudo id -u"],
            source=folder / "src",
            python=python,
            starter=starter,
        )
        done = subprocess.run(
            given, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False, **switch_to(user)
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[1]) == [0, "1000\n0\n"]

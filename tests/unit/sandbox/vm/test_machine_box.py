"""What QEMU can do to its image in the box that it is in, tried by a shell in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import UnsupportedError
from holdfast.sandbox.images.manifest import Image
from holdfast.sandbox.isolation_probe import require_isolation
from holdfast.sandbox.namespace import Namespace
from holdfast.sandbox.policy import NoNetwork
from holdfast.sandbox.vm.machine import _policy

if TYPE_CHECKING:
    from pathlib import Path

_TRIES = """
    cat "$1"
    for path in "$@"; do
        (echo written >"$path") 2>/dev/null
        (chmod 0666 "$path") 2>/dev/null
        (rm -f "$path") 2>/dev/null
    done
    ls -a "${1%/*}"
"""


def test_an_image_is_read_and_never_written(tmp_path: Path) -> None:
    """Others begin as the same image. What a box has open can be opened anew for writing, by the same user."""
    home = tmp_path / "a home, with a comma"
    home.mkdir()
    kernel, root = home / "kernel", home / "root"
    for path in (kernel, root, home / "other"):
        path.write_text("as it was\n")
        path.chmod(0o600)
    image = Image("default", "id", bytes(kernel), b"", bytes(root), manifest=None)  # type: ignore[arg-type]
    policy = _policy(image, NoNetwork(), with_kvm=False)
    try:
        require_isolation(policy)
    except UnsupportedError as error:
        pytest.skip(error.message)
    shell = shutil.which("sh") or "/bin/sh"
    words = [os.fsencode(os.path.realpath(shell)), b"-c", _TRIES.encode(), b"sh", bytes(root), bytes(kernel)]
    with Namespace(policy).prepare(words, directory=b"/", environment={}) as prepared:
        done = subprocess.run(
            prepared.arguments,
            stdin=subprocess.DEVNULL,
            env=prepared.environment,
            pass_fds=prepared.descriptors,
            stdout=subprocess.PIPE,
            check=False,
        )
    assert done.stdout.decode().split("\n") == ["as it was", ".", "..", "kernel", "root", ""]
    for path in (kernel, root):
        assert path.read_text() == "as it was\n"
        assert path.stat().st_mode & 0o777 == 0o600

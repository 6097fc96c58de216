"""What keeps a mounted checkpoint: for as long as a process serves it, and no longer. (Nothing is mounted here.)"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.history.mount_pins import MountPin, release_dead_pins
from holdfast.engine.opening.opener import Opener
from holdfast.model.errors import RefusedError
from holdfast.model.ids import CheckpointId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.engine.opening.context import Context
    from holdfast.engine.workspace.workspace import Workspace

DYING = """
import os, sys
from holdfast.engine.history.mount_pins import MountPin
from holdfast.engine.opening.opener import Opener
context = Opener(home=os.fsencode(sys.argv[2])).open(os.fsencode(sys.argv[1]))
MountPin(context, context.catalog.checkpoint(sys.argv[3]), b"/mnt")
os._exit(9)
"""


@pytest.fixture(name="old")
def _old(workspace: Workspace, tree: Path) -> str:
    """A checkpoint that nothing else stands on."""
    (tree / "a").write_text("1")
    old = workspace.checkpoint("old").checkpoint.id
    (tree / "a").write_text("2")
    workspace.checkpoint("new")
    return old


@pytest.fixture(name="context")
def _context(workspace: Workspace, home: Path) -> Iterator[Context]:
    """Its context, as another process would have it."""
    with closing(Opener(home=bytes(home))) as opener:
        yield opener.open(workspace.path)


def pin(context: Context, name: str) -> MountPin:
    return MountPin(context, context.catalog.checkpoint(CheckpointId(name)), b"/mnt")


def files(workspace: Workspace) -> list[bytes]:
    return os.listdir(workspace.folder + b"/mounts")


def test_it_keeps_a_checkpoint_until_it_is_released(workspace: Workspace, context: Context, old: str) -> None:
    held = pin(context, old)
    with pytest.raises(RefusedError, match="in use: mounted on /mnt"):
        workspace.forget([old])
    held.renew()
    held.release()
    held.release()
    assert files(workspace) == []
    assert [one.id for one in workspace.forget([old]).removed] == [old]


def test_what_a_killed_process_has_mounted_is_kept_no_more(
    workspace: Workspace, context: Context, tree: Path, home: Path, old: str
) -> None:
    held = pin(context, workspace.resolve("new"))
    assert subprocess.run([sys.executable, "-c", DYING, tree, home, old], check=False, timeout=60).returncode == 9
    assert len(files(workspace)) == 2
    assert old in context.catalog.protections()
    release_dead_pins(context)
    assert len(files(workspace)) == 1
    assert old not in context.catalog.protections()
    held.release()


def test_a_pin_that_is_gone_is_made_again(workspace: Workspace, context: Context, old: str) -> None:
    held = pin(context, old)
    context.catalog.unpin_all("mounted on /mnt")
    held.renew()
    with pytest.raises(RefusedError, match="mounted on /mnt"):
        workspace.forget([old])
    held.release()
    workspace.forget([old])


def test_what_is_mounted_is_not_collected_though_it_was_forgotten_while_no_pin_was_there(
    workspace: Workspace, context: Context, old: str
) -> None:
    held, catalog = pin(context, old), context.catalog
    root = catalog.checkpoint(workspace.resolve(old)).root
    catalog.unpin_all("mounted on /mnt")
    workspace.forget([old])
    held.renew()
    workspace.gc(grace=0)
    assert catalog.known([root], pages=True) == {root}
    held.release()
    workspace.gc(grace=0)
    assert catalog.known([root]) == set()


def test_a_file_without_a_number_pins_nothing_and_goes(workspace: Workspace, old: str) -> None:
    folder = workspace.folder + b"/mounts"
    os.mkdir(folder)
    for name, content in ((b"empty", b""), (b"garbage", b"x" * 20)):
        with open(folder + b"/" + name, "wb") as file:
            file.write(content)
    workspace.forget([old])
    assert files(workspace) == []

"""What no notification tells of is found by the walk that the watcher takes now and then."""

from __future__ import annotations

import mmap
import threading
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.watch_client import connect
from holdfast.engine.upkeep.housekeeping import verify
from holdfast.engine.watching._schedule import Pace
from holdfast.engine.watching.service import WatchService, WatchSetup
from holdfast.engine.watching.watcher import WorkspaceSaver
from holdfast.files.local_tree import LocalTree
from holdfast.files.watch import open_watcher
from holdfast.model.command_results import CheckpointRequest
from holdfast.testing.clocks import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.files.tree import DirtySource

HOUR = 3600.0
LIMIT = 20.0


@pytest.mark.parametrize("way", ["by a name outside of the root", "through a mapping"])
def test_after_its_interval_everything_is_looked_at(
    tree: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    file, other = tree / "f", tmp_path / "other name"
    file.write_bytes(b"before")
    if "outside" in way:
        other.hardlink_to(file)
    # So long after the last change that no file is looked at for being fresh.
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**10)
    clock = ManualClock()
    opener = Opener(home=bytes(home), clock=clock)
    context, _ = opener.init(bytes(tree))
    local = context.tree
    assert isinstance(local, LocalTree)

    def open_saver(source: DirtySource) -> WorkspaceSaver:
        local.dirty = source
        return WorkspaceSaver(context, local)

    setup = WatchSetup(bytes(tree), context.folder, "inotify", Pace(debounce=0), full_walk_interval=HOUR, rest=0.0)
    # (An hour without a call must not end the connection here.)
    setup = setup._replace(limits=setup.limits._replace(idle=10 * HOUR))
    watcher = open_watcher(bytes(tree), "inotify", local.excluded)
    service = WatchService(setup, watcher, local.excluded, open_saver, clock)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        watcher = connect(context.folder, wait=LIMIT)
        assert watcher is not None
        with watcher, open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapping:
            watcher.checkpoint(CheckpointRequest())
            saved = watcher.ping().checkpoints
            if "outside" in way:
                other.write_bytes(b"after!")
            else:
                mapping[:] = b"after!"
            clock.advance(HOUR - 1)
            # An answer may be given just before the watcher looks at the clock; the next one is given after it.
            assert [watcher.ping().checkpoints, watcher.ping().checkpoints] == [saved, saved]
            clock.advance(1)
            assert [watcher.ping().checkpoints, watcher.ping().checkpoints][1] == saved + 1
            assert watcher.status().changes == []
    finally:
        service.stop()
        thread.join(LIMIT)
    head = context.catalog.cursor(context.workspace.id).head
    assert head is not None
    assert context.catalog.checkpoint(head).changes.modified == 1
    assert verify(context, read_data=True).ok
    opener.close()

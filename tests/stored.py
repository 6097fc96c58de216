"""Homes with something in them, and what a user sees of one, for tests of where stores are kept and of their copies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.engine.upkeep import store_copies

from .buckets import CREDENTIALS

if TYPE_CHECKING:
    from holdfast.model.ids import CheckpointId

    from .buckets import Service

MIB = 1 << 20


def configured(home: Path, service: Service, **values: str) -> None:
    """Give a home what a bucket of the service needs."""
    service.proxy.reset()
    home.mkdir(mode=0o700)
    options = ", ".join(f'"{name}={value}"' for name, value in service.options().items())
    lines = ["[store]", f"options = [{options}]", *(f'{name} = "{value}"' for name, value in values.items())]
    (home / "config.toml").write_text("\n".join(lines) + "\n")


def new_key(file: Path) -> str:
    """A key to encrypt objects with, in a new file; where it is, as settings have that."""
    file.write_text(os.urandom(32).hex())
    file.chmod(0o600)
    return f"file:{file}"


def fill(home: Path, tree: Path) -> list[CheckpointId]:
    """A workspace with a history, large and small files, a fork and something undone; its checkpoints."""
    source = random.Random(1)
    tree.mkdir(exist_ok=True)
    (tree / "large").write_bytes(source.randbytes(3 * MIB))
    for at in range(30):
        (tree / f"{at}.txt").write_text(f"{at}\n" * 50)
    with holdfast.init(tree, home=home) as workspace:
        names = [workspace.checkpoint("first").checkpoint.id]
        (tree / "3.txt").write_text("3 has changed\n" * 40)
        (tree / "4.txt").unlink()
        names.append(workspace.checkpoint("second").checkpoint.id)
        workspace.undo()
        (tree / "new").write_text("new")
        names.append(workspace.checkpoint("third").checkpoint.id)
        workspace.fork(names[1], tree.parent / f"{tree.name}-fork")
    return names


def looks(home: Path, tree: Path) -> object:
    """All that a user sees of a home."""
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify(read_data=True).ok
        log = workspace.log()
        # (The numbers of events are each catalog's own.)
        told = [(event.at, event.operation, event.checkpoint) for event in log.events]
        contents = [b"".join(workspace.cat(point.id, path)) for point in log.checkpoints for path in ("large", "3.txt")]
        return log._replace(events=()), told, contents, workspace.status()


def copy(home: Path, **to: object) -> store_copies.StoreCopy:
    opener = Opener(home=os.fsencode(home))
    try:
        return store_copies.copy(opener, **to)  # type: ignore[arg-type]
    finally:
        opener.close()


_KILLED = """
import os, signal, sys
from holdfast.engine.upkeep import store_copies
from holdfast.engine.opening.opener import Opener
from holdfast.store.identity import bucket_claim
from holdfast.store import store_copy
from holdfast.store.identity import store_identity
from holdfast.store.objects import _local_store as local_store
from holdfast.store.objects import remote_store
from holdfast.store.catalog import row_copy
left = int(sys.argv[1])
def point():
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
def around(where, name):
    real = getattr(where, name)
    def killed(*arguments, **named):
        point()
        done = real(*arguments, **named)
        point()
        return done
    setattr(where, name, killed)
for where, name in ((store_identity, "change"), (store_identity, "make"), (row_copy, "copy"), (row_copy, "clear"),
        (store_copy, "_prove"), (bucket_claim, "acquire"), (local_store.LocalObjects, "put"),
        (remote_store.RemoteObjects, "put")):
    around(where, name)
opener = Opener(home=os.fsencode(sys.argv[2]))
store_copies.copy(opener, to_home=os.fsencode(sys.argv[3]), to_objects=sys.argv[4] or None)
"""


def copy_killed(point: int, home: Path, other: Path, objects: str = "") -> bool:
    """Copy a home to another one, in a process that is killed at the point of this number; False if it has come to its
    end before.
    """
    words = [sys.executable, "-c", _KILLED, str(point), str(home), str(other), objects]
    ran = subprocess.run(words, env=os.environ | CREDENTIALS, capture_output=True, check=False, timeout=60)
    assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
    return ran.returncode != 0


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

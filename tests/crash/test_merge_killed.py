"""I3, I6: a stacked merge, killed at durable steps: the tree is the one before or the one after, or the restore that
was cut short is finished or taken back; nothing is lost of either side, and the same merge can be made again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast

if TYPE_CHECKING:
    from crash.conftest import Place
    from holdfast.engine.workspace.workspace import Workspace

NUMBERS = "".join(f"{number}\n" for number in range(12))
BEFORE = {"a": "first\n" + NUMBERS, "b": "b"}
AFTER = {"a": "first\n" + NUMBERS + "last\n", "new": "theirs"}


def opened(place: Place, name: str = "tree") -> Workspace:
    path = Path(os.fsdecode(place.tree)).parent / name
    return holdfast.init(path, home=place.home, flags={"merge.ladder": ["text"]})


def lived(place: Place) -> None:
    """A workspace and a fork of it; both have changed the same file, and the fork some others."""
    place.path(b"a").write_text(NUMBERS)
    place.path(b"b").write_text("b")
    place.init().close()
    fork = Path(os.fsdecode(place.tree)).parent / "fork"
    with opened(place) as workspace:
        workspace.checkpoint()
        workspace.fork("@", fork)
    (fork / "a").write_text(NUMBERS + "last\n")
    (fork / "b").unlink()
    (fork / "new").write_text("theirs")
    with opened(place, "fork") as workspace:
        workspace.checkpoint()
    place.path(b"a").write_text("first\n" + NUMBERS)


def content(place: Place) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(os.fsdecode(place.tree)).iterdir()}


@pytest.mark.parametrize("back", [False, True])
def test_i3_killed_while_it_merges(place: Place, back: bool) -> None:
    lived(place)
    fork = str(Path(os.fsdecode(place.tree)).parent / "fork")

    def work() -> None:
        with opened(place) as workspace:
            workspace.merge(fork)

    seen = set()
    for death in place.deaths(work, most=10):
        with opened(place) as workspace:
            if workspace.unfinished() is not None:
                (workspace.restore_abort if back else workspace.restore_continue)()
                assert content(place) == (BEFORE if back else AFTER), death
            assert content(place) in (BEFORE, AFTER), death
            seen.add(len(content(place)["a"]))
            workspace.merge(fork)
            assert content(place) == AFTER, death
            assert workspace.merge(fork).restored is None, death
            assert workspace.status().clean
            workspace.undo()
            assert content(place)["a"].startswith("first\n"), death
        place.sound(collect=False)
    assert len(seen) == 2

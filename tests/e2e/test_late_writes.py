"""What a run has left running writes through what a step had opened: it belongs to that step, also in the history."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.supervisor.remote import connect
from holdfast.testing.photograph import Seen, differences, photograph

from ..waiting import wait_until

if TYPE_CHECKING:
    from e2e.conftest import Cli

LATE = (
    "exec 3>>f 4>>cache/old; echo 1 >&3; "
    "(read _ <../go; echo late >&3; echo late >&4; echo >../said; {}) >/dev/null 2>&1 & :"
)


def is_kept(log: Path) -> bool:
    keeper = connect(os.fsencode(log))
    if keeper is not None:
        keeper.close()
    return keeper is not None


class Left:
    """A run that is over, and what it has left running."""

    def __init__(self, cli: Cli, then: str = ":") -> None:
        self._cli = cli
        for name in ("go", "said"):
            os.mkfifo(cli.root.parent / name)
        cli.process("run", "--", "sh", "-c", LATE.format(then), stdin=subprocess.DEVNULL)

    def write(self) -> None:
        (self._cli.root.parent / "go").write_text("\n")
        (self._cli.root.parent / "said").read_text()

    def wait_until_it_is_gone(self) -> None:
        (log,) = (self._cli.home / "workspaces").glob("*/undo")
        wait_until(lambda: not is_kept(log))


@pytest.fixture
def bench(cli: Cli) -> Cli:
    cli.write(".gitignore", "cache\n")
    cli.write("f", "0\n")
    cli.write("cache/old", "0\n")
    cli("checkpoint")
    return cli


@pytest.fixture
def before(bench: Cli) -> dict[bytes, Seen]:
    return photograph(bench.root)


def test_it_is_taken_back_with_the_step_and_brought_forward_with_it(bench: Cli, before: dict[bytes, Seen]) -> None:
    left = Left(bench)
    left.write()
    left.wait_until_it_is_gone()
    after = photograph(bench.root)
    assert (bench.root / "f").read_text() == "0\n1\nlate\n"
    foreseen = bench.json("undo", "--dry-run")
    done = bench.json("undo")
    assert done["steps"] == foreseen["steps"] == [1]
    assert done["written"] == foreseen["written"] == ["cache/old", "f"]
    assert differences(before, photograph(bench.root)) == []
    bench("redo")
    assert differences(after, photograph(bench.root)) == []
    assert bench.json("undo")["steps"] == [1]
    assert differences(before, photograph(bench.root)) == []


def test_while_the_file_is_open_nothing_is_taken_back(bench: Cli) -> None:
    left = Left(bench, then="read _ <../go")
    left.write()
    after = photograph(bench.root)
    assert "open for writing" in bench("undo", code=4).err
    assert differences(after, photograph(bench.root)) == []
    (bench.root.parent / "go").write_text("\n")
    left.wait_until_it_is_gone()


def test_an_edit_by_hand_that_was_saved_since_is_the_newer_change(bench: Cli) -> None:
    left = Left(bench)
    left.write()
    left.wait_until_it_is_gone()
    bench("checkpoint")
    bench.write("g", "by hand")
    done = bench.json("undo")
    assert (done["steps"], done["deleted"]) == ([], ["g"])
    assert (bench.root / "f").read_text() == "0\n1\nlate\n"
    assert bench.json("undo")["steps"] == [1]
    assert (bench.root / "f").read_text() == "0\n"
    assert (bench.root / "cache/old").read_text() == "0\n"


def test_it_is_no_change_by_others(bench: Cli, before: dict[bytes, Seen]) -> None:
    left = Left(bench)
    left.write()
    left.wait_until_it_is_gone()
    with holdfast.open(bench.root, home=bench.home) as workspace:
        assert workspace.undo(recorded_only=True).steps == (1,)
    assert differences(before, photograph(bench.root)) == []


def test_an_edit_by_hand_of_the_same_file_is_not_lost(bench: Cli) -> None:
    left = Left(bench)
    left.write()
    left.wait_until_it_is_gone()
    Path(bench.root / "f").write_text("by hand")
    bench("undo")
    assert "by hand" not in (bench.root / "f").read_text()
    bench("redo")
    assert (bench.root / "f").read_text() == "by hand"

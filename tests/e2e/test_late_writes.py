"""What a run has left running writes through what a step had opened: it belongs to that step, also in the history."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.ipc.private_socket import peer_of
from holdfast.supervisor.control.remote_service import connect
from holdfast.testing.tree_state import PathState, differences, photograph

from ..waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

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

    def __init__(self, cli: Cli, then: str = ":", first: str = ":") -> None:
        self._cli = cli
        for name in ("go", "said"):
            os.mkfifo(cli.root.parent / name)
        cli.process("run", "--", "sh", "-c", f"{first}; {LATE.format(then)}", stdin=subprocess.DEVNULL)

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
def before(bench: Cli) -> dict[bytes, PathState]:
    return photograph(bench.root)


def test_it_is_taken_back_with_the_step_and_brought_forward_with_it(bench: Cli, before: dict[bytes, PathState]) -> None:
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


def test_it_is_no_change_by_others(bench: Cli, before: dict[bytes, PathState]) -> None:
    left = Left(bench)
    left.write()
    left.wait_until_it_is_gone()
    with holdfast.open(bench.root, home=bench.home) as workspace:
        assert workspace.undo(recorded_only=True).steps == (1,)
    assert differences(before, photograph(bench.root)) == []


def test_i8_an_edit_by_hand_of_the_same_file_is_not_taken_back_with_it(bench: Cli) -> None:
    left = Left(bench)
    left.write()
    left.wait_until_it_is_gone()
    after = bench.write("f", "by hand")
    assert bench("undo", "--dry-run", "--json", code=4).error["code"] == "barrier"
    refused = bench("undo", "--json", code=4).error
    assert refused["code"] == "barrier"
    assert "step 1" in refused["message"]
    assert after.read_text() == "by hand"
    bench("undo", "--force")
    assert (bench.root / "f").read_text() == "0\n1\n"
    bench("redo")
    assert (bench.root / "f").read_text() == "by hand"


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("how", ["in place", "replaced", "removed"])
def test_i8_nor_is_any_other_edit_by_hand_whether_the_writer_goes_on_or_not(
    bench: Cli, how: str, goes_on: bool
) -> None:
    left = Left(bench, then="read _ <../go" if goes_on else ":")
    left.write()
    if not goes_on:
        left.wait_until_it_is_gone()
    file = bench.root / "f"
    if how == "in place":
        file.write_text("by hand")
    elif how == "replaced":
        (bench.root / "f.new").write_text("by hand")
        (bench.root / "f.new").rename(file)
    else:
        file.unlink()
    after = photograph(bench.root)
    assert bench("undo", "--json", code=4).error["code"] == "barrier"
    assert differences(after, photograph(bench.root)) == []
    if goes_on:
        (bench.root.parent / "go").write_text("\n")
        left.wait_until_it_is_gone()
        assert bench("undo", "--json", code=4).error["code"] == "barrier"


def test_an_edit_by_hand_after_a_checkpoint_that_holds_the_late_write_is_taken_back_alone(bench: Cli) -> None:
    left = Left(bench)
    left.write()
    left.wait_until_it_is_gone()
    bench("checkpoint")
    bench.write("f", "by hand")
    assert bench.json("undo")["written"] == ["f"]
    assert (bench.root / "f").read_text() == "0\n1\nlate\n"
    assert bench.json("undo")["steps"] == [1]
    assert (bench.root / "f").read_text() == "0\n"


def test_what_a_killed_keeper_let_be_written_stands_in_nobodys_way_for_ever(bench: Cli) -> None:
    left = Left(bench, then="read _ <../go")
    left.write()
    (log,) = (bench.home / "workspaces").glob("*/undo")
    keeper = connect(os.fsencode(log))
    assert keeper is not None
    with keeper, socket.socket(fileno=os.dup(keeper.fileno())) as connection:
        os.kill(peer_of(connection).pid, signal.SIGKILL)
    left.wait_until_it_is_gone()
    bench.write("f", "by hand")
    assert bench("undo", "--json", code=4).error["code"] == "barrier"
    bench("checkpoint")
    bench.write("f", "by hand again")
    bench("undo")
    assert (bench.root / "f").read_text() == "by hand"


@pytest.mark.parametrize("paths", [[], ["h"]])
def test_late_writes_after_a_restore_and_the_restore_are_undone_unforced(bench: Cli, paths: list[str]) -> None:
    bench.write("h", "0\n")
    bench("checkpoint", "-m", "before")
    before = bench.tree()
    left = Left(bench, first="echo 1 >g; echo 1 >h")
    after = bench.tree()
    bench.write("j", "by hand")
    bench("restore", "before", *paths, code=0 if paths else 4)  # what a program has open is left alone
    left.write()
    left.wait_until_it_is_gone()
    assert (bench.root / "f").read_text() == "0\n1\nlate\n"
    assert bench.json("undo", "--dry-run")["steps"] == []
    assert bench.json("undo")["steps"] == []
    assert (bench.root / "f").read_text() == "0\n1\n"
    assert (bench.root / "j").read_text() == "by hand"
    assert bench.json("undo")["deleted"] == ["j"]
    assert bench.tree() == {**after, "cache/old": b"0\nlate\n"}
    assert bench.json("undo")["steps"] == [1]
    assert bench.tree() == before
    bench("redo", "3")
    assert (bench.root / "f").read_text() == "0\n1\nlate\n"


def test_i8_an_edit_by_hand_beside_a_late_write_after_a_restore_is_still_in_the_way(bench: Cli) -> None:
    bench.write("h", "0\n")
    bench("checkpoint")
    left = Left(bench, first="echo 1 >h")
    bench("restore", "@-", "h")
    left.write()
    left.wait_until_it_is_gone()
    bench.write("by", "hand")
    after = photograph(bench.root)
    assert bench("undo", "--json", code=4).error["code"] == "barrier"
    assert differences(after, photograph(bench.root)) == []

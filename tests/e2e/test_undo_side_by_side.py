"""Undo of processes side by side, by an ordinary user: nobody else changed anything, and nothing says so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from holdfast.testing.tree_state import differences, photograph

from ..sampling import some
from .ordinary import ME, as_user, give_away

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become an ordinary user")
TOGETHER = """
import os, random, sys, time
chance = random.Random(sys.argv[1])
os.close(os.open("../begun " + sys.argv[1], os.O_CREAT | os.O_WRONLY))
end = time.monotonic() + 20
while sum(name.startswith("begun") for name in os.listdir("..")) < 4 and time.monotonic() < end:
    time.sleep(0.001)
"""
NAMELESS = (
    TOGETHER
    + """
for at in range(300):
    fd = os.open(chance.choice((".", "a")), os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"x" * chance.choice((1, 5000)))
    if chance.random() < 0.05:
        os.close(os.open("a/%s-%d" % (sys.argv[1], at), os.O_CREAT | os.O_WRONLY))
    os.close(fd)
"""
)
AT_RANDOM = (
    TOGETHER
    + """
from holdfast.testing.tree_actor import SystemActor, act_at_random
class Open(SystemActor):
    def chmod(self, path, mode):
        super().chmod(path, mode | 0o700)  # (what is in a closed directory nobody can look at)
actor = Open(b".")
for _ in range(60):
    act_at_random(actor, chance)
"""
)


@pytest.fixture(name="base")
def _base(tmp_path: Path) -> Path:
    """A directory of an ordinary user's, with a tree in it."""
    for name in ("dev", "user", "user/work", "user/work/a", "user/work/a/b"):
        (tmp_path / name).mkdir()
    for name in ("a/b/f", "c", "d"):
        (tmp_path / "user/work" / name).write_text(name * 1000)
    give_away(tmp_path)
    return tmp_path


def said_to_user(base: Path, script: str) -> str:
    """What a shell of the user's says in the tree, that has nothing to complain of."""
    done = as_user(base, script)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


def side_by_side(base: Path, program: str, seed: int) -> list[object]:
    """Have four processes do something at once in a run, which is taken back; returns what stood in the way."""
    before = photograph(base / "user/work")
    acts = " & ".join(f"'{sys.executable}' -c '{program}' {seed}-{number}" for number in range(4))
    (base / "user/acts").write_text(f"{acts} & wait\n")
    words = ("init -q", "checkpoint -q", "run -q -- sh ../acts", "barriers --json", "undo -q --run")
    said = said_to_user(base, "; ".join(f"{ME} {each}" for each in words))
    assert differences(before, photograph(base / "user/work")) == []
    return json.loads(said)["barriers"]


def test_files_without_a_name_are_nobodys_edits(base: Path) -> None:
    assert side_by_side(base, NAMELESS, 1) == []


def test_a_file_that_is_called_as_one_without_a_name_is_somebodys(base: Path) -> None:
    """I8."""
    command = "echo 1 > c; : > ../begun; until [ -e ../over ]; do :; done"
    said = said_to_user(
        base,
        f"""{ME} init -q; echo 0 > '#77'
        {ME} run -q -- sh -c '{command}' & until [ -e ../begun ]; do :; done
        echo theirs > '#77'; : > ../over; wait; {ME} barriers --json""",
    )
    assert [each["paths"] for each in json.loads(said)["barriers"]] == [["#77"]]


@pytest.mark.parametrize("seed", some(range(12), 1))
def test_what_four_processes_did_at_random_is_taken_back(base: Path, seed: int) -> None:
    """I1."""
    side_by_side(base, AT_RANDOM, seed)

"""Every call that reaches the keeper, with its flags and errors: natively and supervised, in trees that are equal.

Result, error and tree must come out the same; then undo must give the first tree back.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from platform import machine

import pytest

from holdfast.supervisor.syscalls.table import ARCHITECTURES, NOTIFIED, TARGETS, numbers
from holdfast.testing.tree_state import differences, photograph

from .afterwards import undo_each
from .call_table import SCRIPTS, numbers_here, plant, program, without_times

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or machine() not in ARCHITECTURES, reason="the supervisor does not support this machine"
)


def supervise(base: Path, tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the tree as one step."""
    launch = [sys.executable, "-P", "-m", "holdfast.supervisor.launch.supervised_run", "--one-step"]
    options = ["--log", str(base / "log"), "--root", str(tree)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    return subprocess.run(
        [*launch, *options, "--", *command],
        cwd=tree,
        env=environment,
        timeout=100,
        text=True,
        capture_output=True,
        check=False,
    )


def compare(tmp_path: Path, command: list[str]) -> str:
    """Run the command in both trees, compare, undo; what it printed."""
    native, twin = tmp_path / "native", tmp_path / "supervised"
    for top in (native, twin):
        plant(top)
    before = photograph(twin / "ws")
    expected = subprocess.run(command, cwd=native / "ws", timeout=100, text=True, capture_output=True, check=False)
    got = supervise(tmp_path, twin / "ws", *command)
    lines = difflib.unified_diff(
        expected.stdout.splitlines(), got.stdout.splitlines(), "native", "supervised", "", "", 0
    )
    assert not (found := [line for line in lines if line[0] in "+-"]), "\n".join((*found, got.stderr))
    assert got.stderr == expected.stderr
    assert got.returncode == expected.returncode
    for part in ("ws", "out"):
        here, there = (without_times(photograph(top / part)) for top in (twin, native))
        assert differences(there, here) == []
    undo_each(tmp_path / "log", twin / "ws")
    notes = tmp_path / "log" / "keeper.log"
    assert not notes.exists() or notes.read_text() == ""
    assert differences(before, photograph(twin / "ws")) == []
    return got.stdout


def test_the_table_holds_every_call() -> None:
    called = set(re.findall(r'(?:call|raw|opened)\("(\w+)"', "".join(SCRIPTS.values()))) | {"open", "openat"}
    # (What sets limits of processes changes nothing in the tree: see test_who_looks_after.py.)
    assert set(numbers(machine(), NOTIFIED).values()) - called == {"exit_group", *TARGETS}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="other users' files are part of it")
@pytest.mark.parametrize("name", SCRIPTS)
def test_calls_come_out_as_the_kernels_own(tmp_path: Path, name: str) -> None:
    """I1."""
    printed = compare(tmp_path, [sys.executable, "-c", program(name), json.dumps(numbers_here())])
    assert printed


C_PROGRAM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <errno.h>
#define SAY(what) do { \
    errno = 0; int r = (what); printf("%s: %d %d\n", #what, r < 0 ? -1 : 0, r < 0 ? errno : 0); \
} while (0)
int main(void) {
    int fd = open("from C", O_RDWR | O_CREAT | O_EXCL, 0640);
    SAY(write(fd, "content", 7));
    SAY(ftruncate(fd, 5000));
    SAY(rename("from C", "renamed"));
    SAY(link("renamed", "linked"));
    SAY(unlink("file"));
    SAY(unlink("missing"));
    SAY(mkdir("C", 0755));
    SAY(mkdir("C", 0755));
    SAY(rmdir("full"));
    SAY(symlink("x", "C/link"));
    SAY(chmod("large", 0600));
    SAY(truncate("large", 10));
    SAY(chdir("C"));
    FILE *stream = fopen("stream", "a+");
    SAY(fputs("line\n", stream));
    SAY(fclose(stream));
    SAY(remove("../dir/in"));
    char name[] = "tempXXXXXX";
    int temporary = mkstemp(name);
    SAY(fchmod(temporary, 0604));
    SAY(unlink(name));
    SAY(fchmod(temporary, 0600));
    return 0;
}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="other users' files are part of it")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("option", ["-O1", "-static"])
def test_a_program_in_c(tmp_path: Path, option: str) -> None:
    """I1."""
    source, built_as = tmp_path / "program.c", tmp_path / "program"
    source.write_text(C_PROGRAM)
    built = subprocess.run(["gcc", option, "-o", built_as, source], capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"cannot be built: {built.stderr[-200:]}")
    assert "renamed" in compare(tmp_path, [str(built_as)])

"""Safeguards see every way in which programs lose content, and ask about nothing that they do every day."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.supervisor.control.remote_service import RemoteUndoService, connect
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.service import TicketInfo

from ..fuse import ONLY_WITH_FUSE
from ..waiting import wait_until
from .isolated import need_namespaces

if TYPE_CHECKING:
    from e2e.conftest import Cli

SIZE = 100_000
_APPENDING = "import os, fcntl; fd = os.open('big', os.O_WRONLY | os.O_APPEND)"
_PUNCH = "import ctypes; assert ctypes.CDLL(None).fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(100000)) == 0"
_IOCTL = "import struct; fcntl.ioctl(fd, 0x4030582B, struct.pack('=hh4xqqiI16x', 0, 0, 0, 100000, 0, 0))"

WAYS = {
    "redirection": ": > big",
    "O_TRUNC": """python3 -c 'import os; os.close(os.open("big", os.O_RDWR | os.O_TRUNC))'""",
    "truncate(2)": """python3 -c 'import os; os.truncate("big", 0)'""",
    "truncate(1)": "truncate -s 0 big",
    "ftruncate": f'python3 -c "{_APPENDING}; os.ftruncate(fd, 0)"',
    "sed -i": "sed -i s/1/2/ big",
    "a rename over it": "mv -f small big",
    "r+": """python3 -c 'open("big", "r+b").write(b"x")'""",
    "dd conv=notrunc": "dd if=/dev/zero of=big bs=1000 count=1 conv=notrunc status=none",
    "a shared mapping": """python3 -c 'import mmap; mmap.mmap(open("big", "a+b").fileno(), 0)[:1] = b"x"'""",
    "a hole": f'python3 -c "{_APPENDING}; {_PUNCH}"',
    "removal": "rm -f big",
    "emptying many": "for name in many/*; do : > $name; done",
    "removing many": "rm -f many/1*",
}
ONLY_SUPERVISED = {
    "a hole by ioctl": f'python3 -c "{_APPENDING}; {_IOCTL}"',
    "appending no more": f'python3 -c "{_APPENDING}; fcntl.fcntl(fd, fcntl.F_SETFL, 0); os.pwrite(fd, bytes(9), 0)"',
}


@pytest.fixture(name="bench")
def _bench(cli: Cli) -> Iterator[Cli]:
    cli.write(".gitignore", "node_modules/\n*.o\n__pycache__/\n")
    cli.write("big", "1" * SIZE)
    cli.write("small", "small")
    for number in range(200):
        cli.write(f"many/{number}", str(number))
    yield cli
    for notes in cli.home.rglob("keeper.log"):
        assert [json.loads(line) for line in notes.read_text().splitlines()] == []


def kept(cli: Cli) -> RemoteUndoService:
    """The keeper."""
    found: list[RemoteUndoService] = []

    def look() -> bool:
        found.extend(filter(None, (connect(os.fsencode(log)) for log in cli.home.glob("workspaces/*/undo"))))
        return bool(found)

    wait_until(look)
    return found[0]


def next_ticket(keeper: RemoteUndoService, running: subprocess.Popen[bytes], last: int) -> TicketInfo:
    """The one that waits, after one of this number."""
    wait_until(lambda: any(ticket.id > last for ticket in keeper.held()) or running.poll() is not None)
    (ticket,) = keeper.held()
    return ticket


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        pytest.param([], WAYS | ONLY_SUPERVISED, id="supervised"),
        pytest.param(
            ["--bridge", "fuse"],
            WAYS,
            id="by a mount",
            marks=[ONLY_WITH_FUSE, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may mount")],
        ),
    ],
)
def test_every_way_to_lose_content_is_asked_about_and_denied(
    bench: Cli, options: list[str], ways: dict[str, str]
) -> None:
    """I9."""
    (bench.home / "config.toml").write_text(f"[safeguard]\noverwrite_bytes = {SIZE}\ndeletes = 50\ntimeout = 300\n")
    bench("checkpoint")
    before = photograph(bench.root)
    running = bench.start(
        "run", *options, "--", "sh", "-c", 'for way; do sh -c "$way"; done; true', "sh", *ways.values()
    )
    with kept(bench) as keeper:
        last = 0
        for name in ways:
            ticket = next_ticket(keeper, running, last)
            last = ticket.id
            assert ticket.path.startswith(b"many/" if "many" in name else b"big"), name
            assert (
                differences(
                    before,
                    photograph(
                        bench.root,
                    ),
                )
                == []
                or "many" in name
                or name == "sed -i"
            ), name
            keeper.answer(ticket.id, allow=False)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert differences(before, photograph(bench.root)) == []


_DAILY = """
set -e
git rebase -q main side
git gc -q
make -s clean
make -s
./built
if test -e package-lock.json; then npm ci --offline --silent --no-audit --no-fund --cache .cache; fi
rm -rf node_modules && mkdir node_modules && for i in $(seq 80); do echo new > node_modules/$i; done
for turn in 1 2; do for i in $(seq 60); do echo $turn > $i.o; done; cat *.o > program; done
python3 -m compileall -q sources
python3 -c 'import sqlite3; c = sqlite3.connect("app.db"); c.execute("insert into t values (1)"); c.commit()'
echo more >> app.log
"""


_MAKEFILE = """
objects = $(patsubst %.c,%.o,$(wildcard sources/*.c))
built: $(objects)
\tcc -o $@ $(objects)
clean:
\trm -f $(objects) built
"""


def _git(cli: Cli, *words: str) -> None:
    words = ("git", "-c", "init.defaultBranch=main", *words)
    subprocess.run(words, cwd=cli.root, check=True, stdin=subprocess.DEVNULL)


def _npm_package(cli: Cli) -> None:
    """What `npm ci` installs, without a network."""
    manifest = {"name": "app", "version": "1.0.0", "dependencies": {"dep": "file:dep.tgz"}}
    cli.write("package.json", json.dumps(manifest))
    with tarfile.open(cli.root / "dep.tgz", "w:gz") as package:
        for number in range(80):
            package.addfile(tarfile.TarInfo(f"package/{number}.js"))
        content = json.dumps({"name": "dep", "version": "1.0.0"}).encode()
        member = tarfile.TarInfo("package/package.json")
        member.size = len(content)
        package.addfile(member, io.BytesIO(content))
    words = ["npm", "install", "--offline", "--silent", "--no-audit", "--no-fund", "--cache", ".cache"]
    subprocess.run(words, cwd=cli.root, check=True, stdin=subprocess.DEVNULL)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.skipif(shutil.which("make") is None or shutil.which("cc") is None, reason="needs make and a C compiler")
@pytest.mark.parametrize(
    ("journal", "options"),
    [
        pytest.param("delete", [], id="supervised"),
        pytest.param("wal", ["--isolation", "namespace"], id="isolated"),
        pytest.param(
            "wal",
            ["--bridge", "fuse"],
            id="by a mount",
            marks=[ONLY_WITH_FUSE, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may mount")],
        ),
    ],
)
def test_what_is_done_every_day_is_not_asked_about(
    bench: Cli, monkeypatch: pytest.MonkeyPatch, journal: str, options: list[str]
) -> None:
    if "--isolation" in options:
        need_namespaces()
    monkeypatch.setenv("HOLDFAST_SAFEGUARD_TIMEOUT", "1s")
    bench.write(".gitignore", "node_modules/\n.cache/\n*.o\n__pycache__/\n")
    for number in range(60):
        bench.write(f"sources/f{number}.c", f"int f{number}(void) {{ return {number}; }}")
    bench.write("sources/main.c", "int main(void) { return 0; }")
    bench.write("Makefile", _MAKEFILE)
    subprocess.run(["make", "-s"], cwd=bench.root, check=True)
    for number in range(80):
        bench.write(f"node_modules/{number}", "old")
        bench.write(f"{number}.o", "old")
    bench.write("program", "old")
    bench.write("app.log", "0" * 11_000_000)
    bench.write("sources/a.py", "pass")
    if shutil.which("npm") is not None:
        _npm_package(bench)
    _git(bench, "init", "-q")
    _git(bench, "config", "user.name", "A")
    _git(bench, "config", "user.email", "a@b")
    _git(bench, "add", ".gitignore", "small", "many")
    _git(bench, "commit", "-q", "-m", "first")
    _git(bench, "checkout", "-q", "-b", "side")
    for number in range(100):
        bench.write(f"many/{number}", "side")
    _git(bench, "commit", "-qam", "side")
    _git(bench, "checkout", "-q", "main")
    for number in range(100, 200):
        bench.write(f"many/{number}", "main")
    _git(bench, "commit", "-qam", "main")
    with sqlite3.connect(bench.root / "app.db") as database:
        database.execute(f"pragma journal_mode = {journal}")
        database.execute("create table t (a)")
        database.execute("insert into t values (zeroblob(11000000))")
    database.close()
    assert Path(bench.root / "app.db").stat().st_size > 10_000_000
    bench("checkpoint")
    done = bench.process("run", "--guard", *options, "--", "sh", "-c", _DAILY, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert b"No answer came" not in done.stderr
    assert [step["state"] for step in bench.json("steps")["steps"] if step["state"] != "done"] == []

"""What lies deeper than the kernel says paths (4,096 bytes) is changed under a run as it is without, and taken back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..fuse import ONLY_WITH_FUSE
from .isolated import need_namespaces

if TYPE_CHECKING:
    from e2e.conftest import Cli

NAME = "d" * 200
PROGRAM = """
import errno, os, socket, sys
def attempt(what, function, *arguments, **options):
    try:
        found = function(*arguments, **options)
    except OSError as error:
        found = errno.errorcode[error.errno]
    print(where, what, found if isinstance(found, (int, str)) else "done")
def write(path, mode):
    with open(path, mode) as file:
        return file.write("content")
def bind(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
def change(at):
    attempt("make", write, at + "f", "w")
    attempt("append", write, at + "f", "a")
    attempt("chmod", os.chmod, at + "f", 0o640)
    attempt("chown", os.chown, at + "f", -1, -1)
    attempt("utime", os.utime, at + "f", (1, 2))
    attempt("truncate", os.truncate, at + "f", 3)
    attempt("setxattr", os.setxattr, at + "f", "user.a", b"b")
    attempt("removexattr", os.removexattr, at + "f", "user.a")
    attempt("symlink", os.symlink, "f", at + "l")
    attempt("lchown", os.chown, at + "l", -1, -1, follow_symlinks=False)
    attempt("chmod by a link", os.chmod, at + "l", 0o644)
    attempt("truncate by a link", os.truncate, at + "l", 2)
    attempt("link", os.link, at + "f", at + "h")
    attempt("link of a link", os.link, at + "l", at + "k", follow_symlinks=False)
    attempt("mkfifo", os.mkfifo, at + "p")
    attempt("chmod of a pipe", os.chmod, at + "p", 0o600)
    attempt("mkdir", os.mkdir, at + "s")
    attempt("chmod of a directory", os.chmod, at + "s", 0o700)
    attempt("rename", os.rename, at + "h", at + "s/h")
    attempt("rename of a directory", os.rename, at + "s", at + "t")
    attempt("unlink", os.unlink, at + "t/h")
    attempt("rmdir", os.rmdir, at + "t")
    opened = os.open(at + "f", os.O_RDWR)
    attempt("fchmod", os.fchmod, opened, 0o600)
    attempt("futime", os.utime, opened, (3, 4))
    attempt("fsetxattr", os.setxattr, opened, "user.b", b"c")
    attempt("fchmod by /proc", os.chmod, f"/proc/self/fd/{opened}", 0o644)
    os.close(opened)
    found = os.lstat(at + "f")
    print(where, found.st_mode, found.st_nlink, found.st_size, found.st_mtime, *sorted(os.listdir(at or ".")))
os.chdir(sys.argv[1])
begin = os.open(".", os.O_RDONLY)
for _ in range(18):
    os.chdir("d" * 200)
where = "just beyond what the kernel says:"
rest = 4090 - len(os.getcwd())
name = "e" * 150 + "/" + "g" * (rest - 152)
os.makedirs(name)
change(name + "/")
where = "where the directory is beyond it, too:"
name = "/".join(["i" * 150] * 4)
os.makedirs(name)
change(name + "/")
where = "in a long working directory:"
for _ in range(3):
    os.chdir("d" * 200)
change("")
attempt("bind", bind, "socket")
attempt("child", os.spawnlp, os.P_WAIT, "sh", "sh", "-c",
        "echo x >y; chmod 600 y; mkdir z; cp -a y z; ln y z/k; mv z/k z/m; rm -r z/y; rm old/?; chmod 700 old")
where = "further down:"
for _ in range(40):
    os.mkdir("a"); os.chdir("a")
change("")
os.fchdir(begin)
"""
"""Prints what each call came to."""


def _make(top: Path) -> None:
    """A tree that is as deep, with something to lose at its end."""
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for name in [NAME] * 21 + ["old"]:
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    for name in ("1", "2"):
        file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=at)
        os.write(file, name.encode())
        os.close(file)
    os.close(at)


def _look(top: Path) -> list[object]:
    """What is there, level by level."""
    found: list[object] = []
    for _, directories, files, at in os.fwalk(top):
        levels = [os.stat(name, dir_fd=at, follow_symlinks=False) for name in directories]
        found.append(sorted(zip(directories, [(each.st_mode, each.st_mtime_ns) for each in levels], strict=True)))
        for name in sorted(files):
            each = os.stat(name, dir_fd=at, follow_symlinks=False)
            found.append((name, each.st_mode, each.st_size, each.st_nlink, each.st_mtime_ns))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the supervisor is for Linux")
@pytest.mark.parametrize(
    "options",
    [[], ["--isolation", "namespace"], pytest.param(["--bridge", "fuse"], marks=ONLY_WITH_FUSE)],
    ids=["supervised", "namespace", "bridge"],
)
def test_calls_at_long_paths_are_as_without_a_run_and_taken_back(cli: Cli, options: list[str]) -> None:
    """I1."""
    if "--isolation" in options:
        need_namespaces()
    program = cli.write("program.py", PROGRAM)
    _make(cli.root / "top")
    _make(cli.root.parent / "beside")
    cli("checkpoint")
    before = _look(cli.root / "top")
    native = subprocess.run(
        [sys.executable, str(program), str(cli.root.parent / "beside")], check=True, capture_output=True, text=True
    )
    assert native.stdout.count("done") > 90
    # (A step of the command's own, and those of its child.)
    ran = cli.process("run", *options, "--", sys.executable, "program.py", "top")
    assert ran.stdout.decode() == native.stdout
    assert _look(cli.root / "top") != before
    cli.process("undo", "--run")
    assert _look(cli.root / "top") == before
    for top in (cli.root / "top", cli.root.parent / "beside"):
        shutil.rmtree(top)

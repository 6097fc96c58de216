"""Compiles the native part of the keeper: for this machine as Holdfast is installed, and for others by ``make wheels``.

It uses the limited API of Python 3.11 and is one file an architecture. Where there is no compiler, or no headers of
Python, there is none, and Python does all of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

NAME = "_hot.abi3.so"
SOURCES = Path(__file__).parent
MACHINES = ("x86_64", "aarch64")
FLAGS = (
    "-std=c11", "-O2", "-pthread", "-Wall", "-Wextra", "-Wshadow", "-Werror",
    "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3",
)  # fmt: skip
MODULE_FLAGS = ("-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,relro,-z,now")


class CannotBuildError(Exception):
    """Why there is no native part."""


def build(target: Path, compiler: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> None:
    """Compile the module to ``target``; by this machine's compiler, if none is given. Raises `CannotBuildError`."""
    if not sys.platform.startswith("linux") or os.uname().machine not in MACHINES:
        raise CannotBuildError("system calls are supervised on Linux, on x86-64 and aarch64, alone")
    compiler = compiler or _own_compiler()
    include = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(include, "Python.h")):
        raise CannotBuildError(f"the headers of Python are not in {include}")
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(".new")
    sources = sorted(map(str, SOURCES.glob("*.c")))
    command = [*compiler, *FLAGS, *MODULE_FLAGS, *flags, f"-I{include}", *sources, "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(f"{' '.join(compiler)} failed: {done.stderr[-2000:]}")
    made.replace(target)  # (a process may have the old one loaded)


def _own_compiler() -> tuple[str, ...]:
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if shutil.which(name.split()[0]):
            return tuple(name.split())
    raise CannotBuildError("there is no C compiler")


def build_fuzzer(target: Path) -> None:
    """Compile what makes hostile calls, by clang and with its sanitizers. Raises `CannotBuildError`."""
    sources = [path for path in sorted(SOURCES.glob("*.c")) if path.name != "module.c"]
    command = [
        *("clang", "-std=c11", "-g", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-Dioctl=fuzz_ioctl"),
        *("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
        *map(str, [*sources, SOURCES / "fuzz" / "fuzz_calls.c"]),
        *("-o", str(target)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(f"clang failed: {done.stderr[-2000:]}")

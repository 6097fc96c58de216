"""Where ``run.py`` has its work done: on the bare file system, under ``holdfast run``, and on what others intercept with."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from compare import program

SECONDS = 1800
"""What takes longer hangs."""


class Failed(Exception):
    """A command has failed; the text says which, and what it said."""


def call(words: Sequence[str | Path], cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run ``words`` in ``cwd`` and return what they print; raises `Failed`, with the end of what they said."""
    shown = Path(words[0]).name
    try:
        done = subprocess.run(
            words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{shown}: not done after {SECONDS} s") from None
    if done.returncode:
        raise Failed(f"{shown}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


Place = Callable[[Path, Path], AbstractContextManager[Path]]
"""Makes of a new directory, and of one that shows what is to be there at the start, one to work in."""


class Subject(NamedTuple):
    """One way to have work done."""

    name: str
    place: Place
    prefix: tuple[str, ...] = ()
    """What comes before a command there."""
    copies: bool = True
    """Whether each place has a copy of its own of what is there at the start."""


def _copied(start: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    call(["cp", "-a", f"{start}/.", to], to)
    return to


@contextmanager
def _bare(base: Path, start: Path) -> Iterator[Path]:
    yield _copied(start, base / "work")


@contextmanager
def _remembered(base: Path, start: Path) -> Iterator[Path]:
    work = _copied(start, base / "work")
    call([program(), "init", "-q"], work)
    yield work


@contextmanager
def _mounted(words: Sequence[str | Path], at: Path) -> Iterator[Path]:
    at.mkdir()
    call([*words, at], at.parent)
    try:
        yield at
    finally:
        call(["umount", at] if os.geteuid() == 0 else ["fusermount3", "-u", at], at.parent)


def _layers(base: Path, start: Path) -> str:
    for name in ("upper", "scratch"):
        (base / name).mkdir(parents=True)
    return f"lowerdir={start},upperdir={base / 'upper'},workdir={base / 'scratch'}"


@contextmanager
def _overlayfs(base: Path, start: Path) -> Iterator[Path]:
    with _mounted(["mount", "-t", "overlay", "overlay", "-o", _layers(base, start)], base / "work") as work:
        yield work


@contextmanager
def _fuse_overlayfs(base: Path, start: Path) -> Iterator[Path]:
    with _mounted(["fuse-overlayfs", "-o", _layers(base, start)], base / "work") as work:
        yield work


@contextmanager
def _bindfs(base: Path, start: Path) -> Iterator[Path]:
    with _mounted(["bindfs", "--no-allow-other", _copied(start, base / "behind")], base / "work") as work:
        yield work


NATIVE = Subject("native", _bare)
HOLDFAST = Subject("holdfast", _remembered, (program(), "run", "-q", "--"))
PEERS = (
    Subject("overlayfs", _overlayfs, copies=False),
    Subject("bindfs", _bindfs),
    Subject("fuse-overlayfs", _fuse_overlayfs, copies=False),
)


def available(base: Path) -> tuple[list[Subject], dict[str, str]]:
    """The peers that work here, tried in ``base``; and why the others do not."""
    found: list[Subject] = []
    absent: dict[str, str] = {}
    start = base / "start"
    start.mkdir(parents=True)
    (start / "file").touch()
    for peer in PEERS:
        if peer.name == "overlayfs" and os.geteuid() != 0:
            absent[peer.name] = "only root mounts it"
        elif peer.name != "overlayfs" and shutil.which(peer.name) is None:
            absent[peer.name] = "not installed"
        else:
            try:
                with peer.place(base / peer.name, start) as work:
                    (work / "file").rename(work / "renamed")
            except (Failed, OSError) as error:
                absent[peer.name] = str(error).replace(str(base), "…")
            else:
                found.append(peer)
    return found, absent

"""Where the benchmarks have work done: on the bare file system, through Holdfast, and on what others intercept with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from compare import program

SECONDS = 1800
"""What takes longer hangs."""
PATIENCE = 30
"""How many seconds a server may take to mount."""


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


def _unmount(at: Path) -> None:
    call(["umount", at] if os.geteuid() == 0 else ["fusermount3", "-u", at], at.parent)


@contextmanager
def _mounted(words: Sequence[str | Path], at: Path) -> Iterator[Path]:
    """``at``, made, with what ``words`` mount there, to which its path is added."""
    at.mkdir()
    call([*words, at], at.parent)
    try:
        yield at
    finally:
        _unmount(at)


@contextmanager
def _served(words: Sequence[str | Path], at: Path) -> Iterator[Path]:
    """As `_mounted`, where the program that mounts is the server too."""
    at.mkdir()
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen([*words, at], cwd=at.parent, stdout=subprocess.DEVNULL, stderr=said) as server,
    ):
        until = time.monotonic() + PATIENCE
        while server.poll() is None and not os.path.ismount(at):
            if time.monotonic() > until:
                server.kill()
            time.sleep(0.01)
        if server.returncode is not None:
            said.seek(0)
            raise Failed(
                f"{Path(words[0]).name}: has not mounted: {said.read()[-500:].decode(errors='replace').strip()}"
            )
        try:
            yield at
        finally:
            _unmount(at)
            server.wait()  # (It may have much to clear away.)


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


FOR_ALL = ("-o", "allow_other,dev,suid")
"""What lets a mount of root's behave, towards everybody, like the file system behind it."""


class Mount(NamedTuple):
    """A FUSE file system that shows a directory."""

    words: tuple[str, ...]
    """What mounts it, with the directory that it shows and the one to mount on after it."""
    as_root: tuple[str, ...] = FOR_ALL
    """What root adds."""
    stays: bool = False
    """Whether the program is what serves it, to its end; else it returns as soon as it is mounted."""


def _showing(mount: Mount) -> Place:
    @contextmanager
    def place(base: Path, start: Path) -> Iterator[Path]:
        options = mount.as_root if os.geteuid() == 0 else ()
        words = [*mount.words, *options, _copied(start, base / BEHIND)]
        with (_served if mount.stays else _mounted)(words, base / "work") as work:
            yield work

    return place


BEHIND = "behind"
"""The directory beside the place itself, where one is mounted that shows it."""

NATIVE = Subject("native", _bare)
HOLDFAST = Subject("holdfast", _remembered, (program(), "run", "-q", "--"))
BY_PYTHON = Subject("by Python", _remembered, ("env", "HOLDFAST_NATIVE=0", program(), "run", "-q", "--"))
BRIDGE = Subject(
    "bridge", _showing(Mount((sys.executable, "-P", "-m", "holdfast.testing.bridged"), as_root=(), stays=True))
)
PEERS = (
    Subject("overlayfs", _overlayfs, copies=False),
    Subject("fuse-overlayfs", _fuse_overlayfs, copies=False),
    Subject("bindfs", _showing(Mount(("bindfs", "--no-allow-other")))),
    Subject("passthrough_hp", _showing(Mount(("passthrough_hp",)))),
)


def available(base: Path, subjects: Sequence[Subject] = PEERS) -> tuple[list[Subject], dict[str, str]]:
    """Those of ``subjects`` that work here, tried in ``base``; and why the others do not."""
    found: list[Subject] = []
    absent: dict[str, str] = {}
    start = base / "start"
    start.mkdir(parents=True)
    (start / "file").touch()
    for subject in subjects:
        if subject.name == "overlayfs" and os.geteuid() != 0:
            absent[subject.name] = "only root mounts it"
        elif subject in PEERS and subject.name != "overlayfs" and shutil.which(subject.name) is None:
            absent[subject.name] = "not installed"
        else:
            try:
                with subject.place(base / subject.name, start) as work:
                    (work / "file").rename(work / "renamed")
            except (Failed, OSError) as error:
                absent[subject.name] = str(error).replace(str(base), "…")
            else:
                found.append(subject)
    return found, absent

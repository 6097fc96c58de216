"""The program ``zfs``, and its output. Source: zfs(8), zfs-list(8), zfs-destroy(8)."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from holdfast.model.errors import StorageError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.snapshot._external_program import ProgramLimits, error_line, execute

if TYPE_CHECKING:
    from holdfast.snapshot._external_program import ProgramResult

_SECONDS = 300.0
_MAX_OUTPUT = 64 << 20
_MISSING = "does not exist"
_STAYS = ("has children", "has dependent clones", "is busy", "umount failed", "pool or dataset is busy")


class Dataset(NamedTuple):
    """A dataset, and its mount point."""

    name: str
    mountpoint: str


def find_zfs() -> str | None:
    """The program: it is often where only root's ``PATH`` leads."""
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), "/usr/local/sbin", "/usr/sbin", "/sbin")))
    return shutil.which("zfs", path=path)


class Zfs:
    """The program, run in a directory."""

    def __init__(self, directory: bytes) -> None:
        """Raises `UnsupportedError` if it is missing."""
        program = find_zfs()
        if program is None:
            raise UnsupportedError("there is no program zfs", hint="install it: the package zfsutils-linux")
        self._program = program
        self._directory = directory

    def __call__(self, *words: str) -> str:
        """Run it, and return its output. Raises `StorageError` with the code ``zfs_failed`` or ``zfs_slow``."""
        ended = self._run(words)
        if ended.code:
            raise self._failure(words, ended)
        return os.fsdecode(ended.out)

    def at(self, path: bytes) -> Dataset | None:
        """The dataset whose files ``path`` is among; None if it is on no ZFS."""
        ended = self._run(("list", "-H", "-t", "filesystem", "-o", "name,mountpoint", os.fsdecode(path)))
        name, _, mountpoint = os.fsdecode(ended.out).rstrip("\n").partition("\t")
        return None if ended.code or not mountpoint else Dataset(name, mountpoint)

    def exists(self, name: str) -> bool:
        """Whether there is a dataset, or a snapshot, of this name."""
        words = ("list", "-H", "-t", "all", "-o", "name", name)
        ended = self._run(words)
        if ended.code and _MISSING not in ended.errors:
            raise self._failure(words, ended)
        return not ended.code

    def below(self, dataset: str, key: str) -> list[str]:
        """The datasets directly below one for which the property ``key`` is set."""
        listed = self("list", "-H", "-r", "-t", "filesystem", "-o", f"name,{key}", dataset)
        rows = (line.split("\t") for line in listed.splitlines())
        return [row[0] for row in rows if len(row) == 2 and row[1] == "yes"]

    def destroy(self, name: str) -> bool:
        """Destroy a dataset; False if others depend on it, or it is in use. A missing one is no error."""
        words = ("destroy", name)
        ended = self._run(words)
        if not ended.code or _MISSING in ended.errors:
            return True
        if any(reason in ended.errors for reason in _STAYS):
            return False
        raise self._failure(words, ended)

    def destroy_deferred(self, snapshot: str) -> None:
        """Destroy a snapshot as soon as it has no clone. Idempotent."""
        words = ("destroy", "-d", snapshot)
        ended = self._run(words)
        if ended.code and _MISSING not in ended.errors and "could not find any snapshots" not in ended.errors:
            raise self._failure(words, ended)

    def _run(self, words: tuple[str, ...]) -> ProgramResult:
        environ = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
        limits = ProgramLimits(_MAX_OUTPUT, _SECONDS, "zfs_slow", "a pool may be suspended: zpool status")
        return execute([self._program, *words], environ | {"LC_ALL": "C"}, self._directory, limits)

    def _failure(self, words: tuple[str, ...], ended: ProgramResult) -> StorageError:
        why = error_line(ended.errors, ("cannot ", "internal error"))
        return StorageError(f"zfs {words[0]} failed ({ended.code}): {why}", code="zfs_failed")

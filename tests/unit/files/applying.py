"""A tree that changes are applied to, and what is known of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.files.index.stat_index import KnownFile, Signature
from holdfast.files.tree import ApplyResult
from holdfast.files.write.applier import Applier
from holdfast.files.write.rooted_access import Root
from holdfast.model.entries import Change, Entry, file_entry, symlink_entry
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import TEMPORARY_PREFIX

from ...seen import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.files.tree import ApplyNotes
    from holdfast.model.content import Content

NONCE = "n0"


def file(content: bytes, permissions: int = 0o644) -> Entry:
    return file_entry(hash_bytes(content), len(content), permissions)


def link(target: bytes) -> Entry:
    return symlink_entry(hash_bytes(target), len(target))


def signature_of(path: bytes) -> Signature:
    info = os.lstat(path)
    return Signature(info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode)


def content_of(path: Path) -> bytes:
    """What a file holds, even if its permissions keep its owner from reading it."""
    mode = path.stat().st_mode & 0o7777
    if os.access(path, os.R_OK):
        return path.read_bytes()
    path.chmod(0o400)
    try:
        return path.read_bytes()
    finally:
        path.chmod(mode)


class Noted:
    """Notes that are kept in memory."""

    def __init__(
        self, in_place: Callable[[bytes], object] | None = None, opened: Mapping[bytes, int] | None = None
    ) -> None:
        self._told = in_place
        self.paths: list[bytes] = []
        self.opened: Mapping[bytes, int] = opened or {}
        self.openings: list[dict[bytes, int]] = []

    def opening(self, modes: Mapping[bytes, int]) -> None:
        self.openings.append(dict(modes))

    def in_place(self, path: bytes) -> None:
        if self._told is not None:
            self._told(path)


class Workspace:
    """A directory, and what applies changes to it."""

    def __init__(self, path: Path, *, flags: bool, beneath: bool) -> None:
        self.path = path
        self.root = Root(bytes(path), beneath=beneath)
        self.seen = Seen()
        self.flags = flags
        self.applier = Applier(self.root, self.seen, flags=flags)

    def at(self, path: bytes) -> bytes:
        return bytes(self.path) + b"/" + path

    def tree(self) -> dict[bytes, Entry | str]:
        """Every path with its entry; a directory without entries below it and special files by a word."""
        found: dict[bytes, Entry | str] = {}
        for parent, directories, files in os.walk(bytes(self.path)):
            for name in [*directories, *files]:
                path = parent + b"/" + name
                inner = os.path.relpath(path, bytes(self.path))
                if os.path.islink(path):
                    found[inner] = link(os.readlink(path))
                elif os.path.isfile(path):
                    found[inner] = file(content_of(Path(os.fsdecode(path))), os.stat(path).st_mode)
                elif not os.path.isdir(path):
                    found[inner] = "special"
                elif not os.listdir(path):
                    found[inner] = "empty"
        return found

    def scan(self) -> dict[bytes, Entry]:
        """Look at the tree and remember it."""
        entries = {path: entry for path, entry in self.tree().items() if isinstance(entry, Entry)}
        self.seen.known = {path: KnownFile(entry, signature_of(self.at(path))) for path, entry in entries.items()}
        return entries

    def go(
        self,
        target: dict[bytes, tuple[Entry, bytes]],
        *,
        pieces: bool = False,
        notes: ApplyNotes | None = None,
    ) -> ApplyResult:
        """Apply what leads from what was seen last to ``target``."""
        before = {path: known.entry for path, known in self.seen.known.items()}
        deletes = [Change(path, entry, None) for path, entry in before.items() if path not in target]
        writes: list[tuple[Change, Content | None]] = []
        for path, (entry, content) in target.items():
            old = before.get(path)
            if old == entry:
                continue
            only_mode = old is not None and old.hash == entry.hash and old.is_symlink == entry.is_symlink
            given = None if only_mode else iter([content[:2], content[2:]]) if pieces else content
            writes.append((Change(path, old, entry), given))
        return self.applier.apply(deletes, writes, nonce=NONCE, notes=notes)

    def temporaries(self) -> list[str]:
        return [str(path) for path in self.path.rglob(os.fsdecode(TEMPORARY_PREFIX) + "*")]


def put(space: Workspace, path: str, content: bytes = b"old", mode: int = 0o644) -> Path:
    target = space.path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(mode)
    return target


def wanted(**contents: bytes) -> dict[bytes, tuple[Entry, bytes]]:
    return {path.replace("_", "/").encode(): (file(content), content) for path, content in contents.items()}

"""The changes of a process to some files, step by step, and their possible states on a disk after a power loss.

The model is that of `holdfast.testing.powerloss`: content is durable once its file was synced, a directory's entry once
the directory was, and of all later changes any part may exist, even torn in the middle. A kill of the process alone
loses nothing: the state is then the complete one.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Loss = Literal["nothing", "all that may be", "some"]

_SECTOR = 512


class Step(NamedTuple):
    """One change, by its name and with paths relative to the recorded root."""

    name: str
    path: bytes
    target: bytes = b""
    offset: int = 0
    data: bytes = b""
    mode: int = 0


class _Node:
    """A file, a link or a directory, with its durable state and the changes since."""

    __slots__ = ("durable", "entries", "kind", "mode", "pending", "pending_entries")

    def __init__(self, kind: Literal["file", "link", "directory"], content: bytes = b"", mode: int = 0o600) -> None:
        self.kind = kind
        self.mode = mode
        self.durable = bytearray(content)
        self.pending: list[tuple[int, bytes | None]] = []
        """Writes (offset, data), and truncations (size, None)."""
        self.entries: dict[bytes, _Node] = {}
        self.pending_entries: list[tuple[bytes, _Node | None]] = []

    def settle(self) -> None:
        """All that was done is durable."""
        for change in self.pending:
            _do(self.durable, *change)
        self.pending = []
        self.entries = self.listing(lambda: True)
        self.pending_entries = []

    def content(self, some: Any, torn: random.Random | None) -> bytes:
        """A possible content of the file, with those of its changes for which ``some`` is true."""
        content = bytearray(self.durable)
        for offset, data in self.pending:
            if some():
                if data and torn is not None and torn.random() < 0.2:
                    data = data[: torn.randrange(len(data) // _SECTOR + 1) * _SECTOR]
                _do(content, offset, data)
        return bytes(content)

    def listing(self, some: Any) -> dict[bytes, _Node]:
        """The entries that the directory may have."""
        entries = dict(self.entries)
        for name, node in self.pending_entries:
            if some():
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node
        return entries


def _do(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


class Recording:
    """The changes of a process to the files below ``root``, which was equal to its copy ``start`` before."""

    def __init__(self, root: bytes, start: bytes, steps: Sequence[Step], marks: Sequence[tuple[int, str]]) -> None:
        self._root = root
        self._start = start
        self.steps = steps
        self.marks = marks
        """The marks of the process (``MARK text`` on standard output), each with the number of steps before."""

    def rebuild(self, at: int, loss: Loss, seed: int = 0) -> None:
        """Make of the root what the disk may hold if power is lost after the first ``at`` steps. Times are not kept."""
        generator = random.Random(seed * 1_000_003 + at)
        chance = generator.random()
        some = {
            "nothing": lambda: True,
            "all that may be": lambda: False,
            "some": lambda: generator.random() < chance,
        }[loss]
        torn = generator if loss == "some" else None
        shutil.rmtree(self._root)
        _write(self._replay(at), self._root, some, torn)

    def _replay(self, at: int) -> _Node:
        root = _load(self._start)
        now: dict[bytes, _Node] = {}

        def note(node: _Node, path: bytes) -> None:
            now[path] = node
            for name, inner in node.entries.items():
                note(inner, path + b"/" + name if path else name)

        def enter(path: bytes, node: _Node | None) -> None:
            directory, _, name = path.rpartition(b"/")
            now[directory].pending_entries.append((name, node))
            if node is None:
                del now[path]
            else:
                now[path] = node

        def moved(source: bytes, target: bytes) -> dict[bytes, _Node]:
            return {target + p[len(source) :]: n for p, n in now.items() if p == source or p.startswith(source + b"/")}

        note(root, b"")
        for step in self.steps[:at]:
            name, path = step.name, step.path
            if name == "create":
                enter(path, _Node("file", mode=step.mode))
            elif name == "mkdir":
                enter(path, _Node("directory", mode=step.mode))
            elif name == "symlink":
                enter(path, _Node("link", step.data))
            elif name == "link":
                enter(step.target, now[path])
            elif name == "write":
                now[path].pending.append((step.offset, step.data))
            elif name == "truncate":
                now[path].pending.append((step.offset, None))
            elif name == "chmod":
                now[path].mode = step.mode
            elif name == "sync":
                now[path].settle()
            elif name == "sync all":
                for node in now.values():
                    node.settle()
            elif name == "remove":
                enter(path, None)
            elif name == "exchange":
                there, back = moved(path, step.target), moved(step.target, path)
                one, other = now[path], now[step.target]
                now.update(there)
                now.update(back)
                enter(step.target, one)
                enter(path, other)
            else:
                assert name == "rename", name
                node, inner = now[path], moved(path, step.target)
                for old in [p for p in now if p == path or p.startswith(path + b"/")]:
                    del now[old]
                now[path] = node
                now.update(inner)
                enter(step.target, node)
                enter(path, None)
        return root


def _load(path: bytes) -> _Node:
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return _Node("link", os.readlink(path))
    if stat.S_ISDIR(info.st_mode):
        node = _Node("directory", mode=stat.S_IMODE(info.st_mode))
        node.entries = {name: _load(path + b"/" + name) for name in os.listdir(path)}
        return node
    with open(path, "rb") as file:
        return _Node("file", file.read(), stat.S_IMODE(info.st_mode))


def _write(node: _Node, path: bytes, some: Any, torn: random.Random | None) -> None:
    if node.kind == "link":
        os.symlink(bytes(node.durable), path)
    elif node.kind == "file":
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file:
            file.write(node.content(some, torn))
        os.chmod(path, node.mode)
    else:
        os.mkdir(path, 0o700)
        for name, inner in node.listing(some).items():
            _write(inner, path + b"/" + name, some, torn)
        os.chmod(path, node.mode)

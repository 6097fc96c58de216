"""Power loss: records the writes and syncs of a store, and rebuilds every possible state of a disk afterwards.

The model is the weakest disk that POSIX allows. Only content whose file was synced and directory entries whose
directory was synced are durable: of later changes, any part may exist and any other be missing. A rename that was not
synced may show the old name, the new one, both or neither; the replaced file exists until the rename is synced. The
mark of a directory is on the disk at once, before all other unsynced changes: to lose one only costs time.
"""

from __future__ import annotations

import itertools
import os
import random
from typing import TYPE_CHECKING, NamedTuple

from holdfast.store.objects.disk_port import MARKED, SYSTEM_DISK, Disk

if TYPE_CHECKING:
    from collections.abc import Iterator

EXHAUSTIVE = 256
"""At a point with more states than this, so many are chosen at random, including the two extremes."""


class State(NamedTuple):
    """A possible content of a disk after a power loss, by path relative to the recorded root."""

    files: dict[str, bytes]
    directories: frozenset[str]
    """All but the root itself."""
    marked: frozenset[str] = frozenset()
    """The directories with a mark that they are durable."""

    def write_to(self, target: str) -> None:
        """Build the state in ``target``, a directory that is empty or not there yet."""
        os.makedirs(target, mode=0o700, exist_ok=True)
        for directory in sorted(self.directories):
            os.mkdir(f"{target}/{directory}", 0o700)
            if directory in self.marked:
                os.chmod(f"{target}/{directory}", MARKED)
        for path, content in self.files.items():
            fd = os.open(f"{target}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(content)


class _File:
    __slots__ = ("durable", "written")

    def __init__(self) -> None:
        self.durable = b""
        self.written: list[bytes] = []

    def contents(self) -> list[bytes]:
        """Its possible contents: complete, as of the last sync, with a torn write, or with zeros in place of data."""
        if not self.written:
            return [self.durable]
        late = b"".join(self.written)
        return [
            self.durable,
            self.durable + late,
            self.durable + late[: len(late) // 2],
            self.durable + bytes(len(late)),
        ]


class _Directory:
    __slots__ = ("durable", "marked", "pending")

    def __init__(self) -> None:
        self.durable: dict[str, _Node] = {}
        self.marked = False
        self.pending: list[tuple[str, _Node | None]] = []

    def entries(self, applied: int) -> dict[str, _Node]:
        """The entries if, of the pending changes, those are there whose bit is set in ``applied``."""
        entries = dict(self.durable)
        for bit, (name, node) in enumerate(self.pending):
            if applied >> bit & 1:
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node
        return entries


_Node = _File | _Directory


class _Step(NamedTuple):
    name: str
    path: str
    data: bytes = b""
    target: str = ""


class RecordingDisk:
    """A `Disk` that performs and records the steps on the real one, below the directory ``root``.

    ``root`` must exist and be empty: all later content came through this disk. Other paths are not recorded.
    """

    def __init__(self, root: str, disk: Disk = SYSTEM_DISK) -> None:
        self._root = os.path.abspath(root)
        self._disk = disk
        self._open: dict[int, str] = {}
        self._steps: list[_Step] = []
        self.marks: list[tuple[int, object]] = []
        """The values given to `mark`, each with the number of steps before it."""

    def __len__(self) -> int:
        """How many steps were recorded."""
        return len(self._steps)

    def mark(self, value: object) -> None:
        """Record a promise made at this point, such as that a commit has returned."""
        self.marks.append((len(self._steps), value))

    def states(self, at: int, *, limit: int = EXHAUSTIVE, seed: int = 0) -> Iterator[State]:
        """The different states that the disk may be in if power is lost after the first ``at`` steps.

        All of them if they are at most ``limit``, else that many picked at random (the same for the same ``seed``).
        """
        files, directories, root = self._replay(at)
        choices = [range(1 << len(directory.pending)) for directory in directories]
        choices += [range(len(file.contents())) for file in files]
        total = 1
        for choice in choices:
            total *= len(choice)
        if total <= limit:
            picks: Iterator[tuple[int, ...]] = itertools.product(*choices)
        else:
            generator = random.Random(seed * 1_000_003 + at)
            extremes = [tuple(choice[0] for choice in choices), tuple(choice[-1] for choice in choices)]
            drawn = (tuple(generator.choice(choice) for choice in choices) for _ in range(limit - 2))
            picks = itertools.chain(extremes, drawn)
        seen: set[object] = set()
        for pick in picks:
            applied = dict(zip(map(id, directories), pick, strict=False))
            variant = dict(zip(map(id, files), pick[len(directories) :], strict=True))
            state = _tree(root, applied, variant)
            key = (tuple(sorted(state.files.items())), state.directories, state.marked)
            if key not in seen:
                seen.add(key)
                yield state

    def _replay(self, at: int) -> tuple[list[_File], list[_Directory], _Directory]:
        root = _Directory()
        present: dict[str, _Node] = {"": root}
        files: list[_File] = []
        directories = [root]

        def enter(path: str, node: _Node | None) -> None:
            directory, _, name = path.rpartition("/")
            parent = present[directory]
            assert isinstance(parent, _Directory)
            parent.pending.append((name, node))
            if node is None:
                del present[path]
            else:
                present[path] = node

        for step in self._steps[:at]:
            node = present.get(step.path)
            if step.name == "create":
                files.append(_File())
                enter(step.path, files[-1])
            elif step.name == "make_directory":
                directories.append(_Directory())
                enter(step.path, directories[-1])
            elif step.name == "write":
                assert isinstance(node, _File)
                node.written.append(step.data)
            elif step.name == "sync":
                assert isinstance(node, _File)
                node.durable += b"".join(node.written)
                node.written = []
            elif step.name == "rename":
                assert node is not None
                enter(step.target, node)
                enter(step.path, None)
            elif step.name == "remove":
                enter(step.path, None)
            elif step.name == "mark_durable":
                assert isinstance(node, _Directory)
                node.marked = True
            else:
                assert isinstance(node, _Directory)
                node.durable = node.entries(-1)
                node.pending = []
        return files, directories, root

    def _record(self, name: str, path: str, data: bytes = b"", target: str = "") -> None:
        if self._inside(path):
            self._steps.append(_Step(name, self._relative(path), data, self._relative(target) if target else ""))

    def _inside(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + "/")

    def _relative(self, path: str) -> str:
        return path[len(self._root) + 1 :]

    def create(self, path: str) -> int:
        """See `Disk.create`."""
        fd = self._disk.create(path)
        self._open[fd] = path
        self._record("create", path)
        return fd

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        """See `Disk.write`."""
        done = self._disk.write(fd, data)
        self._record("write", self._open[fd], bytes(data[:done]))
        return done

    def sync(self, fd: int) -> None:
        """See `Disk.sync`."""
        self._disk.sync(fd)
        self._record("sync", self._open[fd])

    def close(self, fd: int) -> None:
        """See `Disk.close`."""
        self._open.pop(fd, None)
        self._disk.close(fd)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self._disk.make_directory(path)
        self._record("make_directory", path)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self._disk.rename(source, target)
        self._record("rename", source, target=target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self._disk.remove(path)
        self._record("remove", path)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self._disk.sync_directory(path)
        self._record("sync_directory", path)

    def mark_durable(self, path: str) -> None:
        """See `Disk.mark_durable`."""
        self._disk.mark_durable(path)
        self._record("mark_durable", path)


def _tree(root: _Directory, applied: dict[int, int], variant: dict[int, int]) -> State:
    files: dict[str, bytes] = {}
    directories: set[str] = set()
    marked: set[str] = set()

    def visit(directory: _Directory, prefix: str) -> None:
        for name, node in directory.entries(applied[id(directory)]).items():
            if isinstance(node, _File):
                files[prefix + name] = node.contents()[variant[id(node)]]
            else:
                directories.add(prefix + name)
                if node.marked:
                    marked.add(prefix + name)
                visit(node, f"{prefix}{name}/")

    visit(root, "")
    return State(files, frozenset(directories), frozenset(marked))

"""A home with workspaces whose trees are directories, or in memory: the engine must not take the one for the other."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.history import undo as history
from holdfast.engine.history.checkpoint import create_checkpoint
from holdfast.engine.history.status import status
from holdfast.engine.opening.context import Context
from holdfast.engine.opening.opener import Opener
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.entries import SYMLINK_MODE
from holdfast.model.ids import CheckpointId, WorkspaceId
from holdfast.store.catalog_records import WorkspaceRow
from holdfast.testing.clocks import ManualClock
from holdfast.testing.memory_tree import MemoryTree

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from holdfast.files.tree import ApplyNotes, ApplyResult, CleanResult, EntryLookup, SavedManifest, ScanResult, Tree
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.content import BlobSink, Content, Progress, Supply
    from holdfast.model.entries import Change, Entry
    from holdfast.model.ids import Hash
    from holdfast.testing.trees import EditableTree

State = dict[bytes, tuple[int, bytes]]


class Crash(Exception):
    """Ends a restore somewhere in its middle."""


class Meddled:
    """A tree, with something that happens before it is looked at, between the plan of a restore and its writes, or in
    their middle.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.before_scan: Callable[[], object] = lambda: None
        self.before_apply: Callable[[], object] = lambda: None
        self.writes_left: int | None = None
        self.calls: list[str] = []

    def scan(
        self,
        sink: BlobSink,
        *,
        base: Hash | None = None,
        lookup: EntryLookup | None = None,
        saved: SavedManifest | None = None,
        full_hash: bool = False,
        progress: Progress | None = None,
        meanwhile: Callable[[], None] | None = None,
        also: Container[bytes] = (),
    ) -> ScanResult:
        self.calls.append("scan")
        self.before_scan()
        return self._tree.scan(
            sink,
            base=base,
            lookup=lookup,
            saved=saved,
            full_hash=full_hash,
            progress=progress,
            meanwhile=meanwhile,
            also=also,
        )

    def make_root(self) -> None:
        self._tree.make_root()

    def settle(self, root: Hash) -> None:
        self._tree.settle(root)

    def read(self, path: bytes) -> Content:
        return self._tree.read(path)

    def is_there(self, path: bytes, *, directories: bool = False) -> bool:
        return self._tree.is_there(path, directories=directories)

    def share(self, path: bytes, entry: Entry) -> int | None:
        return self._tree.share(path, entry)

    def apply(
        self,
        deletes: Sequence[Change],
        writes: Iterable[tuple[Change, Content | Supply | None]],
        *,
        nonce: str,
        progress: Progress | None = None,
        notes: ApplyNotes | None = None,
    ) -> ApplyResult:
        self.calls.append("apply")
        self.before_apply()
        return self._tree.apply(deletes, self._cut(writes), nonce=nonce, progress=progress, notes=notes)

    def clean(self, nonce: str) -> CleanResult:
        return self._tree.clean(nonce)

    def _cut(
        self, writes: Iterable[tuple[Change, Content | Supply | None]]
    ) -> Iterator[tuple[Change, Content | Supply | None]]:
        for number, write in enumerate(writes):
            if number == self.writes_left:
                raise Crash
            yield write
        if self.writes_left is not None:
            raise Crash


class Directory:
    """A directory, edited as any program would."""

    def __init__(self, root: bytes) -> None:
        self.root = root

    def write(self, path: bytes, content: bytes, permissions: int = 0o644) -> None:
        full = self._make_way(path)
        with open(full, "wb") as file:
            file.write(content)
        os.chmod(full, permissions)

    def symlink(self, path: bytes, target: bytes) -> None:
        os.symlink(target, self._make_way(path))

    def special(self, path: bytes) -> None:
        os.mkfifo(self._make_way(path))

    def chmod(self, path: bytes, permissions: int) -> None:
        os.chmod(os.path.join(self.root, path), permissions)

    def mkdir(self, path: bytes) -> None:
        os.makedirs(os.path.join(self.root, path), exist_ok=True)

    def delete(self, path: bytes) -> None:
        full = os.path.join(self.root, path)
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        else:
            os.unlink(full)

    def contents(self) -> State:
        found: State = {}
        for parent, directories, files in os.walk(self.root):
            for name in [*directories, *files]:
                full = os.path.join(parent, name)
                path = os.path.relpath(full, self.root)
                if os.path.islink(full):
                    found[path] = (SYMLINK_MODE, os.readlink(full))
                elif os.path.isfile(full):
                    found[path] = (os.stat(full).st_mode, Path(os.fsdecode(full)).read_bytes())
        return found

    def _make_way(self, path: bytes) -> bytes:
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if os.path.islink(full):
            os.unlink(full)
        return full


class Space(NamedTuple):
    """A workspace: its tree as others edit it, and as the engine sees it."""

    edit: EditableTree | Directory | MemoryTree
    tree: Meddled
    context: Context
    clock: ManualClock

    def save(self, label: str = "", **options: object) -> CheckpointId:
        request = CheckpointRequest(label=label, **options)  # type: ignore[arg-type]
        result = create_checkpoint(self.context, request)
        assert result.created
        return result.checkpoint.id

    def state(self) -> State:
        return dict(self.edit.contents())

    def undo(self, number: int = 1) -> RestoreResult:
        return history.undo(self.context, number)

    def redo(self, number: int = 1) -> RestoreResult:
        return history.redo(self.context, number)

    def head(self) -> CheckpointId | None:
        return self.context.catalog.cursor(self.context.workspace.id).head

    def clean(self) -> bool:
        return status(self.context, watching=False).clean


class House:
    """A home, and workspaces of one kind of tree in it."""

    def __init__(self, kind: str, place: Path, catalog: str = "") -> None:
        """``catalog`` is the URL of one that is not in the home."""
        self.kind = kind
        self.place = place
        self.clock = ManualClock()
        flags = {"store.catalog": catalog} if catalog else {}
        self.opener = Opener(home=bytes(place / "home"), clock=self.clock, flags=flags)
        self._numbers = count(1)

    def new(self, source: CheckpointId | None = None) -> Space:
        number = next(self._numbers)
        path = bytes(self.place / f"tree{number}")
        if self.kind == "directory":
            os.mkdir(path)
            context, _ = self.opener.init(path, source=source)
            store, workspace, settings, folder = context.store, context.workspace, context.settings, context.folder
            edit: Directory | MemoryTree = Directory(path)
            tree = Meddled(context.tree)
        else:
            store = self.opener.store()
            workspace = WorkspaceRow(
                WorkspaceId(f"{number:016x}"), path, 0, number, self.clock.now(), source=source, live=True
            )
            store.catalog.add_workspace(workspace)
            edit = MemoryTree()
            tree = Meddled(edit)
            settings, folder = self.opener.settings(None), bytes(self.place / "home" / "workspaces" / workspace.id)
            os.makedirs(folder)
        context = Context(
            workspace=workspace,
            make_tree=lambda: tree,
            store=store,
            settings=settings,
            folder=folder,
            clock=self.clock,
            random=os.urandom,
        )
        return Space(edit, tree, context, self.clock)


def filled(space: Space) -> CheckpointId:
    """A first checkpoint with a little of everything."""
    space.edit.write(b"keep", b"k\n")
    space.edit.write(b"d/run", b"#!\n", 0o755)
    space.edit.write(b"d/e/deep", b"deep\n")
    space.edit.symlink(b"link", b"d/run")
    space.edit.write(b"\xff\xfe name", b"not UTF-8\n")
    return space.save("first")

"""The engine's use-cases over every implementation of the tree port: none of them may take the tree for a directory."""

from __future__ import annotations

import os
import shutil
import stat
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from holdfast.engine import history
from holdfast.engine.bundle_export import export_bundle
from holdfast.engine.bundle_import import import_bundle
from holdfast.engine.changes import changes_of
from holdfast.engine.checkpoint import Request, take
from holdfast.engine.context import Context
from holdfast.engine.diff import Contents, diff
from holdfast.engine.forget import forget
from holdfast.engine.fork import fork
from holdfast.engine.opening import Opener
from holdfast.engine.restore import abandon, restore, resume, unfinished
from holdfast.engine.retention import Policy
from holdfast.engine.status import status
from holdfast.engine.textdiff import patch
from holdfast.engine.upkeep import collect, stats, verify
from holdfast.model.checkpoint import Provenance
from holdfast.model.entries import SYMLINK_MODE
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError, UsageError
from holdfast.model.ids import CheckpointId, WorkspaceId
from holdfast.store import manifest
from holdfast.store.records import Workspace
from holdfast.testing.clocks import ManualClock
from holdfast.testing.memory_tree import MemoryTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.engine.results import RestoreResult
    from holdfast.files.tree import Applied, Cleaned, Lookup, Saved, Scan, Tree
    from holdfast.model.entries import Change, Entry
    from holdfast.model.ids import Hash
    from holdfast.model.sinks import BlobSink, Content, Progress
    from holdfast.testing.trees import EditableTree

State = dict[bytes, tuple[int, bytes]]

FILE = stat.S_IFREG | 0o644
PROGRAM = stat.S_IFREG | 0o755


class Crash(Exception):
    """Ends a restore somewhere in its middle."""


class Meddled:
    """A tree, with something that happens between the plan of a restore and its writes, or in their middle."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.before_apply: Callable[[], object] = lambda: None
        self.writes_left: int | None = None
        self.calls: list[str] = []

    def scan(
        self,
        sink: BlobSink,
        *,
        base: Hash | None = None,
        lookup: Lookup | None = None,
        saved: Saved | None = None,
        full_hash: bool = False,
        progress: Progress | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Scan:
        self.calls.append("scan")
        return self._tree.scan(
            sink,
            base=base,
            lookup=lookup,
            saved=saved,
            full_hash=full_hash,
            progress=progress,
            meanwhile=meanwhile,
        )

    def make_root(self) -> None:
        self._tree.make_root()

    def settle(self, root: Hash) -> None:
        self._tree.settle(root)

    def read(self, path: bytes) -> Content:
        return self._tree.read(path)

    def is_there(self, path: bytes) -> bool:
        return self._tree.is_there(path)

    def share(self, path: bytes, entry: Entry) -> int | None:
        return self._tree.share(path, entry)

    def apply(
        self,
        deletes: Sequence[Change],
        writes: Iterable[tuple[Change, Content | None]],
        *,
        nonce: str,
        progress: Progress | None = None,
    ) -> Applied:
        self.calls.append("apply")
        self.before_apply()
        return self._tree.apply(deletes, self._cut(writes), nonce=nonce, progress=progress)

    def clean(self, nonce: str) -> Cleaned:
        return self._tree.clean(nonce)

    def _cut(self, writes: Iterable[tuple[Change, Content | None]]) -> Iterator[tuple[Change, Content | None]]:
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
        request = Request(label=label, **options)  # type: ignore[arg-type]
        result = take(self.context, request)
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

    def __init__(self, kind: str, place: Path) -> None:
        self.kind = kind
        self.place = place
        self.clock = ManualClock()
        self.opener = Opener(home=bytes(place / "home"), clock=self.clock)
        self._numbers = count(1)

    def new(self, source: CheckpointId | None = None) -> Space:
        number = next(self._numbers)
        path = bytes(self.place / f"tree{number}")
        if self.kind == "directory":
            os.mkdir(path)
            context, _ = self.opener.init(path, source=source)
            edit: Directory | MemoryTree = Directory(path)
            tree = Meddled(context.tree)
        else:
            store = self.opener.store()
            workspace = Workspace(
                WorkspaceId(f"{number:016x}"), path, 0, number, self.clock.now(), source=source, live=True
            )
            store.catalog.add_workspace(workspace)
            edit = MemoryTree()
            tree = Meddled(edit)
            folder = self.place / "home" / "workspaces" / workspace.id
            folder.mkdir(parents=True)
            context = Context(
                workspace=workspace,
                make_tree=lambda: tree,
                store=store,
                settings=self.opener.settings(None),
                folder=bytes(folder),
                clock=self.clock,
                random=os.urandom,
            )
        context._tree = tree
        return Space(edit, tree, context, self.clock)


@pytest.fixture(params=["directory", "memory"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    house = House(request.param, tmp_path)
    yield house
    space = house.new()
    found = verify(space.context, read_data=True)
    assert found.ok, found.problems
    house.opener.close()
    if house.kind == "memory":
        assert os.listdir(tmp_path) == ["home"], "something was made where the workspace only claims to be"


@pytest.fixture
def space(house: House) -> Space:
    return house.new()


def filled(space: Space) -> CheckpointId:
    """A first checkpoint with a little of everything."""
    space.edit.write(b"keep", b"k\n")
    space.edit.write(b"d/run", b"#!\n", 0o755)
    space.edit.write(b"d/e/deep", b"deep\n")
    space.edit.symlink(b"link", b"d/run")
    space.edit.write(b"\xff\xfe name", b"not UTF-8\n")
    return space.save("first")


# --- checkpoint and status


def test_nothing_changed_is_no_new_checkpoint(space: Space) -> None:
    first = filled(space)
    again = take(space.context, Request())
    assert not again.created
    assert again.checkpoint.id == first
    assert [checkpoint.id for checkpoint in space.context.catalog.checkpoints()] == [first]


def test_a_label_then_names_the_existing_one(space: Space) -> None:
    space.edit.write(b"f", b"1")
    first = take(space.context, Request(kind="auto", label="auto-2026"))
    named = take(space.context, Request(label="mine"))
    assert (named.created, named.checkpoint.id) == (False, first.checkpoint.id)
    assert (named.checkpoint.label, named.checkpoint.kind) == ("mine", "manual")
    other = take(space.context, Request(label="other"))
    assert (other.created, other.checkpoint.label) == (False, "mine")
    assert take(space.context, Request(kind="auto", label="auto-later")).checkpoint.label == "mine"


def test_what_is_saved_by_hand_as_well_is_kept_with_what_is_said_of_it(space: Space) -> None:
    space.edit.write(b"f", b"1")
    take(space.context, Request(kind="auto", label="auto-2026"))
    mine = take(space.context, Request(provenance=Provenance("ada", "why"))).checkpoint
    assert (mine.kind, mine.label, mine.provenance) == ("manual", "", Provenance("ada", "why"))
    more = take(space.context, Request(label="done", provenance=Provenance("bob", "other", "make"))).checkpoint
    assert (more.id, more.label, more.provenance) == (mine.id, "done", Provenance("ada", "why", "make"))
    assert take(space.context, Request()).checkpoint == more


def test_a_label_that_nobody_may_use_saves_nothing(space: Space) -> None:
    space.edit.write(b"f", b"1")
    with pytest.raises(UsageError):
        take(space.context, Request(label="@"))
    assert space.head() is None
    assert space.tree.calls == []


def test_an_empty_tree_is_a_state(space: Space) -> None:
    first = space.save()
    assert space.context.catalog.checkpoint(first).total_files == 0
    space.edit.write(b"f", b"1")
    space.save()
    space.undo()
    assert space.state() == {}
    assert space.head() == first


def test_a_checkpoint_keeps_who_and_why_and_what_changed(space: Space) -> None:
    filled(space)
    space.edit.write(b"keep", b"k2\n")
    space.edit.delete(b"d/e/deep")
    space.edit.write(b"new", b"n")
    why = Provenance("ada", "because", "make all")
    result = take(space.context, Request(kind="run", provenance=why))
    checkpoint = space.context.catalog.checkpoint(result.checkpoint.id)
    assert (checkpoint.kind, checkpoint.provenance) == ("run", why)
    assert checkpoint.changes == (1, 1, 1)
    assert [(change.path, change.status) for change in changes_of(space.context, checkpoint)] == [
        (b"d/e/deep", "D"),
        (b"keep", "M"),
        (b"new", "A"),
    ]


def test_what_cannot_be_captured_is_recorded_and_shown(space: Space) -> None:
    space.edit.write(b"f", b"1")
    space.edit.special(b"d/strange")
    result = take(space.context, Request())
    assert [path for path, _ in result.not_captured] == [b"d/strange"]
    assert space.context.catalog.not_captured(result.checkpoint.id) == list(result.not_captured)
    assert result.checkpoint.not_captured == 1
    assert list(status(space.context, watching=False).not_captured) == list(result.not_captured)


def test_status_changes_nothing(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.delete(b"link")
    found = status(space.context, watching=False)
    assert [(change.path, change.status) for change in found.changes] == [(b"keep", "M"), (b"link", "D")]
    assert not found.clean
    assert space.head() == first
    assert len(space.context.catalog.events(space.context.workspace.id)) == 1


def test_only_permissions_changed(space: Space) -> None:
    first = filled(space)
    space.edit.chmod(b"keep", 0o700)
    second = space.save()
    assert space.context.catalog.checkpoint(second).changes == (0, 1, 0)
    assert space.context.catalog.checkpoint(second).new_blobs == 0
    restore(space.context, first)
    assert space.state()[b"keep"] == (FILE, b"k\n")
    space.undo()
    assert space.state()[b"keep"] == (stat.S_IFREG | 0o700, b"k\n")


# --- diff


def text(space: Space, base: CheckpointId | None, target: CheckpointId | None, *paths: bytes) -> bytes:
    found = diff(space.context, base, target, paths=paths)
    return b"".join(patch(found, Contents(space.context, found).fetch))


def test_diff_of_two_checkpoints_and_of_the_tree_is_the_same(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"k\nmore\n")
    space.edit.delete(b"link")
    space.edit.write(b"new", b"n\n")
    lines = text(space, first, None)
    assert b"\n+more\n" in lines
    assert b"\n+n\n" in lines
    assert b"\n-d/run\n" in lines
    second = space.save()
    assert text(space, first, second) == lines
    assert text(space, second, None) == b""
    assert b"+more" not in text(space, first, second, b"new")


def test_diff_finds_a_moved_file_in_the_tree(space: Space) -> None:
    content = b"".join(b"line %d\n" % number for number in range(50))
    space.edit.write(b"old/name", content)
    first = space.save()
    space.edit.delete(b"old/name")
    space.edit.write(b"new/name", content + b"one more\n")
    (renamed,) = diff(space.context, first, None).renamed
    assert (renamed.before_path, renamed.path) == (b"old/name", b"new/name")
    assert b"+one more\n" in text(space, first, None)


def test_a_file_that_changes_under_a_diff_is_said(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2\n")
    found = diff(space.context, first, None)
    space.edit.write(b"keep", b"33\n")
    with pytest.raises(RefusedError, match="changed while"):
        list(patch(found, Contents(space.context, found).fetch))


# --- restore


def test_a_full_restore_brings_exactly_that_state(space: Space) -> None:
    first = filled(space)
    then = space.state()
    space.edit.delete(b"d")
    space.edit.write(b"d", b"a file now")
    space.edit.delete(b"link")
    space.edit.write(b"link/inner", b"a directory now")
    space.edit.write(b"\xff\xfe name", b"changed")
    space.edit.write(b"new/file", b"n")
    changed = space.state()
    result = restore(space.context, first)
    assert not result.skipped
    assert space.state() == then
    assert space.clean()
    assert space.head() == first
    assert result.rescue is not None
    assert space.context.catalog.checkpoint(result.rescue).kind == "rescue"
    restore(space.context, result.rescue)  # I6
    assert space.state() == changed
    assert space.clean()


def test_a_restore_touches_only_what_differs(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"extra", b"x")
    result = restore(space.context, first)
    assert (list(result.written), list(result.deleted)) == ([b"keep"], [b"extra"])
    again = restore(space.context, first)
    assert (list(again.written), list(again.deleted)) == ([], [])


def test_a_restore_of_some_paths_leaves_the_others(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"d/run", b"2", 0o755)
    space.edit.write(b"d/extra", b"x")
    dirty = space.state()
    result = restore(space.context, first, [b"d"])
    assert sorted([*result.written, *result.deleted]) == [b"d/extra", b"d/run"]
    assert space.state() == {
        **{path: at for path, at in dirty.items() if path != b"d/extra"},
        b"d/run": (PROGRAM, b"#!\n"),
    }
    assert not space.clean()
    space.undo()
    assert space.state() == dirty
    with pytest.raises(NotFoundError):
        restore(space.context, first, [b"nowhere"])
    assert space.state() == dirty


def test_a_dry_run_changes_nothing_at_all(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"extra", b"x")
    catalog, mine = space.context.catalog, space.context.workspace.id
    before = space.state(), catalog.cursor(mine), catalog.events(mine), catalog.checkpoints(), catalog.stats()
    result = restore(space.context, first, dry_run=True)
    assert (list(result.written), list(result.deleted), result.rescue) == ([b"keep"], [b"extra"], None)
    assert result.dry_run
    undone = history.undo(space.context, dry_run=True)
    assert (list(undone.written), list(undone.deleted)) == ([b"keep"], [b"extra"])
    assert (
        space.state(),
        catalog.cursor(mine),
        catalog.events(mine),
        catalog.checkpoints(),
        catalog.stats(),
    ) == before
    assert "apply" not in space.tree.calls
    done = restore(space.context, first)
    assert (done.written, done.deleted) == (result.written, result.deleted)


def test_what_changes_between_the_plan_and_the_write_is_left_alone_and_said(space: Space) -> None:
    # I6, I8: the other's edit is neither overwritten nor deleted, and the printed command takes the restore back.
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"extra", b"x")
    space.edit.delete(b"d/e/deep")
    space.edit.delete(b"d/run")
    before = space.state()

    def meddle() -> None:
        space.edit.write(b"keep", b"mine!")
        space.edit.write(b"extra", b"mine too")
        space.edit.write(b"d/e/deep", b"and this")

    space.tree.before_apply = meddle
    result = restore(space.context, first)
    space.tree.before_apply = lambda: None
    assert {path for path, _ in result.skipped} == {b"keep", b"extra", b"d/e/deep"}
    assert all(reason for _, reason in result.skipped)
    now = space.state()
    assert (now[b"keep"][1], now[b"extra"][1], now[b"d/e/deep"][1]) == (b"mine!", b"mine too", b"and this")
    assert result.undo_command == "holdfast undo"
    undone = space.undo()
    assert not undone.skipped
    assert space.state() == before
    kept = space.context.catalog.checkpoint(history_of(space, 1))
    assert {path for path, _ in manifest.iterate(space.context.store.pages, kept.root)} >= {b"keep", b"extra"}


def test_a_restore_that_left_everything_alone_offers_no_undo(space: Space) -> None:
    # I6: there is nothing of its own to take back, and what others did is not it.
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.tree.before_apply = lambda: space.edit.write(b"keep", b"mine!")
    result = restore(space.context, first)
    space.tree.before_apply = lambda: None
    assert [path for path, _ in result.skipped] == [b"keep"]
    assert result.undo_command is None


def history_of(space: Space, back: int) -> CheckpointId:
    return space.context.catalog.events(space.context.workspace.id)[back].checkpoint


def test_after_an_undo_that_left_something_alone_the_command_it_gives_takes_it_back(space: Space) -> None:
    filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.write(b"d/run", b"2", 0o755)
    space.save("second")
    before = space.state()
    space.tree.before_apply = lambda: space.edit.write(b"keep", b"mine!")
    result = space.undo()
    space.tree.before_apply = lambda: None
    assert [path for path, _ in result.skipped] == [b"keep"]
    assert result.undo_command is not None
    verb, command, name = result.undo_command.split()
    assert (verb, command) == ("holdfast", "restore")
    (rescue,) = space.context.catalog.by_prefix(name)
    restore(space.context, rescue)
    assert space.state() == before
    space.undo()
    assert space.state()[b"keep"][1] == b"mine!"


def test_ignored_files_survive_every_restore_and_undo(space: Space) -> None:
    # I5
    first = filled(space)
    space.edit.write(b"d/own.pid", b"17")
    space.edit.write(b"fresh/own.pid", b"18")
    space.edit.write(b"fresh/file", b"f")
    space.save()
    restore(space.context, first)
    assert space.state()[b"d/own.pid"][1] == b"17"
    assert space.state()[b"fresh/own.pid"][1] == b"18"
    assert b"fresh/file" not in space.state()
    space.undo()
    assert space.state()[b"fresh/file"][1] == b"f"
    assert space.state()[b"fresh/own.pid"][1] == b"18"


def test_what_no_checkpoint_holds_is_not_overwritten(space: Space) -> None:
    # I5: where the target has a file, something lies that could not be captured.
    first = filled(space)
    space.edit.delete(b"keep")
    space.edit.special(b"keep")
    result = restore(space.context, first)
    assert [path for path, _ in result.skipped] == [b"keep"]
    assert b"keep" not in space.state()


def test_damage_shows_before_anything_is_touched(house: House, space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", os.urandom(5000))
    second = space.save()
    restore(space.context, first)
    before = space.state()
    packs = sorted((house.place / "home" / "objects").rglob("*"), key=lambda path: path.stat().st_mtime_ns)
    broken = [(path, path.read_bytes()) for path in packs if path.is_file() and path.stat().st_size > 5000]
    assert broken
    fresh = Opener(home=bytes(house.place / "home"), clock=house.clock)
    try:
        for path, data in broken:
            path.chmod(0o600)
            path.write_bytes(data[:3000] + bytes([data[3000] ^ 255]) + data[3001:])
        space.context.store = fresh.store()
        with pytest.raises(IntegrityError):
            restore(space.context, second)
    finally:
        for path, data in broken:
            path.write_bytes(data)
    assert space.state() == before
    assert unfinished(space.context) is None
    restore(space.context, second)
    fresh.close()


@pytest.mark.parametrize("writes", [0, 1, 3])
@pytest.mark.parametrize("end", ["resume", "abandon"])
def test_a_restore_that_was_cut_short_is_finished_or_taken_back(space: Space, writes: int, end: str) -> None:
    # I3
    first = filled(space)
    then = space.state()
    for path in (b"keep", b"d/run", b"d/e/deep", b"link"):
        space.edit.delete(path)
    space.edit.write(b"extra", b"x")
    before = space.state()
    space.tree.writes_left = writes
    with pytest.raises(Crash):
        restore(space.context, first)
    space.tree.writes_left = None
    journal = unfinished(space.context)
    assert journal is not None
    assert journal.target == first
    for refused in (lambda: restore(space.context, first), space.undo, space.redo):
        with pytest.raises(RefusedError) as caught:
            refused()
        assert caught.value.code == "unfinished_restore"
    assert status(space.context, watching=False).unfinished_restore == first
    if end == "resume":
        resume(space.context)
        assert space.state() == then
        assert space.head() == first
        space.undo()
        assert space.state() == before
    else:
        half_way = space.state()
        result = abandon(space.context)
        assert space.state() == before
        assert space.head() == journal.rescue
        if half_way != before:
            # I6
            assert result.rescue is not None
            assert result.undo_command == f"holdfast restore {result.rescue[:12]}"
            restore(space.context, result.rescue)
            assert space.state() == half_way
        else:
            assert result.undo_command is None
    assert unfinished(space.context) is None
    with pytest.raises(NotFoundError):
        resume(space.context)


@pytest.mark.parametrize("end", [resume, abandon])
def test_what_was_made_after_a_restore_was_cut_short_is_not_deleted(
    space: Space, end: Callable[[Context], object]
) -> None:
    # I5: no rescue of that restore holds it.
    first = filled(space)
    space.edit.delete(b"keep")
    space.tree.writes_left = 0
    with pytest.raises(Crash):
        restore(space.context, first)
    space.tree.writes_left = None
    space.edit.write(b"made/since", b"precious")
    end(space.context)
    assert space.state()[b"made/since"][1] == b"precious"
    assert not space.clean()
    assert unfinished(space.context) is None


# --- history


def test_undo_walks_back_and_redo_forward(space: Space) -> None:
    states: list[State] = []
    for number in range(4):
        space.edit.write(b"f", b"%d" % number)
        if number % 2:
            space.edit.write(b"d/odd", b"%d" % number)
        space.save()
        states.append(space.state())
    space.edit.write(b"f", b"unsaved")
    states.append(space.state())
    for at in (3, 2, 1, 0):
        assert space.undo().undo_command == "holdfast redo"
        assert space.state() == states[at]
    with pytest.raises(NotFoundError) as caught:
        space.undo()
    assert caught.value.code == "nothing_to_undo"
    for at in (1, 2, 3, 4):
        space.redo()
        assert space.state() == states[at]
    with pytest.raises(NotFoundError) as caught:
        space.redo()
    assert caught.value.code == "nothing_to_redo"
    space.undo(3)
    assert space.state() == states[1]
    space.redo(2)
    assert space.state() == states[3]
    with pytest.raises(NotFoundError):
        space.undo(9)
    with pytest.raises(UsageError):
        space.undo(0)
    assert space.state() == states[3]


def test_undo_after_a_restore_goes_to_what_was_before_it(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.save("second")
    space.edit.write(b"keep", b"3 unsaved")
    before = space.state()
    restore(space.context, first)
    space.undo()
    assert space.state() == before
    space.undo()
    assert space.state()[b"keep"][1] == b"2"
    space.redo(2)
    assert space.head() == first


def test_a_change_after_an_undo_cuts_what_could_be_redone_but_loses_nothing(space: Space) -> None:
    filled(space)
    space.edit.write(b"keep", b"2")
    second = space.save()
    space.undo()
    space.edit.write(b"keep", b"other")
    with pytest.raises(RefusedError) as caught:
        space.redo()
    assert caught.value.code == "changed_since_undo"
    assert space.state()[b"keep"][1] == b"other"
    space.save()
    with pytest.raises(NotFoundError):
        space.redo()
    restore(space.context, second)
    assert space.state()[b"keep"][1] == b"2"
    space.undo()
    assert space.state()[b"keep"][1] == b"other"


def test_undo_steps_over_forgotten_checkpoints(space: Space) -> None:
    ids: list[CheckpointId] = []
    for number in range(5):
        space.edit.write(b"f", b"%d" % number)
        ids.append(space.save())
    forget(space.context, ids[1:4])
    space.undo()
    assert space.state()[b"f"][1] == b"0"
    space.redo()
    assert space.state()[b"f"][1] == b"4"


def test_a_tree_that_lost_everything_comes_back(space: Space) -> None:
    filled(space)
    before = space.state()
    for path in (b"keep", b"d", b"link", b"\xff\xfe name"):
        space.edit.delete(path)
    assert space.state() == {}
    space.undo()
    assert space.state() == before


# --- forks


def test_a_fork_of_a_fork_stands_on_its_own(house: House, space: Space) -> None:
    first = filled(space)
    made: list[Space] = []

    def make(source: CheckpointId) -> Callable[[], Context]:
        def open_fork() -> Context:
            made.append(house.new(source))
            return made[-1].context

        return open_fork

    result = fork(space.context, first, make(first))
    one = made[-1]
    assert result.written == 5
    assert one.state() == space.state()
    assert one.clean()
    assert one.context.catalog.checkpoint(result.checkpoint).parent == first
    assert one.context.catalog.checkpoint(result.checkpoint).kind == "fork"
    one.edit.write(b"keep", b"forked")
    second = one.save()
    fork(one.context, second, make(second))
    two = made[-1]
    assert two.state() == one.state()
    two.edit.delete(b"d")
    two.save()
    assert space.state()[b"keep"][1] == b"k\n"
    assert b"d/run" in one.state()
    two.undo()
    assert two.state() == one.state()
    with pytest.raises(NotFoundError):
        two.undo()
    # What a live fork stands on stays.
    space.edit.write(b"keep", b"later")
    space.save()
    for source in (first, second):
        with pytest.raises(RefusedError) as caught:
            forget(space.context, [source])
        assert caught.value.code == "protected"
    forgotten = forget(space.context, (), policy=Policy(keep_last=1))
    assert not forgotten.removed


def test_a_fork_that_was_cut_short_is_finished(house: House, space: Space) -> None:
    # I3
    first = filled(space)
    target = house.new(first)
    target.tree.writes_left = 2
    with pytest.raises(Crash):
        fork(space.context, first, lambda: target.context)
    target.tree.writes_left = None
    with pytest.raises(RefusedError):
        abandon(target.context)
    fork(space.context, first, lambda: target.context)
    assert target.state() == space.state()
    assert target.clean()
    other = house.new(first)
    other.tree.writes_left = 4
    with pytest.raises(Crash):
        fork(space.context, first, lambda: other.context)
    other.tree.writes_left = None
    resume(other.context)
    assert other.state() == space.state()
    assert other.clean()


def test_a_fork_overwrites_nothing(house: House, space: Space) -> None:
    first = filled(space)
    target = house.new(first)
    target.edit.write(b"keep", b"somebody's")
    with pytest.raises(RefusedError, match="keep"):
        fork(space.context, first, lambda: target.context)
    assert target.state()[b"keep"][1] == b"somebody's"


# --- forgetting, collecting, statistics, bundles


def test_forgetting_composes_what_changed(space: Space) -> None:
    ids: list[CheckpointId] = []
    for number in range(6):
        space.edit.write(b"always", b"%d" % number)
        space.edit.write(b"new%d" % number, b"n")
        if number:
            space.edit.delete(b"new%d" % (number - 1))
        if number == 3:
            space.edit.write(b"always", b"0")
        ids.append(space.save())
    catalog = space.context.catalog
    forget(space.context, [ids[1], ids[3], ids[2]])
    heir = catalog.checkpoint(ids[4])
    assert heir.parent == ids[0]
    expected = manifest.diff(space.context.store.pages, catalog.checkpoint(ids[0]).root, heir.root)
    assert changes_of(space.context, heir) == expected
    assert heir.changes == (1, 1, 1)
    forget(space.context, [ids[0]])
    heir = catalog.checkpoint(ids[4])
    assert heir.parent is None
    assert heir.changes == (heir.total_files, 0, 0)
    with pytest.raises(RefusedError) as caught:
        forget(space.context, [ids[4], ids[5]])
    assert caught.value.code == "protected"
    assert catalog.checkpoint(ids[4]).id == ids[4], "nothing was removed"


def test_a_policy_can_be_tried_first(space: Space) -> None:
    for number in range(4):
        space.edit.write(b"f", b"%d" % number)
        space.save()
        space.clock.advance(3600)
    tried = forget(space.context, (), policy=Policy(keep_last=2), dry_run=True)
    assert (len(tried.removed), len(tried.kept), tried.dry_run) == (2, 2, True)
    assert len(space.context.catalog.checkpoints()) == 4
    done = forget(space.context, (), policy=Policy(keep_last=2))
    assert done.removed == tried.removed
    assert len(space.context.catalog.checkpoints()) == 2


def test_collection_waits_for_the_grace_time(space: Space) -> None:
    # I11
    space.edit.write(b"f", os.urandom(4000))
    first = space.save()
    space.edit.write(b"f", os.urandom(4000))
    space.save()
    forget(space.context, [first])
    assert collect(space.context).blobs_deleted == 0
    space.clock.advance(space.context.settings.gc.grace - 60)
    assert collect(space.context).blobs_deleted == 0
    space.clock.advance(120)
    assert collect(space.context).bytes_freed >= 4000
    assert stats(space.context).dead_bytes == 0
    assert verify(space.context, read_data=True).ok


def test_collection_between_two_saves_takes_nothing_that_comes_back(space: Space) -> None:
    # I11: the tree remembers content that the store has let go.
    content = os.urandom(4000)
    space.edit.write(b"keep", b"k")
    space.edit.write(b"f", content)
    first = space.save()
    space.edit.delete(b"f")
    space.save()
    forget(space.context, [first])
    space.clock.advance(space.context.settings.gc.grace + 60)
    assert collect(space.context).blobs_deleted
    space.edit.write(b"f", content)
    space.save()
    assert verify(space.context, read_data=True).ok
    space.edit.delete(b"f")
    space.undo()
    assert space.state()[b"f"][1] == content


def test_statistics_name_the_largest(space: Space) -> None:
    space.edit.write(b"big/one", os.urandom(9000))
    space.edit.write(b"small", b"s")
    space.save()
    found = stats(space.context)
    assert found.largest[0] == (b"big", 9000)
    assert found.content_bytes == 9001


def test_a_bundle_carries_checkpoints_to_another_tree(house: House, space: Space, tmp_path: Path) -> None:
    first = filled(space)
    then = space.state()
    file = bytes(house.place / "home" / "bundle")
    export_bundle(space.context, [first], file)
    other = House(house.kind, tmp_path / "home" / "elsewhere")
    os.mkdir(other.place)
    there = other.new()
    (taken,) = import_bundle(there.context, file)
    restore(there.context, taken)
    assert there.state() == then
    other.opener.close()


def test_large_files_are_streamed_through_either_tree(space: Space) -> None:
    content = os.urandom(1 << 20) * 3
    space.edit.write(b"large", content + b"1")
    first = space.save()
    space.edit.write(b"large", content + b"2")
    space.save()
    restore(space.context, first)
    assert space.state()[b"large"][1] == content + b"1"

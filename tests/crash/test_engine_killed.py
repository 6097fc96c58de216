"""I3: every operation of the engine, killed at every durable step, leaves a sound store and a tree that can be mended.

Cases 1 and 3: killed at every step, and again while it mends what was cut short, it converges.

Each death is real: a child process kills itself with SIGKILL just before one of its changes. Which of them are tried is
said in `Place.deaths`.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from holdfast.files.write import _file_creator as file_creator
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.testing.crash_points import run_killed

from ..older_notes import age
from ..sampling import spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from crash.conftest import Item, Place, State
    from holdfast.engine.workspace.workspace import Workspace


def test_i3_killed_while_it_begins_to_remember(place: Place) -> None:
    place.path(b"a").write_bytes(b"a")
    for death in place.deaths(lambda: place.init().close(), most=9):
        with place.init() as workspace:
            assert workspace.checkpoint().checkpoint.total_files == 1, death
        place.sound()
        assert set(place.look()) == {b"a"}, death


@pytest.mark.parametrize("which", ["first", "changes", "nothing new but a label"])
def test_i3_a_checkpoint_exists_whole_or_not_at_all(place: Place, which: str) -> None:
    if which == "first":
        place.init().close()
    else:
        place.history()
    if which.startswith("nothing"):
        with place.open() as workspace:
            workspace.checkpoint()
    elif which == "first":
        place.history_tree()
    before = place.look()
    known = dict(place.known)

    def work() -> None:
        with place.open() as workspace:
            workspace.checkpoint("it", message="why")

    for death in place.deaths(work, most=9):
        place.known = dict(known)
        assert place.look() == before, death
        with place.open() as workspace:
            log = workspace.log().checkpoints
            made = [one for one in log if one.id not in known and one.label == "it"]
            if made:
                place.known[made[0].id] = place.saved(before)
        place.sound()
        with place.open() as workspace:
            result = workspace.checkpoint("it")
            assert result.created is (not made and not which.startswith("nothing")), death
            assert result.checkpoint.label == "it", death
            place.known[result.checkpoint.id] = place.saved(before)
            if which == "changes":
                workspace.undo()
                assert place.saved(place.look()) == place.state("second"), death
        place.sound()


GOING: dict[str, Callable[[Workspace], object]] = {
    "restore": lambda workspace: workspace.restore("first"),
    "restore of some paths": lambda workspace: workspace.restore("first", [b"d", b"gone", b"big", b"to-dir"]),
    "undo": lambda workspace: workspace.undo(2),
    "redo": lambda workspace: workspace.redo(2),
}


def begin(place: Place, operation: str) -> None:
    if operation == "redo":
        with place.open() as workspace:
            workspace.undo(2)


def go(place: Place, operation: str) -> Callable[[], None]:
    def work() -> None:
        with place.open() as workspace:
            GOING[operation](workspace)

    return work


def expected(place: Place, operation: str) -> tuple[State, State]:
    """What the tree holds before the operation, and what it must hold after it."""
    place.keep("start")
    before = place.look()
    go(place, operation)()
    after = place.look()
    place.put_back("start")
    if operation in ("restore", "undo"):
        assert place.saved(after) == place.state("first")
    if operation == "redo":
        assert place.saved(after) == place.state("unsaved")
    assert place.ignored(after) == place.ignored(before)
    return before, after


@pytest.fixture
def with_mates(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few files there are, two processes write them: a death may be that of either."""
    monkeypatch.setattr(file_creator, "MIN_FILES", 1)
    monkeypatch.setattr(file_creator, "_PORTION_FILES", 2)


WRITERS = pytest.mark.parametrize("writer", ["this version", "an older one"])
"""What has written the record that is found."""


def update(place: Place, writer: str) -> None:
    """If an older version was killed, this one finds its note."""
    if writer != "this version":
        with place.open() as workspace:
            age(workspace.folder)


@pytest.mark.usefixtures("with_mates")
@WRITERS
@pytest.mark.parametrize("operation", GOING)
def test_i3_what_was_cut_short_is_finished_or_taken_back(lived: Place, operation: str, writer: str) -> None:
    begin(lived, operation)
    before, after = expected(lived, operation)
    cut = 0
    for death in lived.deaths(go(lived, operation), most=9 if writer == "this version" else 7):
        update(lived, writer)
        at = lived.look()
        with lived.open() as workspace:
            journal = workspace.unfinished()
            assert (workspace.status().unfinished_restore is None) is (journal is None)
        lived.sound(collect=False)
        assert lived.ignored(at) == lived.ignored(before), death
        lived.nothing_torn(at, before, after, death)
        if journal is None:
            assert at in (before, after), death
            lived.sound()
            continue
        cut += 1
        for way in ("continue", "abort"):
            death.die()
            update(lived, writer)
            with lived.open() as workspace:
                if workspace.unfinished() is None:
                    continue  # threads: it came to another step this time
                with pytest.raises(RefusedError, match="cut short"):
                    workspace.undo()
            mend(lived, way)
            assert lived.look() == (after if way == "continue" else before), f"{way} after {death}"
            settled(lived, operation, way, death)
    assert cut


def mend(place: Place, way: str) -> None:
    with place.open() as workspace:
        result = workspace.restore_continue() if way == "continue" else workspace.restore_abort()
        assert result.skipped == []


def settled(place: Place, operation: str, way: str, death: object) -> None:
    """Nothing is left to mend, a second time does nothing, and undo goes on working."""
    now = place.look()
    with place.open() as workspace:
        assert workspace.unfinished() is None
        for again in (workspace.restore_continue, workspace.restore_abort):
            with pytest.raises(NotFoundError):
                again()
        assert place.look() == now
    place.sound()
    with place.open() as workspace:
        there, back = workspace.undo, workspace.redo
        if (operation, way) in (("undo", "continue"), ("redo", "abort")):
            there, back = back, there  # the tree is in the first state of all
        there()
        assert place.look() != now, f"{way} after {death}"
        back()
        assert place.look() == now, f"{way} after {death}"
    place.sound(collect=False)


@WRITERS
@pytest.mark.parametrize("way", ["continue", "abort"])
@pytest.mark.parametrize("operation", ["restore", "undo"])
def test_i3_killed_again_while_it_mends_it_converges(lived: Place, operation: str, way: str, writer: str) -> None:
    before, after = expected(lived, operation)
    cut = 0
    lived.keep("start")
    for first in range(10, 200, 7):
        lived.put_back("start")
        run_killed(go(lived, operation), first)
        update(lived, writer)
        with lived.open() as workspace:
            if workspace.unfinished() is None:
                continue
        cut += 1
        for fatal in range(1, 400, 3 * spread(3)):
            ended = run_killed(lambda: mend(lived, way), fatal, told=True)
            with lived.open() as workspace:
                if workspace.unfinished() is None:
                    break
            assert ended.killed
            lived.nothing_torn(lived.look(), before, after, f"{first}, {fatal}")
        assert lived.look() == (after if way == "continue" else before), f"{way} after {first}"
        settled(lived, operation, way, first)
        if cut == 3:
            break
    assert cut, "something was cut short"


@pytest.mark.parametrize("way", ["continue", "abort"])
def test_i5_a_way_back_that_was_cut_short_deletes_only_what_the_restore_may_have_made(lived: Place, way: str) -> None:
    lived.keep("start")
    before = lived.look()
    run_killed(go(lived, "restore"), 60)
    at = lived.look()
    assert at not in (before, lived.state("first")), "it was half way"
    stranger = {b"gone/theirs": lived.item(0o644, b"made since"), b"else/theirs": lived.item(0o644, b"made since")}
    cut = 0
    for death in lived.deaths(lambda: mend(lived, "abort"), most=12):
        with lived.open() as workspace:
            journal = workspace.unfinished()
        if journal is None or (way == "continue" and journal.kind == "restore"):
            continue  # it had not begun, or had come to its end
        cut += 1
        lived.lay(stranger)
        mend(lived, way)
        assert lived.look() == {**before, **stranger}, death
        with lived.open() as workspace:
            assert workspace.unfinished() is None, death
        lived.sound(collect=False)
    assert cut


def test_i6_undo_takes_a_restore_of_some_paths_that_was_cut_short_back_as_one(lived: Place) -> None:
    before, after = expected(lived, "restore of some paths")
    half = 0
    for death in lived.deaths(go(lived, "restore of some paths"), most=10):
        at = lived.look()
        with lived.open() as workspace:
            if workspace.unfinished() is None:
                continue
            workspace.restore_continue()
            half += lived.saved(at) not in (lived.saved(before), lived.saved(after))
            assert lived.look() == after, death
            workspace.undo()
            assert lived.look() == before, death
            workspace.redo()
            assert lived.look() == after, death
        lived.sound(collect=False)
    assert half


@pytest.mark.usefixtures("with_mates")
def test_i3_a_fork_that_was_cut_short(lived: Place) -> None:
    target = lived.root / "fork"

    def work() -> None:
        with lived.open() as workspace:
            workspace.fork("first", target)

    before = lived.look()
    for death in lived.deaths(work, most=8):
        assert lived.look() == before, death
        lived.sound(collect=False)
        for way in ("again", "continue", "continue what an older version began"):
            death.die()
            if way != "again":
                try:
                    forked = lived.open(target)
                except NotFoundError:
                    continue
                with forked:
                    if way != "continue":
                        age(forked.folder)
                    if forked.unfinished() is None:
                        continue
                    forked.restore_continue()
            else:
                with lived.open() as workspace:
                    if target.exists() and done(lived, target):
                        continue
                    workspace.fork("first", target)
            assert lived.look(target) == lived.state("first"), f"{way} after {death}"
            with lived.open(target) as forked:
                assert forked.unfinished() is None, death
                assert forked.status().clean, death
                (target / "a").write_bytes(b"edited in the fork")
                forked.checkpoint()
                forked.undo()
            assert lived.look(target) == lived.state("first"), f"{way} after {death}"
            lived.sound()
            lived.sound(path=target)


def done(place: Place, target: object) -> bool:
    from pathlib import Path

    assert isinstance(target, Path)
    try:
        with place.open(target) as forked:
            return forked.path == bytes(target) and forked.status().clean and forked.unfinished() is None
    except NotFoundError:
        return False


def test_i3_forgetting_killed_anywhere_passes_the_changes_on(lived: Place) -> None:
    with lived.open() as workspace:
        last = workspace.checkpoint("last").checkpoint.id
        lived.known[last] = lived.state("unsaved")
        lived.path(b"a").write_bytes(b"once more")
        final = workspace.checkpoint("final").checkpoint.id
        lived.known[final] = lived.saved(lived.look())
    known = dict(lived.known)
    names = {name: one for one, name in zip(known, ("first", "second", "last", "final"), strict=True)}
    gone = {names["second"], names["last"]}

    def work() -> None:
        with lived.open() as workspace:
            workspace.forget(["second", "last"])

    for death in lived.deaths(work, most=9):
        with lived.open() as workspace:
            left = {one.id for one in workspace.log().checkpoints}
            assert left >= {names["first"], names["final"]}, death
            assert left <= set(known), death
        lived.known = {one: state for one, state in known.items() if one in left}
        lived.sound()
        work_again = [one for one in sorted(gone) if one in left]
        with lived.open() as workspace:
            if work_again:
                workspace.forget(work_again)
            changes = {change.path for change in workspace.show("final").changes}
            diff = {change.path for change in workspace.diff("first", "final", renames=False).changes}
            assert changes == diff, death
        lived.known = {one: state for one, state in known.items() if one not in gone}
        lived.sound()


def test_i11_a_collection_killed_anywhere_loses_nothing(lived: Place) -> None:
    """With dead blobs, a dead large one, and packs that are mostly dead, which are rewritten."""
    with lived.open() as workspace:
        workspace.checkpoint("third")
        for path in list(lived.look()):
            if path not in (b"same", b"b", b".gitignore") and not path.endswith(b".log"):
                lived.path(path).unlink()
        last = workspace.checkpoint("last").checkpoint
        workspace.forget(["first", "second", "third"])
    lived.known = {last.id: lived.saved(lived.look())}
    freed = set()

    def work() -> None:
        with lived.open() as workspace:
            workspace.gc(grace=0)

    for death in lived.deaths(work, most=11):
        lived.sound(collect=False)
        work()
        lived.sound()
        objects = lived.home / "objects"
        freed.add(sum(one.stat().st_size for one in objects.rglob("*") if one.is_file() and "tmp" not in str(one)))
        assert death
    assert len(freed) <= 2, f"whenever it was killed, the next one comes to the same end: {freed}"


def test_i3_an_import_killed_anywhere_is_finished_by_repeating_it(lived: Place) -> None:
    bundle = lived.base / "bundle"
    other = lived.root / "other"
    with lived.open() as workspace:
        workspace.export(["second"], bundle)
    shutil.rmtree(lived.home)
    known, lived.known = lived.known, {}
    with lived.init(other.mkdir() or other) as workspace:
        (other / "mine").write_bytes(b"mine")
        lived.known[workspace.checkpoint("mine").checkpoint.id] = lived.look(other)
    own = dict(lived.known)

    def work() -> None:
        with lived.open(other) as workspace:
            workspace.import_(bundle)

    for death in lived.deaths(work, most=9):
        with lived.open(other) as workspace:
            taken = {one.id for one in workspace.log().checkpoints}
        lived.known = {**own, **{one: state for one, state in known.items() if one in taken}}
        lived.sound(path=other, collect=False)
        work()
        lived.known = {**own, **known}
        lived.sound(path=other)
        assert lived.look(other) == {b"mine": file_of(b"mine", lived)}, death


def file_of(content: bytes, place: Place) -> Item:
    return place.item(0o644, content)


def test_i3_an_export_killed_anywhere_leaves_no_half_bundle(lived: Place) -> None:
    bundle = lived.root / "bundle"

    def work() -> None:
        with lived.open() as workspace:
            workspace.export(["second"], bundle)

    for death in lived.deaths(work, most=11):
        if bundle.exists():
            with lived.open() as workspace:
                assert set(workspace.import_(bundle)) == set(lived.known), death
        lived.sound()

"""Several homes on one catalog: whose a workspace is, and where the objects are."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from holdfast.engine.opening.missing_workspaces import find_moved
from holdfast.engine.opening.opener import Opener
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import ConfigError, IntegrityError, NotFoundError, RefusedError
from holdfast.model.session_types import SessionId
from holdfast.store.catalog.session_records import SessionRecord
from holdfast.store.catalog.session_rows import SessionRows


class Machine:
    """A home, as if on a machine of its own."""

    def __init__(self, place: Path, catalog: str, name: str, objects: Path | None) -> None:
        self.home = place / name / "home"
        flags = {"store.catalog": catalog, "lock.timeout": "20s"}
        if objects is not None:
            flags["store.url"] = str(objects)
        self.opener = Opener(home=os.fsencode(self.home), flags=flags)

    def open(self, path: Path) -> Workspace:
        return Workspace(self.opener, self.opener.init(os.fsencode(path))[0])

    def reopened(self) -> Opener:
        self.opener.close()
        return self.opener


@pytest.fixture
def machine(tmp_path, catalog_url):
    made: list[Machine] = []

    def make(name: str, objects: Path | None = tmp_path / "objects") -> Machine:
        made.append(Machine(tmp_path, catalog_url, name, objects))
        return made[-1]

    yield make
    for one in made:
        one.opener.close()


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("content")
    return tmp_path / "tree"


def test_the_same_path_on_two_machines_is_two_workspaces(machine, tree, tmp_path):
    """Also with equal device and inode, as here: it is the very same directory."""
    one, two = machine("one"), machine("two")
    mine, theirs = one.open(tree), two.open(tree)
    assert mine.id != theirs.id
    saved = mine.checkpoint(label="mine")
    assert theirs.log().checkpoints == []
    assert theirs.checkpoint(label="theirs").checkpoint.stored_bytes < saved.checkpoint.stored_bytes, (
        "content is shared"
    )
    assert [point.label for point in mine.log().checkpoints] == ["mine"]
    catalog = one.opener.store().catalog
    assert [space.id for space in catalog.workspaces()] == [mine.id]
    assert {space.id for space in catalog.workspaces(everywhere=True)} == {mine.id, theirs.id}
    again = one.reopened().open(os.fsencode(tree))
    assert again.workspace.id == mine.id


def test_what_is_deleted_on_one_machine_is_not_gone_on_the_other(machine, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.engine.upkeep.forget_checkpoints.find_moved", partial(find_moved, most=100))
    one, two = machine("one"), machine("two")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "f").write_text("a")
    (tmp_path / "b" / "f").write_text("b")
    gone, there = one.open(tmp_path / "a"), two.open(tmp_path / "b")
    gone.checkpoint()
    kept = there.checkpoint().checkpoint
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    there.forget_gone(dry_run=True)
    (tmp_path / "b").mkdir()
    other = tmp_path / "c"
    other.mkdir()
    (other / "f").write_text("c")
    forgotten = one.open(other).forget_gone()
    assert [point.workspace for point in forgotten.removed] == [gone.id]
    assert two.opener.store().catalog.checkpoint(kept.id) == kept


def test_pins_of_one_reason_are_each_machines_own(machine, tree):
    one, two = machine("one"), machine("two")
    root = one.open(tree).checkpoint().checkpoint.root
    mine, theirs = one.opener.store().catalog, two.opener.store().catalog
    mine.pin(root, "restore /work")
    theirs.pin(root, "restore /work")
    assert mine.unpin_all("restore /work") == 1
    assert theirs.unpin_all("restore /work") == 1


def test_a_session_of_another_machine_is_not_there_and_its_name_is_taken(machine, tree):
    one, two = machine("one"), machine("two")
    name = SessionId("work")
    record = SessionRecord(
        name, None, "me", (), one.open(tree).id, None, "", "in-place", "", None, "session", "making", 5
    )
    mine, theirs = SessionRows(one.opener.store().catalog), SessionRows(two.opener.store().catalog)
    mine.add(record)
    assert mine.list() == [record]
    assert theirs.list() == []
    with pytest.raises(NotFoundError):
        theirs.get(name)
    with pytest.raises(RefusedError) as taken:
        theirs.add(record)
    assert taken.value.code == "session_exists"
    mine.remove(name)


def test_a_home_whose_objects_are_elsewhere_is_refused(machine, tree):
    one = machine("one", None)
    one.open(tree).checkpoint()
    two = machine("two", None)
    with pytest.raises(ConfigError) as refused:
        two.opener.store()
    assert "of another home" in refused.value.message
    assert "store.url" in (refused.value.hint or "")
    one.reopened().store()


def test_before_anything_is_saved_too(machine):
    machine("one", None).opener.store()
    with pytest.raises(ConfigError):
        machine("two", None).opener.store()


def test_one_directory_may_have_two_names(machine, tree, tmp_path):
    one = machine("one")
    one.opener.store()
    (tmp_path / "link").symlink_to(tmp_path / "objects")
    two = machine("two", tmp_path / "link")
    found = two.open(tree).checkpoint().checkpoint
    assert one.reopened().store().catalog.checkpoint(found.id) == found


def test_objects_may_be_moved(machine, tree, tmp_path):
    one = machine("one", None)
    space = one.open(tree)
    space.checkpoint()
    one.opener.close()
    shutil.move(one.home / "objects", tmp_path / "moved")
    moved = machine("one", tmp_path / "moved")
    with Workspace(moved.opener, moved.opener.open(os.fsencode(tree))) as opened:
        assert opened.verify(read_data=True).ok


def test_a_place_that_was_named_by_mistake_can_be_changed_before_anything_is_saved(machine, tree, tmp_path):
    machine("one", None).opener.store()
    machine("one").open(tree).checkpoint()
    with pytest.raises(ConfigError):
        machine("one", None).opener.store()


def test_a_new_catalog_over_what_sessions_have_saved_is_refused(tmp_path, catalog_url):
    """I11: also where nothing else was saved there."""
    held = tmp_path / "objects" / "sessions" / "local"
    held.mkdir(parents=True)
    (held / "one").write_bytes(b"of a session")
    with pytest.raises(IntegrityError, match="knows nothing"):
        Machine(tmp_path, catalog_url, "one", tmp_path / "objects").opener.store()


def test_a_new_catalog_over_objects_that_are_there_is_refused(machine, tree, tmp_path, postgresql_server, catalog_url):
    """I11: else collection would take all of them for nobody's."""
    machine("one").open(tree).checkpoint()
    name = postgresql_server.new_database()
    try:
        late = Machine(tmp_path, postgresql_server.url(name), "one", tmp_path / "objects")
        with pytest.raises(IntegrityError) as refused:
            late.opener.store()
        assert "knows nothing" in refused.value.message or "missing" in refused.value.message
        late.opener.close()
        embedded = Opener(home=os.fsencode(tmp_path / "one" / "home"), flags={"store.url": str(tmp_path / "objects")})
        with pytest.raises(IntegrityError):
            embedded.store()
    finally:
        postgresql_server.drop_database(name)


def test_doctor_says_which_catalog_it_is_and_no_password(machine, catalog_url):
    from holdfast.engine.upkeep.doctor import _home

    opener = Opener(
        home=os.fsencode(machine("one").home),
        flags={"store.catalog": catalog_url.replace("postgres@", "postgres:s3cret@")},
    )
    opener.store()
    said = "\n".join(f"{finding.verdict} {finding.message} {finding.help}" for finding in _home(opener))
    opener.close()
    assert "its catalog is postgresql://postgres@" in said
    assert "wrong the catalog's server may lose saved data at a power failure: fsync" in said, "as tests have it"
    assert "s3cret" not in said

"""Finding workspaces again, refusing roots that nobody means, and never capturing what is ours."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening import identity
from holdfast.engine.opening.home import check_root, default_home
from holdfast.engine.opening.opener import Opener
from holdfast.files.linux.syscalls import birth_time
from holdfast.model.errors import ConfigError, EscapeError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.workspace.workspace import Workspace

AS_ROOT = os.geteuid() == 0


def captured(workspace: Workspace) -> set[bytes]:
    """The paths of the newest checkpoint."""
    return {change.path for change in workspace.show().changes}


def labels(path: Path, home: Path) -> list[str]:
    with holdfast.open(path, home=home) as workspace:
        assert workspace.path == os.fsencode(path.resolve())
        return [checkpoint.label for checkpoint in workspace.log().checkpoints]


def test_init_is_idempotent(tree: Path, home: Path) -> None:
    with holdfast.init(tree, home=home) as one, holdfast.init(tree, home=home) as two:
        assert (one.new, two.new) == (True, False)
        assert one.id == two.id
    assert list(tree.iterdir()) == []
    assert home.stat().st_mode & 0o777 == 0o700


def test_two_that_begin_at_once_begin_the_same(tree: Path, home: Path) -> None:
    began: list[Workspace] = []

    def random(count: int) -> bytes:
        # Another process begins when this one has seen that nobody has.
        if not began:
            began.append(holdfast.init(tree, home=home))
        return os.urandom(count)

    opener = Opener(home=os.fsencode(home), random=random)
    context, new = opener.init(os.fsencode(tree))
    assert (context.workspace.id, new) == (began[0].id, False)
    opener.close()
    began[0].close()


def test_a_workspace_is_found_from_below_and_not_from_beside(workspace: Workspace, tree: Path, home: Path) -> None:
    (tree / "a/b").mkdir(parents=True)
    with holdfast.open(tree / "a/b", home=home) as found:
        assert found.id == workspace.id
    for path in (tree.parent, home, tree.parent / "nowhere"):
        with pytest.raises(NotFoundError) as caught:
            holdfast.open(path, home=home)
        assert caught.value.code == "no_workspace"


def test_a_root_reached_through_a_link_is_the_same_workspace(
    workspace: Workspace, tree: Path, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tree)
    (tree / "f").write_text("1")
    with holdfast.init(tmp_path / "link", home=home) as through:
        assert (through.new, through.id, through.path) == (False, workspace.id, bytes(tree))
        through.checkpoint("by link")
    assert workspace.log().checkpoints[0].label == "by link"
    assert not workspace.checkpoint().created


def test_a_directory_that_was_moved_is_known_again(workspace: Workspace, tree: Path, home: Path) -> None:
    (tree / "f").write_text("1")
    workspace.checkpoint("here")
    elsewhere = tree.parent / "deeper/elsewhere"
    elsewhere.parent.mkdir()
    tree.rename(elsewhere)
    assert labels(elsewhere, home) == ["here"]
    (elsewhere / "f").write_text("2")
    with holdfast.open(elsewhere, home=home) as moved:
        moved.undo()
    assert (elsewhere / "f").read_text() == "1"
    with pytest.raises(NotFoundError):
        holdfast.open(tree, home=home)
    elsewhere.rename(tree)
    assert labels(tree, home)[-1] == "here"


@pytest.mark.parametrize("at", ["the directory", "the one above it"])
def test_a_link_in_place_of_a_directory_makes_no_workspace_of_what_it_leads_to(
    home: Path, tmp_path: Path, at: str
) -> None:
    tree, other = tmp_path / "above/tree", tmp_path / "other/tree"
    for path in (tree, other):
        path.mkdir(parents=True)
        (path / "f").write_text(path.parent.name)
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint("mine")
        known = workspace.id
    here, there = (tree, other) if at == "the directory" else (tree.parent, other.parent)
    opener = Opener(home=bytes(home))
    try:
        noted = opener.store().catalog.workspace(known)
        birth = Path(os.fsdecode(opener.context_of(known).folder), "root")
        born = birth.read_bytes()
        away = tmp_path / "away"
        here.rename(away)
        here.symlink_to(there)
        with pytest.raises(EscapeError):
            opener.open_known(known)
        assert opener.store().catalog.workspace(known) == noted
        assert birth.read_bytes() == born
        here.unlink()
        with pytest.raises(NotFoundError):
            opener.open(bytes(other))
        away.rename(here)
        assert opener.open_known(known).workspace == noted
    finally:
        opener.close()


def test_a_directory_that_was_moved_and_left_a_link_is_known_again(
    workspace: Workspace, tree: Path, home: Path
) -> None:
    (tree / "f").write_text("1")
    workspace.checkpoint("here")
    elsewhere = tree.parent / "elsewhere"
    tree.rename(elsewhere)
    tree.symlink_to(elsewhere)
    with holdfast.open(tree, home=home) as moved:
        assert (moved.id, moved.path) == (workspace.id, bytes(elsewhere))
        assert not moved.checkpoint().created


def test_who_waits_for_an_answer_looks_nearby_alone(
    workspace: Workspace, tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.opening.missing_workspaces.NEARBY", 1)
    elsewhere = tree.parent / "much/deeper/elsewhere"
    elsewhere.parent.mkdir(parents=True)
    tree.rename(elsewhere)
    for number in range(4):
        (tree.parent / f"beside{number}").touch()
    opener = Opener(home=bytes(home), nearby=True)
    try:
        assert opener.open_known(workspace.id).workspace.path == bytes(tree)
        whole = Opener(home=bytes(home))
        assert whole.open_known(workspace.id).workspace.path == bytes(elsewhere)
        whole.close()
        assert opener.open_known(workspace.id).workspace.path == bytes(elsewhere), "the other one has told where it is"
    finally:
        opener.close()
        elsewhere.rename(tree)


def test_a_new_directory_with_the_inode_of_a_deleted_one_is_a_new_workspace(home: Path, tmp_path: Path) -> None:
    # File systems use inode numbers anew at once: the other's history must not be taken for one's own.
    for number in range(8):
        old, new = tmp_path / f"old{number}", tmp_path / f"new{number}"
        old.mkdir()
        with holdfast.init(old, home=home) as workspace:
            workspace.checkpoint("old")
        inode = old.stat().st_ino
        old.rmdir()
        new.mkdir()
        with holdfast.init(new, home=home) as workspace:
            assert workspace.new
            assert workspace.verify(read_data=True).ok
        if new.stat().st_ino == inode:
            return
    pytest.skip("this file system does not use inode numbers anew at once")


def test_where_no_birth_is_known_the_inode_number_must_do(home: Path, tree: Path) -> None:
    folder = bytes(tree)
    assert identity.could_be(folder, folder)
    identity.remember_root(folder, folder)
    assert identity.could_be(folder, folder)
    (tree / "root").write_bytes(b"nonsense")
    assert identity.could_be(folder, folder)
    (tree / "root").write_bytes(b"17\n")
    assert identity.could_be(folder, folder) == (birth_time(folder) is None)
    identity.remember_root(b"/nowhere/at/all", folder)


def test_a_deleted_directory_comes_back_at_its_path(home: Path, tree: Path) -> None:
    with holdfast.init(tree, home=home) as workspace:
        (tree / "d").mkdir()
        (tree / "d/f").write_text("1")
        workspace.checkpoint("kept")
    shutil.rmtree(tree)
    with holdfast.open(tree, home=home) as workspace:
        with pytest.raises(NotFoundError, match="is gone"):
            workspace.status()
        with pytest.raises(NotFoundError, match="is gone"):
            workspace.checkpoint()
        workspace.restore("kept")
        assert (tree / "d/f").read_text() == "1"
    shutil.rmtree(tree)
    with holdfast.open(tree / "d", home=home) as workspace:
        workspace.undo()
        assert (tree / "d/f").read_text() == "1"
        assert workspace.verify(read_data=True).ok


def test_a_root_replaced_by_another_directory_loses_nothing(workspace: Workspace, tree: Path, home: Path) -> None:
    (tree / "f").write_text("1")
    workspace.checkpoint("before")
    tree.rename(tree.parent / "aside")
    tree.mkdir()
    (tree / "other").write_text("o")
    with holdfast.open(tree, home=home) as replaced:
        assert replaced.id == workspace.id
        assert {change.path for change in replaced.status().changes} == {b"f", b"other"}
        replaced.restore("before")
        assert sorted(path.name for path in tree.iterdir()) == ["f"]
        replaced.undo()
        assert sorted(path.name for path in tree.iterdir()) == ["other"]
    assert [path.name for path in (tree.parent / "aside").iterdir()] == ["f"]


@pytest.mark.parametrize("kept", [False, True])
def test_a_fork_takes_the_place_of_its_origin(tree: Path, home: Path, kept: bool) -> None:
    fork, old = tree.parent / "try", tree.parent / "old"
    (tree / "f").write_text("1")
    with holdfast.init(tree, home=home) as workspace:
        origin = workspace.id
        first = workspace.checkpoint("base").checkpoint.id
        forked = workspace.fork("@", fork).workspace
    if kept:
        tree.rename(old)
    else:
        shutil.rmtree(tree)
    fork.rename(tree)
    for _ in range(2):
        with holdfast.open(tree, home=home) as adopted:
            assert (adopted.id, adopted.path) == (forked, bytes(tree))
            assert adopted.status().clean
            assert adopted.show(first).checkpoint.label == "base"
    if kept:
        with holdfast.open(old, home=home) as found:
            assert (found.id, found.path) == (origin, bytes(old))
            assert found.status().clean
            assert found.verify(read_data=True).ok
        tree.rename(fork)
        old.rename(tree)
        assert labels(tree, home) == ["base"]
        with holdfast.open(fork, home=home) as adopted:
            assert adopted.id == forked
    else:
        with (
            holdfast.open(tree, home=home) as adopted,
            pytest.raises(RefusedError, match=r"the state that .* stands on") as no,
        ):
            adopted.forget([first])
        assert "\0" not in no.value.message
        assert "\\0" not in no.value.message


def test_the_origin_comes_back_to_the_path_that_its_fork_took(tree: Path, home: Path) -> None:
    fork, old = tree.parent / "try", tree.parent / "old"
    (tree / "f").write_text("1")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint("base")
        forked = workspace.fork("@", fork).workspace
        origin = workspace.id
    tree.rename(old)
    fork.rename(tree)
    with holdfast.open(tree, home=home) as adopted:
        assert adopted.id == forked
    tree.rename(fork)
    old.rename(tree)
    for path, id_ in ((tree, origin), (fork, forked)):
        with holdfast.open(path, home=home) as found:
            assert found.id == id_
            assert found.verify().ok


def test_two_homes_know_nothing_of_each_other(tree: Path, tmp_path: Path) -> None:
    (tree / "f").write_text("1")
    homes = [tmp_path / "one", tmp_path / "two"]
    for number, home in enumerate(homes):
        with holdfast.init(tree, home=home) as workspace:
            assert workspace.new
            assert workspace.checkpoint(f"in {number}").created
    (tree / "f").write_text("2")
    for number, home in enumerate(homes):
        assert labels(tree, home) == [f"in {number}"]
        with holdfast.open(tree, home=home) as workspace:
            assert [change.path for change in workspace.status().changes] == [b"f"]
            assert workspace.verify(read_data=True).ok


def test_a_workspace_in_a_workspace(workspace: Workspace, tree: Path, home: Path) -> None:
    (tree / "inner").mkdir()
    (tree / "inner/f").write_text("1")
    (tree / "f").write_text("1")
    with holdfast.init(tree / "inner", home=home) as inner:
        assert inner.id != workspace.id
        inner.checkpoint("inner")
        workspace.checkpoint("outer")
        assert captured(inner) == {b"f"}
        assert captured(workspace) == {b"f", b"inner/f"}
        with holdfast.open(tree / "inner", home=home) as nearest:
            assert nearest.id == inner.id
        (tree / "inner/f").write_text("2")
        inner.undo()
        assert (tree / "inner/f").read_text() == "1"
        assert workspace.status().clean
    shutil.rmtree(tree / "inner")
    workspace.undo()
    assert (tree / "inner/f").read_text() == "1"
    assert labels(tree / "inner", home)[-1] == "inner"


def test_a_home_in_the_workspace_is_never_captured(tree: Path) -> None:
    # I14
    home = tree / "deep/inside/home"
    (tree / "f").write_text("1")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint("one")
        assert captured(workspace) == {b"f"}
        (tree / "f").write_text("2")
        (tree / "deep/g").write_text("2")
        workspace.restore("one")
        assert home.is_dir()
        workspace.undo()
        assert (tree / "deep/g").read_text() == "2"
        assert workspace.status().clean
        assert workspace.verify(read_data=True).ok
    other = tree / "beside"
    (tree / "link").symlink_to("deep/inside")
    with holdfast.open(tree, home=tree / "link/home") as workspace:
        assert {change.path for change in workspace.status().changes} == {b"link"}
        with pytest.raises(RefusedError):
            workspace.fork("one", other)
    assert not other.exists()


def test_objects_in_the_workspace_are_never_captured(tree: Path, home: Path) -> None:
    # I14
    (tree / "f").write_text("1")
    for url in (str(tree / "objects"), f"file://{tree}/ob%6Aects"):
        with holdfast.init(tree, home=home, flags={"store.url": url}) as workspace:
            workspace.checkpoint()
            assert {path.name for path in tree.iterdir()} == {"f", "objects"}
            assert workspace.status().clean
            assert captured(workspace) == {b"f"}
            assert workspace.verify(read_data=True).ok


@pytest.mark.parametrize("ours", ["home", "objects"])
def test_no_restore_writes_into_what_is_ours(tree: Path, home: Path, tmp_path: Path, ours: str) -> None:
    # I14: a bundle that somebody else has made holds files where our own lie.
    theirs = tmp_path / "theirs"
    forged = {"config.toml": b"[lock]\ntimeout = 1\n", "catalog.db-journal": b"forged", "packs/default/new": b"forged"}
    for name, content in {**forged, "../fine": b"fine"}.items():
        path = theirs / "ours" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with holdfast.init(theirs, home=tmp_path / "their home") as workspace:
        workspace.checkpoint("forged")
        workspace.export(["forged"], tmp_path / "bundle")
    flags = {} if ours == "home" else {"store.url": str(tree / "ours")}
    with holdfast.init(tree, home=tree / "ours" if ours == "home" else home, flags=flags) as workspace:
        workspace.checkpoint("mine")
        workspace.import_(tmp_path / "bundle")
        result = workspace.restore("forged")
        assert {path for path, _ in result.skipped} == {os.fsencode(f"ours/{name}") for name in forged}
        # (What would be a log of the catalog's is left alone as such already.)
        reasons = {path: reason for path, reason in result.skipped if not path.endswith(b".db-journal")}
        assert all("Holdfast keeps its own things there" in reason for reason in reasons.values())
        assert (tree / "fine").read_bytes() == b"fine"
        assert not any((tree / "ours" / name).exists() for name in forged)
        assert workspace.verify(read_data=True).ok


def test_nothing_of_git_or_of_ours_is_ever_captured(workspace: Workspace, tree: Path) -> None:
    # I14
    for path in (".git/HEAD", "sub/.git/config", ".holdfast/x", "sub/.holdfast/undo/y", "run.pid", "sub/mine"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("x")
    (tree / "worktree").mkdir()
    (tree / "worktree/.git").write_text("gitdir: /elsewhere\n")
    workspace.checkpoint()
    assert captured(workspace) == {b"sub/mine"}


# --- roots


@pytest.mark.parametrize("path", ["/", "/etc", "/usr/lib", "/home", "/proc", "/proc/self", "/sys", "/dev"])
def test_system_directories_are_refused(path: str, home: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        holdfast.init(path, home=home)
    assert os.path.realpath(path) in caught.value.message


def test_the_users_home_and_what_holds_it_are_refused_unless_forced(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "people/me"
    (user / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(user))
    (tmp_path / "link").symlink_to(user)
    for path in (user, user.parent, tmp_path / "link"):
        with pytest.raises(RefusedError) as caught:
            holdfast.init(path, home=home)
        assert "--force" in (caught.value.hint or "")
    with holdfast.init(user / "project", home=home):
        pass
    with holdfast.init(user, home=home, force=True) as workspace:
        assert workspace.new


def test_what_is_no_directory_or_ours_is_refused_even_if_forced(tree: Path, home: Path) -> None:
    # I14
    (tree / "file").write_text("x")
    with pytest.raises(NotFoundError):
        holdfast.init(tree / "file", home=home, force=True)
    with pytest.raises(NotFoundError):
        holdfast.init(tree / "nothing", home=home, force=True)
    for path in (b"/proc/self", b"/sys/kernel", bytes(home), bytes(home / "objects")):
        os.makedirs(home / "objects", exist_ok=True)
        with pytest.raises(RefusedError):
            check_root(path, home=bytes(home), user_home=None, force=True)


# --- the home and the settings


def test_the_home_is_found_in_the_documented_order(tmp_path: Path) -> None:
    user = {"HOME": "/u"}
    assert default_home(user) == b"/u/.local/share/holdfast"
    assert default_home({**user, "XDG_DATA_HOME": "/x"}) == b"/x/holdfast"
    assert default_home({**user, "XDG_DATA_HOME": "relative"}) == b"/u/.local/share/holdfast"
    assert default_home({**user, "XDG_DATA_HOME": "/x", "HOLDFAST_HOME": "/h"}) == b"/h"
    with pytest.raises(NotFoundError):
        default_home({})


@pytest.mark.skipif(not AS_ROOT, reason="only root can make another user's home")
def test_another_users_home_is_refused(tree: Path, home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 4321, 4321)
    with pytest.raises(RefusedError, match="belongs to user 4321"):
        holdfast.init(tree, home=home)
    assert list(home.iterdir()) == []


def test_a_home_that_others_may_read_is_closed_to_them(tree: Path, home: Path) -> None:
    home.mkdir(mode=0o755)
    with holdfast.init(tree, home=home) as workspace:
        (tree / "f").write_text("secret")
        workspace.checkpoint()
    open_to_others = [path for path in [home, *home.rglob("*")] if path.lstat().st_mode & 0o077]
    assert open_to_others == [] or home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[capture]\nmax_file_byte = 3\n", ["capture.max_file_byte", "no such key"]),
        ("[captur]\nexclude = []\n", ["captur", "no such section"]),
        ('[capture]\nmax_file_bytes = "1 elephant"\n', ["capture.max_file_bytes", "elephant"]),
        ("[watch]\ndebounce = -1\n", ["watch.debounce", "between"]),
        ('[store]\nurl = "/etc"\n', ["store.url", "may not set it"]),
        ("[capture\n", ["not TOML"]),
    ],
)
def test_a_bad_key_in_the_workspaces_file_is_named_with_file_and_reason(
    tree: Path, home: Path, text: str, parts: list[str]
) -> None:
    (tree / "holdfast.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        holdfast.init(tree, home=home)
    for part in [str(tree / "holdfast.toml"), *parts]:
        assert part in caught.value.message
    assert caught.value.exit_code == 2


def test_the_workspaces_file_is_obeyed(open_workspace: Callable[..., Workspace], tree: Path) -> None:
    (tree / "holdfast.toml").write_text('[capture]\nexclude = ["/secret/"]\nmax_file_bytes = 100\n')
    (tree / "secret").mkdir()
    (tree / "secret/key").write_text("k")
    (tree / "big").write_bytes(b"x" * 101)
    workspace = open_workspace()
    assert [path for path, _ in workspace.checkpoint().not_captured] == [b"big"]
    assert captured(workspace) == {b"holdfast.toml"}


def test_a_workspace_that_was_let_go_is_begun_anew(workspace: Workspace, tree: Path, home: Path) -> None:
    (tree / "f").write_text("1")
    workspace.checkpoint("old")
    workspace.let_go()
    with holdfast.init(tree, home=home) as again:
        assert again.new
        assert again.log().checkpoints == []
        assert [checkpoint.label for checkpoint in again.log(everything=True).checkpoints] == ["old"]


def test_an_opener_can_be_closed_twice(home: Path) -> None:
    opener = Opener(home=bytes(home))
    opener.store()
    opener.close()
    opener.close()


def test_no_fork_is_where_a_link_leads(workspace: Workspace, tree: Path, home: Path, tmp_path: Path) -> None:
    """Its files would be written over those of a directory of the user's (I7)."""
    (tree / "a").write_text("1")
    source = workspace.checkpoint("one").checkpoint.id
    (tmp_path / "elsewhere").symlink_to(home)
    (tmp_path / "victim").mkdir()
    with closing(Opener(home=os.fsencode(tmp_path / "elsewhere"))) as opener:
        folder = opener.open(os.fsencode(tree)).folder
        inner = os.path.join(folder, b"snapshots/made/sub")
        os.makedirs(os.path.dirname(inner))
        os.symlink(os.fsencode(tmp_path / "victim"), inner)
        with pytest.raises(RefusedError) as caught:
            opener.register(inner, source, within=folder)
        assert caught.value.code == "fork_leads_away"
        with pytest.raises(NotFoundError):
            opener.open(os.fsencode(tmp_path / "victim"))
        os.unlink(inner)
        os.mkdir(inner)
        made = opener.register(inner, source, within=folder)
        assert made.workspace.path == os.path.realpath(inner), "where the home is lies with the user"

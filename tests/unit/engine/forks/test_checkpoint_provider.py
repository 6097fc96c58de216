"""The snapshot provider that stands on checkpoints: what it keeps, what it carries, and what comes after a restart."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.forks import mounted_forks
from holdfast.engine.forks.workspace_providers import providers_of
from holdfast.engine.opening.opener import Opener
from holdfast.engine.upkeep.doctor import diagnose
from holdfast.model.errors import NotFoundError, RefusedError, UnsupportedError
from holdfast.snapshot.checkpoints import KEEPER, keeper_of
from holdfast.store.catalog.catalog import Catalog
from holdfast.testing.provider_contract import content, lay, write

from ....own_snapshots import own_ground

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.model.ids import CheckpointId
    from holdfast.snapshot.port import Provider
    from holdfast.store.catalog.checkpoint_removal import Protection
    from holdfast.testing.provider_contract import Ground

MOUNTS = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse, to mount an overlay"
)
DETACH = 2


@pytest.fixture(params=[False, pytest.param(True, marks=MOUNTS)])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    """With forks that are written out, and mounted ones; in the end nothing is left."""
    ground = own_ground(tmp_path, mounts=request.param)
    yield ground
    clean(ground.make("one"))
    assert ground.left() == []


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Ground]:
    ground = own_ground(tmp_path, mounts=True)
    yield ground
    clean(ground.make("one"))
    assert ground.left() == []


def clean(provider: Provider) -> None:
    for allocation in provider.tokens():
        provider.cleanup(allocation.token)


def home_of(ground: Ground) -> Path:
    return ground.root.parent / "home"


def test_a_snapshot_outlives_retention_and_collection_and_says_why(ground: Ground) -> None:
    provider = ground.make("one")
    line = provider.prepare("in-place")
    state = content(ground.root)
    first = provider.snapshot(line, "first")
    (ground.root / "plain").write_text("later\n")
    with holdfast.open(ground.root, home=home_of(ground)) as workspace:
        workspace.checkpoint(label="newest")
        (kept,) = (one.id for one in workspace.log().checkpoints if one.provenance.message == "first")
        with pytest.raises(RefusedError) as refused:
            workspace.forget([kept])
        assert f"snapshot {first.id} of the session one" in refused.value.message
        workspace.forget(policy=holdfast.Policy(keep_last=1))
        workspace.gc(grace=0)
    view = provider.mount(first)
    assert content(view.path) == state
    provider.cleanup(view.token)
    provider.discard(first)
    with holdfast.open(ground.root, home=home_of(ground)) as workspace:
        workspace.forget([kept])


def test_ignored_files_are_not_carried_and_it_says_so(ground: Ground) -> None:
    (ground.root / ".gitignore").write_text("secret\n")
    (ground.root / "secret").write_text("s\n")
    (ground.root / ".holdfast").mkdir()
    (ground.root / ".holdfast/own").write_text("o\n")
    provider = ground.make("one")
    found = provider.detect()
    assert not found.carries_ignored
    assert any("no ignored files" in note for note in found.notes)
    prepared = provider.prepare("worktree")
    assert set(os.listdir(prepared.path)) == set(os.listdir(os.fsencode(ground.root))) - {b"secret", b".holdfast"}


def test_a_fork_is_a_workspace_that_commands_work_in(ground: Ground) -> None:
    provider = ground.make("one")
    prepared = provider.prepare("worktree")
    write(prepared, "plain", "changed\n")
    with holdfast.open(os.fsdecode(prepared.path), home=home_of(ground)) as fork:
        assert [change.path for change in fork.status().changes] == [b"plain"]
        fork.checkpoint(label="mine")
    taken = provider.snapshot(prepared, "s")
    provider.cleanup(prepared.token)
    view = provider.mount(taken)
    assert content(view.path)[b"plain"] == (False, b"changed\n")


def test_no_other_workspace_captures_forks(tmp_path: Path) -> None:
    """I14"""
    ground = own_ground(tmp_path, mounts=False)
    prepared = ground.make("one").prepare("worktree")
    with holdfast.init(tmp_path, home=home_of(ground)) as around:
        around.checkpoint()
        assert list(around.cat("@", b"tree/plain")) == [b"plain\n"]
        with pytest.raises(NotFoundError):
            around.cat("@", os.path.relpath(os.path.join(prepared.path, b"plain"), os.fsencode(tmp_path)))


@MOUNTS
def test_after_a_restart_a_fork_is_mounted_again_to_be_captured(mounted: Ground) -> None:
    provider = mounted.make("one")
    prepared = provider.prepare("worktree")
    write(prepared, "plain", "changed\n")
    assert not ctypes.CDLL(None).umount2(prepared.path, DETACH)
    assert os.listdir(prepared.path) == []
    taken = mounted.make("one").snapshot(prepared, "s")
    assert content(prepared.path)[b"plain"] == (False, b"changed\n")
    view = provider.mount(taken)
    assert content(view.path) == content(prepared.path)


@MOUNTS
def test_after_a_restart_everything_is_cleaned_up(mounted: Ground) -> None:
    provider = mounted.make("one")
    fork = provider.prepare("worktree")
    view = provider.mount(provider.snapshot(fork, "s"))
    for path in (fork.path, view.path):
        assert not ctypes.CDLL(None).umount2(path, DETACH)
    clean(mounted.make("one"))
    assert mounted.left() == []


@MOUNTS
@pytest.mark.parametrize("kind", ["fork", "view"])
def test_what_somebody_has_mounted_over_it_keeps_it(mounted: Ground, kind: str) -> None:
    provider = mounted.make("one")
    fork = provider.prepare("worktree")
    it = fork if kind == "fork" else provider.mount(provider.snapshot(fork, "s"))
    subprocess.run(["mount", "-t", "tmpfs", "none", it.path], check=True)
    precious = os.path.join(it.path, b"precious")
    try:
        with open(precious, "w", encoding="ascii") as file:
            file.write("precious")
        with pytest.raises(RefusedError) as caught:
            provider.cleanup(it.token)
        assert caught.value.code == "mounted_over"
        assert os.path.exists(precious)
    finally:
        while os.path.exists(precious):
            subprocess.run(["umount", it.path], check=True)
    provider.cleanup(it.token)
    assert not os.path.lexists(it.path)


@MOUNTS
def test_somebody_who_still_works_in_a_fork_does_not_keep_it(mounted: Ground) -> None:
    provider = mounted.make("one")
    prepared = provider.prepare("worktree")
    worker = subprocess.Popen([sys.executable, "-c", "input()"], cwd=prepared.path, stdin=subprocess.PIPE)
    try:
        provider.cleanup(prepared.token)
        assert not os.path.lexists(prepared.path)
    finally:
        worker.communicate(b"\n", timeout=60)


def test_forks_that_would_lie_in_the_workspace_are_refused_beforehand(tmp_path: Path) -> None:
    opener = Opener(home=os.fsencode(tmp_path / "tree/.home"))
    (tmp_path / "tree").mkdir()
    lay(tmp_path / "tree")
    context, _ = opener.init(os.fsencode(tmp_path / "tree"))
    (provider,) = (one for one in providers_of(context, "s") if one.name == "holdfast")
    found = provider.detect()
    assert not found.score
    assert "snapshot.directory" in found.notes[0]
    opener.close()
    opener = Opener(
        home=os.fsencode(tmp_path / "tree/.home"), flags={"snapshot.directory": str(tmp_path / "elsewhere")}
    )
    context = opener.open(os.fsencode(tmp_path / "tree"))
    (provider,) = (one for one in providers_of(context, "s") if one.name == "holdfast")
    assert provider.detect().score
    prepared = provider.prepare("worktree")
    assert content(prepared.path).keys() >= {b"plain", b"link"}
    clean(provider)
    assert not (tmp_path / "elsewhere").exists()
    opener.close()


def test_where_mounting_fails_it_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UnsupportedError("not here")

    monkeypatch.setattr(mounted_forks, "refuse_without_privilege", refuse)
    ground = own_ground(tmp_path, mounts=True)
    provider = ground.make("one")
    prepared = provider.prepare("worktree")
    assert content(prepared.path) == content(ground.root)
    assert os.stat(prepared.path).st_dev == os.stat(ground.root.parent).st_dev
    clean(provider)
    assert ground.left() == []


def test_what_a_lost_entry_kept_is_let_go_of_with_the_last_one(ground: Ground) -> None:
    provider = ground.make("one")
    line = provider.prepare("in-place")
    lost, other = provider.snapshot(line, "a"), provider.snapshot(line, "b")
    (path,) = (ground.root.parent / "state").rglob(lost.id)
    path.unlink()
    provider.discard(other)
    assert any(lost.id in text for text in ground.left())
    provider.cleanup(line.token)
    assert ground.left() == []


def test_what_another_one_forgets_meanwhile_keeps_nothing_from_being_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where several forks are deleted at once."""
    ground = own_ground(tmp_path, mounts=False)
    provider = ground.make("one")
    provider.snapshot(provider.prepare("in-place"), "kept")
    forgotten: list[str] = []
    look = Catalog.protections

    def looked_at_while_another_one_forgets(catalog: Catalog) -> dict[CheckpointId, list[Protection]]:
        monkeypatch.setattr(Catalog, "protections", look)
        (tmp_path / f"other {len(forgotten)}").mkdir()
        with holdfast.init(tmp_path / f"other {len(forgotten)}", home=home_of(ground)) as other:
            saved, keeper = other.checkpoint().checkpoint, keeper_of("snapshot", "0" * 16, "two")
            assert KEEPER.match(keeper)
            catalog.pin(saved.root, keeper, checkpoint=saved.id)
            found = look(catalog)
            catalog.unpin_all(keeper)
            other.let_go()
            other.forget([saved.id])
        forgotten.append(saved.id)
        monkeypatch.setattr(Catalog, "protections", looked_at_while_another_one_forgets)
        return found

    monkeypatch.setattr(Catalog, "protections", looked_at_while_another_one_forgets)
    clean(provider)
    assert forgotten
    assert list(provider.tokens()) == []


def test_doctor_names_what_was_damaged(tmp_path: Path) -> None:
    ground = own_ground(tmp_path, mounts=False)
    opener = Opener(home=bytes(home_of(ground)))
    context = opener.open(bytes(ground.root))
    (provider,) = (one for one in providers_of(context, "s") if one.name == "holdfast")
    token = provider.prepare("in-place").token
    (path,) = home_of(ground).rglob(token)
    path.write_bytes(path.read_bytes()[:-5])
    opener.close()
    found = diagnose(ground.root, home=home_of(ground))
    assert any(one.verdict == "wrong" and token in one.message and one.help for one in found)

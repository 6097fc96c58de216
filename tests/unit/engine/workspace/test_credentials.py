"""Files of credentials, by their exact names, are not captured unless that is wanted; nothing of them is lost."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.opening.opener import Opener
from holdfast.files.scan.secret_files import CREDENTIALS, is_credential
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace

NAMES = (
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc", ".pgpass", ".git-credentials"),
    *(".aws/credentials", ".docker/config.json", ".config/gcloud/application_default_credentials.json"),
)
ORDINARY = ("id_rsa.pub", "my_id_rsa", "server.pem", "credentials", "config.json", "docker/config.json", ".netrc.bak")


@pytest.mark.parametrize("above", ["", "sub/", "a/b/"])
def test_names_alone_tell(above: str) -> None:
    assert all(is_credential(f"{above}{name}".encode()) for name in NAMES)
    assert not any(is_credential(f"{above}{name}".encode()) for name in ORDINARY)


def put(tree: Path, name: str, content: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(content)


def held(workspace: Workspace) -> set[str]:
    with closing(Opener(home=workspace.home)) as opener:
        context = opener.open(workspace.path)
        root = context.catalog.checkpoint(workspace.resolve("@")).root
        return {os.fsdecode(path) for path, _ in manifest.iterate(context.store.pages, root)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


def opened(tree: Path, *, credentials: bool = False) -> Workspace:
    flags = {"capture.credentials": credentials}
    return holdfast.init(tree, home=tree.parent / "home", flags=flags)


def test_they_are_left_out_with_the_reason_and_nothing_else_is(tree: Path) -> None:
    for name in (*NAMES, *ORDINARY):
        put(tree, name, "x")
    (tree / "sub/id_rsa").mkdir(parents=True)
    put(tree, "sub/id_rsa/file", "a directory of that name")
    with opened(tree) as workspace:
        missed = dict(workspace.checkpoint().not_captured)
        assert held(workspace) == {*ORDINARY, "sub/id_rsa/file"}
        assert missed == dict.fromkeys(map(os.fsencode, NAMES), CREDENTIALS)
        assert dict(workspace.status().not_captured) == missed
        put(tree, "id_rsa", "another")
        assert workspace.status().clean


def test_what_a_checkpoint_holds_stays_captured(tree: Path) -> None:
    put(tree, "id_rsa", "1")
    put(tree, "sub/.netrc", "1")
    with opened(tree, credentials=True) as workspace:
        workspace.checkpoint()
        assert held(workspace) == {"id_rsa", "sub/.netrc"}
    with opened(tree) as workspace:
        put(tree, "id_rsa", "2")
        put(tree, "id_dsa", "new")
        assert workspace.checkpoint().created
        assert held(workspace) == {"id_rsa", "sub/.netrc"}
        os.unlink(os.path.join(workspace.folder, b"index"))
    with opened(tree) as workspace:
        assert workspace.status().clean
        workspace.undo()
        assert (tree / "id_rsa").read_text() == "1"


def test_a_link_that_a_checkpoint_holds_does_not_let_a_key_in(tree: Path) -> None:
    (tree / "id_rsa").symlink_to("/somewhere/id_rsa")
    with opened(tree, credentials=True) as workspace:
        first = workspace.checkpoint("link").checkpoint.id
        assert held(workspace) == {"id_rsa"}
    with opened(tree) as workspace:
        (tree / "id_rsa").unlink()
        put(tree, "id_rsa", "key")
        assert dict(workspace.checkpoint("key").not_captured) == {b"id_rsa": CREDENTIALS}
        assert held(workspace) == set()
        workspace.restore(first)
        assert os.readlink(tree / "id_rsa") == "/somewhere/id_rsa"
        workspace.undo()
        assert (tree / "id_rsa").read_text() == "key", "what a restore overwrites is in the rescue"


def test_what_a_restore_overwrites_is_in_the_rescue_captured_or_not(tree: Path) -> None:
    put(tree, "file", "1")
    with opened(tree, credentials=True) as workspace:
        workspace.checkpoint("without")
        put(tree, "id_rsa", "old")
        first = workspace.checkpoint("with").checkpoint.id
        workspace.restore("without")
    with opened(tree) as workspace:
        put(tree, "id_rsa", "mine")
        put(tree, "file", "2")
        workspace.checkpoint("now")
        assert held(workspace) == {"file"}
        done = workspace.restore(first)
        assert done.skipped == []
        assert ((tree / "id_rsa").read_text(), (tree / "file").read_text()) == ("old", "1")
        workspace.undo()
        assert ((tree / "id_rsa").read_text(), (tree / "file").read_text()) == ("mine", "2")
        workspace.redo()
        assert (tree / "id_rsa").read_text() == "old"
        assert workspace.verify(read_data=True).ok


@pytest.mark.parametrize("way", ["undo", "restore"])
def test_a_state_that_did_not_capture_one_does_not_say_that_it_was_deleted(tree: Path, way: str) -> None:
    put(tree, "id_rsa", "key")
    (tree / "a").write_text("a")
    with holdfast.init(tree) as workspace:
        workspace.checkpoint("without")
    with holdfast.open(tree, flags={"capture.credentials": True}) as workspace:
        (tree / "b").write_text("b")
        workspace.checkpoint("with")
        assert "id_rsa" in held(workspace)
        done = workspace.undo() if way == "undo" else workspace.restore("without")
        assert (tree / "id_rsa").read_text() == "key"
        assert not (tree / "b").exists()
        assert [one.path for one in done.skipped] == [b"id_rsa"]


def test_the_first_checkpoint_says_that_settings_are_saved(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tree, ".env", "KEY=1")
    put(tree, "sub/.env.production", "KEY=2")
    with opened(tree) as workspace:
        with caplog.at_level(logging.WARNING):
            workspace.checkpoint()
        assert held(workspace) == {".env", "sub/.env.production"}
        (said,) = [record.getMessage() for record in caplog.records]
        happened, help_ = said.split(". ")
        assert happened == "the first checkpoint saved .env and 1 more file like it, which may hold secrets"
        assert f"run `holdfast init {tree} --write-ignore` and add `.env*` to .checkpointignore" in help_
        assert "`store.encryption_key`" in help_
        caplog.clear()
        put(tree, ".env", "KEY=3")
        workspace.checkpoint()
        assert caplog.text == ""


def test_a_merge_leaves_one_alone_that_is_not_captured(tree: Path) -> None:
    put(tree, "f", "1")
    put(tree, "id_rsa", "ours")
    with opened(tree) as workspace:
        workspace.checkpoint()
        workspace.fork("@", fork := tree.parent / "fork")
        put(fork, "id_rsa", "theirs")
        with holdfast.open(fork, home=tree.parent / "home", flags={"capture.credentials": True}) as forked:
            forked.checkpoint()
        with pytest.raises(holdfast.RefusedError) as refused:
            workspace.merge(str(fork))
        assert (refused.value.code, refused.value.data) == ("left_alone", {"paths": ["id_rsa"]})
        assert (tree / "id_rsa").read_text() == "ours"

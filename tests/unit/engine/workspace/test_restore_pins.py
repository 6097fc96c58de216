"""What a running restore stands on cannot be taken away under it (I11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.workspace.workspace import Workspace
from holdfast.files.local_tree import LocalTree
from holdfast.files.tree import ApplyNotes, ApplyResult
from holdfast.model.content import Content, Progress
from holdfast.model.entries import Change
from holdfast.model.errors import RefusedError, StorageError


def test_the_target_is_neither_forgotten_nor_collected_while_it_is_restored(
    workspace: Workspace, tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "file").write_text("wanted\n" * 1000)
    wanted = workspace.checkpoint().checkpoint.id
    (tree / "file").write_text("other\n")
    workspace.checkpoint()
    apply = LocalTree.apply
    tried: list[str] = []

    def beside(
        self: LocalTree,
        deletes: Sequence[Change],
        writes: Iterable[tuple[Change, Content | None]],
        *,
        nonce: str,
        progress: Progress | None = None,
        notes: ApplyNotes | None = None,
    ) -> ApplyResult:
        with holdfast.open(tree, home=home) as other:
            with pytest.raises(RefusedError) as caught:
                other.forget([wanted])
            tried.append(caught.value.message)
            other.gc(grace=0)
        return apply(self, deletes, writes, nonce=nonce, progress=progress, notes=notes)

    monkeypatch.setattr(LocalTree, "apply", beside)
    workspace.restore(wanted)
    assert "restore" in tried[0]
    assert (tree / "file").read_text() == "wanted\n" * 1000
    monkeypatch.undo()
    workspace.undo()
    workspace.forget([wanted])


def test_a_restore_that_is_cut_short_keeps_its_target_until_it_is_finished(
    workspace: Workspace, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "file").write_text("wanted\n")
    wanted = workspace.checkpoint().checkpoint.id
    (tree / "file").write_text("other\n")
    workspace.checkpoint()

    def fails(*_: object, **__: object) -> ApplyResult:
        raise StorageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(LocalTree, "apply", fails)
        with pytest.raises(StorageError):
            workspace.restore(wanted)
    with pytest.raises(RefusedError):
        workspace.forget([wanted])
    workspace.gc(grace=0)
    workspace.restore_continue()
    assert (tree / "file").read_text() == "wanted\n"

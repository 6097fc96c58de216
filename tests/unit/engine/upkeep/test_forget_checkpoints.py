"""Forgetting checkpoints by name: what stands in the way, and what takes their changes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import RefusedError


def test_a_refusal_names_every_reason_and_the_way_out_of_each(workspace: Workspace, tree: Path, tmp_path: Path) -> None:
    (tree / "file").write_text("first\n")
    first = workspace.checkpoint("v1").checkpoint.id
    (tree / "file").write_text("second\n")
    second = workspace.checkpoint("v2").checkpoint.id
    one, two = tmp_path / "one", tmp_path / "two"
    workspace.fork(first, one)
    workspace.fork(second, two)
    workspace.restore(first)
    with pytest.raises(RefusedError) as caught:
        workspace.forget([first, second])
    assert caught.value.code == "protected"
    assert caught.value.message == (
        f"{first[:12]} cannot be forgotten: it is the state that {tree} stands on and "
        f"the state that the fork {one} was made from; "
        f"{second[:12]} cannot be forgotten: it is the state that the fork {two} was made from"
    )
    assert caught.value.hint == (
        f"save a change in {tree}, or restore another checkpoint there, so that it stands on that; "
        f"delete the fork {one} if you need it no more; then `holdfast forget --gone` lets go of it; "
        f"delete the fork {two} if you need it no more; then `holdfast forget --gone` lets go of it"
    )
    assert {first, second} <= {checkpoint.id for checkpoint in workspace.log().checkpoints}


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_takes_over_the_changes_is_named(workspace: Workspace, tree: Path, dry_run: bool) -> None:
    names: list[str] = []
    for number in range(5):
        (tree / f"file {number}").write_text("new\n")
        names.append(workspace.checkpoint().checkpoint.id)
    workspace.restore(names[2])
    (tree / "branch").write_text("new\n")
    names.append(workspace.checkpoint().checkpoint.id)
    workspace.restore(names[4])
    first, second, third, fourth, _, branch = names
    result = workspace.forget([second, third, branch], dry_run=dry_run)
    assert result.composed_into == {second: [fourth], third: [fourth], branch: []}
    if not dry_run:
        shown = workspace.show(fourth)
        assert shown.checkpoint.parent == first
        assert [change.path for change in shown.changes] == [b"file 1", b"file 2", b"file 3"]

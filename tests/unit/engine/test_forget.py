"""Forgetting checkpoints by name: what stands in the way, and what takes their changes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engine.workspace import Workspace
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
        f"{first[:12]} cannot be forgotten: it is the state that {tree} stands on and the state that the fork {one} was "
        f"made from; {second[:12]} cannot be forgotten: it is the state that the fork {two} was made from"
    )
    assert caught.value.hint == (
        f"save a change in {tree}, or restore another checkpoint there, so that it stands on that; "
        f"delete the fork {one} if you do not need it any more; then `holdfast forget --gone` lets go of it; "
        f"delete the fork {two} if you do not need it any more; then `holdfast forget --gone` lets go of it"
    )
    assert {first, second} <= {checkpoint.id for checkpoint in workspace.log().checkpoints}

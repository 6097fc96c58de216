"""I10: what a directory that others may serve holds beside this tenant's own."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.engine.exports.named_workspaces import _holds_more


def test_i10_what_lies_beside_an_export_deeper_down_is_seen(tmp_path: Path) -> None:
    app = tmp_path / "mid" / "a" / "app"
    app.mkdir(parents=True)
    assert not _holds_more(os.fsencode(tmp_path), [os.fsencode(app)])
    (tmp_path / "mid" / "secret").write_text("theirs\n")
    assert _holds_more(os.fsencode(tmp_path), [os.fsencode(app)])

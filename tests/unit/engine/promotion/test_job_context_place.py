"""Which directory is taken for the production that a promotion was asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.engine.promotion._job_context import PromotionSite, open_named
from holdfast.files.directories.directory_exchange import directory_identity
from holdfast.model.errors import RefusedError
from holdfast.model.ids import WorkspaceId

if TYPE_CHECKING:
    from pathlib import Path


def test_production_is_recognised_where_its_device_got_another_number(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "production"
    root.mkdir()
    with holdfast.init(root, home=home) as workspace:
        production = WorkspaceId(workspace.id)
    here = directory_identity(os.fsencode(root))
    assert here is not None
    if here.born is None:
        pytest.skip("this file system keeps no time of birth")
    named, before = (here.device + 1, here.inode), here._replace(device=here.device + 2)
    with PromotionSite(os.fsencode(home), {}, {}).open_home() as opener:
        assert open_named(opener, production, (here.device, here.inode)).workspace.id == production
        for known in ((), (before._replace(born=here.born - 1),)):
            with pytest.raises(RefusedError) as caught:
                open_named(opener, production, named, known)
            assert caught.value.code == "production_replaced"
        assert open_named(opener, production, named, (before,)).workspace.id == production

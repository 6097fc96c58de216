"""The lease of a production: whoever cannot have it, or keep it, does not go on as if they had."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.promotion import _job_context as job_context
from holdfast.engine.promotion._job_context import PromotionSite, hold_production
from holdfast.model.errors import LockedError, StorageError
from holdfast.model.ids import WorkspaceId
from holdfast.store.catalog.work_lease import Lease

from ....waiting import wait_until

PRODUCTION = WorkspaceId("0123456789abcdef")


@pytest.fixture
def site(home: Path, tree: Path) -> PromotionSite:
    holdfast.init(tree, home=home).close()
    return PromotionSite(os.fsencode(home), {}, {})


def test_one_has_it_and_the_next_one_when_it_is_released(site: PromotionSite) -> None:
    with hold_production(site, PRODUCTION, wait=0, who="it") as lease:
        assert not lease.lost
        with pytest.raises(LockedError) as refused, hold_production(site, PRODUCTION, wait=0, who="it"):
            pass
        assert refused.value.code == "promotion_busy"
    with hold_production(site, PRODUCTION, wait=0, who="it") as lease:
        assert not lease.lost


def test_what_goes_wrong_in_taking_it_is_told_whatever_it_is(
    site: PromotionSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Lease) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(Lease, "acquire", fail)
    with pytest.raises(StorageError, match="the disk is broken"), hold_production(site, PRODUCTION, wait=0, who="it"):
        pytest.fail("nobody has the lease")


def test_a_lease_that_cannot_be_kept_is_lost(
    site: PromotionSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Lease) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(job_context, "_RENEW_SECONDS", 0.01)
    monkeypatch.setattr(Lease, "renew", fail)
    with hold_production(site, PRODUCTION, wait=0, who="it") as lease:
        wait_until(lambda: lease.lost)
    assert "is lost: this is a bug: ValueError: a mistake" in caplog.text

"""Answers that are kept by the key of their request."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engine.opening.opener import Opener
from holdfast.model.ids import hash_bytes
from holdfast.store.catalog.answer_rows import AnswerRows
from holdfast.store.catalog.catalog import Catalog
from holdfast.testing.clocks import ManualClock


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(home=os.fsencode(tmp_path / "home"))
    yield opener
    opener.close()


@pytest.fixture
def catalog(opener: Opener) -> Catalog:
    return opener.store().catalog


def test_a_key_is_claimed_by_one_of_many_at_once(tmp_path: Path) -> None:
    openers = [Opener(home=os.fsencode(tmp_path / "home")) for _ in range(8)]
    rows = [AnswerRows(opener.store().catalog, opener.clock) for opener in openers]
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(one.begin("t/k", hash_bytes(b"r"), 60))) for one in rows
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(None) == 1
    for opener in openers:
        opener.close()


def test_what_is_known_of_a_key(catalog: Catalog) -> None:
    clock = ManualClock()
    rows = AnswerRows(catalog, clock)
    request, other = hash_bytes(b"r"), hash_bytes(b"o")
    assert rows.begin("t/k", request, 60) is None
    found = rows.begin("t/k", request, 60)
    assert found is not None
    assert (found.status, found.lost) == (None, False)
    rows.mark_lost("t/k")
    found = rows.begin("t/k", other, 60)
    assert found is not None
    assert (found.request, found.lost) == (request, True)
    found = rows.begin("t/k", request, 60)
    assert found is not None
    assert found.lost, "it is claimed again"
    found = rows.begin("t/k", request, 60)
    assert found is not None
    assert not found.lost
    rows.end("t/k", 200, b"{}")
    found = rows.begin("t/k", request, 60)
    assert found is not None
    assert (found.status, found.body) == (200, b"{}")
    clock.advance(61)
    assert rows.begin("t/k", other, 60) is None
    rows.drop("t/k")
    assert rows.begin("t/k", request, 60) is None


def test_a_key_of_a_process_that_is_gone_is_lost(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    rows = AnswerRows(catalog, clock)
    gone = "elsewhere 1 1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.store.catalog.answer_rows.this_process", lambda: gone)
        rows.begin("t/k", hash_bytes(b"r"), 1e6)
    found = rows.begin("t/k", hash_bytes(b"r"), 1e6)
    assert found is not None
    assert not found.lost, "nobody can tell of another machine's process"
    clock.advance(901)
    found = rows.begin("t/k", hash_bytes(b"r"), 1e6)
    assert found is not None
    assert found.lost

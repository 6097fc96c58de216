"""A promotion whose catalog is on PostgreSQL: the connection breaks, the server goes away."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engine.promotion.manager import Promotions
from holdfast.model.errors import HoldfastError

from ..postgresql_server import Server
from ..promoted import Ground, make_app
from ..proxies import Cut, Proxy


@pytest.fixture
def proxy(postgresql_server: Server, catalog_url: str) -> Iterator[Proxy]:
    found = Proxy(postgresql_server.folder, catalog_url.partition("@/")[2].partition("?")[0])
    yield found
    found.close()


def begun(base: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Ground, Path]:
    """Production over a catalog, and a fork of it."""
    monkeypatch.setenv("HOLDFAST_STORE_CATALOG", url)
    ground = Ground(base)
    make_app(ground.root, sys.executable)
    (ground.root / "holdfast.toml").write_text('[promote]\nbuild = ["sh", "-c", "echo built >> deps/log"]\n')
    ground.begin()
    (ground.home / "config.toml").write_text('[promote]\nisolation = "none"\n[lock]\ntimeout = "4s"\n')
    fork = ground.fork()
    (fork / "src/other.py").write_text("VALUE = 2\n")
    return ground, fork


def check(ground: Ground) -> None:
    assert (ground.root / "src/other.py").read_text() == "VALUE = 2\n"
    assert (ground.root / "deps/log").read_text() == "built\n"
    assert ground.leftovers() == []
    ground.sound()


@pytest.mark.parametrize("when", ["before", "after"])
def test_i3_a_connection_that_is_cut_as_a_step_is_written_down_costs_nothing(
    tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, when: Cut
) -> None:
    ground, fork = begun(tmp_path, proxy.url, monkeypatch)
    cuts = []

    def judge(message: bytes) -> Cut | None:
        if len(cuts) < 3 and b"UPDATE promotions SET phase" in message:
            cuts.append(message)
            return when
        return None

    proxy.judge = judge
    ground.promote(fork)
    assert len(cuts) == 3
    check(ground)


def test_i3_a_server_that_goes_away_in_the_build_ends_it_and_it_goes_on_when_that_is_back(
    tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever, and what was built is built once."""
    ground, fork = begun(tmp_path, proxy.url, monkeypatch)

    def tell(step: str) -> None:
        if step == "check":
            proxy.refusing = True
            proxy.cut_all()

    with pytest.raises(HoldfastError) as stopped:
        Promotions(home=ground.home, tell=tell).promote(fork)
    assert stopped.value.code in ("unreachable", "promotion_stopped"), stopped.value
    assert (ground.root / "src/other.py").read_text() == "VALUE = 1\n"
    proxy.refusing = False
    assert ground.promotions.resume().answer.result == "promoted"
    check(ground)


def test_promotions_of_two_tenants_of_one_id_do_not_meet(
    tmp_path: Path, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10."""
    for tenant in ("one", "two"):
        (tmp_path / tenant).mkdir()
        monkeypatch.setenv("HOLDFAST_STORE_TENANT", tenant)
        ground, fork = begun(tmp_path / tenant, catalog_url, monkeypatch)
        assert ground.promotions.promote(fork, name="0123456789abcdef").answer.result == "promoted"
        check(ground)

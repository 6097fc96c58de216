"""Rates, origins, and the token of a request."""

from __future__ import annotations

import pytest

from holdfast.api.rest._authorization import Origins, Rates, bearer_token, hosts_of
from holdfast.api.rest._problems import WebError, status_of


def test_a_rate_is_held_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("holdfast.api.rest._authorization.time.monotonic", lambda: now)
    rates = Rates(60)
    assert [rates.wait("a") for _ in range(60)] == [0.0] * 60
    assert rates.wait("a") == rates.is_spent("a") == 1.0
    assert rates.wait("b") == 0.0
    now = 1.0
    assert rates.wait("a") == 0.0
    assert rates.wait("a") == 1.0


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:7420", "shop.example:443"])
def test_hosts_that_are_ours(host: str) -> None:
    Origins([*hosts_of("127.0.0.1"), "shop.example"], [], any_host=False).check(host, None)


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "127.0.0.2", "[::2]", ":80"]
)
def test_hosts_that_are_not(host: str | None) -> None:
    with pytest.raises(WebError) as caught:
        Origins([*hosts_of("127.0.0.1"), "shop.example"], [], any_host=False).check(host, None)
    assert status_of(caught.value) == 403


def test_origins_that_are_allowed_and_that_are_not() -> None:
    origins = Origins([], ["https://shop.example"], any_host=True)
    origins.check("anything", "https://shop.example")
    for other in ("http://shop.example", "https://shop.example.evil", "null", "", "https://shop.example:444"):
        with pytest.raises(WebError):
            origins.check("anything", other)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_a_header_without_a_token(header: str | None) -> None:
    with pytest.raises(WebError):
        bearer_token(header)


def test_a_header_with_a_token() -> None:
    assert bearer_token("bearer  secret") == "secret"

"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest

from holdfast.model.config.values import parse_age, parse_duration, parse_moment, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (7, 7),
        ("7", 7),
        ("1GiB", 1 << 30),
        ("64MiB", 64 << 20),
        ("500MB", 500_000_000),
        ("1.5 kib", 1536),
        ("2b", 2),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (5, 5),
        (0.5, 0.5),
        ("5", 5),
        ("5s", 5),
        ("10m", 600),
        ("24h", 86400),
        ("7d", 604800),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("5min", 300),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


DAY = 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (5, 5),
        ("90min", 5400),
        ("12h", DAY // 2),
        ("2w", 14 * DAY),
        ("6mo", 186 * DAY),
        ("1y", 366 * DAY),
        ("1y5m7d2h", (366 + 155 + 7) * DAY + 7200),
        ("5m7d", 162 * DAY),
        ("1y6mo", 552 * DAY),
    ],
)
def test_ages(text: object, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["6m", "0.5 m", "90M"])
def test_an_age_in_months_or_minutes_has_to_say_which(text: str) -> None:
    with pytest.raises(ValueError, match=r"may mean months or minutes: write [0-9.]+mo or [0-9.]+min"):
        parse_age(text)


@pytest.mark.parametrize("text", ["2h30m", "7d5m", "1y1y", "m", "yd", "", None, True, "1mo2min"])
def test_what_is_no_age(text: object) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds"):
        parse_age(text)


@pytest.mark.parametrize("bad", ["", "x", "-1", "1 2", "1GB5", "5y", "1e9", "½", None, True, [1], {}, "0x10", "9" * 50])
def test_what_is_neither_size_nor_duration(bad: object) -> None:
    for parse in (parse_size, parse_duration):
        with pytest.raises(ValueError, match="is not"):
            parse(bad)
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_size("1.5")


def test_a_moment_is_a_time_or_an_age() -> None:
    now = 1_700_000_000_000_000
    assert parse_moment("2023-11-14T22:13:20Z", now) == now
    assert parse_moment("2023-11-14T23:13:20.5+01:00", now) == now + 500_000
    assert parse_moment("2023-11-14T22:13", now) == parse_moment("2023-11-14 22:13:00", now)
    assert parse_moment("2h", now) == now - 7_200_000_000
    assert parse_moment("1d12h", now) == now - 36 * 3_600_000_000


@pytest.mark.parametrize("text", ["yesterday", "", "2023-13-01", "6m", "2023-11-14T25:00", "1e999d"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no time such as"):
        parse_moment(text, 0)

"""The words of the pages: times, paths and texts of others, made fit to show. None is HTML: templates escape them."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from holdfast.model.message_text import visible
from holdfast.model.paths import display

_UNSAFE_IN_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Moment(NamedTuple):
    """A time, in the machine's own zone."""

    day: str
    """``2026-11-30``"""
    day_name: str
    """``Monday 30 November 2026``"""
    clock: str
    """``14:20:49``"""
    iso: str


def moment(microseconds: int) -> Moment:
    """A time as text."""
    at = time.localtime(microseconds // 1_000_000)
    day = time.strftime("%Y-%m-%d", at)
    return Moment(
        day,
        f"{time.strftime('%A', at)} {at.tm_mday} {time.strftime('%B %Y', at)}",
        time.strftime("%H:%M:%S", at),
        time.strftime("%Y-%m-%dT%H:%M:%S%z", at),
    )


def path_text(path: bytes) -> str:
    """A path, with nothing in it that could be read as another one."""
    return visible(display(path))


def lines_text(text: str) -> str:
    """A text of several lines; what could drive or deceive who reads it shows as its bytes."""
    return _UNSAFE_IN_LINES.sub(lambda match: visible(match[0]), text.replace("\r\n", "\n"))


def short(name: str) -> str:
    """The beginning of an id, as `log` prints it."""
    return name[:12]


def parse_moment(given: str, now: int) -> int | None:
    """The time of a filter, in microseconds; None where none is given. Raises `UsageError`."""
    if not given:
        return None
    from holdfast.model.config import values
    from holdfast.model.errors import UsageError

    try:
        return values.parse_moment(given, now)
    except ValueError as error:
        raise UsageError(str(error)) from None

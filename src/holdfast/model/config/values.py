"""Values of settings, as people write them: sizes, durations, numbers, texts, lists of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from holdfast.model.config.keys import KEYS
from holdfast.model.config.settings import DAY, GIB, HOUR, KIB, MIB
from holdfast.model.store_location import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.model.config.keys import Kind

MAX_TEXTS = 1000
MAX_TEXT = 4096

_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)\Z")
_DECIMAL = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES = {**_DECIMAL, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40}
_CLEAR = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": HOUR, "d": DAY, "w": 7 * DAY}
_DURATIONS = {**_CLEAR, "m": 60.0}
# Never shorter than one of the calendar: what an age keeps is rather kept a little too long.
_MONTH, _YEAR = 31 * DAY, 366 * DAY
_AGES = {**_CLEAR, "mo": _MONTH, "y": _YEAR}
_LONG_AGE = re.compile(
    r"(?:([0-9]{1,5})y)?(?:([0-9]{1,5})mo?)?(?:([0-9]{1,5})w)?(?:([0-9]{1,5})d)?(?:([0-9]{1,5})h)?\Z"
)
_LONG_AGE_UNITS = (_YEAR, _MONTH, 7 * DAY, DAY, HOUR)


def parse_size(value: object) -> int:
    """Bytes from an integer or a text such as ``1GiB``, ``64MiB``, ``500MB``; raises `ValueError` saying why not."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    factor, number = _scaled(value, _SIZES, "a number of bytes, or one with a unit (kB, MB, GB, KiB, MiB, GiB, TiB)")
    size = float(number) * factor if "." in number else int(number) * factor
    if size != int(size):
        raise ValueError(f"{value!r} is no whole number of bytes")
    return int(size)


def parse_duration(value: object) -> float:
    """Seconds from a number or a text such as ``5s``, ``10m``, ``24h``, ``7d``; raises `ValueError` saying why not."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    factor, number = _scaled(value, _DURATIONS, "a number of seconds, or one with a unit (ms, s, m or min, h, d, w)")
    return float(number) * factor


def parse_age(value: object) -> float:
    """Seconds from a number or a text such as ``30min``, ``7d``, ``6mo``, or as restic writes it: ``1y5m7d2h``.

    There ``m`` are months; alone it is refused, since it means minutes in a duration. Raises `ValueError` saying why
    not.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        match = _LONG_AGE.match(value)
        counts: Sequence[str | None] = () if match is None else match.groups()
        given = [int(count) * unit for count, unit in zip(counts, _LONG_AGE_UNITS, strict=False) if count is not None]
        if len(given) > 1:
            return sum(given)
        number = _NUMBER.match(value)
        if number is not None and number[2] in ("m", "M"):
            raise ValueError(f"{_shown(value)} may mean months or minutes: write {number[1]}mo or {number[1]}min")
    factor, number = _scaled(
        value, _AGES, "a number of seconds, or one with a unit (s, min, h, d, w, mo, y), or several as in 1y5m7d2h"
    )
    return float(number) * factor


def parse_moment(value: str, now: int) -> int:
    """Microseconds since 1970 from an ISO 8601 date, or date and time (local, unless it says otherwise), or from an age
    as `parse_age` takes it, counted back from ``now``. Raises `ValueError` saying why not.
    """
    from datetime import datetime

    try:
        return round(datetime.fromisoformat(value).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        pass
    try:
        return now - round(parse_age(value) * 1_000_000)
    except (ValueError, OverflowError):
        raise ValueError(f"{_shown(value)} is no time such as 2026-02-11T15:04, and no age such as 2h or 7d") from None


def _scaled(value: object, units: Mapping[str, float], expected: str) -> tuple[Any, str]:
    match = _NUMBER.match(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{_shown(value)} is not {expected}")
    return units[match[2].lower()], match[1]


def parse_value(name: str, value: object) -> Any:
    """The typed value of the key ``name``; raises `ValueError` with the fault of ``value``."""
    key = KEYS[name]
    typed = _PARSERS[key.kind](value)
    if isinstance(typed, (int, float)) and not key.least <= typed <= key.most:
        # Written this way around, the comparison refuses NaN as well.
        raise ValueError(
            f"{_shown(value)} is not between {_limit(key.kind, key.least)} and {_limit(key.kind, key.most)}"
        )
    if key.choices and typed not in key.choices:
        raise ValueError(f"{_shown(value)} is none of {', '.join(key.choices)}")
    texts = [typed] if isinstance(typed, str) else cast("Sequence[str]", typed)
    for text in texts if key.pattern else ():
        if not re.fullmatch(key.pattern, text):
            why = f"is not {key.expected}" if key.expected else f"does not match {key.pattern}"
            # The value of an assignment may be a secret, so only its name is shown.
            name, sign, _ = text.partition("=")
            raise ValueError(f"{_shown(f'{name}=…' if sign else text)} {why}")
    return typed


def _limit(kind: Kind, limit: float) -> str:
    """As it could be written."""
    if kind == "size" and limit > 0:
        for unit, factor in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if limit % factor == 0:
                return f"{limit / factor:g}{unit}"
    return f"{limit:g}"


def _parse_integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{_shown(value)} is not a whole number")


def _parse_switch(value: object) -> bool:
    known = {True: True, False: False, "true": True, "false": False}
    if not isinstance(value, (bool, str)) or value not in known:
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return known[value]


def _parse_ratio(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"{_shown(value)} is not a number")


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not a text")  # noqa: TRY004 - one kind of error for every bad value
    if len(value) > MAX_TEXT or "\0" in value or "\n" in value:
        raise ValueError(f"a text has at most {MAX_TEXT} characters, no NUL and no line break")
    return value


def _parse_location(value: object) -> str:
    text = _parse_text(value)
    fault = fault_of(text) if text else None
    if fault is not None:
        raise ValueError(fault)
    return text


def _parse_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{_shown(value)} is not a list of texts")  # noqa: TRY004 - as above
    texts = tuple(_parse_text(text) for text in cast("Sequence[object]", value))
    if len(texts) > MAX_TEXTS:
        raise ValueError(f"{len(texts)} texts are more than {MAX_TEXTS}")
    return texts


def _parse_patterns(value: object) -> tuple[str, ...]:
    patterns = _parse_texts(value)
    for pattern in patterns:
        if pattern.startswith("!"):
            raise ValueError(f"{_shown(pattern)} begins with '!': a pattern here can exclude and nothing else")
    return patterns


_PARSERS: dict[Kind, Callable[[object], Any]] = {
    "size": parse_size,
    "duration": parse_duration,
    "age": parse_age,
    "integer": _parse_integer,
    "ratio": _parse_ratio,
    "text": _parse_text,
    "location": _parse_location,
    "patterns": _parse_patterns,
    "texts": _parse_texts,
    "switch": _parse_switch,
}


def _shown(value: object) -> str:
    if isinstance(value, (dict, list, tuple)):
        # Nested values may be nested deeply.
        return "a table" if isinstance(value, dict) else "a list"
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."

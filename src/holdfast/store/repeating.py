"""Calling again what a lost connection has cut short, where that does no harm: for catalogs elsewhere than here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Again = Callable[[Callable[[], Any]], Any]
    """Calls what it is given, once more while the connection is lost and nothing was committed."""


def repeat(part: object, methods: Iterable[str], again: Again) -> None:
    """Have ``again`` call these methods of ``part``. Each is one transaction, or does no harm when it is done twice."""

    def call(method: Callable[..., Any], *values: object, **named: object) -> Any:
        return again(lambda: method(*values, **named))

    for name in methods:
        setattr(part, name, partial(call, getattr(part, name)))

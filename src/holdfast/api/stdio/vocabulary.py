"""What the log may show of the messages of `holdfast stdio`."""

from __future__ import annotations

from functools import cache

from holdfast.api.stdio.schema import schema
from holdfast.api.tracing import Vocabulary, vocabulary


@cache
def known() -> Vocabulary:
    """What its schema names."""
    return vocabulary([schema()])

"""How many values a text of JSON holds, before any of them is made: two bytes of text can become hundreds in memory.

Nothing here tells whether it is JSON (RFC 8259) at all.
"""

from __future__ import annotations

import re
from itertools import islice

_PART = re.compile(rb'[^",\[{]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]|\Z)', re.DOTALL)
"""Up to the end of the next string, or of what begins or parts values. No byte is looked at twice."""


def has_more_values(text: bytes, most: int) -> bool:
    """Whether a text holds many more than ``most`` values, names of members included.

    True for every text that holds more than twice as many, False for every one that holds ``most`` or less, either in
    between. Takes time linear in the length of ``text``, and no memory to speak of.
    """
    # Every value but the outermost has a part of its own before it: a bracket, a comma, or the name of its member. And
    # there are no more strings and brackets than values, and fewer commas.
    parts = 2 * most
    if sum(map(text.count, (b'"', b",", b"[", b"{"))) < parts:
        return False  # so few even if none of them stood in a string
    return sum(1 for _ in islice(_PART.finditer(text), parts + 1)) > parts  # (one is the end)

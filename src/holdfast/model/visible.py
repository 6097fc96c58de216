"""Text that can be shown: with nothing in it that could drive a terminal, or make it read as what it is not."""

from __future__ import annotations

# C0, DEL and C1 drive terminals; the bidirectional and line-separating characters make text read as what it is not;
# lone surrogates cannot be written at all.
_UNSAFE = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


def visible(text: str) -> str:
    r"""``text`` on one line; characters that could drive or deceive a terminal become ``\xHH`` of their UTF-8 bytes."""
    if text.isascii() and text.isprintable():
        return text  # most is, and then nothing has to be loaded
    import re

    return re.sub(_UNSAFE, lambda match: escaped(match[0]), text)


def escaped(character: str) -> str:
    r"""``\xHH`` for each byte of a character in UTF-8, or for the one byte that a lone surrogate stands for."""
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))

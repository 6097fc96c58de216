"""Gitignore patterns of one rule file, parsed as Git parses them.

The grammar is that of Git's ``dir.c`` (lines, negation, anchoring) and ``wildmatch.c`` (globs), over bytes.
`_rule_matcher` matches with these patterns.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.files.git.configuration import MAX_RULES_BYTES
from holdfast.model.fast_namedtuple import NamedTuple

SLASH = ord("/")
ONE: Final = "?"
STAR: Final = "*"
DIRECTORIES: Final = "**/"
"""Nothing, or whole directories with the slash after them."""
ANYTHING: Final = "**"

Token = int | frozenset[int] | str
"""One byte, one byte of a set, or a wildcard."""

_DIGIT = frozenset(range(0x30, 0x3A))
_UPPER = frozenset(range(0x41, 0x5B))
_LOWER = frozenset(range(0x61, 0x7B))
_SPACE = frozenset(b" \t\n\r")
_PRINT = frozenset(range(0x20, 0x7F))
_CLASSES: dict[bytes, frozenset[int]] = {
    b"alnum": _DIGIT | _UPPER | _LOWER,
    b"alpha": _UPPER | _LOWER,
    b"blank": frozenset(b" \t"),
    b"cntrl": frozenset(range(0x20)) | {0x7F},
    b"digit": _DIGIT,
    b"graph": _PRINT - _SPACE,
    b"lower": _LOWER,
    b"print": _PRINT,
    b"punct": _PRINT - _SPACE - _DIGIT - _UPPER - _LOWER,
    b"space": _SPACE,
    b"upper": _UPPER,
    b"xdigit": _DIGIT | frozenset(b"abcdefABCDEF"),
}
_ALL = frozenset(range(1, 256)) - {SLASH}


class Pattern(NamedTuple):
    """One line of a rule file that is a pattern."""

    negative: bool
    directory_only: bool
    anchored: bool
    """Compared with the path from the rule file's directory, and not only with the last name."""
    tokens: tuple[Token, ...]


def parse_rules(content: bytes) -> list[Pattern]:
    """The patterns of a rule file, in order; lines that can never match are left out."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    if len(content) > MAX_RULES_BYTES:
        content = content[: content.rfind(b"\n", 0, MAX_RULES_BYTES) + 1]
    patterns: list[Pattern] = []
    for line in content.split(b"\n"):
        if not line or line[0] == 0x23:
            continue
        pattern = parse_line(line.removesuffix(b"\r").partition(b"\0")[0])
        if pattern is not None:
            patterns.append(pattern)
    return patterns


def parse_line(line: bytes) -> Pattern | None:
    """Parse one line without its line end as a pattern, or None if it can match no path."""
    text = _trim(line)
    negative = text[:1] == b"!"
    if negative:
        text = text[1:]
    directory_only = text[-1:] == b"/"
    if directory_only:
        text = text[:-1]
    anchored = b"/" in text
    if text[:1] == b"/":
        text = text[1:]
    tokens = _tokenize(text, anchored)
    if not tokens or tokens[-1] in (SLASH, DIRECTORIES):
        return None
    if tokens[0] == DIRECTORIES and SLASH not in tokens and DIRECTORIES not in tokens[1:] and ANYTHING not in tokens:
        tokens, anchored = tokens[1:], False
    return Pattern(negative, directory_only, anchored, tuple(tokens))


def _trim(line: bytes) -> bytes:
    """``line`` without unescaped trailing spaces."""
    stripped = line.rstrip(b" ")
    if len(stripped) == len(line):
        return line
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return stripped + b" " if backslashes % 2 else stripped


def _tokenize(text: bytes, anchored: bool) -> list[Token] | None:
    """``text`` in the interpretation of `wildmatch`, or None if it can match no name."""
    tokens: list[Token] = []
    # Git compares the part before the first wildcard as a string and begins to match after it: two stars right there
    # are at the beginning of a pattern, whatever is before them.
    special = re.search(rb"[*?\[\\]", text)
    begin = special.start() if special else len(text)
    at = 0
    while at < len(text):
        byte = text[at]
        if byte == 0x2A:
            end = at + 1
            while text[end : end + 1] == b"*":
                end += 1
            whole = anchored and end - at > 1 and (at == begin or text[at - 1] == SLASH)
            if whole and text[end : end + 1] == b"/":
                if tokens[-1:] != [DIRECTORIES]:
                    tokens.append(DIRECTORIES)
                end += 1
            elif whole and (end == len(text) or text[end : end + 2] == b"\\/"):
                tokens.append(ANYTHING)
            else:
                tokens.append(STAR)
            at = end
        elif byte == 0x3F:
            tokens.append(ONE)
            at += 1
        elif byte == 0x5B:
            bracket = _bracket(text, at + 1)
            if bracket is None or not bracket[0]:
                return None
            tokens.append(next(iter(bracket[0])) if len(bracket[0]) == 1 else bracket[0])
            at = bracket[1]
        else:
            if byte == 0x5C:
                at += 1
                if at == len(text):
                    return None
                byte = text[at]
            tokens.append(byte)
            at += 1
    return tokens


def _bracket(text: bytes, at: int) -> tuple[frozenset[int], int] | None:
    """The bytes matched by the bracket expression whose inside begins at ``at``, and its end; None if malformed."""
    negated = text[at : at + 1] in (b"!", b"^")
    if negated:
        at += 1
    members: set[int] = set()
    previous = 0
    first = True
    while True:
        if at >= len(text):
            return None
        byte = text[at]
        if byte == 0x5D and not first:
            break
        first = False
        if byte == 0x5C:
            at += 1
            if at >= len(text):
                return None
            byte = text[at]
            members.add(byte)
        elif byte == 0x2D and previous and text[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            if text[at] == 0x5C:
                at += 1
                if at >= len(text):
                    return None
            members.update(range(previous, text[at] + 1))
            byte = 0
        elif text[at : at + 2] == b"[:":
            end = text.find(b"]", at + 2)
            if end < 0:
                return None
            if end > at + 2 and text[end - 1] == 0x3A:
                named = _CLASSES.get(text[at + 2 : end - 1])
                if named is None:
                    return None
                members |= named
                at, byte = end, 0
            else:
                members.add(byte)
        else:
            members.add(byte)
        previous = byte
        at += 1
    return (_ALL - members if negated else _ALL & members), at + 1

"""Gitignore patterns of one rule file: parsed as Git parses them, looked up in tables or matched.

The grammar is that of Git's ``dir.c`` (lines, negation, anchoring) and ``wildmatch.c`` (globs), over bytes. Most
patterns are names, ``*.suffix`` or paths and are answered from dictionaries; what has more wildcards is translated by
`pathspec`, after what it reads otherwise than Git (bracket expressions, escapes, stars beside other characters) was
resolved here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_RULES_BYTES = 1 << 20
"""What is read of a rule file; an absurdly large one is cut at the last whole line before this."""

_SLASH = ord("/")
_ONE: Final = "?"
_STAR: Final = "*"
_DIRECTORIES: Final = "**/"
"""Nothing, or whole directories with the slash behind them."""
_ANYTHING: Final = "**"

Token = int | frozenset[int] | str
"""One byte, one byte of a set, or a wildcard."""

_MAX_ALTERNATIVES = 32
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-/")
_PRIVATE_USE = 0xE000

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
_ALL = frozenset(range(1, 256)) - {_SLASH}


class Pattern(NamedTuple):
    """One line of a rule file that can match something."""

    negative: bool
    directory_only: bool
    anchored: bool
    """It is compared with the path from the rule file's directory, not with the last name alone."""
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
    """One line without its line end as a pattern, or None if it can match nothing."""
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
    if not tokens or tokens[-1] in (_SLASH, _DIRECTORIES):
        return None
    if (
        tokens[0] == _DIRECTORIES
        and _SLASH not in tokens
        and _DIRECTORIES not in tokens[1:]
        and _ANYTHING not in tokens
    ):
        tokens, anchored = tokens[1:], False
    return Pattern(negative, directory_only, anchored, tuple(tokens))


def _trim(line: bytes) -> bytes:
    """``line`` without trailing spaces, unless the first of them is escaped."""
    stripped = line.rstrip(b" ")
    if len(stripped) == len(line):
        return line
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return stripped + b" " if backslashes % 2 else stripped


def _tokenize(text: bytes, anchored: bool) -> list[Token] | None:
    """``text`` as `wildmatch` reads it, or None if it matches nothing whatever the name."""
    tokens: list[Token] = []
    # Git compares the part before the first wildcard as a string and begins to match behind it: two stars right there
    # stand at the beginning of a pattern, whatever came before.
    special = re.search(rb"[*?\[\\]", text)
    begin = special.start() if special else len(text)
    at = 0
    while at < len(text):
        byte = text[at]
        if byte == 0x2A:
            end = at + 1
            while text[end : end + 1] == b"*":
                end += 1
            whole = anchored and end - at > 1 and (at == begin or text[at - 1] == _SLASH)
            if whole and text[end : end + 1] == b"/":
                if tokens[-1:] != [_DIRECTORIES]:
                    tokens.append(_DIRECTORIES)
                end += 1
            elif whole and (end == len(text) or text[end : end + 2] == b"\\/"):
                tokens.append(_ANYTHING)
            else:
                tokens.append(_STAR)
            at = end
        elif byte == 0x3F:
            tokens.append(_ONE)
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
    """What the bracket expression whose inside begins at ``at`` matches, and where it ends; None if malformed."""
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


class Rules:
    """The patterns of one rule file, ready to answer. The last pattern that matches decides."""

    __slots__ = ("_directories", "_others", "_patterns")

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._patterns = list(patterns)
        self._directories: _Table | None = None
        self._others: _Table | None = None

    def verdict(self, path: bytes, name: bytes, is_directory: bool) -> bool | None:
        """True if ``path`` (from the rule file's directory; ``name`` is its last part) is excluded, False if a negation
        takes it back, None if no pattern speaks of it. What a pattern says of parent directories is not considered.
        """
        if not self._patterns:
            return None
        if is_directory:
            table = self._directories
            if table is None:
                table = self._directories = _Table(enumerate(self._patterns))
        else:
            table = self._others
            if table is None:
                table = self._others = _Table(pair for pair in enumerate(self._patterns) if not pair[1].directory_only)
        found = table.last(path, name)
        return None if found < 0 else not self._patterns[found].negative


class _Table:
    """Finds the last of some numbered patterns that matches."""

    __slots__ = (
        "_affixes",
        "_expression",
        "_expression_last",
        "_groups",
        "_names",
        "_path_affixes",
        "_paths",
        "_suffixes",
    )

    def __init__(self, numbered: Iterable[tuple[int, Pattern]]) -> None:
        self._names: dict[bytes, int] = {}
        self._paths: dict[bytes, int] = {}
        self._suffixes: dict[bytes, int] = {}
        """For ``*.suffix``: from the last dot of a name on."""
        self._affixes: list[tuple[int, bytes, bytes]] = []
        self._path_affixes: list[tuple[int, bytes, bytes, bool]] = []
        general: list[tuple[int, Pattern]] = []
        for number, pattern in numbered:
            variants = _variants(pattern.tokens)
            if variants is None:
                general.append((number, pattern))
                continue
            for before, wildcard, after in variants:
                if wildcard is None:
                    (self._paths if pattern.anchored else self._names)[before] = number
                elif pattern.anchored:
                    self._path_affixes.append((number, before, after, wildcard == _ANYTHING))
                elif not before and after.rfind(b".") == 0:
                    self._suffixes[after] = number
                else:
                    self._affixes.append((number, before, after))
        self._affixes.reverse()
        self._path_affixes.reverse()
        general.reverse()
        self._groups = [number for number, _ in general]
        self._expression_last = self._groups[0] if general else -1
        self._expression = _compile(pattern for _, pattern in general) if general else None

    def last(self, path: bytes, name: bytes) -> int:
        """The number of the last pattern that matches, or -1."""
        best = self._names.get(name, -1)
        if self._suffixes and (dot := name.rfind(b".")) >= 0:
            best = max(best, self._suffixes.get(name[dot:], -1))
        if self._paths:
            best = max(best, self._paths.get(path, -1))
        for number, before, after in self._affixes:
            if number <= best:
                break
            if name.startswith(before) and name.endswith(after) and len(name) >= len(before) + len(after):
                best = number
                break
        for number, before, after, anything in self._path_affixes:
            if number <= best:
                break
            inside = len(path) - len(after)
            if (
                path.startswith(before)
                and path.endswith(after)
                and inside >= len(before)
                and (anything or path.find(b"/", len(before), inside) < 0)
            ):
                best = number
                break
        if self._expression is not None and self._expression_last > best:
            match = self._expression.fullmatch(path)
            if match is not None and match.lastindex is not None:
                best = max(best, self._groups[match.lastindex - 1])
        return best


def _variants(tokens: tuple[Token, ...]) -> list[tuple[bytes, str | None, bytes]] | None:
    """``tokens`` as strings around at most one ``*`` (small sets spelled out), or None if they are not that simple."""
    found: list[tuple[bytes, str | None, bytes]] = [(b"", None, b"")]
    for token in tokens:
        if isinstance(token, str):
            if token in (_ONE, _DIRECTORIES) or found[0][1] is not None:
                return None
            found = [(before, token, b"") for before, _, _ in found]
            continue
        letters = (token,) if isinstance(token, int) else tuple(token)
        if len(found) * len(letters) > _MAX_ALTERNATIVES:
            return None
        found = [
            (before + bytes((letter,)), None, b"") if wildcard is None else (before, wildcard, after + bytes((letter,)))
            for before, wildcard, after in found
            for letter in letters
        ]
    return found


def _compile(patterns: Iterable[Pattern]) -> re.Pattern[bytes]:
    """One expression with a group for each of ``patterns``; `fullmatch` sets that of the first one that matches."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    groups: list[bytes] = []
    for pattern in patterns:
        text, replacements = _canonical(pattern)
        expression, _ = GitIgnoreSpecPattern.pattern_to_regex(text)
        if expression is None:  # pragma: no cover - a pattern in canonical form always has one
            groups.append(b"((?!))")
            continue
        # This group marks directories, which the tables tell apart here; many of one name could not be combined.
        expression = expression.replace("(?P<ps_d>", "(?:")
        for mark, replacement in replacements.items():
            expression = expression.replace(mark, replacement)
        groups.append(b"(" + expression.encode("latin-1") + b")")
    return re.compile(b"|".join(groups), re.DOTALL)


def _canonical(pattern: Pattern) -> tuple[str, dict[str, str]]:
    """``pattern`` in the syntax that `pathspec` and Git read alike, with marks for the rest, and what those mean.

    A mark is one character that is no byte's; it stands for an expression that is put in after the translation.
    """
    replacements: dict[str, str] = {}

    def mark(expression: str) -> str:
        character = chr(_PRIVATE_USE + len(replacements))
        replacements[character] = expression
        return character

    parts = ["/"] if pattern.anchored else []
    tokens = pattern.tokens
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token == _STAR and (run := _fixed_run(tokens, at + 1)):
            # Between two stars the leftmost match is as good as any: an atomic group keeps hostile patterns linear.
            parts.append(mark(f"(?>[^/]*?{''.join(map(_expression, run))})"))
            at += 1 + len(run)
            continue
        if token in (_STAR, _ONE):
            parts.append(str(token))
        elif token == _DIRECTORIES and (at == 0 or tokens[at - 1] in (_SLASH, _DIRECTORIES)):
            parts.append("**/")
        elif isinstance(token, int) and token in _PLAIN:
            parts.append(chr(token))
        else:
            parts.append(mark(_expression(token)))
        at += 1
    return "".join(parts), replacements


def _fixed_run(tokens: tuple[Token, ...], start: int) -> tuple[Token, ...]:
    """The tokens from ``start`` to the next ``*``, if all of them match exactly one byte of a name; else nothing."""
    for at in range(start, len(tokens)):
        if tokens[at] == _STAR:
            return tokens[start:at]
        if tokens[at] in (_SLASH, _DIRECTORIES, _ANYTHING):
            return ()
    return ()


def _expression(token: Token) -> str:
    """The regular expression of one token."""
    if isinstance(token, int):
        return re.escape(chr(token))
    if isinstance(token, str):
        return {_ONE: "[^/]", _STAR: "[^/]*", _DIRECTORIES: "(?:.*/)?", _ANYTHING: ".*"}[token]
    return "[" + "".join(f"\\x{byte:02x}" for byte in sorted(token)) + "]"

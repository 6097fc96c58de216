"""Applies the gitignore patterns of one rule file: by tables, or by matching.

Most patterns are names, ``*.suffix`` or paths and are looked up in dictionaries; those with more wildcards are
translated by `pathspec`, after `_patterns` has resolved the syntax in which it differs from Git (bracket expressions,
escapes, stars beside other characters).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.files.ignore._patterns import ANYTHING, DIRECTORIES, ONE, SLASH, STAR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.files.ignore._patterns import Pattern, Token

MAX_GLOBS = 1000
"""Limit of the patterns of one file that need a regular expression. Each costs time for every name."""

_Variants = list[tuple[bytes, str | None, bytes]]
"""The matches of a pattern without an expression: the part before the wildcard, the wildcard or None, the rest."""

_GLOBS_AT_ONCE = 100
"""The time that an expression takes grows faster than its groups."""
_MAX_ALTERNATIVES = 32
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-/")
_PRIVATE_USE = 0xE000


class Rules:
    """The patterns of one rule file, ready to answer. The last pattern that matches decides."""

    __slots__ = ("_directories", "_others", "_patterns", "left_out")

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._patterns: list[tuple[Pattern, _Variants | None]] = []
        self._directories: _Table | None = None
        self._others: _Table | None = None
        self.left_out = 0
        """Number of patterns that are ignored, as the limit `MAX_GLOBS` was reached before them."""
        globs = 0
        for pattern in patterns:
            variants = _variants(pattern.tokens)
            if variants is None:
                globs += 1
                if globs > MAX_GLOBS:
                    self.left_out += 1
                    continue
            self._patterns.append((pattern, variants))

    def verdict(self, path: bytes, name: bytes, is_directory: bool) -> bool | None:
        """True if ``path`` (from the rule file's directory; ``name`` is its last part) is excluded, False if a negation
        includes it, None if no pattern matches. Patterns that match parent directories are not considered.
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
                table = self._others = _Table(
                    item for item in enumerate(self._patterns) if not item[1][0].directory_only
                )
        found = table.last(path, name)
        return None if found < 0 else not self._patterns[found][0].negative


class _Table:
    """Finds the last of some numbered patterns that matches, in a time that hardly depends on how many there are."""

    __slots__ = ("_affixes", "_globs", "_names", "_path_affixes", "_paths", "_suffixes")

    def __init__(self, numbered: Iterable[tuple[int, tuple[Pattern, _Variants | None]]]) -> None:
        self._names: dict[bytes, int] = {}
        self._paths: dict[bytes, int] = {}
        self._suffixes: dict[bytes, int] = {}
        """For ``*.suffix``: from the last dot of a name on."""
        self._affixes = _Affixes()
        self._path_affixes = {wildcard: _Affixes() for wildcard in (STAR, ANYTHING)}
        globs: list[tuple[int, Pattern]] = []
        for number, (pattern, variants) in numbered:
            if variants is None:
                globs.append((number, pattern))
                continue
            for before, wildcard, after in variants:
                if wildcard is None:
                    (self._paths if pattern.anchored else self._names)[before] = number
                elif pattern.anchored:
                    self._path_affixes[wildcard].add(number, before, after)
                elif not before and after.rfind(b".") == 0:
                    self._suffixes[after] = number
                else:
                    self._affixes.add(number, before, after)
        globs.reverse()
        self._globs = [_Globs(globs[at : at + _GLOBS_AT_ONCE]) for at in range(0, len(globs), _GLOBS_AT_ONCE)]

    def last(self, path: bytes, name: bytes) -> int:
        """The number of the last pattern that matches, or -1."""
        best = self._names.get(name, -1)
        if self._suffixes and (dot := name.rfind(b".")) >= 0:
            best = max(best, self._suffixes.get(name[dot:], -1))
        if self._paths:
            best = max(best, self._paths.get(path, -1))
        best = self._affixes.last(name, best)
        best = self._path_affixes[ANYTHING].last(path, best)
        best = self._path_affixes[STAR].last(path, best, within_a_name=True)
        for globs in self._globs:
            if globs.numbers[0] <= best:
                break
            best = max(best, globs.last(path))
        return best


class _Affixes:
    """Patterns of one wildcard with a prefix and a suffix, by the lengths of these two.

    A text is looked up once for each pair of lengths, of which a rule file of limited size cannot have many.
    """

    __slots__ = ("_by_length",)

    def __init__(self) -> None:
        self._by_length: dict[tuple[int, int], dict[tuple[bytes, bytes], int]] = {}

    def add(self, number: int, before: bytes, after: bytes) -> None:
        """Add a pattern with a higher number than all before it."""
        self._by_length.setdefault((len(before), len(after)), {})[before, after] = number

    def last(self, text: bytes, best: int, *, within_a_name: bool = False) -> int:
        """The highest number of those that match ``text``, if it is above ``best``; otherwise ``best``.

        ``within_a_name``: the wildcard matches no slash.
        """
        length = len(text)
        for (before, after), known in self._by_length.items():
            end = length - after
            if before <= end:
                number = known.get((text[:before], text[end:]), -1)
                if number > best and not (within_a_name and text.find(b"/", before, end) >= 0):
                    best = number
        return best


class _Globs:
    """Patterns that take an expression, the last one first."""

    __slots__ = ("_expression", "numbers")

    def __init__(self, numbered: Sequence[tuple[int, Pattern]]) -> None:
        self.numbers = [number for number, _ in numbered]
        self._expression = _compile(pattern for _, pattern in numbered)

    def last(self, path: bytes) -> int:
        """The highest number of the matching patterns, or -1."""
        match = self._expression.fullmatch(path)
        return -1 if match is None or match.lastindex is None else self.numbers[match.lastindex - 1]


def _variants(tokens: tuple[Token, ...]) -> _Variants | None:
    """``tokens`` as strings around at most one ``*`` (small sets spelled out), or None if they are not that simple."""
    found: _Variants = [(b"", None, b"")]
    for token in tokens:
        if isinstance(token, str):
            if token in (ONE, DIRECTORIES) or found[0][1] is not None:
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
    """``pattern`` in the syntax common to `pathspec` and Git, with marks for the rest, and the meaning of these.

    A mark is one character that stands for no byte; it is replaced by an expression after the translation.
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
        if token == STAR and (run := _fixed_run(tokens, at + 1)):
            # Between two stars the leftmost match is as good as any: an atomic group keeps hostile patterns linear.
            parts.append(mark(f"(?>[^/]*?{''.join(map(_expression, run))})"))
            at += 1 + len(run)
            continue
        if token in (STAR, ONE):
            parts.append(str(token))
        elif token == DIRECTORIES and (at == 0 or tokens[at - 1] in (SLASH, DIRECTORIES)):
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
        if tokens[at] == STAR:
            return tokens[start:at]
        if tokens[at] in (SLASH, DIRECTORIES, ANYTHING):
            return ()
    return ()


def _expression(token: Token) -> str:
    """The regular expression of one token."""
    if isinstance(token, int):
        return re.escape(chr(token))
    if isinstance(token, str):
        return {ONE: "[^/]", STAR: "[^/]*", DIRECTORIES: "(?:.*/)?", ANYTHING: ".*"}[token]
    return "[" + "".join(f"\\x{byte:02x}" for byte in sorted(token)) + "]"

"""The words of a command after the shell's expansions, as far as these are certain beforehand.

In `Word.shape` what is uncertain has a mark: `UNKNOWN` for any text or none, and one each for the active characters of
a pattern. `spread` does what the shell does to unquoted text: braces, the tilde, splitting, patterns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN = "\0"
STAR, ANY, SET = "\1", "\2", "\3"
_PATTERN = {"*": STAR, "?": ANY, "[": SET}
_SHOWN = str.maketrans({UNKNOWN: "…", STAR: "*", ANY: "?", SET: "["})

MAX_LENGTH = 16 << 10
"""A word that is longer than this is not known."""
MAX_WORDS = 256
"""What expands to more words than this is not expanded."""

# How a character of a word is seen by the shell.
PLAIN, EXPANDED, QUOTED = 0, 1, 2
Characters = list[tuple[str, int]]
"""A word before the last expansions: its characters, each as it was written, expanded without quotes, or quoted."""


class Word(NamedTuple):
    """One word that a program is given."""

    shape: str
    start: int
    """Where it stands, in bytes of the outermost text."""
    end: int
    computed: bool = False
    """True if what a command prints is in it."""
    many: bool = False
    """True if there may be several of it, or none."""

    @property
    def text(self) -> str | None:
        """What it is, if that is certain."""
        return None if any(mark in self.shape for mark in "\0\1\2\3") else self.shape

    @property
    def lead(self) -> str:
        """What it certainly begins with."""
        return next((self.shape[:at] for at, one in enumerate(self.shape) if one <= SET), self.shape)

    @property
    def certain(self) -> bool:
        """True if nothing but the file system decides what it is: a text, or a pattern."""
        return UNKNOWN not in self.shape

    @property
    def shown(self) -> str:
        """For a message."""
        text = self.shape.translate(_SHOWN)
        text = "".join(one if one.isprintable() else "?" for one in text)
        return text if len(text) <= 60 else text[:57] + "..."

    def after(self, count: int) -> Word:
        """What follows the first ``count`` characters."""
        return self._replace(shape=self.shape[count:])


def unquoted(text: str) -> Characters:
    """The characters of a word as it is written, with backslashes."""
    found: Characters = []
    at = 0
    while at < len(text):
        one = text[at]
        if one == "\\" and at + 1 < len(text):
            at += 1
            if text[at] != "\n":
                found.append((text[at], QUOTED))
        else:
            found.append((one, PLAIN))
        at += 1
    return found


def double_quoted(text: str) -> Characters:
    """The characters of what stands in double quotes, with backslashes."""
    found: Characters = []
    at = 0
    while at < len(text):
        one = text[at]
        if one == "\\" and at + 1 < len(text) and text[at + 1] in '$`"\\\n':
            at += 1
            one = text[at]
            if one == "\n":
                at += 1
                continue
        found.append((one, QUOTED))
        at += 1
    return found


def backquoted(text: str) -> str:
    """What stands between backquotes, without the backslashes that belong to these."""
    found: list[str] = []
    at = 0
    while at < len(text):
        at += text[at] == "\\" and text[at + 1 : at + 2] in ("$", "`", "\\")
        found.append(text[at])
        at += 1
    return "".join(found)


def between_backquotes(text: str) -> list[str] | None:
    """What stands in the backquotes of a here-document, in which quotes mean nothing; None if the last is open."""
    parts: list[str] = [""]
    at = 0
    while at < len(text):
        if text[at] == "`":
            parts.append("")
            at += 1
            continue
        width = 2 if text[at] == "\\" else 1
        parts[-1] += text[at : at + width]
        at += width
    return parts[1::2] if len(parts) % 2 else None


_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_NUMBERED = {"x": (16, 2), "u": (16, 4), "U": (16, 8)}


def ansi_quoted(text: str) -> str:
    """What stands between ``$'`` and ``'``, with its escapes replaced; `UNKNOWN` for what gives no plain character."""
    found: list[str] = []
    at = 0
    while at < len(text):
        one = text[at]
        at += 1
        if one != "\\" or at == len(text):
            found.append(one)
            continue
        escape = text[at]
        if escape in _ESCAPES:
            found.append(_ESCAPES[escape])
            at += 1
            continue
        base, longest = _NUMBERED.get(escape, (8, 3))
        at += base == 16
        end = at
        while (
            end < len(text) and end < at + longest and text[end] in "0123456789abcdefABCDEF"[: 22 if base == 16 else 8]
        ):
            end += 1
        code = int(text[at:end], base) if end > at else -1
        # A byte from 128 on may be a part of a character.
        found.append(chr(code) if 3 < code < 128 or (escape in "uU" and 127 < code < 0xD800) else UNKNOWN)
        at = max(end, at if base == 16 else at + 1)
    return "".join(found)


def spread(characters: Characters, home: str | None) -> list[str]:
    """The shapes of the words that ``characters`` become. None, if they are an expansion of nothing."""
    found: list[str] = []
    for one in _braces(characters):
        found += (_shape(field) for field in _fields(_tilde(one, home)))
    return found if len(found) <= MAX_WORDS else [UNKNOWN]


def as_pattern(text: str) -> str:
    """The shape of a pattern that a program, not the shell, takes for one."""
    return "".join(_PATTERN.get(char, char) for char in text)


def _shape(characters: Characters) -> str:
    return "".join(_PATTERN.get(char, char) if kind != QUOTED else char for char, kind in characters)


def joined(characters: Characters, home: str | None) -> str:
    """The shape of a value that is assigned: one word, whatever is in it."""
    return "".join(char for char, _ in _tilde(characters, home))


def _tilde(characters: Characters, home: str | None) -> Characters:
    if not characters or characters[0] != ("~", PLAIN):
        return characters
    slash = next((at for at, one in enumerate(characters) if one == ("/", PLAIN)), len(characters))
    value = home if slash == 1 and home else UNKNOWN
    return [(char, QUOTED) for char in value] + characters[slash:]


def _fields(characters: Characters) -> Iterable[Characters]:
    field: Characters = []
    written = False
    for char, kind in characters:
        if kind == EXPANDED and char in " \t\n":
            if written:
                yield field
            field, written = [], False
            continue
        written = True
        if char:
            # A quoted nothing makes a word, and is no character.
            field.append((char, kind))
    if written:
        yield field


def _braces(characters: Characters) -> list[Characters]:
    """``characters`` with each ``{a,b}`` replaced by either, as often as there are ways."""
    if ("{", PLAIN) not in characters:
        return [characters]
    done: list[Characters] = []
    waiting = [characters]
    while waiting:
        one = waiting.pop()
        group = _group(one)
        if group is None:
            done.append(one)
            continue
        start, commas, end = group
        ends = [*commas, end]
        parts = [one[a + 1 : b] for a, b in zip([start, *commas], ends, strict=True)]
        # The last one is looked at first: what comes out is in the order in which it is written.
        waiting += [one[:start] + part + one[end + 1 :] for part in reversed(parts)]
        if len(done) + len(waiting) > MAX_WORDS:
            return [[(UNKNOWN, QUOTED)]]
    return done


def _group(characters: Characters) -> tuple[int, list[int], int] | None:
    """Where the first group in braces begins, where its commas are, and where it ends."""
    opened: list[tuple[int, list[int]]] = []
    groups: list[tuple[int, list[int], int]] = []
    for at, one in enumerate(characters):
        if one == ("{", PLAIN):
            opened.append((at, []))
        elif one == (",", PLAIN) and opened:
            opened[-1][1].append(at)
        elif one == ("}", PLAIN) and opened:
            start, commas = opened.pop()
            if commas:
                groups.append((start, commas, at))
    return min(groups, default=None)

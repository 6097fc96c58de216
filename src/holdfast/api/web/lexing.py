"""The process that highlights source text: ``python -m holdfast.api.web.lexing`` answers questions from standard input
on standard output, until the input ends.

Lexers are regular expressions. On hostile or merely odd text a match may take minutes or years; no exception interrupts
it, and no other thread of its process runs meanwhile. So they run in a process that the kernel ends when a text takes
too long.
"""

from __future__ import annotations

import signal
import struct
import sys
from typing import IO, TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from holdfast.model.decoders import msgpack_decoder
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from pygments.lexer import Lexer

SECONDS: Final = 2.0
"""Of the processor, for a text."""
_HEAD: Final = struct.Struct(">I")

_Frame = TypeVar("_Frame")

_STYLES: Final = (
    ("Comment.Preproc", "tp"),
    ("Comment", "tc"),
    ("Keyword.Constant", "tn"),
    ("Keyword.Type", "tt"),
    ("Keyword", "tk"),
    ("Literal.String", "ts"),
    ("Literal.Number", "tn"),
    ("Name.Function", "tf"),
    ("Name.Class", "tt"),
    ("Name.Decorator", "tp"),
    ("Name.Builtin", "tb"),
    ("Name.Tag", "tk"),
    ("Name.Attribute", "tf"),
    ("Name.Exception", "tt"),
    ("Operator.Word", "tk"),
    ("Generic.Heading", "tk"),
    ("Generic.Subheading", "tf"),
    ("Generic.Strong", "tt"),
)
"""Kinds of tokens by the beginnings of their names, and the class of each: few colours say more than many."""


class Question(NamedTuple):
    """A text to take apart."""

    name: str
    """The name of the file, which decides the language."""
    text: str


Answer: TypeAlias = list[list[tuple[str, str]]]
"""The pieces of each line, with a class of the style sheet (empty: plain text); no lines: unknown language."""


def write_frame(stream: IO[bytes], value: object) -> None:
    """Write a value with its length. Raises `OSError` if the reader is gone."""
    content = msgspec.msgpack.encode(value)
    stream.write(_HEAD.pack(len(content)) + content)
    stream.flush()


def read_frame(stream: IO[bytes], kind: type[_Frame]) -> _Frame | None:
    """Read a value; None at the end, also where that comes within one."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    (size,) = _HEAD.unpack(head)
    content = stream.read(size)
    return None if len(content) < size else msgpack_decoder(kind).decode(content)


def lines_of(question: Question) -> Answer:
    """The pieces of each line."""
    from pygments.lexers import get_lexer_for_filename  # pyright: ignore[reportUnknownVariableType]
    from pygments.util import ClassNotFound

    begin = "\n".join(question.text.split("\n", 50)[:50])
    try:
        lexer: Lexer = get_lexer_for_filename(question.name, begin, stripnl=False, ensurenl=True)
    except ClassNotFound:
        return []
    found: Answer = [[]]
    for kind, text in lexer.get_tokens(question.text):
        style = _style(kind)
        first, *rest = text.split("\n")
        if first:
            found[-1].append((first, style))
        found += [[(part, style)] if part else [] for part in rest]
    return found


_known: dict[tuple[str, ...], str] = {}


def _style(kind: tuple[str, ...]) -> str:
    known = _known.get(kind)
    if known is None:
        name = ".".join(kind)
        known = next((style for prefix, style in _STYLES if name.startswith(prefix)), "")
        _known[kind] = known
    return known


def _serve() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while (question := read_frame(sys.stdin.buffer, Question)) is not None:
        # The signal kills the process. CPU time is counted, since real time passes on a busy machine as well.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        answer = lines_of(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(sys.stdout.buffer, answer)


if __name__ == "__main__":
    _serve()

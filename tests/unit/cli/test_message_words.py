"""Messages and help are plain and short, and every command that they name exists."""

from __future__ import annotations

import argparse
import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import holdfast
from holdfast.cli import command_table
from holdfast.cli.argparse_parser import build_parser
from holdfast.model.config.keys import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(holdfast.__file__).parent

FORBIDDEN = re.compile(
    r"\b(?:(?:who|what|which)ever|(?:some|any|no)body|someone|anyone|such that|not to lose"
    r"|what (?:is|was|are|were|has|have|had|they|there|both|others))\b",
    re.IGNORECASE,
)
"""No noun says who acts, or which thing is meant."""

SQL = re.compile(r"\b(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|NOT NULL|ORDER BY|WHERE|PRAGMA)\b|^\s*-- |^\s*//")
"""Programs in other languages, which no user reads as messages."""

LIMITS = {"message": 160, "hint": 140, "warning": 200, "help": 120}
"""The most characters of each kind, without what stands in for its placeholders."""
MOST_SUMMARY = 70
MOST_MEANING = 160
MOST_DESCRIPTION = 720
MOST_NOTE = 480


class Text(NamedTuple):
    """A string of the source."""

    place: str
    kind: str
    text: str
    """Each placeholder of an f-string is ``{}``."""

    @property
    def length(self) -> int:
        """Characters, without placeholders."""
        return len(re.sub(r"\{\}|%[sdrg]", "", self.text))


def rendered(node: ast.Constant | ast.JoinedStr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@cache
def sources() -> dict[str, str]:
    """The program's files, without the aids of tests that it has."""
    paths = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
    return {str(path): (SOURCE / path).read_text() for path in paths if path.parts[0] != "testing"}


@cache
def errors() -> frozenset[str]:
    """The names of all subclasses of `HoldfastError`."""
    classes = re.compile(r"^class (\w+)\(([\w, .]+)\):", re.MULTILINE)
    bases = [(name, set(above.split(", "))) for text in sources().values() for name, above in classes.findall(text)]
    found = {"HoldfastError"}
    while more := {name for name, above in bases if above & found} - found:
        found |= more
    return frozenset(found)


def parts(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of a call that are texts of a kind that has a limit."""
    name = called(call)
    for word in call.keywords:
        if word.arg == "hint" or (word.arg == "help" and name == "add_argument"):
            yield word.arg, word.value
    if call.args and name in errors():
        yield "message", call.args[0]
    if call.args and name in ("warning", "error", "exception"):
        yield "warning", call.args[0]


def own(expression: ast.expr) -> Iterator[ast.expr]:
    """An expression and those in it, such as the branches of a condition; not the arguments of calls."""
    yield expression
    if not isinstance(expression, ast.JoinedStr | ast.Call):
        for child in ast.iter_child_nodes(expression):
            if isinstance(child, ast.expr):
                yield from own(child)


@cache
def texts() -> tuple[Text, ...]:
    """Every string of more than one word, but for docstrings."""
    found: list[Text] = []
    for path, source in sources().items():
        skipped: set[int] = set()
        known: dict[int, str] = {}
        strings: list[ast.Constant | ast.JoinedStr] = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                strings.append(node)
                skipped.update(map(id, node.values if isinstance(node, ast.JoinedStr) else ()))
            elif isinstance(node, ast.Expr):
                skipped.add(id(node.value))
            elif isinstance(node, ast.Call):
                known |= {id(each): kind for kind, expression in parts(node) for each in own(expression)}
        for node in strings:
            text = rendered(node)
            if text is not None and id(node) not in skipped and " " in text.strip() and not SQL.search(text):
                found.append(Text(f"{path}:{node.lineno}", known.get(id(node), ""), text))
    return tuple(found)


def test_all_kinds_of_texts_are_found() -> None:
    count = {kind: sum(text.kind == kind for text in texts()) for kind in LIMITS}
    assert min(count.values()) > 100, count
    assert {"LockedError", "VersionMismatchError", "EscapeError"} <= errors()


def test_the_actor_is_a_noun() -> None:
    assert [text for text in texts() if FORBIDDEN.search(text.text)] == []


@pytest.mark.parametrize("kind", LIMITS)
def test_a_text_is_short(kind: str) -> None:
    assert [text for text in texts() if text.kind == kind and text.length > LIMITS[kind]] == []


@pytest.mark.parametrize("kind", LIMITS)
def test_a_text_of_one_sentence_has_no_period(kind: str) -> None:
    ending = [text for text in texts() if text.kind == kind and text.text.endswith(".")]
    assert [text for text in ending if ". " not in text.text] == []


COMMANDS = command_table.every()


@cache
def parser(name: str) -> argparse.ArgumentParser:
    return build_parser(name, COMMANDS[name])


def summaries() -> Iterator[tuple[str, str]]:
    for group in command_table.COMMANDS.values():
        yield from ((name, summary) for name, (_, summary) in group.items())
    for name, command in COMMANDS.items():
        yield from ((f"{name} {verb}", summary) for verb, (_, summary) in (command.verbs or {}).items())


def test_a_summary_is_short_and_no_sentence() -> None:
    for name, summary in summaries():
        assert len(summary) <= MOST_SUMMARY, name
        assert not summary.endswith("."), name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_description_is_of_sentences_and_short(name: str) -> None:
    description = COMMANDS[name].description
    assert len(description) <= MOST_DESCRIPTION
    assert description.endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_note_is_of_sentences_and_short(name: str) -> None:
    for note in COMMANDS[name].notes:
        assert len(note) <= MOST_NOTE
        assert note.endswith((".", "…"))


def test_the_meaning_of_a_setting_is_short_and_no_sentence() -> None:
    for name, key in KEYS.items():
        assert len(key.meaning) <= MOST_MEANING, name
        assert not key.meaning.endswith("."), name


def lines() -> Iterator[tuple[str, str]]:
    """Every command line that a text names, and the place of the text."""
    for name, command in COMMANDS.items():
        for line, _ in command.examples:
            plain = re.sub(r"'[^']*'|\"[^\"$]*\"", "WORD", line)
            yield from ((name, found) for found in re.findall(r"\bholdfast ([^&|;)\"]+)", plain))
    for text in texts():
        quoted = re.findall(r"`holdfast ([^`]+)`", text.text)
        bare = re.findall(r"(?:^|: )holdfast ([a-z-][^`;,()]*)", text.text) if text.kind == "hint" else []
        yield from ((text.place, line) for line in (*quoted, *bare))


def problem(line: str) -> str | None:
    """What is wrong with a command line, whose placeholders are ``{}`` or capitals; None if nothing is."""
    words = line.split()
    while words and words[0] in ("-q", "-w", "--home", "--log-level"):
        words = words[1:] if words[0] == "-q" else words[2:]
    if not words or "{" in words[0] or words[0] in ("COMMAND", "--help"):
        return None
    name = command_table.ALIASES.get(words[0], words[0])
    if name not in COMMANDS:
        return f"there is no command {name}"
    words = words[1:]
    verbs = COMMANDS[name].verbs
    if verbs is not None and words and re.fullmatch("[a-z]+", words[0]):
        if words[0] not in verbs:
            return f"there is no command {name} {words[0]}"
        name, words = f"{name} {words[0]}", words[1:]
    known = {option for action in parser(name)._actions for option in action.option_strings}
    for word in words:
        if word in ("--", "…") or (name == "session exec" and not word.startswith("-")):
            break
        option = word.partition("=")[0]
        if re.fullmatch("--?[a-z][a-z-]*", option) and option not in {*known, "--help"}:
            return f"{name} has no option {option}"
    positional = [action for action in parser(name)._actions if not action.option_strings]
    if positional and positional[0].choices and words and re.fullmatch("[a-z]+", words[0]):
        return None if words[0] in positional[0].choices else f"{name} takes no {words[0]}"
    return None


def test_every_command_that_is_named_exists() -> None:
    assert [(place, line, problem(line)) for place, line in lines() if problem(line)] == []


def test_commands_are_found_and_checked() -> None:
    assert sum(1 for _ in lines()) > 300
    assert problem("undo --run ID --stop") is None
    assert problem("-w DIR session fork --from X") is None
    assert [problem(line) for line in ("unde", "undo --ran", "session forge", "step abort")] == [
        "there is no command unde",
        "undo has no option --ran",
        "there is no command session forge",
        "step takes no abort",
    ]

"""Writes docs/reference, and the man page, from the source: ``python docs/generate.py`` (``make docs`` runs it).

A page is its template in docs/templates, in which a line ``<!-- NAME -->`` stands for a part that a function of this
module makes of the source: the parsers of the commands, the table of the settings, the descriptions of the JSON
objects, the tools of MCP, the endpoints of REST, the messages of STDIO, the docstrings of the Python API. The text of
a template is what no source says. Pages that need no such part have no template and are written by hand.

Tests compare the committed pages with what this makes (tests/unit/test_reference.py).
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import sys
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "src")]

import holdfast
from holdfast.cli import command_table
from holdfast.cli.argparse_parser import build_parser
from holdfast.cli.global_options import add_global_options
from holdfast.model.json_encoder import fields, is_described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.cli.command import Command

REFERENCE = PROJECT / "docs" / "reference"
TEMPLATES = PROJECT / "docs" / "templates"
NOTICE = "<!-- Generated: docs/generate.py, docs/templates/{} -->\n\n"


# -- text ----------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """A text in one line, with the code of docstrings as Markdown has it."""
    return " ".join(text.split()).replace("``", "`")


def linked(text: str) -> str:
    """A text of the source in which names of pages are links from docs/reference."""

    def link(match: re.Match[str]) -> str:
        path, anchor = match["path"], match["anchor"] or ""
        to = os.path.relpath(PROJECT / "docs" / path, REFERENCE)
        return f"[{Path(path).stem.replace('-', ' ')}]({to}{anchor})"

    return re.sub(r"`?docs/(?P<path>[a-z]+/[a-z0-9-]+\.md)(?P<anchor>#[a-z0-9-]+)?`?", link, text)


def sentence(text: str) -> str:
    """A text with a period at its end, and nothing if it is empty."""
    return text if not text or text.endswith((".", ":")) else f"{text}."


def lower_first(text: str) -> str:
    """A text with a small letter at its beginning."""
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """A text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


SMALL_WORDS = ("and", "its", "new", "one", "that", "the", "was", "what", "with")
"""Words that add nothing to the name of a class."""


def is_said(text: str, name: str) -> bool:
    """Whether the name of a class says all that a text does: ``A renamed file.`` of ``RenamedFile``."""
    if "`" in text:
        return False
    known = {word[:4].lower() for word in re.findall("[A-Z]?[a-z]+", name)}
    return all(word[:4] in known for word in re.findall("[a-z]{3,}", text.lower()) if word not in SMALL_WORDS)


def anchor(title: str) -> str:
    """What a heading of Markdown is called in links."""
    return re.sub(r" ", "-", re.sub(r"[^a-z0-9 _-]", "", title.lower()))


# -- commands ------------------------------------------------------------------------------------------------------

SHARED = 4
"""An option or an exit code that so many commands of a family have is told once, at the family."""


def own_actions(name: str, command: Command) -> list[argparse.Action]:
    """The arguments of a command that are not every command's."""
    common = argparse.ArgumentParser()
    add_global_options(common)
    known = {option for action in common._actions for option in action.option_strings}
    return [action for action in build_parser(name, command)._actions if not known & {*action.option_strings}]


def positional(action: argparse.Action) -> str:
    """How a positional argument stands in a synopsis."""
    word = str(action.metavar or action.dest).rstrip(".… ")
    if action.choices is not None and action.metavar is None:
        word = "|".join(map(str, action.choices))
    return {"?": f"[{word}]", "*": f"[{word}…]", "+": f"{word}…", "...": f"{word}…"}.get(str(action.nargs), word)


def option(action: argparse.Action) -> str:
    """An option with all its names and its value."""
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
        value = f"[{value}]" if action.nargs == "?" else value
    return ", ".join(action.option_strings) + (f" {value}" if value else "")


def synopsis(name: str, command: Command) -> str:
    """The name of a command and what stands behind it, without options."""
    words = [positional(action) for action in own_actions(name, command) if not action.option_strings]
    return " ".join([name, *words])


def options(name: str, command: Command) -> dict[str, str]:
    """The options of a command, and what each does."""
    found = own_actions(name, command)
    return {option(action): action.help or "" for action in found if action.option_strings}


def arguments(name: str, command: Command) -> dict[str, str]:
    """The positional arguments of a command whose names do not say all; ``--help`` explains each."""
    found = [each for each in own_actions(name, command) if not each.option_strings]
    return {positional(each).strip("[]…"): each.help for each in found if each.help and len(each.help.split()) > 9}


def shared(family: str, commands: dict[str, Command]) -> tuple[dict[str, str], dict[tuple[int, str], None]]:
    """The options and the exit codes that several commands of a family have."""
    verbs = {name: command for name, command in commands.items() if name.startswith(f"{family} ")}
    every = [each for name, command in verbs.items() for each in options(name, command).items()]
    codes = [each for command in verbs.values() for each in command.exits]
    return (
        {text: about for text, about in every if every.count((text, about)) >= SHARED},
        {code: None for code in codes if codes.count(code) >= SHARED},
    )


def commands_part() -> str:
    """Every command: what it does, its arguments and options, its exit codes, its guarantees and limits."""
    commands = command_table.every()
    lines: list[str] = []
    told: dict[tuple[str, str], str] = {}
    for title, group in command_table.COMMANDS.items():
        links = (f"[{family}](#{anchor(heading(family, commands[family]))})" for family in group)
        lines.append(f"- {title.capitalize()}: {', '.join(links)}")
    lines.append("")
    for title, group in command_table.COMMANDS.items():
        lines += [f"## {title.capitalize()}", ""]
        for family in group:
            common = shared(family, commands)
            for name, command in commands.items():
                if name == family or name.startswith(f"{family} "):
                    lines += command_lines(name, command, *common, told)
    return "\n".join(lines).rstrip()


def heading(name: str, command: Command) -> str:
    """The heading of a command: its synopsis and its other names."""
    aliases = (f" (`{alias}`)" for alias, of in command_table.ALIASES.items() if of == name)
    return f"`{synopsis(name, command)}`" + "".join(aliases)


def section(title: str) -> str:
    """A link to the section of a command, by the command's name."""
    name = " ".join(word for word in title.split("`")[1].split() if word.islower() and word.isalpha())
    return f"[{name}](#{anchor(title)})"


def command_lines(
    name: str,
    command: Command,
    options_told: dict[str, str],
    exits_told: dict[tuple[int, str], None],
    told: dict[tuple[str, str], str],
) -> Iterator[str]:
    """The section of one command; ``told`` has the section of every option and line of exit codes that was told before."""
    own = heading(name, command)
    yield from (f"### {own}", "")
    is_family = command.verbs is not None
    about = re.sub(r" `holdfast [a-z]+ COMMAND --help` tells all about one command\.", "", command.description)
    yield from (linked(about), "")
    taken = {} if is_family else arguments(name, command)
    given = options_told if is_family else {k: v for k, v in options(name, command).items() if k not in options_told}
    bullets: list[str] = []
    known: dict[str, list[str]] = {}
    for text, help_text in (taken | given).items():
        title = told.setdefault((text, help_text), own)
        if title == own:
            bullets.append(f"- `{text}`: {linked(help_text)}")
        else:
            known.setdefault(title, []).append(f"`{text}`")
    for title, texts in known.items():
        bullets.append(f"- {', '.join(texts)}: see {section(title)}")
    if bullets:
        yield from (["Several of these take:", ""] if is_family else [])
        yield from (*bullets, "")
    if command.notes:
        yield from (*(f"{linked(note)}\n" for note in command.notes),)
    exits = exits_told if is_family else dict.fromkeys(each for each in command.exits if each not in exits_told)
    exits = {each: None for each in exits if not each[1].startswith("refused:")}  # (as the table at the beginning says)
    if exits:
        line = "Exit " + "; ".join(f"{code}: {linked(meaning)}" for code, meaning in sorted(exits)) + "."
        title = told.setdefault((line, ""), own)
        yield from (line if title == own else f"Exit codes: see {section(title)}.", "")


def global_options_part() -> str:
    """The options of every command."""
    return "\n".join(f"- `{names}`: {meaning}" for names, meaning in command_table.GLOBAL_OPTIONS.items())


def exit_codes_part() -> str:
    """What exit codes mean."""
    return "\n".join(f"- {code}: {meaning}" for code, meaning in command_table.EXIT_CODES.items())


# -- the man page --------------------------------------------------------------------------------------------------

MAN_PAGE = PROJECT / "docs" / "holdfast.1"


def roff(text: str) -> str:
    """A text as roff prints it: no word of it is a request or an escape, and code is bold."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("…", "...")
    bold = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", escaped.replace("·", ","))
    return re.sub(r"^([.\'])", r"\\&\1", bold, flags=re.MULTILINE)


def roff_options(found: dict[str, str]) -> Iterator[str]:
    """Options with what each does."""
    for names, about in found.items():
        yield from (".TP", rf"\fB{roff(names)}\fR", roff(about))


def man_commands() -> str:
    """Every command: one line, and its options."""
    commands = command_table.every()
    lines: list[str] = []
    for title, group in command_table.COMMANDS.items():
        lines.append(f".SS {roff(title.capitalize())}")
        for family, (_, summary) in group.items():
            verbs = commands[family].verbs or {}
            for name, about in {
                family: summary,
                **{f"{family} {verb}": text for verb, (_, text) in verbs.items()},
            }.items():
                lines += [".TP", rf"\fB{roff(synopsis(name, commands[name]))}\fR", roff(about)]
                own = options(name, commands[name])
                lines += [".RS", *roff_options(own), ".RE"] if own else []
    return "\n".join(lines)


MAN_PARTS: dict[str, Callable[[], str]] = {
    "options": lambda: "\n".join(roff_options(command_table.GLOBAL_OPTIONS)),
    "commands": man_commands,
    "exit-codes": lambda: "\n".join(roff_options({str(code): text for code, text in command_table.EXIT_CODES.items()})),
    "version": lambda: holdfast.__version__,
}


def man_page() -> str:
    """The man page of its template."""
    text = (TEMPLATES / "holdfast.1.in").read_text()
    return re.sub(r"@([a-z-]+)@", lambda found: MAN_PARTS[found[1]](), text)


# -- configuration -------------------------------------------------------------------------------------------------


def configuration_part() -> str:
    """The settings of each section: of each its type or choices, default, limits, trust and meaning."""
    from holdfast.model.config.keys import KEYS
    from holdfast.model.config.settings import default

    lines: list[str] = []
    section = ""
    for name, key in KEYS.items():
        if name.partition(".")[0] != section:
            section = name.partition(".")[0]
            lines += ["", f"### {section}", ""]
        value = default(name)
        shown = f"`{value_text(key.kind, value)}`" if value not in ("", ()) else ""
        facts = [shown, *(each for each in key.choices if each != value)] if key.choices else [key.kind, shown]
        value_facts = ", ".join(each for each in [*facts, limits_text(key)] if each)
        trust = {"yes": "; workspace", "lower": "; workspace: lower", "no": ""}[key.workspace]
        lines.append(f"- `{name}` ({value_facts}{trust}): {linked(key.meaning)}")
    return "\n".join(lines).strip()


def value_text(kind: str, value: Any) -> str:
    """A value as a person writes it."""
    if kind == "size":
        return amount(value, {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10})
    if kind in ("duration", "age"):
        return amount(value, {"d": 86400, "h": 3600, "m" if kind == "duration" else "min": 60, "s": 1})
    if kind == "switch":
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(f'"{each}"' for each in value) + "]"
    return str(value) if value != "" else '""'


def amount(value: float, units: dict[str, int]) -> str:
    """A number in the largest unit of which it is a whole number."""
    whole = int(value) if value == int(value) else value
    unit = next((unit for unit, size in units.items() if whole and isinstance(whole, int) and not whole % size), "")
    return f"{whole // units[unit]}{unit}" if unit else f"{whole}{'s' if 's' in units and whole else ''}"


def limits_text(key: Any) -> str:
    """What limits a number has beside being 0 or more."""
    most_of_all = type(key)(key.kind, "").most
    if key.kind not in ("size", "duration", "age", "integer", "ratio"):
        return ""
    least = value_text(key.kind, key.least) if key.least else "0"
    if key.most != most_of_all:
        return f"{least} to {value_text(key.kind, key.most)}"
    return f"from {least}" if key.least else ""


# -- docstrings of fields ------------------------------------------------------------------------------------------


@cache
def classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module, by their names."""
    source = inspect.getsource(sys.modules[module])
    return {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}


def field_texts(kind: type) -> dict[str, str]:
    """What is said behind each field of a class, its bases included."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        node = classes(each.__module__).get(each.__name__) if each.__module__.startswith("holdfast.") else None
        for field, text in zip(node.body, node.body[1:], strict=False) if node else ():
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = plain(str(text.value.value))
    return found


# -- JSON ----------------------------------------------------------------------------------------------------------

WORDS = {
    "str": "text",
    "int": "number",
    "float": "number",
    "bool": "boolean",
    "Any": "value",
    "Path": "path",
    "SystemPath": "path",
    "PlainText": "text",
    "Time": "time",
    "NanoTime": "time",
    "ContentHash": "hash",
    "OctalPermissions": "octal",
    "OctalMode": "octal",
    "Milliseconds": "number",
    "Seconds": "number",
    "dict": "object",
}
"""The types of fields that are no objects, for people."""
EVERYWHERE = ("Counts", "NotCaptured", "Paths")
"""Objects that the beginning of the page has."""


def shown_type(node: ast.expr, module: str) -> str:
    """The type of a field: of several what it may be, with ``[]`` for a list and ``?`` for what may be null."""
    match node:
        case ast.BinOp(left, ast.BitOr(), ast.Constant(None)):
            return f"{shown_type(left, module)}?"
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{shown_type(left, module)}|{shown_type(right, module)}"
        case ast.Subscript(ast.Name("list"), inner):
            return f"{shown_type(inner, module)}[]"
        case ast.Subscript(ast.Name("dict"), _):
            return "object"
        case ast.Subscript(ast.Name("Literal"), values):
            return chosen(ast.literal_eval(values) if isinstance(values, ast.Tuple) else (ast.literal_eval(values),))
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([inner, *_])):
            return shown_type(inner, module)
        case ast.Name(name) | ast.Attribute(_, name):
            return WORDS.get(name) or named_type(name, module)
        case _:
            raise TypeError(ast.unparse(node))


def named_type(name: str, module: str) -> str:
    """A named type: an object, or a choice of words."""
    from holdfast.model.answers import words

    found = getattr(words, name, None) or getattr(sys.modules[module], name)
    return found.__name__ if isinstance(found, type) else chosen(found.__args__)


def chosen(values: Iterable[str]) -> str:
    """One of several words."""
    return "|".join(value or '""' for value in values)


IN_LINE = 3
"""A field of which this many words are said, or fewer, needs no line of its own."""


class Objects:
    """JSON objects in the sections of a page, each in full where it is met first."""

    def __init__(self, sections: dict[str, list[type]]) -> None:
        self._sections = sections
        self._placed: dict[str, str] = {}
        for title, kinds in sections.items():
            for kind in kinds:
                self._placed.setdefault(kind.__name__, title)

    def section(self, title: str) -> Iterator[str]:
        """What is said of the objects of one section."""
        for kind in self._sections[title]:
            yield from self._object(kind, title)

    def _object(self, kind: type, title: str) -> Iterator[str]:
        name = kind.__name__
        if self._placed[name] != title:
            yield from (f"See {self._link(name, self._placed[name])}.", "")
            return
        base = next((each for each in kind.__mro__[1:] if each.__name__ in self._placed), None)
        inherited = {one.key for one in fields(base)} if base is not None else set[str]()
        own = [one for one in fields(kind) if one.key not in inherited]
        texts = field_texts(kind)
        listed = [one for one in own if len(texts.get(one.name, "").split()) > IN_LINE]
        line = self._line([one for one in own if one not in listed], texts, title)
        if base is not None:
            where = self._placed[base.__name__]
            line.insert(0, f"all of {base.__name__ if where == title else self._link(base.__name__, where)}")
        if len(self._sections[title]) > 1:
            about = plain(kind.__doc__ or "").rstrip(".")
            head = f"**{name}**" + ("" if is_said(about, f"{name} {title}") else f" ({linked(lower_first(about))})")
            yield from (f"{head}: {'; '.join(line)}" if line else head, "")
        elif line:
            yield from (upper_first("; ".join(line)), "")
        for text, together in groupby(listed, key=lambda one: texts[one.name]):
            yield f"- {', '.join(self._field(one, title) for one in together)}: {linked(text).rstrip('.')}"
        if listed:
            yield ""

    def _line(self, found: list[Any], texts: dict[str, str], title: str) -> list[str]:
        """Fields of which little is said, those of a plain type together."""
        plural = {"text": "", "number": "numbers ", "boolean": "booleans ", "time": "times ", "path": "paths "}
        groups: dict[str, list[str]] = {}
        for one in found:
            kind = shown_type(ast.parse(one.annotation, mode="eval").body, one.module)
            text = linked(lower_first(texts.get(one.name, ""))).rstrip(".")
            note = f" ({text})" if text else ""
            if kind in plural and one.required:
                groups.setdefault(plural[kind], []).append(f"`{one.key}`{note}")
            else:
                groups.setdefault(" ", []).append(
                    f"{self._field(one, title)}{note}".replace("(optional) (", "(optional: ")
                )
        return [f"{kind.lstrip()}{', '.join(names)}" for kind, names in sorted(groups.items())]

    def _field(self, one: Any, title: str) -> str:
        kind = shown_type(ast.parse(one.annotation, mode="eval").body, one.module)
        of = re.sub(r"[?\[\]]", "", kind)
        text = f"`{one.key}{'?' * kind.endswith('?')}`" if of == "text" and "[" not in kind else f"`{one.key}: {kind}`"
        where = "Values" if of in EVERYWHERE else self._placed.get(of, title)
        text = text if where == title else f"[{text}](#{anchor(where)})"
        return text if one.required else f"{text} (optional)"

    def _link(self, name: str, title: str) -> str:
        return f"[{name}](#{anchor(title)})"


def json_part() -> str:
    """Each command and the objects that it prints."""
    from tests.answers import SECTIONS

    objects = Objects(SECTIONS)
    lines: list[str] = []
    for title in SECTIONS:
        if title != "Failures":
            lines += [f"### {title}", "", *objects.section(title)]
    return "\n".join(lines).rstrip()


# -- MCP -----------------------------------------------------------------------------------------------------------

COMMON = 2
"""A field that so many tools take is told once."""


def tools_part() -> str:
    """Every tool: what it does, takes and answers."""
    from holdfast.api.mcp import _tools as tools

    schemas = {tool.name: tools.schema(tool.takes) for tool in tools.TOOLS}
    taken = {name: tool_fields(schema) for name, schema in schemas.items()}
    every = [each for found in taken.values() for each in found.items()]
    common = {name: text for name, text in every if ": " in text and every.count((name, text)) >= COMMON}
    lines = [*(f"- `{name}`{text}" for name, text in common.items()), ""]
    for tool in tools.TOOLS:
        lines += [f"### {tool.name}", "", linked(" ".join([tool.description, tool.note]).strip()), ""]
        required = schemas[tool.name]["required"]
        named: dict[str, list[str]] = {}
        for name, text in taken[tool.name].items():
            is_told = common.get(name) == text
            about = text if ": " in text and not is_told else ""
            shown = f"**`{name}`**" if name in required else f"`{name}`"
            named.setdefault(about, []).append(shown if is_told or about else shown + text)
        lines += [f"- {', '.join(names)}{text}" for text, names in sorted(named.items(), key=lambda each: not each[0])]
        lines += [""] if named else []
        lines += [f"Answers {answered(tool.answers)}.", ""]
    return "\n".join(lines).rstrip()


def tool_fields(schema: dict[str, Any]) -> dict[str, str]:
    """What is said of each field that a tool takes: its default, with its other values, and its description."""
    found: dict[str, str] = {}
    for name, field in schema["properties"].items():
        if name != "directory":
            default = field.get("default")
            values = field.get("enum", [] if default in (None, "", [], {}, False) else [default])
            ordered = sorted(values, key=lambda each: each != default)
            shown = f"`{'|'.join(map(str, ordered))}`" if default in ordered else "` or `".join(values).join("``")
            about = f": {field['description']}" if "description" in field else ""
            found[name] = (f" ({shown})" if values else "") + about
    return found


def answered(kind: type) -> str:
    """The fields of an answer; those of an object of the page on JSON by its name. ``totals`` is told once a page."""
    from tests.answers import SECTIONS

    places = {each: title for title, kinds in SECTIONS.items() for each in kinds}
    base = next((each for each in kind.__mro__ if each in places), None)
    known = {one.key for one in fields(base)} if base is not None else set[str]()
    own = [f"`{one.key}`" for one in fields(kind) if one.key not in known and one.key != "totals"]
    link = [f"[{base.__name__}](json.md#{anchor(places[base])})"] if base is not None else []
    return ", ".join(link + own)


def prompts_part() -> str:
    """The prompts, with their defaults."""
    from holdfast.api.mcp import _prompts as prompts

    return "\n".join(
        f"- `{one.name}`: {one.description}. `count`: {one.arguments[0].description}."
        for one in prompts.list_prompts(inside=False)
    )


def resources_part() -> str:
    """The resources, by their addresses."""
    from holdfast.api.mcp import _resources as resources

    shown = {one.uri_template: one.description for one in resources.TEMPLATES}
    named = {re.sub(r"\{\+?(\w+)\}", lambda found: found[1].upper(), uri): text for uri, text in shown.items()}
    return "\n".join(f"- `{uri}`: {text}" for uri, text in named.items())


# -- STDIO ---------------------------------------------------------------------------------------------------------


def operations_part(names: re.Pattern[str]) -> str:
    """The operations whose names match: what each does, takes and answers; those of one payload together."""
    from holdfast.api.stdio._directory_operations import REQUESTS

    told = told_fields()
    together: dict[tuple[type, bool], list[str]] = {}
    for name, (payload, result) in REQUESTS.items():
        if names.fullmatch(name):
            together.setdefault((payload, bool(result_text(result))), []).append(name)
    lines: list[str] = []
    for (payload, _), found in together.items():
        texts = field_texts(payload)
        taken = [
            (f"**`{one.name}`**" if one.required else f"`{one.name}`{default_text(one)}")
            + (f": {texts[one.name].rstrip('.')}" if told.get((one.name, texts.get(one.name, ""))) is payload else "")
            for one in msgspec.structs.fields(payload)
            if one.name != "directory"
        ]
        takes = f" Takes {'; '.join(taken)}." if taken else ""
        answers = dict.fromkeys(answer_text(REQUESTS[name][1], found) for name in found)
        names_taken = ", ".join(f"`{one.name}`" for one in msgspec.structs.fields(payload) if one.name != "directory")
        if "," in names_taken:
            answers = dict.fromkeys(text.replace(names_taken, "these", 1) for text in answers)
        gives = f" Answers {' or '.join(answers)}." if all(answers) else ""
        about = sentence(linked(plain(payload.__doc__ or "")))
        lines.append(f"- {', '.join(f'**`{name}`**' for name in found)}: {about}{takes}{gives}")
    return "\n".join(lines)


@cache
def told_fields() -> dict[tuple[str, str], type]:
    """The first payload with each text of a field, which is told there."""
    from holdfast.api.stdio._directory_operations import REQUESTS

    told: dict[tuple[str, str], type] = {}
    for payload, _ in REQUESTS.values():
        for each in field_texts(payload).items():
            told.setdefault(each, payload)
    return told


def default_text(one: Any) -> str:
    """The default of a field of a request, in parentheses; nothing for one that is null, false or empty."""
    default = one.default
    if default is msgspec.NODEFAULT:
        default = one.default_factory()
    if not default or default is msgspec.UNSET or isinstance(default, msgspec.Struct):
        return ""
    return f" (`{default}`)"


def answer_text(kind: Any, names: list[str]) -> str:
    """The answer of the operations ``names``; the name of an earlier operation that has the same."""
    from holdfast.api.stdio._directory_operations import REQUESTS

    first = next(name for name, (_, result) in REQUESTS.items() if result is kind)
    text = result_text(kind)
    return f"as `{first}`" if text and first not in names and not text.startswith("[") else text


def result_text(kind: Any) -> str:
    """The fields of an answer, with what is said of them; of an object of the page on JSON its name."""
    from holdfast.model import json_schema

    if is_described(kind):
        return answered(kind)
    texts = field_texts(kind)
    return ", ".join(
        f"`{name}`" + (f" ({texts[name].rstrip('.')})" if name in texts else "") for name in json_schema.hints(kind)
    )


def limits_part() -> str:
    """The limits of the server."""
    from holdfast.api.stdio._result_types import Limits
    from holdfast.api.stdio.server import LIMITS

    texts = field_texts(Limits)
    return "\n".join(
        f"- `{name}` ({getattr(LIMITS, name)}): {plain(texts[name]).rstrip('.')}" for name in Limits.__struct_fields__
    )


def directory_part() -> str:
    """The fields of a working directory in the status of a session."""
    from holdfast.api.stdio._result_types import DirectoryStatus

    return f"Each of `directories`: {result_text(DirectoryStatus)}."


def events_part() -> str:
    """The events, with their fields but `directory`, which all have."""
    from holdfast.api.stdio._event_messages import EVENTS

    lines: list[str] = []
    for name, kind in EVENTS.items():
        is_like = any(base in EVENTS.values() for base in kind.__mro__[1:])
        names = ", ".join(each for each in result_text(kind).split(", ") if each != "`directory`")
        lines.append(f"- **`{name}`**: {linked(plain(kind.__doc__ or ''))}" + ("" if is_like else f" {names}."))
    return "\n".join(lines)


def stdio_schema() -> str:
    """Every message as JSON Schema."""
    from holdfast.api.stdio import schema

    return schema.text()


# -- REST ----------------------------------------------------------------------------------------------------------


def endpoints_part(paths: re.Pattern[str]) -> str:
    """The endpoints with these paths, with the right that each needs if its method does not tell."""
    from holdfast.api.rest._endpoints import ENDPOINTS

    lines: list[str] = []
    for one in ENDPOINTS:
        (method,), (path,) = one.http_methods, one.paths
        where = re.sub(r":str\}", "}", path)
        if paths.fullmatch(where):
            rights = one.opt["rights"] or "no token"
            usual = rights == ("read" if method == "GET" else "write")
            lines.append(f"- `{method} {where}`{'' if usual else f' ({rights})'}: {plain(one.summary or '')}")
    return "\n".join(lines)


# -- Python --------------------------------------------------------------------------------------------------------

OF_HOME = ("forget_gone", "stats", "close", "gc", "verify")
"""The methods of a home that a workspace has as well: they are told once, at the home."""
FACES = {
    "Workspace": None,
    "Home": None,
    "Sessions": ("start", "open", "list", "info", "history", "branches", "delete", "sweep", "close"),
    "Session": (
        *("id", "root", "workspace", "state", "config", "head", "owner", "shared", "agent", "directory", "environment"),
        *("begin", "end", "checkpoint", "branch", "branches", "remove_branch", "find", "checkout", "fork", "history"),
        *("due", "configure", "share", "unshare", "keep", "delete", "close"),
    ),
    "Promotions": None,
}
"""The classes whose methods are listed, with those that are for programs of others; None: all."""
MANY = 11
"""Of so many fields and more the page lists none, nor of an object that JSON has under the same name."""


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring."""
    return re.sub(r" \(I\d+\)", "", re.split(r"(?<=\.)\s", linked(plain(text or "")))[0].rstrip("."))


def call(function: Any) -> str:
    """The parameters of a function, with ``=`` behind those that have a default."""
    taken = inspect.signature(function).parameters.values()
    names = [one.name + ("" if one.default is one.empty else "=") for one in taken if one.name != "self"]
    return f"({', '.join(name for name in names if name != 'progress=')})"


def functions_part() -> str:
    """The functions that the package has."""
    found = {name: getattr(holdfast, name) for name in holdfast.__all__}
    functions = {name: one for name, one in found.items() if inspect.isfunction(one)}
    return "\n".join(f"- `{name}{call(one)}`: {first_sentence(one.__doc__)}" for name, one in functions.items())


def methods_part(name: str) -> str:
    """The public methods and properties of a class, in the order of the source."""
    lines: list[str] = []
    wanted = FACES[name]
    for kind in getattr(holdfast, name).__mro__:
        for method, value in vars(kind).items():
            if method.startswith("_") or (wanted is not None and method not in wanted):
                continue
            if name == "Workspace" and method in OF_HOME:
                continue
            if isinstance(value, property):
                lines.append(f"- `{method}`: {first_sentence(value.__doc__)}")
            elif inspect.isfunction(value):
                lines.append(f"- `{method}{call(value)}`: {first_sentence(value.__doc__)}")
    return "\n".join(lines)


def results_part() -> str:
    """What methods take and return."""
    from tests.answers import SECTIONS

    objects = {kind.__name__: {one.key for one in fields(kind)} for kinds in SECTIONS.values() for kind in kinds}
    lines: list[str] = []
    for name in holdfast.__all__:
        value = getattr(holdfast, name)
        if isinstance(value, type) and name not in FACES and not issubclass(value, Exception):
            names = getattr(value, "_fields", None) or list(getattr(value, "__struct_fields__", ()))
            told = not 0 < len(names) < MANY or objects.get(name, set()).issuperset(names)
            shown = "" if told else f" (`{'`, `'.join(names)}`)"
            lines.append(f"- `{name}`{shown}: {first_sentence(value.__doc__)}")
    return "\n".join(lines)


def errors_part() -> str:
    """The errors, each below the one that it is a kind of."""
    found = [getattr(holdfast, name) for name in holdfast.__all__]
    errors = [each for each in found if isinstance(each, type) and issubclass(each, Exception)]

    def below(kind: type[Exception], depth: int) -> Iterator[str]:
        code = "" if depth and kind.exit_code == kind.__base__.exit_code else f", exit {kind.exit_code}"
        text = re.sub(r" \(exit \d\)", "", first_sentence(kind.__doc__))
        yield f"{'  ' * depth}- `{kind.__name__}` (`{kind.code}`{code}): {text}"
        for each in errors:
            if kind in each.__bases__:
                yield from below(each, depth + 1)

    return "\n".join(below(holdfast.HoldfastError, 0))


# -- the pages -----------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], str]] = {
    "commands": commands_part,
    "global-options": global_options_part,
    "exit-codes": exit_codes_part,
    "settings": configuration_part,
    "objects": json_part,
    "prompts": prompts_part,
    "resources": resources_part,
    "tools": tools_part,
    "rest-exports": partial(
        endpoints_part,
        re.compile(r"/api/exports(/\{name\}(/(status|restore|recover|undo|redo|fork|write-files|events))?)?"),
    ),
    "rest-checkpoints": partial(
        endpoints_part, re.compile(r"/api/(exports/\{name\}/checkpoints?|projects/.*|checkpoints/.*)")
    ),
    "rest-snapshots": partial(endpoints_part, re.compile(r".*/snapshots.*")),
    "rest-server": partial(endpoints_part, re.compile(r"/metrics|/api/(health|ready|openapi\.json|docs)")),
    "rest-promotions": partial(endpoints_part, re.compile(r"/api/merge|.*/(reapplies|promot).*")),
    "rest-sessions": partial(endpoints_part, re.compile(r".*/sessions.*")),
    "functions": functions_part,
    "workspace": partial(methods_part, "Workspace"),
    "home": partial(methods_part, "Home"),
    "sessions": partial(methods_part, "Sessions"),
    "session": partial(methods_part, "Session"),
    "promotions": partial(methods_part, "Promotions"),
    "results": results_part,
    "errors": errors_part,
    "stdio-limits": limits_part,
    "stdio-session": partial(operations_part, re.compile(r"session\..*")),
    "stdio-commands": partial(operations_part, re.compile(r"agent\..*")),
    "stdio-steps": partial(operations_part, re.compile(r"step\..*")),
    "stdio-undo": partial(operations_part, re.compile(r"undo\..*|redo")),
    "stdio-files": partial(operations_part, re.compile(r"fs\..*")),
    "stdio-checkpoints": partial(operations_part, re.compile(r"checkpoint\..*|fork")),
    "stdio-safeguards": partial(operations_part, re.compile(r"safeguard\..*")),
    "stdio-directory": directory_part,
    "stdio-events": events_part,
}
"""What a line ``<!-- NAME -->`` of a template stands for."""


def page(template: Path) -> str:
    """A page of its template."""

    def part(match: re.Match[str]) -> str:
        return PARTS[match[1]]()

    body = re.sub(r"^<!-- ([a-z-]+) -->$", part, template.read_text(), flags=re.MULTILINE)
    title, _, rest = body.partition("\n")
    return f"{title}\n\n{NOTICE.format(template.name)}{rest.lstrip()}"


FILES: dict[Path, Callable[[], str]] = {
    REFERENCE / template.stem: partial(page, template) for template in sorted(TEMPLATES.glob("*.md.in"))
}
"""All that is generated, by its path."""
FILES[REFERENCE / "stdio-schema.json"] = stdio_schema
FILES[MAN_PAGE] = man_page


def main() -> None:
    """Write what differs, and name it."""
    for path, text in FILES.items():
        made = text()
        if not path.exists() or path.read_text() != made:
            path.write_text(made)
            print(path.relative_to(PROJECT))


if __name__ == "__main__":
    main()

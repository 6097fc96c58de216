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
from pathlib import Path
from typing import TYPE_CHECKING, Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "src")]

from holdfast.cli import command_table  # noqa: E402
from holdfast.cli.argparse_parser import build_parser  # noqa: E402
from holdfast.cli.global_options import add_global_options  # noqa: E402
from holdfast.model.json_encoder import fields  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.cli.command import Command

REFERENCE = PROJECT / "docs" / "reference"
TEMPLATES = PROJECT / "docs" / "templates"
NOTICE = "<!-- docs/generate.py writes this page from docs/templates/{} and the source. -->\n\n"


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
        lines += [f"## {title.capitalize()}", ""]
        for family in group:
            common = shared(family, commands)
            for name, command in commands.items():
                if name == family or name.startswith(f"{family} "):
                    lines += command_lines(name, command, *common, told)
    return "\n".join(lines).rstrip()


def command_lines(
    name: str,
    command: Command,
    options_told: dict[str, str],
    exits_told: dict[tuple[int, str], None],
    told: dict[tuple[str, str], str],
) -> Iterator[str]:
    """The section of one command; ``told`` has the section of every option that was told before."""
    aliases = "".join(f" (`{alias}`)" for alias, of in command_table.ALIASES.items() if of == name)
    yield from (f"### `{synopsis(name, command)}`{aliases}", "")
    is_family = command.verbs is not None
    about = re.sub(r" `holdfast [a-z]+ COMMAND --help` tells all about one command\.", "", command.description)
    yield from (linked(about), "")
    taken = {} if is_family else arguments(name, command)
    given = options_told if is_family else {k: v for k, v in options(name, command).items() if k not in options_told}
    bullets: list[str] = []
    known: dict[str, list[str]] = {}
    for text, help_text in (taken | given).items():
        title = told.setdefault((text, help_text), synopsis(name, command))
        if title == synopsis(name, command):
            bullets.append(f"- `{text}`: {linked(help_text)}")
        else:
            known.setdefault(title, []).append(f"`{text}`")
    bullets += [f"- {', '.join(texts)}: as of [{title}](#{anchor(title)})" for title, texts in known.items()]
    if bullets:
        yield from (["Several of these take:", ""] if is_family else [])
        yield from (*bullets, "")
    if command.notes:
        yield from (*(f"{linked(note)}\n" for note in command.notes),)
    exits = exits_told if is_family else dict.fromkeys(each for each in command.exits if each not in exits_told)
    exits = {each: None for each in exits if not each[1].startswith("refused:")}  # (as the table at the beginning says)
    if exits:
        yield from ("Exit " + "; ".join(f"{code}: {linked(meaning)}" for code, meaning in sorted(exits)) + ".", "")


# -- configuration -------------------------------------------------------------------------------------------------


def configuration_part() -> str:
    """The tables of the settings, one for each section."""
    from holdfast.model.config.keys import KEYS
    from holdfast.model.config.settings import default

    lines: list[str] = []
    section = ""
    for name, key in KEYS.items():
        if name.partition(".")[0] != section:
            section = name.partition(".")[0]
            lines += ["", f"### {section}", "", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        meaning = linked(key.meaning) + (f" ({', '.join(key.choices)})" if key.choices else "")
        more = [limits_text(key), {"yes": "workspace", "lower": "workspace: lower", "no": ""}[key.workspace]]
        behind = "".join(f"; {each}" for each in more if each)
        lines.append(f"| `{name}` | {key.kind} | `{value_text(key.kind, default(name))}` | {meaning}{behind} |")
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
    "None": "null",
    "Any": "any value",
    "Path": "path",
    "SystemPath": "path",
    "PlainText": "text",
    "Time": "time",
    "NanoTime": "time",
    "ContentHash": "hash",
    "OctalPermissions": "octal text",
    "OctalMode": "octal text",
    "Milliseconds": "number",
    "Seconds": "number",
    "dict": "object",
}


class JsonPage:
    """The sections of the page, each object where it is met first."""

    def __init__(self) -> None:
        self.placed: dict[type, str] = {}

    def text(self) -> str:
        """All sections."""
        from tests.answers import SECTIONS

        for title, kinds in SECTIONS.items():
            for kind in kinds:
                self.placed.setdefault(kind, title)
        lines: list[str] = []
        for title, kinds in SECTIONS.items():
            if title == "Failures":
                continue
            lines += [f"### {title}", ""]
            for kind in kinds:
                lines += self.lines(kind, title)
        return "\n".join(lines).rstrip()

    def lines(self, kind: type, title: str) -> Iterator[str]:
        """What is said of one object."""
        name = f"**{kind.__name__}**"
        if self.placed[kind] != title:
            yield from (f"{name}: see [{self.placed[kind]}](#{anchor(self.placed[kind])}).", "")
            return
        base = next((each for each in kind.__mro__[1:] if each in self.placed), None)
        inherited = {one.key for one in fields(base)} if base is not None else set[str]()
        about = plain(kind.__doc__ or "")
        if base is not None:
            where = self.placed[base]
            of = f"**{base.__name__}**" if where == title else f"[{base.__name__}](#{anchor(where)})"
            about += f" Has the fields of {of}" + (", and:" if len(fields(kind)) > len(inherited) else ".")
        yield from (f"{name}: {linked(about)}", "")
        texts = field_texts(kind)
        shown = [one for one in fields(kind) if one.key not in inherited]
        yield from (*(self.line(one, texts.get(one.name, ""), title) for one in shown), "")

    def line(self, field: Any, text: str, title: str) -> str:
        """One field."""
        missing = "" if field.required else ", may be missing"
        kind = self.kind(ast.parse(field.annotation, mode="eval").body, field.module, title)
        return f"- `{field.key}` ({kind}{missing})" + (f": {linked(text).rstrip('.')}" if text else "")

    def kind(self, node: ast.expr, module: str, title: str) -> str:
        """The type of a field, for people."""
        match node:
            case ast.BinOp(left, ast.BitOr(), right):
                return f"{self.kind(left, module, title)} or {self.kind(right, module, title)}"
            case ast.Subscript(ast.Name("list"), inner):
                return f"list of {plural(self.kind(inner, module, title))}"
            case ast.Subscript(ast.Name("dict"), _):
                return "object"
            case ast.Subscript(ast.Name("Literal"), ast.Tuple(values)):
                return literal([ast.literal_eval(value) for value in values])
            case ast.Subscript(ast.Name("Literal"), value):
                return literal([ast.literal_eval(value)])
            case ast.Constant(None):
                return "null"
            case ast.Name(name) | ast.Attribute(_, name):
                return WORDS.get(name) or self.named(name, module, title)
            case _:
                raise TypeError(ast.unparse(node))

    def named(self, name: str, module: str, title: str) -> str:
        """A named type: another object, or a choice of words."""
        from holdfast.model.answers import words

        found = getattr(words, name, None) or getattr(sys.modules[module], name, None)
        if not isinstance(found, type):
            return literal(list(found.__args__)) if found is not None else name
        if found.__name__ in ("Counts", "NotCaptured", "Paths"):
            return f"[{found.__name__}](#values)"
        if found not in self.placed:
            return f"**{found.__name__}**"
        where = self.placed[found]
        return f"**{name}**" if where == title else f"[{name}](#{anchor(where)})"


def literal(values: list[Any]) -> str:
    """One of several words."""
    return " or ".join(f"`{value}`" if value != "" else "empty" for value in values)


def plural(kind: str) -> str:
    """Several of a type."""
    return (
        kind if kind.endswith(("]", ")", "*", "`")) or " or " in kind else {"any value": "values"}.get(kind, f"{kind}s")
    )


def json_part() -> str:
    """Each command and the objects that it prints."""
    return JsonPage().text()


# -- the pages -----------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], str]] = {
    "commands": commands_part,
    "settings": configuration_part,
    "objects": json_part,
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


def main() -> None:
    """Write what differs, and name it."""
    for path, text in FILES.items():
        made = text()
        if not path.exists() or path.read_text() != made:
            path.write_text(made)
            print(path.relative_to(PROJECT))


if __name__ == "__main__":
    main()

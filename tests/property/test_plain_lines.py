"""What is read without argparse is what argparse would read, whatever the command and the line."""

from __future__ import annotations

import argparse
import io
from contextlib import redirect_stdout
from itertools import chain
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli import argparse_parser, command_table
from holdfast.cli.command import read_plain
from holdfast.model.errors import UsageError

from ..sampling import examples

EVERY = command_table.every()
NAMES = st.sampled_from([*EVERY])
NEVER_PLAIN = ("integrate", "serve")
"""One has two options of one name, the other options between its words."""

WORDS = ["1", "x", "7d", "a=b", "@-", "show", "a b", "0", "", "1.5", "\udcff", "é", "4096", "2026-01-01", "+", "٣"]
ODD = [
    *("--", "-", "-h", "--help", "-1", "-3.5", "-qv", "-wd", "-w=d", "-=", "-=x", "--=", "--=x", "--js", "--json="),
    *("--quiet=1", "--home", "--home=", "--home=--", "--unknown", "--unknown=x", "-x", "-x y", "--a b", "-\udcff"),
]
RESTS = [[], ["--json"], ["-j4", "--", "-h"], ["--unknown=x", "-x y", "-1", "-"]]
ACTIONS = {
    name: [one for one in argparse_parser.build_parser(name, command)._actions if one.dest != "help"]
    for name, command in EVERY.items()
}


def described(found: argparse.Namespace) -> dict[str, str]:
    """All values of a namespace, each with its type."""
    return {name: f"{type(value).__name__} {value!r}" for name, value in vars(found).items()}


def by_argparse(name: str, words: list[str]) -> dict[str, str] | None:
    try:
        with redirect_stdout(io.StringIO()):
            found = argparse_parser.read(name, EVERY[name], words)
    except UsageError:
        return None
    return None if found is None else described(found)


def taken(action: argparse.Action) -> list[str]:
    """Words that an option or a positional takes."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    found: list[str] = []
    for word in WORDS:
        try:
            action.type(word) if callable(action.type) else word
        except (argparse.ArgumentTypeError, ValueError):
            continue
        found.append(word)
    assert found, f"there is no word here for {action.dest}"
    return found


TAKEN = {name: {action.dest: taken(action) for action in actions} for name, actions in ACTIONS.items()}


def any_lines(name: str) -> st.SearchStrategy[list[str]]:
    """Options as they are, cut short and run together with values, which may be wrong, and odd words between them."""
    pieces = [st.sampled_from(WORDS + ODD).map(lambda word: [word])]
    for action in ACTIONS[name]:
        value = st.sampled_from(TAKEN[name][action.dest] * 3 + WORDS)
        if not action.option_strings:
            pieces += [value.map(lambda word: [word])] * 2
            continue
        option = st.sampled_from(action.option_strings)
        pieces += [option.map(lambda option: [option]), st.tuples(option, value).map(list)] * 2
        pieces += [option.map(lambda option: [option[:-1]]), st.tuples(option, value).map(lambda pair: ["".join(pair)])]
        pieces += [st.tuples(option, value).map(lambda pair: ["=".join(pair)])]
    return st.lists(st.one_of(pieces), max_size=5).map(lambda found: [*chain.from_iterable(found)])


@st.composite
def plain_lines(draw: st.DrawFn, name: str) -> list[str]:
    """Options that do not exclude each other, and somewhere between them all the other words; nothing is wrong."""
    options: list[list[str]] = []
    words: list[str] = []
    full = True
    rest = False
    parser = argparse_parser.build_parser(name, EVERY[name])
    excluded = {
        action.dest
        for group in parser._mutually_exclusive_groups
        for action in draw(st.permutations(group._group_actions))[1:]
    }
    for action in ACTIONS[name]:
        value = st.sampled_from(TAKEN[name][action.dest])
        if not action.option_strings:
            least, most = {None: (1, 1), "?": (0, 1), "+": (1, 3)}.get(cast("str | None", action.nargs), (0, 3))
            found = draw(st.lists(value, min_size=least, max_size=most if full else least))
            # (What is free to be left out is what the next word would be taken for.)
            full = full and len(found) == most
            rest = rest or action.nargs == argparse.REMAINDER
            words += found
        elif action.dest not in excluded and (action.required or draw(st.booleans())):
            option = draw(st.sampled_from(action.option_strings))
            if action.nargs == 0:
                options.append([option])
            elif action.nargs != argparse.REMAINDER:
                word = draw(value)
                joined = option.startswith("--") and draw(st.booleans())
                options.append([f"{option}={word}"] if joined else [option, word])
    options = draw(st.permutations(options))
    if rest and words:
        return [
            *chain.from_iterable(options),
            *draw(st.sampled_from([[], ["--"]])),
            *words,
            *draw(st.sampled_from(RESTS)),
        ]
    at = draw(st.integers(0, len(options)))
    return [*chain.from_iterable(options[:at]), *words, *chain.from_iterable(options[at:])]


def check(name: str, words: list[str]) -> bool:
    """Whether ``words`` could be read without argparse; then they were read as it reads them."""
    found = read_plain(EVERY[name], words)
    if found is None:
        return False
    assert described(found) == by_argparse(name, words), (name, words)
    return True


@settings(max_examples=examples(20_000, 500), deadline=None)
@given(st.data(), NAMES)
def test_what_is_read_is_what_argparse_reads(data: st.DataObject, name: str) -> None:
    check(name, data.draw(any_lines(name)))


@settings(max_examples=examples(5_000, 300), deadline=None)
@given(st.data(), NAMES.filter(lambda name: name not in NEVER_PLAIN))
def test_plain_lines_are_read(data: st.DataObject, name: str) -> None:
    words = data.draw(plain_lines(name))
    assert check(name, words), (name, words)


@pytest.mark.parametrize("name", NEVER_PLAIN)
def test_some_commands_are_left_to_argparse(name: str) -> None:
    assert not check(name, ["codex"])

"""Command lines that are read without argparse, and those that are left to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.cli import command_table
from holdfast.cli.command import read_plain
from holdfast.cli.plain_parser import Reader

if TYPE_CHECKING:
    import argparse


def read(line: str) -> argparse.Namespace | None:
    name, *words = line.split()
    return read_plain(command_table.load(name), words)


def test_what_is_not_given_has_its_default() -> None:
    found = read("checkpoint")
    assert found is not None
    assert (found.label, found.message, found.full_hash, found.workspace, found.json) == ("", None, False, None, False)


def test_options_are_read_by_either_name_and_with_either_sign() -> None:
    found = read("log -n 3 --limit=4 --graph -w dir --home=")
    assert found is not None
    assert (found.limit, found.graph, found.all, found.workspace, found.home) == (4, True, False, "dir", "")


def test_the_first_words_take_as_many_as_the_others_can_do_without() -> None:
    for line, expected in (
        ("fork there", {"name": None, "directory": "there"}),
        ("fork @- there", {"name": "@-", "directory": "there"}),
        ("fork --mount @- there -q", {"name": "@-", "directory": "there"}),
        ("export one two file", {"names": ["one", "two"], "file": "file"}),
        ("restore @- a b", {"name": "@-", "paths": ["a", "b"]}),
        ("restore", {"name": None, "paths": []}),
    ):
        found = read(line)
        assert found is not None
        assert vars(found) | expected == vars(found)


def test_an_option_whose_value_can_be_left_out_takes_the_next_word() -> None:
    for line, expected in (
        ("undo", (None, None)),
        ("undo --run", ("", None)),
        ("undo --run abc", ("abc", None)),
        ("undo --run --force", ("", None)),
        ("undo 2 --run", ("", 2)),
    ):
        found = read(line)
        assert found is not None
        assert (found.run, found.count) == expected


def test_options_that_add_up_leave_their_default_alone() -> None:
    for _ in range(2):
        found = read("forget --keep-label a --keep-label=b")
        assert found is not None
        assert found.keep_label == ["a", "b"]
    found = read("forget")
    assert found is not None
    assert found.keep_label == []


def test_what_is_run_may_look_like_options() -> None:
    for line, expected in (
        ("run --one-step make -j4 --json -- x", ["make", "-j4", "--json", "--", "x"]),
        ("run -- make -h", ["--", "make", "-h"]),
        ("run", []),
    ):
        found = read(line)
        assert found is not None
        assert (found.words, found.json) == (expected, False)


@pytest.mark.parametrize(
    "line",
    [
        "status -h",
        "status --help",
        "status --jso",
        "status -qv",
        "status -wdir",
        "status word",
        "status --",
        "status -",
        "status --json=1",
        "status -w",
        "status --home=--",
        "status -w -dir",
        "status --log-level loud",
        "checkpoint -m \udcff",
        "log -n 0",
        "log -n -1",
        "undo -1",
        "undo 1 2",
        "fork",
        "cat",
        "completion csh",
        "restore @ --dry-run path",
        "diff --stat --binary",
        "undo --step 1 --step 2",
        "run -x",
        "run make -=",
        "serve --socket s",
        "integrate claude-code",
        "mount --exec ls dir",
    ],
)
def test_all_else_is_left_to_argparse(line: str) -> None:
    assert read(line) is None


def test_text_that_stands_where_there_is_no_word_is_taken_as_a_word_is() -> None:
    reader = Reader()
    reader.add_argument("--first", type=int, default="1")
    reader.add_argument("--second", type=int, nargs="?", const="2")
    assert vars(reader.read(["--second"])) == {"first": 1, "second": 2}
    reader.add_argument("--third", type=int, default="x")
    assert reader.read([]) is None
    assert vars(reader.read(["--third", "3"])) == {"first": 1, "second": None, "third": 3}


def test_an_option_that_has_to_be_given_is_missed() -> None:
    reader = Reader()
    reader.add_argument("--first", required=True)
    assert reader.read([]) is None
    assert vars(reader.read(["--first", "1"])) == {"first": "1"}


@pytest.mark.parametrize(
    ("names", "keywords"),
    [
        (("--deep",), {"action": "count"}),
        (("--old",), {"deprecated": True}),
        (("words",), {"nargs": 2}),
        (("words",), {"nargs": "?", "action": "append"}),
        (("words",), {"nargs": "*", "default": ["a"]}),
        (("words",), {"nargs": "..."}),
        (("known",), {}),
    ],
)
def test_arguments_of_another_kind_leave_every_line_to_argparse(
    names: tuple[str, ...], keywords: dict[str, object]
) -> None:
    reader = Reader()
    reader.add_argument("known", nargs="?")
    assert reader.read([]) is not None
    reader.add_argument(*names, **keywords)
    assert reader.read([]) is None


def test_a_group_of_which_one_has_to_be_given_leaves_every_line_to_argparse() -> None:
    reader = Reader()
    reader.add_mutually_exclusive_group(required=True).add_argument("--one")
    assert reader.read(["--one", "1"]) is None


def test_a_word_that_excludes_an_option_leaves_every_line_to_argparse() -> None:
    reader = Reader()
    reader.add_mutually_exclusive_group().add_argument("word", nargs="?")
    assert reader.read([]) is None

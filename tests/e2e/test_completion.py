"""What the completion scripts offer, as real shells ask for it."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.completion import OFFERED, _whole_parser

from .test_sessions import Agent
from .test_sessions import agent as agent

ASKED_BY_BASH = """
eval "$(holdfast completion bash)"
asked() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _shtab_holdfast holdfast "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
}
asked holdfast restore bef
asked holdfast session exec -s tw
asked holdfast session delete o
asked holdfast session start o
asked holdfast diff before-it be
asked holdfast merge ../t
asked holdfast undo --step ""
asked holdfast undo --to ""
asked holdfast session checkout sta
asked holdfast snapshot show sn
"""

NEW = {
    "session start id",
    "session fork id",
    "session branch name",
    "session pick which",
    "cat what",
    "promote --id",
    "promote --production",
    "serve words",
}
"""What names something new, or something that is not listed."""


@pytest.fixture
def words(agent: Agent, tree: Path) -> Agent:
    for number, label in enumerate(("before-it", "a$(touch pwned)b", "two words")):
        (tree / "f").write_text(str(number))
        assert agent.try_to("checkpoint", "--label", label).returncode == 0
    for name in ("one", "two"):
        agent.run("start", name)
    agent.run("exec", "-s", "two", "echo changed > f")
    agent.run("branch", "-s", "two", "state-a")
    with holdfast.open(tree, home=agent.environment["HOLDFAST_HOME"]) as workspace:
        workspace.prompt("go on")
    assert agent.try_to("fork", "before-it", "../the-fork").returncode == 0
    assert agent.try_to("snapshot", "take", "-m", "snapped").returncode == 0
    return agent


def test_every_argument_that_names_something_is_completed() -> None:
    parser = _whole_parser()
    unknown = [
        one
        for one, action in _arguments(parser, ())
        if {"ID", "STATE", "FORK", "OTHER", "A B", "PROMPT"} & set(str(action.metavar).replace(":", " ").split(","))
        and not hasattr(action, "complete")
    ]
    assert set(unknown) <= NEW
    assert OFFERED.keys() <= {one for one, _ in _arguments(parser, ())} | {"--session"}


def _arguments(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _arguments(inner, (*words, name))
        else:
            yield " ".join((*words, action.option_strings[-1] if action.option_strings else action.dest)), action


def test_what_there_is_is_listed(words: Agent) -> None:
    checkpoints = words.try_to("completion", "--list", "checkpoints").stdout.decode().split("\n")
    assert "before-it" in checkpoints
    assert not any("$" in name or " " in name for name in checkpoints), "a shell would expand them"
    assert words.try_to("completion", "--list", "sessions").stdout == b"one\ntwo\n"
    assert words.try_to("completion").returncode == 2
    assert words.try_to("completion", "bash", "--list", "sessions").returncode == 2


def test_bash_offers_it(words: Agent, tree: Path) -> None:
    environment = {**words.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ASKED_BY_BASH], cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == [
        *("before-it", "two", "one", ""),
        *("before-it", "../the-fork", "1", "5", "state-a", "snapped", ""),
    ], done.stderr
    assert not (tree / "pwned").exists()


def test_other_shells_take_the_script(words: Agent, tmp_path: Path) -> None:
    for shell in ("zsh", "fish"):
        script = words.try_to("completion", shell).stdout
        assert b"holdfast completion --list checkpoints" in script
        (tmp_path / shell).write_bytes(script)
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n", str(tmp_path / "zsh")], check=True)

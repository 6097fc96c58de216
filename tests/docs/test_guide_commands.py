"""Every command that the README and the guide show is run, and prints what is shown (``console.py`` has the rules)."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import UsageError
from holdfast.cli import command_table
from holdfast.cli.command import parse
from holdfast.cli.global_options import split_options

from ..buckets import CREDENTIALS, Service
from ..e2e.isolated import need_namespaces
from ..fuse import ONLY_WITH_FUSE
from ..postgresql_server import Server
from .console import PROJECT, Page, Step, check, read, run

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs/guide").glob("*.md"))]
DATABASE = "postgresql://holdfast@db.example/holdfast?sslmode=verify-full"
BUCKET, OPTIONS = "s3://my-bucket", '"region=eu-central-1"'
"""What the page on operations shows, in whose place a server and a bucket of the tests stand."""
MOST_NOT_RUN = 10
"""Blocks of commands that no test can run, on all pages together."""


def _skip_where_it_cannot_run(commands: str) -> None:
    """Skip, with the reason, what this machine lacks."""
    if "--isolation namespace" in commands:
        need_namespaces()
    if "holdfast mount" in commands and ONLY_WITH_FUSE.args[0]:
        pytest.skip(ONLY_WITH_FUSE.kwargs["reason"])
    for program in ("curl", "openssl"):
        if f"{program} " in commands and not shutil.which(program):
            pytest.skip(f"needs {program}")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_commands_of_a_page_print_what_it_shows(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    page = read(path)
    services, variables = {}, {}
    if DATABASE in page.text:
        server: Server = request.getfixturevalue("postgresql_server")
        service: Service = request.getfixturevalue("service")
        options = [f'"{name}={value}"' for name, value in service.options(direct=True).items()]
        services = {
            DATABASE: server.url(server.new_database()),
            BUCKET: f"s3://{service.bucket()}",
            OPTIONS: ", ".join(options),
        }
        variables = CREDENTIALS
    _skip_where_it_cannot_run("".join(step.command for step in page.steps))
    if page.steps:
        run(page, tmp_path, services, variables)
        check(page)


def test_the_guide_says_why_it_does_not_run_the_few_blocks_that_it_does_not() -> None:
    reasons = [(path.name, reason) for path in PAGES for reason in read(path).reasons]
    assert [name for name, reason in reasons if not reason] == []
    assert len(reasons) <= MOST_NOT_RUN


def test_the_set_up_of_the_readme_saves_a_project(tmp_path: Path) -> None:
    (line,) = re.findall(r"^pip install \. (&& .*)$", (PROJECT / "README.md").read_text(), re.MULTILINE)
    page = Page("", [Step(f"cd /home/you && PROJECT=/home/you/shop && true {line}")])
    run(page, tmp_path)
    check(page)
    assert "first" in page.steps[0].printed.splitlines()[-1]


def test_the_readme_says_how_the_tests_are_run_and_ci_runs_them_so() -> None:
    assert "```\nmake test\n```" in (PROJECT / "README.md").read_text()
    assert "make test ||" in (PROJECT / ".ci/run").read_text()


def test_the_picture_of_the_readme_is_what_happens() -> None:
    words = [sys.executable, "docs/timeline.py", "--check"]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_that_stands_alone_is_in_a_console_block(path: Path) -> None:
    """A command in any other block would not be run."""
    for info, block in re.findall(r"^```(.*)\n((?:.*\n)*?)```$", path.read_text(), re.MULTILINE):
        if not info.startswith("console"):
            assert not re.search(r"^(\$ )?(sudo )?holdfast ", block, re.MULTILINE), block


_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INLINE = sorted(
    {code for path in PAGES for code in re.findall("`(holdfast [^`\n]*)`", _BLOCK.sub("", path.read_text()))}
)
"""The commands that stand within the text, and in tables."""


@pytest.mark.parametrize("line", INLINE)
def test_a_command_within_the_text_is_one_that_the_command_line_takes(line: str) -> None:
    words = [word.replace("ID", "7") for word in shlex.split(line) if word != "…"]
    found = split_options(words[1:])
    assert found.command is not None
    name = command_table.ALIASES.get(found.command, found.command)
    try:
        assert parse(name, command_table.load(name), found.arguments) is not None
    except UsageError as error:  # (Where only its name is meant, it has none of its arguments.)
        is_name = len(found.arguments) == (command_table.load(name).verbs is not None)
        assert is_name, error
        assert "required" in str(error)


def _checked(text: str, printed: str, code: int = 0, following: str = "") -> None:
    steps = [Step("command", text, (0, 0), code, printed), *([Step(following)] if following else [])]
    check(Page("", steps))


def test_what_changes_each_time_may_differ_and_nothing_else() -> None:
    _checked("Saved 7f320f439c38, 3 s ago\n", "Saved 8f320f439c38, 12 min ago\n")
    _checked("a\n...\nd\n", "a\nb\nc\nd\n")
    _checked("...\n", "")
    _checked("a\n...\n", "a\nb\n")
    _checked("", "", 4, "echo $?")
    for text, printed, code in (
        ("7f320f439c38 7f320f439c38\n", "8f320f439c38 9f320f439c38\n", 0),
        ("a\n", "a\nb\n", 0),
        ("a\nb\n", "a\n", 0),
        ("a\n...\nd\n", "a\nd\ne\n", 0),
        ("1 added\n", "2 added\n", 0),
        ("", "", 4),
    ):
        with pytest.raises(AssertionError):
            _checked(text, printed, code)


def test_a_page_that_ends_its_shell_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit 3"):
        run(Page("", [Step("true"), Step("exit 3"), Step("true")]), tmp_path)

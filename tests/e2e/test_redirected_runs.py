"""`run` whose standard input or output leads into the workspace, as a shell has it: what was there can be had back."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.tree_state import differences, photograph

from ..fuse import ONLY_WITH_FUSE
from .conftest import INSTALLED

if TYPE_CHECKING:
    from .conftest import Cli

KINDS = [pytest.param((), id="supervised"), pytest.param(("--bridge", "fuse"), marks=ONLY_WITH_FUSE, id="bridged")]
ALL = "echo 1; sh -c 'echo 2'; echo 3 >&2; echo new > new"


@pytest.fixture
def bench(cli: Cli) -> Cli:
    cli.write("d/out", "before\n")
    cli.write("f", "f")
    cli("checkpoint")
    return cli


def run(cli: Cli, script: str, *options: str, redirected: str, code: int = 0) -> None:
    """As by a shell."""
    words = [*INSTALLED, "run", *options, "--", "sh", "-c", script]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *words], stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert done.returncode == code, done


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("redirected", [">>d/out", "1<>d/out", "<>d/out >&0"])
def test_what_is_appended_is_taken_back_with_the_run(bench: Cli, options: tuple[str, ...], redirected: str) -> None:
    before = photograph(bench.root)
    run(bench, ALL, *options, redirected=redirected)
    after = photograph(bench.root)
    assert b"2\n" in after[b"d/out"].content
    assert differences(before, after) != []
    for verb, expected in ((("undo", "--run"), before), (("redo",), after), (("undo", "--run"), before)):
        bench(*verb)
        assert differences(expected, photograph(bench.root)) == []


@pytest.mark.parametrize("options", KINDS)
def test_what_the_shell_has_emptied_is_empty_again(bench: Cli, options: tuple[str, ...]) -> None:
    run(bench, ALL, *options, redirected=">d/out")
    assert (bench.root / "d/out").read_text() == "1\n2\n"
    bench("undo", "--run")
    assert (bench.root / "d/out").read_text() == ""
    assert not (bench.root / "new").exists()


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("redirected", [">>d/out 2>&1", "<f", ">>../beside"])
def test_what_is_only_read_lies_outside_or_has_our_own_words_too_is_no_part_of_it(
    bench: Cli, options: tuple[str, ...], redirected: str
) -> None:
    run(bench, ALL, *options, redirected=redirected)
    bench("undo", "--run")
    assert not (bench.root / "new").exists()
    assert (bench.root / "f").read_text() == "f"
    assert "1\n2\n3\n" in (bench.root / "d/out").read_text() or "2>&1" not in redirected


@pytest.mark.parametrize("options", KINDS)
def test_i8_what_somebody_writes_to_it_afterwards_is_not_taken_back(bench: Cli, options: tuple[str, ...]) -> None:
    run(bench, "echo 1", *options, redirected=">>d/out")
    with (bench.root / "d/out").open("a") as file:
        file.write("by hand\n")
    bench("checkpoint")
    assert bench("undo", "--run", "--json", code=4).error["code"] == "barrier"
    assert (bench.root / "d/out").read_text() == "before\n1\nby hand\n"

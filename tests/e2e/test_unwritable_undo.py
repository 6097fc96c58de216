"""Undo of a run where the system does not let a path be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.testing.tree_state import differences, photograph

from ..obstacles import mounted_read_only, protected

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from .conftest import Cli


@pytest.mark.parametrize(
    ("obstruct", "at", "said"),
    [
        pytest.param(protected, "f", "f: it is protected: `chattr -i f` lifts that", id="file"),
        pytest.param(protected, "d", "d: it is protected: `chattr -i d` lifts that", id="directory"),
        pytest.param(mounted_read_only, "d", "d: it is on a read-only mount", id="mount"),
    ],
)
@pytest.mark.parametrize("run", [(), ("--run",)], ids=["newest", "run"])
def test_it_is_named_with_what_helps_and_taken_back_after_that(
    cli: Cli, obstruct: Callable[[Path], AbstractContextManager[None]], at: str, said: str, run: tuple[str, ...]
) -> None:
    cli.write("f", "before")
    cli.write("d/old", "before")
    cli("checkpoint")
    before = photograph(cli.root)
    cli.process("run", "--", "sh", "-c", "echo s >f; echo s >d/new; echo s >d/old; echo s >late")
    after = photograph(cli.root)
    with obstruct(cli.root / at):
        for _ in range(2):
            refused = cli("undo", *run, code=4)
            assert said in refused.err
            assert differences(after, photograph(cli.root)) == []
        assert "recovery" not in cli("status").err
    for verb, expected in ((("undo", *run), before), (("redo",), after)):
        cli(*verb)
        assert differences(expected, photograph(cli.root)) == []
    with obstruct(cli.root / at):
        forced = cli("undo", *run, "--force", code=4)
        assert said.partition(": ")[2].removeprefix("it ") in forced.out
        assert not (cli.root / "late").exists()
        assert "partly" in cli("steps").out
        assert "recovery" not in cli("status").err


@pytest.mark.parametrize("ignored", [False, True], ids=["captured", "ignored"])
@pytest.mark.parametrize("goes_forward", [False, True], ids=["again", "redone"])
@pytest.mark.parametrize("change", ["echo s >>d/old", "rm d/old", "echo s >d/new"], ids=["appended", "removed", "made"])
def test_what_a_forced_undo_left_goes_back_once_it_can_be_changed(
    cli: Cli, change: str, ignored: bool, goes_forward: bool
) -> None:
    if ignored:
        cli.write(".gitignore", "/d/\n")
    cli.write("f", "before")
    cli.write("d/old", "before")
    cli("checkpoint")
    before = photograph(cli.root)
    cli.process("run", "--", "sh", "-c", f"{change}; echo s >f")
    after = photograph(cli.root)
    with protected(cli.root / "d/old") if ">>" in change else protected(cli.root / "d"):
        forced = cli("undo", "--run", "--force", code=4)
        assert "once they can be changed, `holdfast undo --step 1` does the rest" in forced.err
        assert "partly" in cli("steps").out
        cli("undo", "--run", code=4)
    if goes_forward:
        cli("redo", "--force")
        assert differences(after, photograph(cli.root)) == []
    assert change.split("/")[1] in cli("undo", "--run", "--dry-run").out
    cli("undo", "--run")
    assert differences(before, photograph(cli.root)) == []
    assert "partly" not in cli("steps").out
    cli("redo")
    assert differences(after, photograph(cli.root)) == []

"""What others change: undo stops there, or only lists it, as the settings or the run say; nobody can be locked out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from e2e.conftest import Cli


@pytest.fixture(name="edited")
def _edited(cli: Cli) -> Cli:
    """A run has changed a file, and somebody else has edited it since."""
    cli.write("f", "before")
    cli("checkpoint")
    return cli


def ran_and_edited(cli: Cli, *options: str) -> None:
    cli.process("run", *options, "--", "sh", "-c", "echo run > f; echo new > new")
    cli.write("f", "by hand")


@pytest.mark.parametrize("where", ["in the settings", "of the run"])
def test_with_warn_undo_passes_says_what_it_overwrites_and_redo_brings_it_back(
    edited: Cli, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "in the settings":
        monkeypatch.setenv("HOLDFAST_UNDO_OUTSIDE", "warn")
        ran_and_edited(edited)
    else:
        ran_and_edited(edited, "--outside", "warn")
    foreseen = edited("undo", "--run", "--dry-run")
    assert "would be overwritten" in foreseen.err
    assert (edited.root / "f").read_text() == "by hand"
    told = edited("undo", "--run")
    assert "has changed what step 1 left: f; that was overwritten" in told.err
    assert (edited.root / "f").read_text() == "before"
    assert not (edited.root / "new").exists()
    edited("redo")
    assert (edited.root / "f").read_text() == "by hand"
    assert (edited.root / "new").exists()


def test_what_no_checkpoint_holds_is_told_apart_and_redo_brings_it_back(
    edited: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_UNDO_OUTSIDE", "warn")
    edited.write(".gitignore", "*.log\n")
    edited.write("a.log", "before")
    edited("checkpoint")
    edited.process("run", "--", "sh", "-c", "echo run > f; echo run > a.log; echo run > b.log")
    for name in ("a.log", "b.log"):
        edited.write(name, "by hand")
    for options, word in ((["--dry-run"], "would be"), ([], "was")):
        told = edited("undo", "--run", *options).err
        assert f"{word} overwritten" in told
        assert "no checkpoint holds a.log, b.log: `holdfast redo` brings that back" in told
        assert "the checkpoint before holds" not in told
    assert (edited.root / "a.log").read_text() == "before"
    assert not (edited.root / "b.log").exists()
    edited("redo")
    assert [(edited.root / name).read_text() for name in ("a.log", "b.log")] == ["by hand", "by hand"]
    edited.write("f", "by hand")
    told = edited("undo", "--run").err
    assert "the checkpoint before holds the rest, and no checkpoint holds" in told


def test_the_policy_of_one_run_is_not_that_of_another(edited: Cli) -> None:
    edited.process("run", "--outside", "warn", "--", "sh", "-c", "echo other > other")
    ran_and_edited(edited)
    edited.write("other", "by hand")
    assert "another process has changed" in edited("undo", "--run", code=4).err
    assert (edited.root / "f").read_text() == "by hand"
    edited("undo", "--step", "1")
    assert not (edited.root / "other").exists()


def test_what_else_is_in_the_way_is_refused_with_warn_as_well(edited: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later step has to do with the same file."""
    monkeypatch.setenv("HOLDFAST_UNDO_OUTSIDE", "warn")
    ran_and_edited(edited)
    edited.process("run", "--", "sh", "-c", "echo later > f")
    assert "step 2" in edited("undo", "--step", "1", code=4).err


def test_lock_cannot_be_had_and_says_why(edited: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (["--outside", "lock"], []):
        refused = edited.process("run", *options, "--", "touch", "made", code=4)
        assert b"which is impossible: the kernel asks" in refused.stderr
        assert not (edited.root / "made").exists()
        monkeypatch.setenv("HOLDFAST_UNDO_OUTSIDE", "lock")


def test_a_dry_run_by_force_names_a_replaced_file_as_the_real_command_does(edited: Cli) -> None:
    edited.process("run", "--", "sh", "-c", "echo run > f; echo run > g")
    edited.write("beside", "by hand")
    (edited.root / "beside").replace(edited.root / "f")
    edited.write("g", "by hand")
    told = edited("undo", "--run", "--force", "--dry-run", code=4)
    assert "  would delete  g\nWould leave alone:\n  f: something else is there now\n" in told.out
    assert "could not change 1 path" in told.err
    told = edited("undo", "--run", "--force", "--dry-run", "--patch", code=4)
    assert "diff --git a/g " in told.out
    assert "diff --git a/f " not in told.out
    assert "Left alone:\n  f: something else is there now" in edited("undo", "--run", "--force", code=4).out
    assert (edited.root / "f").read_text() == "by hand"
    assert not (edited.root / "g").exists()

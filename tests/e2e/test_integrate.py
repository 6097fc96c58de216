"""`holdfast integrate` as it is called."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.integrations.client import is_our_call

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.conftest import Cli


HOLDFAST = [sys.executable, "-P", "-m", "holdfast"]


def test_what_would_be_written_is_shown_and_nothing_is_written_without_consent(cli: Cli) -> None:
    shown = cli("integrate", "claude", "--dry-run")
    assert '+    "holdfast": {' in shown.out
    assert "Nothing was written." in shown.out
    refused = cli("integrate", "claude", code=4)
    assert '+    "holdfast": {' in refused.out
    assert "--yes" in refused.err
    assert cli.tree() == {}
    assert not (cli.home / "integrations").exists()


@pytest.mark.parametrize(("reply", "code"), [("y", 0), ("n", 4), ("", 4)])
def test_a_person_is_asked(cli: Cli, reply: str, code: int) -> None:
    ours, its = pty.openpty()
    os.write(ours, f"{reply}\n".encode() if reply else b"\x04")
    words = [*HOLDFAST, "integrate", "codex"]
    process = subprocess.run(words, stdin=its, stderr=its, stdout=subprocess.PIPE, check=False, timeout=60)
    os.close(its)
    os.close(ours)
    assert process.returncode == code
    assert (cli.root / ".codex").exists() is (code == 0)


def test_it_is_written_once_and_taken_out_again(cli: Cli) -> None:
    cli.write(".mcp.json", '{"mcpServers": {}}')
    before = cli.tree()
    done = cli("integrate", "claude", "--yes")
    where, back = done.out.splitlines()
    assert where.startswith(f"Configured Claude Code in {cli.root}/.mcp.json (before: {cli.home / 'integrations'}/")
    assert f"), {cli.root}/.claude/settings.json, {cli.root}/.claude/skills/holdfast/" in where
    assert where.endswith(f"/commands/undo.md and {cli.root}/.claude/skills/holdfast/commands/log.md.")
    assert back == "`holdfast integrate claude --remove` removes it again."
    assert "@@" not in done.out, "it is shown to who is asked"
    written = cli.tree()
    server = json.loads(written[".mcp.json"])["mcpServers"]["holdfast"]
    assert os.path.isabs(server["command"])
    assert os.access(server["command"], os.X_OK)
    assert "already" in cli("integrate", "claude", "--yes").out
    assert cli.tree() == written
    assert "@@" in cli("integrate", "claude", "--remove", "--dry-run").out
    assert cli.tree() == written
    cli("integrate", "claude", "--remove", code=4)
    cli("integrate", "claude", "--remove", "--yes")
    explained = cli("integrate", "claude", "--yes", "-v").out
    assert "holdfast run -- claude" in explained
    assert "checkpoints only" in explained
    assert "Removed" in cli("integrate", "claude", "--remove", "--yes").out
    assert cli.tree() == before
    assert "holds nothing of Holdfast" in cli("integrate", "claude", "--remove").out


def test_the_command_that_it_names_takes_it_out_of_the_users_configuration(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "users own"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    back = cli("integrate", "claude", "--user", "--yes").out.splitlines()[-1]
    assert (home / ".claude.json").exists()
    program, *words = back.split("`")[1].split()
    assert program == "holdfast"
    assert "Removed from Claude Code." in cli(*words, "--yes").out
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_the_workspace_is_the_project_from_wherever_in_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.root / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(cli.root / "deep/er")
    cli("integrate", "cursor", "--yes")
    assert (cli.root / ".cursor/mcp.json").exists()


def test_a_directory_that_is_not_remembered_can_be_configured_and_is_told_of(bare: Cli) -> None:
    done = bare("integrate", "gemini", "--yes")
    assert "not a workspace yet" in done.err
    assert (bare.root / ".gemini/settings.json").exists()
    bare("integrate", "gemini", "--remove", "--yes")
    assert bare.tree() == {}
    bare("init")


def test_a_home_that_is_given_is_given_on(cli: Cli, tmp_path: Path) -> None:
    cli("--home", str(cli.home), "integrate", "claude", "--yes")
    server = json.loads((cli.root / ".mcp.json").read_text())["mcpServers"]["holdfast"]
    assert server["args"][-3:] == ["--home", str(cli.home), "mcp"]
    hooks = json.loads((cli.root / ".claude/settings.json").read_text())["hooks"]
    assert all(is_our_call("claude", groups[0]["hooks"][0]["command"]) for groups in hooks.values())


def test_json_says_which_files(cli: Cli) -> None:
    cli.write(".codex/config.toml", "a = 1\n")
    value = cli.json("integrate", "codex", "--yes")
    assert value["client"] == "codex"
    assert value["written"]
    assert [(file["path"].rpartition("/")[2], file["change"]) for file in value["files"]] == [
        ("config.toml", "changed"),
        ("hooks.json", "new"),
    ]
    assert value["files"][0]["kept"].startswith(str(cli.home))
    assert cli.json("integrate", "codex")["files"] == []
    value = cli.json("integrate", "codex", "--remove", "--dry-run")
    assert (value["removed"], value["written"]) == (True, False)
    assert [file["change"] for file in value["files"]] == ["changed", "deleted"]


def test_several_at_once_leave_one_entry(cli: Cli) -> None:
    cli.write(".claude/settings.json", '{"hooks": {"Stop": []}}')
    started = [cli.start("integrate", "claude", "--yes", stdout=subprocess.DEVNULL) for _ in range(4)]
    for process in started:
        _, said = process.communicate(timeout=120)
        assert process.returncode in (0, 4), said
        assert process.returncode == 0 or b"was not changed" in said
    cli("integrate", "claude", "--yes")
    hooks = json.loads((cli.root / ".claude/settings.json").read_text())["hooks"]
    assert {len(groups) for groups in hooks.values()} == {1}
    assert not [name for name in cli.tree() if "tmp" in name or "kept" in name]


def test_inside_of_a_run_the_home_cannot_keep_anything_and_nothing_is_written(cli: Cli) -> None:
    cli.write(".mcp.json", "{}")
    cli.process("run", "--", *HOLDFAST, "integrate", "claude", "--yes", code=1, stdin=subprocess.DEVNULL)
    assert (cli.root / ".mcp.json").read_text() == "{}"

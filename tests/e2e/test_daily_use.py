"""A person's day with the command line: save, look, go back, copy, keep house."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.conftest import Cli


def test_first_steps(bare: Cli) -> None:
    bare.write("a.txt", "one\n")
    assert "Remembering" in bare("init").out
    assert "remembered already" in bare("init").out
    assert "No checkpoint yet; 1 file to save" in bare("status").out
    assert bare("log").out.startswith("No checkpoint yet")
    saved = bare("checkpoint", "-m", "first").out
    assert '"first": 1 added.' in saved
    assert "Nothing has changed since" in bare("save").out
    assert "Nothing has changed since" in bare("status").out
    (line,) = bare("log").out.splitlines()
    assert line.startswith("@ ")
    assert line.endswith("first")
    assert bare.tree() == {"a.txt": b"one\n"}


def test_nothing_is_written_into_the_tree_unless_asked(bare: Cli) -> None:
    bare("init")
    bare("checkpoint")
    assert list(bare.root.iterdir()) == []
    bare("init", "--write-ignore")
    assert [file.name for file in bare.root.iterdir()] == [".checkpointignore"]


def test_status_names_what_changed(cli: Cli) -> None:
    cli.write("same", "s")
    cli.write("edited", "1")
    cli.write("gone", "g")
    cli("checkpoint")
    cli.write("edited", "22")
    (cli.root / "gone").unlink()
    cli.write("sub/new", "n")
    lines = cli("status").out.splitlines()
    assert lines[1].startswith("3 changes since ")
    assert lines[2:5] == ["  M edited", "  D gone", "  A sub/new"]
    assert lines[5:] == ["Next: `holdfast diff` shows the changes, `holdfast checkpoint` saves them."]
    cli("checkpoint")
    assert "Next:" not in cli("status").out


def test_a_label_for_a_state_that_is_saved_already(cli: Cli) -> None:
    cli.write("f", "1")
    made = cli.json("checkpoint")
    assert not made["labelled"]
    assert 'which now has the label "one"' in cli("checkpoint", "-m", "one").out
    again = cli.json("checkpoint", "-m", "one")
    assert (again["id"], again["created"], again["labelled"], again["label"]) == (made["id"], False, True, "one")
    said = cli("checkpoint", "-m", "two, too").out
    assert f'since {made["id"][:12]}, which now has the labels "one" and "two, too".' in said
    both = cli.json("checkpoint", "-m", "two, too")
    assert (both["id"], both["created"], both["labelled"]) == (made["id"], False, True)
    assert (both["label"], both["labels"]) == ("one", ["one", "two, too"])
    assert "label       one\nlabel       two, too\n" in cli("show", "two, too").out
    assert "one, two, too" in cli("log").out
    cli("checkpoint", "--author", "ann")
    assert 'The author "bob" was NOT stored' in cli("checkpoint", "--author", "bob").out
    assert "since " + made["id"][:12] + ' "one", "two, too"' in cli("status").out
    cli.write("f", "2")
    assert cli.json("checkpoint", "-m", "two, too")["labelled"]
    assert cli.json("show", "two, too")["id"] != made["id"], "the newest that bears it"
    cli("checkpoint", "-m", "three")
    assert cli.json("forget", "--keep-label", "one", "--dry-run")["removed"] == []
    kept = cli.json("forget", "--keep-label", "one", "--dry-run")["kept"]
    assert [one["labels"] for one in kept] == [["two, too", "three"], ["one", "two, too"]]
    bundle = cli.root.parent / "bundle"
    cli("export", "one", str(bundle))
    cli("forget", "one")
    cli("import", str(bundle))
    assert cli.json("show", "one")["labels"] == ["one", "two, too"]


@pytest.mark.parametrize("collected", [False, True])
def test_a_forgotten_checkpoint_comes_back_by_import(cli: Cli, collected: bool) -> None:
    """Its object has pages that others need; the import writes none in its place."""
    for number in range(400):
        cli.write(f"d{number}/f", str(number))
    made = cli.json("checkpoint", "-m", "one")
    bundle = str(cli.root.parent / "bundle")
    cli("export", "one", bundle)
    for number in range(0, 400, 2):
        cli.write(f"d{number}/f", "2")
    cli("checkpoint", "-m", "two")
    cli("forget", "one")
    if collected:
        cli("gc", "--grace", "0")
    cli("import", bundle)
    cli("verify", "--read-data")
    cli("restore", "one")
    assert cli.json("show", "one")["id"] == made["id"]
    assert (cli.root / "d4/f").read_text() == "4"
    cli("restore", "two")
    assert [(cli.root / f"d{number}/f").read_text() for number in (4, 5)] == ["2", "5"]
    cli("gc", "--grace", "0")
    cli("verify", "--read-data")


def test_paths_that_are_not_there_and_directories_are_named(cli: Cli) -> None:
    cli.write("src/a", "1")
    cli("checkpoint", "-m", "one")
    assert "nosuch is in neither state" in cli("diff", "--", "nosuch", code=3).err
    assert cli("diff", "--", "src").out == ""
    told = cli("cat", "@:src", code=3).err
    assert "src is a directory in" in told
    assert "such as src/a" in told
    (cli.root / "src/a").unlink()
    assert "D\tsrc/a" in cli("diff", "--name-status", "--", "src").out


def test_z_gives_names_as_they_are_with_letters_between_nul(cli: Cli) -> None:
    cli.write("old", "long enough to be known again\n" * 9)
    cli.write(b"caf\xe9\n", "1")
    cli("checkpoint")
    (cli.root / "old").rename(cli.root / "new")
    (cli.root / os.fsdecode(b"caf\xe9\n")).write_text("2")
    done = cli.process("diff", "--name-status", "-z")
    assert done.stdout == b"M\0caf\xe9\n\0R100\0old\0new\0"
    for others in ((), ("--stat",)):
        assert "-z stands beside --name-status" in cli("diff", "-z", *others, code=2).err
    assert "beside --json" in cli("diff", "-z", "--name-status", "--json", code=2).error["message"]


def test_a_printed_path_is_understood_in_a_subdirectory(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("sub/f", "sub/other", "g", "sub/g"):
        cli.write(path, "before")
    cli("checkpoint", "-m", "one")
    for path in ("sub/f", "sub/other", "g", "sub/g"):
        cli.write(path, "after")
    monkeypatch.chdir(cli.root / "sub")
    assert "  M sub/f\n" in cli("status").out
    assert cli("diff", "--name-status", "--", "sub/f").out == "M\tsub/f\n"
    assert cli("diff", "--name-status", "--", "g").out == "M\tsub/g\n", "the current directory comes first"
    assert cli("cat", "@:sub/f").out == "before"
    cli("restore", "one", "sub/f")
    assert cli.tree() == {"sub/f": b"before", "sub/other": b"after", "g": b"after", "sub/g": b"after"}
    cli("restore", "one", "sub/nosuch", code=3)


def test_a_path_is_understood_as_it_was_printed(cli: Cli) -> None:
    odd = os.fsdecode(b"caf\xe9")
    cli.write(b"caf\xe9", "1")
    cli.write("lit\\x41", "literal")
    cli.write("litA", "other")
    cli("checkpoint", "-m", "one")
    assert cli("cat", r"one:caf\xe9").out == "1"
    assert cli("cat", r"one:lit\x41").out == "literal"
    assert cli("cat", r"one:lit\\x41").out == "literal"
    for name in (odd, "litA", r"lit\x41"):
        (cli.root / name).unlink()
    assert r"D	caf\xe9" in cli("diff", "--name-status", "--", r"caf\xe9").out
    for line in cli("status").out.splitlines()[2:-1]:
        letter, printed = line.split()
        assert cli("diff", "--name-status", "--", printed).out == f"{letter}\t{printed}\n"
    assert "nosuch is in neither state" in cli("diff", "--", "litA", "nosuch", code=3).err
    cli("restore", "one", r"caf\xe9")
    cli("restore", "one", r"lit\x41")
    assert cli.tree() == {odd: b"1", r"lit\x41": b"literal"}
    assert "nosuch" in cli("restore", "one", r"nosuch\xe9", code=3).err


def test_small_answers(bare: Cli) -> None:
    failure = bare("--json", code=2).error
    assert (failure["code"], failure["message"]) == ("usage", "no command was given")
    assert ".checkpointignore now" in bare("init", "--write-ignore").out
    assert "is there already" in bare("init", "--write-ignore").out
    assert bare.json("init", "--write-ignore")["ignore_written"] is False
    for content in ("1", "2"):
        bare.write("f", content)
        bare("checkpoint", "-m", f"v{content}")
    assert bare("forget", "v1").out.startswith("Forgot 1 checkpoint.\n")


def test_at_is_the_state_that_the_tree_stands_on(cli: Cli) -> None:
    ids: list[str] = []
    for content in ("1", "2"):
        cli.write("f", content)
        ids.append(cli.json("checkpoint", "-m", f"v{content}")["id"])
    cli("restore", "v1")
    assert cli.json("show", "@")["id"] == ids[0]
    assert next(line for line in cli("log").out.splitlines() if line.startswith("@")).endswith("v1")
    cli("restore", ids[1])
    assert cli.json("show")["id"] == ids[1]
    cli("undo")
    assert cli.json("show")["id"] == ids[0]
    cli("redo")
    assert cli.json("show")["id"] == ids[1]


def test_undo_and_redo_walk_through_the_states(cli: Cli) -> None:
    for content in ("1", "2", "3"):
        cli.write("f", content)
        cli("checkpoint", "-m", f"v{content}")
    cli.write("f", "4 unsaved")
    assert "`holdfast redo` brings it back." in cli("undo").out
    assert cli.tree() == {"f": b"3"}
    cli("undo", "2")
    assert cli.tree() == {"f": b"1"}
    assert cli("undo", "--json", code=3).error["code"] == "nothing_to_undo"
    cli("redo", "3")
    assert cli.tree() == {"f": b"4 unsaved"}
    assert cli("redo", "--json", code=3).error["code"] == "nothing_to_redo"
    log = cli("log").out
    assert re.search(r" undo:\d+ +of [0-9a-f]{12}, back to [0-9a-f]{12} v3$", log, re.MULTILINE)
    assert re.search(r" redo:\d+ +of [0-9a-f]{12}$", log, re.MULTILINE)


def test_undo_of_rm_rf(cli: Cli) -> None:
    for number in range(30):
        cli.write(f"d{number % 3}/sub/f{number}", str(number))
    cli("checkpoint")
    before = cli.tree()
    for directory in cli.root.iterdir():
        shutil.rmtree(directory)
    assert "30 files written, 0 deleted" in cli("undo").out
    assert cli.tree() == before


def test_restore_saves_what_was_there_and_says_how_to_get_it_back(cli: Cli) -> None:
    cli.write("keep", "k")
    cli.write("f", "old")
    cli("checkpoint", "-m", "old")
    cli.write("f", "new")
    cli.write("extra", "x")
    dry = cli("restore", "old", "--dry-run").out
    assert "would write   f" in dry
    assert "would delete  extra" in dry
    assert cli.tree()["f"] == b"new"
    out = cli("restore", "old").out
    assert "1 file written, 1 deleted" in out
    assert "`holdfast undo` brings it back." in out
    assert cli.tree() == {"keep": b"k", "f": b"old"}
    cli("undo")
    assert cli.tree() == {"keep": b"k", "f": b"new", "extra": b"x"}


def test_restore_of_some_paths_relative_to_the_current_directory(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write("a/f", "1")
    cli.write("b/f", "1")
    cli("checkpoint", "-m", "one")
    cli.write("a/f", "2")
    cli.write("b/f", "2")
    monkeypatch.chdir(cli.root / "a")
    cli("restore", "one", "f")
    assert cli.tree() == {"a/f": b"1", "b/f": b"2"}
    cli("restore", "one", "../b")
    assert cli.tree() == {"a/f": b"1", "b/f": b"1"}
    assert "outside the workspace" in cli("restore", "one", "../../x", code=2).err
    assert cli("restore", "one", "nowhere", "--json", code=3).error["code"] == "no_such_path"


def test_a_deleted_workspace_comes_back(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write("f", "1")
    cli("checkpoint")
    monkeypatch.chdir(place)
    shutil.rmtree(cli.root)
    cli("-w", str(cli.root), "restore", "@")
    assert cli.tree() == {"f": b"1"}


def test_excluded_files_survive_a_restore_that_takes_their_pattern_away_and_its_undo(cli: Cli) -> None:
    # I5, I6: `capture.exclude` of the workspace's own file comes and goes with a state, as the ignore files do.
    cli.write("f", "1")
    cli("checkpoint", "-m", "one")
    cli.write("holdfast.toml", '[capture]\nexclude = ["/data/"]\n')
    cli("checkpoint", "-m", "two")
    cli.write("data/x", "precious")
    cli("restore", "one")
    assert (cli.root / "data/x").read_text() == "precious"
    cli("undo")
    assert (cli.root / "data/x").read_text() == "precious"
    assert (cli.root / "holdfast.toml").exists()


def test_a_file_survives_a_restore_that_takes_the_limit_away_that_it_is_beyond(cli: Cli) -> None:
    cli.write("f", "1")
    cli("checkpoint", "-m", "one")
    cli.write("holdfast.toml", "[capture]\nmax_file_bytes = 40\n")
    cli.write("large", "precious" * 100)
    cli("checkpoint", "-m", "two")
    cli("restore", "one")
    assert "Left alone:\n  large: " in cli("undo", code=4).out
    assert (cli.root / "large").read_text() == "precious" * 100
    assert (cli.root / "holdfast.toml").exists()


def test_ignored_files_are_not_saved_and_not_deleted(cli: Cli) -> None:
    cli.write(".gitignore", "*.log\n")
    cli.write("f", "1")
    cli("checkpoint", "-m", "one")
    cli.write("noise.log", "n")
    cli.write("f", "2")
    cli("restore", "one")
    assert cli.tree() == {".gitignore": b"*.log\n", "f": b"1", "noise.log": b"n"}


def test_show_and_cat(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write("sub/f", "first\n")
    cli("checkpoint", "-m", "colon: here", "--message", "why", "--author", "ada", "--command", "make all")
    cli.write("sub/f", "second\n")
    cli("save")
    shown = cli("show", "@-").out
    for part in ("colon: here", "why", "ada", "make all", "A sub/f"):
        assert part in shown
    assert cli("cat", "@:sub/f").out == "second\n"
    assert cli("cat", "colon: here:sub/f").out == "first\n"
    monkeypatch.chdir(cli.root / "sub")
    assert cli("cat", "@-:f").out == "first\n"
    assert cli("cat", "@:g", "--json", code=3).error["code"] == "no_such_path"
    assert cli("cat", "nonsense", code=2).err.startswith("holdfast: 'nonsense' is not ID:PATH")


def test_diff_in_all_its_forms(cli: Cli) -> None:
    text = "".join(f"line {number}\n" for number in range(40))
    cli.write("f", text)
    cli.write("old-name", text * 2)
    cli.write("blob", b"\0one")
    cli("checkpoint", "-m", "one")
    cli.write("f", text.replace("line 7\n", "seven\n"))
    (cli.root / "old-name").rename(cli.root / "new-name")
    cli.write("blob", b"\0two!")
    cli.write("added", "a\n")
    assert cli("diff", "--name-status").out.splitlines() == [
        "A\tadded",
        "M\tblob",
        "M\tf",
        "R100\told-name\tnew-name",
    ]
    stat = cli("diff", "one", "--stat").out
    assert "f                    |     2 +-" in stat
    assert "binary, 4 -> 5 bytes" in stat
    assert stat.endswith("4 files changed, 2 lines added, 1 line removed\n")
    patch = cli("diff").out
    assert "-line 7\n+seven\n" in patch
    assert "rename from old-name\nrename to new-name\n" in patch
    assert "diff --git a/f b/f" in cli("diff", "--", "f").out
    assert "old-name" not in cli("diff", "--", "f").out
    assert "D\told-name" in cli("diff", "--no-renames", "--name-status").out
    cli("checkpoint", "-m", "two")
    assert cli("diff").out == ""
    assert cli("diff", "one..two").out == patch
    assert cli("diff", "one", "two").out == patch
    assert cli("diff", "@-..@").out == patch


def test_a_patch_made_in_a_pipe_is_one_that_git_applies(cli: Cli, place: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    cli.write("f", "a\nb\nc")
    cli.write("bin", bytes(range(256)))
    cli("checkpoint")
    copy = place / "copy"
    shutil.copytree(cli.root, copy)
    cli.write("f", "a\nB\nc\n")
    cli.write("bin", bytes(reversed(range(256))))
    cli.write("täglich \t", "x\n")
    patch = cli.process("diff", "--binary").stdout
    subprocess.run(["git", "apply"], input=patch, cwd=copy, check=True)
    assert {f.name: f.read_bytes() for f in copy.iterdir()} == {f.name: f.read_bytes() for f in cli.root.iterdir()}


def test_a_path_taken_for_a_checkpoint_is_explained(cli: Cli) -> None:
    cli.write("src", "1")
    cli("checkpoint")
    assert "a path goes behind --" in cli("diff", "src", code=3).err


def test_a_path_where_restore_and_undo_take_none_is_explained(cli: Cli) -> None:
    cli.write("README.md", "1")
    cli("checkpoint")
    assert "`holdfast restore @ README.md`" in cli("restore", "README.md", code=3).err
    assert "`holdfast restore @- PATH`" in cli("undo", "README.md", code=2).err
    assert "`holdfast log --until 1h`" in cli("restore", "1h", "README.md", code=3).err


def test_fork_is_a_workspace_of_its_own(cli: Cli, place: Path) -> None:
    cli.write("f", "1")
    cli("checkpoint", "-m", "base")
    cli.write("f", "2")
    out = cli("fork", "base", str(place / "fork")).out
    assert "1 file written" in out
    assert (place / "fork" / "f").read_text() == "1"
    (place / "fork" / "f").write_text("forked")
    cli("-w", str(place / "fork"), "checkpoint")
    assert cli.tree() == {"f": b"2"}
    cli("checkpoint")
    graph = cli("log", "--graph", "--all").out
    assert "| *" in graph
    assert "| /" in graph
    assert cli("fork", "@", str(place / "fork"), "--json", code=4).error["code"]
    cli.write("unsaved", "u")
    made = cli.json("fork", str(place / "present"))
    assert made["source"] == cli.json("show")["id"]
    assert cli.json("show")["kind"] == "auto"
    assert (place / "present/unsaved").read_text() == "u"


def test_bundles_travel_between_homes(cli: Cli, place: Path) -> None:
    cli.write("f", "1")
    cli("checkpoint", "-m", "one")
    cli.write("f", "2")
    cli("checkpoint", "-m", "two")
    bundle = str(place / "b.tar.zst")
    assert "Wrote 2 checkpoints" in cli("export", "@", bundle).out
    other = ["--home", str(place / "other-home"), "-w", str(place / "other")]
    (place / "other").mkdir()
    cli(*other, "init", str(place / "other"))
    assert "Took in 2 checkpoints" in cli(*other, "import", bundle).out
    assert cli(*other, "cat", "one:f").out == "1"
    cli(*other, "restore", "two")
    assert (place / "other" / "f").read_text() == "2"
    assert cli.json(*other, "verify", "--read-data")["ok"]


def test_a_broken_bundle_changes_nothing(cli: Cli, place: Path) -> None:
    (place / "bad").write_bytes(b"\x28\xb5\x2f\xfd" + os.urandom(100))
    assert cli("import", str(place / "bad"), "--json", code=5).error["code"] in ("bad_format", "integrity")
    assert cli("import", str(place / "absent"), code=3).err
    assert cli.json("log")["checkpoints"] == []


def test_forget_and_gc(cli: Cli) -> None:
    for number in range(4):
        cli.write("f", os.urandom(3000))
        cli("checkpoint", "-m", f"n{number}")
    assert "Would forget 2 checkpoints, kept 2." in cli("forget", "--keep-last", "2", "--dry-run").out
    assert len(cli.json("log")["checkpoints"]) == 4
    assert "Forgot 2 checkpoints" in cli("forget", "--keep-last", "2").out
    assert [item["label"] for item in cli.json("log")["checkpoints"]] == ["n3", "n2"]
    (newest, middle) = [item["id"] for item in cli.json("log")["checkpoints"]]
    assert cli.json("forget", "n2", "--dry-run")["removed"][0]["composed_into"] == [newest]
    forgot = cli("forget", middle).out
    assert "Forgot 1 checkpoint" in forgot
    assert f"its changes are now part of {newest[:12]}" in forgot
    assert cli.json("gc")["blobs_deleted"] == 0
    assert cli.json("gc", "--grace", "0")["bytes_freed"] > 6000
    assert "No problem found: 1 checkpoint" in cli("verify", "--read-data").out
    assert cli.tree()["f"]


def test_damage_is_named_and_is_exit_5(cli: Cli, place: Path) -> None:
    cli.write("f", os.urandom(50_000))
    cli("checkpoint")
    packs = sorted(place.glob("home/**/packs/*/*"))
    assert packs
    content = packs[0].read_bytes()
    packs[0].chmod(0o600)
    packs[0].write_bytes(content[:2000] + bytes([content[2000] ^ 1]) + content[2001:])
    report = cli("verify", "--read-data", "--json", code=5)
    assert not report.json["ok"]
    assert report.json["problems"]
    assert report.error["code"] == "integrity"
    assert "damaged" in cli("verify", "--read-data", code=5).out
    packs[0].write_bytes(content)


def test_stats(cli: Cli) -> None:
    cli.write("big/f", os.urandom(20_000))
    cli("checkpoint")
    out = cli("stats").out
    assert "checkpoints  1" in out
    assert "20.0 kB  big" in out


def test_what_is_not_captured_is_said(cli: Cli) -> None:
    os.mkfifo(cli.root / "pipe")
    cli.write("f", "1")
    assert "1 path is not captured" in cli("checkpoint").out
    assert "  pipe: " in cli("show").out
    assert "  pipe: " in cli("status").out


@pytest.mark.parametrize("words", [("undo", "1", "--run"), ("undo", "2", "--step", "1"), ("redo", "1", "--step", "1")])
def test_a_number_of_changes_stands_alone(cli: Cli, words: tuple[str, ...]) -> None:
    assert "N counts changes: it cannot stand beside" in cli(*words, code=2).err


def test_files_of_credentials_are_told_once(cli: Cli) -> None:
    (cli.root / "id_rsa").write_text("secret")
    (cli.root / "file").write_text("1")
    cli("init")
    assert "id_rsa" in cli("status").out
    assert "id_rsa" not in cli("status").out
    assert "capture.credentials" in cli("status", "--ignored").out
    (cli.root / ".netrc").write_text("secret")
    told = cli("status").out
    assert ".netrc" in told
    assert "id_rsa" not in told


def test_what_was_said_of_a_checkpoint_since_it_was_exported_is_no_other_checkpoint(cli: Cli, tmp_path: Path) -> None:
    bundle = str(tmp_path / "bundle")
    cli.write("a", "1")
    made = cli.json("checkpoint")["id"]
    cli("export", "@", bundle)
    cli("checkpoint", "--message", "why", "-m", "since")
    assert cli.json("import", bundle)["checkpoints"] == [made]
    assert (cli.json("show", "@")["message"], cli.json("show", "@")["label"]) == ("why", "since")


def test_a_bundle_of_another_workspaces_checkpoints_is_refused_with_what_helps(cli: Cli, tmp_path: Path) -> None:
    bundle, other = str(tmp_path / "bundle"), tmp_path / "other"
    cli.write("a", "1")
    made = cli.json("checkpoint")["id"]
    cli("export", "@", bundle)
    other.mkdir()
    cli("-w", str(other), "init")
    refused = cli("-w", str(other), "import", bundle, code=4).err
    assert f"belongs to {cli.root} already" in refused
    (helps,) = re.findall("`holdfast (.*) DIR`", refused)
    cli(*shlex.split(helps), str(tmp_path / "made"))
    assert (tmp_path / "made/a").read_text() == "1"
    assert made[:12] in helps

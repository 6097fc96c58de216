"""What is captured and what is not: the rules beside Git's patterns, and where rules come from."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.files.git.configuration import MAX_RULES_BYTES, GitUser, find_repository, global_excludes
from holdfast.files.ignore._patterns import parse_rules
from holdfast.files.ignore._rule_matcher import MAX_GLOBS, Rules
from holdfast.files.ignore.rules import (
    DEFAULT_CHECKPOINTIGNORE,
    DirectoryRules,
    IgnoreSources,
    read_rule_file,
    write_default_ignore,
)
from holdfast.files.local_tree import LocalTree
from holdfast.model.config.settings import Capture
from holdfast.model.content import HashSink

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = GitUser(system_config=None)


def captured(root: Path, user: GitUser = NOBODY, exclude: tuple[str, ...] = ()) -> set[bytes]:
    return set(LocalTree(bytes(root), user=user, capture=Capture(exclude=exclude)).scan(HashSink()).changes)


def fill(root: Path, *names: str, content: str = "") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def root_rules(root: Path, gitignore: bytes | None = None, own: bytes | None = None) -> DirectoryRules:
    return IgnoreSources(bytes(root), user=NOBODY).outer().at_root(gitignore, own)


def test_i14_some_names_are_never_captured(tmp_path: Path) -> None:
    fill(tmp_path, ".git/config", "sub/.git", "deep/er/.git/HEAD", ".holdfast/undo", "a.sock", "sub/b.pid")
    fill(tmp_path, ".holdfast.tmp-nonce-1", "kept", ".gitmodules", "x.git/y")
    fill(tmp_path, ".gitignore", ".checkpointignore", content="!.git\n!*\n")
    assert captured(tmp_path) == {b"kept", b".gitignore", b".checkpointignore", b".gitmodules", b"x.git/y"}


def test_the_defaults_hold_while_there_is_no_checkpointignore(tmp_path: Path) -> None:
    fill(
        tmp_path,
        ".env.local",
        ".env.dev.local",
        ".DS_Store",
        "a.log",
        "tmp/x",
        "sub/tmp/x",
        ".idea/x",
        "a.swp",
        "a.pyc",
    )
    fill(tmp_path, ".vscode/settings.json", ".vscode/tasks.json", "__pycache__/x", "coverage/x", "kept.py", ".env")
    assert captured(tmp_path) == {b"sub/tmp/x", b".vscode/tasks.json", b"kept.py", b".env"}
    fill(tmp_path, ".checkpointignore", content="*.py\n")
    assert len(captured(tmp_path)) == 15


def test_a_nested_checkpointignore_adds_to_the_defaults(tmp_path: Path) -> None:
    fill(tmp_path, "sub/.checkpointignore", content="only\n!*.log\n")
    fill(tmp_path, "only", "sub/only", "a.log", "sub/a.log")
    assert captured(tmp_path) == {b"only", b"sub/.checkpointignore", b"sub/a.log"}


def test_writing_the_defaults_changes_nothing_about_them(tmp_path: Path) -> None:
    assert write_default_ignore(bytes(tmp_path)) is True
    assert (tmp_path / ".checkpointignore").read_bytes() == DEFAULT_CHECKPOINTIGNORE
    (tmp_path / ".checkpointignore").write_bytes(b"mine\n")
    assert write_default_ignore(bytes(tmp_path)) is False
    assert (tmp_path / ".checkpointignore").read_bytes() == b"mine\n"


def test_configured_patterns_act_like_checkpointignore(tmp_path: Path) -> None:
    fill(tmp_path, "a.bin", "keep.bin", "sub/b.bin", "secrets/x", "other")
    fill(tmp_path, ".checkpointignore", content="!keep.bin\n")
    assert captured(tmp_path, exclude=("*.bin", "/secrets/")) == {
        b"keep.bin",
        b".checkpointignore",
        b"other",
    }


def test_a_linked_rule_file_is_not_followed(tmp_path: Path) -> None:
    """I7; Git does the same."""
    fill(tmp_path, "rules", content="a\n")
    fill(tmp_path, "tree/a")
    os.symlink("../rules", tmp_path / "tree" / ".gitignore")
    os.mkfifo(tmp_path / "tree" / ".checkpointignore")
    assert captured(tmp_path / "tree") == {b"a", b".gitignore"}


def test_an_absurdly_large_rule_file_is_cut_at_a_line(tmp_path: Path) -> None:
    content = b"first\n" + b"x" * (MAX_RULES_BYTES - 100) + b"\n" + b"second" * 1000 + b"\n"
    assert len(parse_rules(content)) == 2
    (tmp_path / ".gitignore").write_bytes(content)
    fd = os.open(tmp_path, os.O_RDONLY)
    found = read_rule_file(fd, b".gitignore")
    os.close(fd)
    assert found is not None
    assert len(found) == MAX_RULES_BYTES + 1


def test_hostile_patterns_take_no_time() -> None:
    """I12: what backtracks in a naive translation is matched in one pass."""
    rules = Rules(parse_rules(b"a*" * 100 + b"b\n" + b"*a" * 100 + b"[!c]?b/x\n"))
    name = b"a" * 255
    assert rules.verdict(name, name, False) is None
    assert rules.verdict(name + b"b", name + b"b", False) is True


HOSTILE = {
    "names": lambda number: b"n%d" % number,
    "affixes": lambda number: b"a%d*b" % number,
    "affixes of every length": lambda number: b"a" * (number % 60) + b"*" + b"b" * (number % 61),
    "paths": lambda number: b"/a%d/*b" % number,
    "globs": lambda number: b"a%d*b*c" % number,
    "question marks": lambda number: b"?%d" % number,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hundreds_of_thousands_of_patterns_cost_little_with_each_name(kind: str) -> None:
    """I12: the work is counted in lines of Python that are run."""
    rules = Rules(parse_rules(b"\n".join(HOSTILE[kind](number) for number in range(300_000))))
    names = [b"a7b", b"some/directory/x.py", b"a" * 100 + b"b" * 100]
    for name in names:
        rules.verdict(name, name, False)
    lines = 0

    def count(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)  # type: ignore[arg-type]
    try:
        for name in names:
            rules.verdict(name, name.rpartition(b"/")[2], False)
    finally:
        sys.settrace(None)
    assert lines < 60_000


def test_too_many_globs_are_cut_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = b"".join(b"a%d?x\n" % number for number in range(MAX_GLOBS + 5)) + b"*.last\n"
    rules = root_rules(tmp_path).below(b"sub", content, None)
    assert rules.excluded(b"sub/a0ax", b"a0ax", False)
    assert rules.excluded(b"sub/a%dax" % (MAX_GLOBS - 1), b"a%dax" % (MAX_GLOBS - 1), False)
    assert not rules.excluded(b"sub/a%dax" % MAX_GLOBS, b"a%dax" % MAX_GLOBS, False)
    assert rules.excluded(b"sub/x.last", b"x.last", False), "what is simple is obeyed, however much there is"
    assert [record.getMessage() for record in caplog.records] == [
        f"5 ignore patterns in sub/.gitignore are not obeyed: only the first {MAX_GLOBS} with several wildcards are"
    ]


def test_common_rules_need_no_regular_expression(tmp_path: Path) -> None:
    """A command line must start fast: pathspec alone takes longer to import than everything else."""
    fill(tmp_path, "a.py", "b/c.o")
    fill(
        tmp_path,
        ".gitignore",
        content="*.py[cod]\nnode_modules/\n/build\n.env*\ndocs/_build/\n**/x\n.vscode/*\n[Bb]in/\n*~\n",
    )
    code = (
        "import sys; from holdfast.files.local_tree import LocalTree; from holdfast.model.content import HashSink; "
        f"assert len(LocalTree({bytes(tmp_path)!r}).scan(HashSink()).changes) == 3; print('pathspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout == "False\n"


def test_equal_fingerprints_mean_equal_rules(tmp_path: Path) -> None:
    first = root_rules(tmp_path, b"a\n")
    assert first.fingerprint == root_rules(tmp_path, b"a\n").fingerprint
    others = {
        root_rules(tmp_path).fingerprint,
        root_rules(tmp_path, b"").fingerprint,
        root_rules(tmp_path, None, b"a\n").fingerprint,
        root_rules(tmp_path, b"a\n", b"").fingerprint,
        first.below(b"sub", b"a\n", None).fingerprint,
        first.below(b"sub", None, b"a\n").fingerprint,
        IgnoreSources(bytes(tmp_path), user=NOBODY, exclude=["a"]).outer().at_root(b"a\n", None).fingerprint,
    }
    assert len(others) == 7
    assert first.fingerprint not in others
    assert first.below(b"sub", None, None) is first


def test_the_global_excludes_and_the_repositorys_own(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    fill(tree, "a", "b", "c", "d")
    fill(
        tmp_path,
        "home/.gitconfig",
        content="[user]\n\tname = x\n[core]\n\tautocrlf = input\n\texcludesFile = ~/my\\\\ignore # mine\n",
    )
    fill(tmp_path, "home/my\\ignore", content="a\nb\n")
    user = GitUser(home=bytes(tmp_path / "home"), system_config=None)
    assert captured(tree, user) == {b"c", b"d"}
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    fill(tree, ".git/info/exclude", content="c\n!b\n")
    assert captured(tree, user) == {b"b", b"d"}
    tree_object = LocalTree(bytes(tree), user=user)
    assert set(tree_object.scan(HashSink()).changes) == {b"b", b"d"}
    fill(tmp_path, "home/my\\ignore", content="d\n")
    assert set(tree_object.scan(HashSink()).changes) == {b"a", b"b"}, "a rule file outside has changed"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", b"/h/.config/git/ignore"),
        ("[core]\nexcludesfile = /x y/z ; comment\n", b"/x y/z"),
        ('[core] excludesFile = "/x # y"  \n', b"/x # y"),
        ("[CORE]\n  EXCLUDESFILE=~/z\n", b"/h/z"),
        ("[core]\nexcludesFile = /a\n[core]\nexcludesFile = /b\n", b"/b"),
        ('[core "sub"]\nexcludesFile = /a\n', b"/h/.config/git/ignore"),
        ("[other]\nexcludesFile = /a\n[core]\n# excludesFile = /b\n", b"/h/.config/git/ignore"),
        ("[core]\nexcludesFile = /a\\\n/b\n", b"/a/b"),
        ("[core]\nexcludesFile =\n", None),
        ("[include]\npath = more\n", b"/included"),
        ("[include]\npath = loop\n", b"/h/.config/git/ignore"),
        ("\ufeff[core]\r\nexcludesFile = /a\r\n", b"/a"),
        ("[core\nexcludesFile = /a\n\0\xff[[[", b"/h/.config/git/ignore"),
        ("[core]\nexcludesFile = ~nobody-of-that-name/x\n", None),
    ],
)
def test_the_one_key_of_gits_configuration(config: str, expected: bytes | None, tmp_path: Path) -> None:
    fill(tmp_path, "more", content="[core]\nexcludesFile = /included\n")
    fill(tmp_path, "loop", content="[include]\npath = loop\n")
    fill(tmp_path, "config", content=config)
    user = GitUser(home=b"/h", config_home=None, system_config=bytes(tmp_path / "config"))
    assert global_excludes(user, None) == expected


@pytest.mark.parametrize("reached", [False, True], ids=["files", "bytes"])
def test_a_configuration_that_includes_itself_again_and_again_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reached: bool
) -> None:
    filler = "# " + "x" * 40_000 + "\n" if reached else ""
    fill(tmp_path, "config", content=filler + "[include]\npath = config\npath = config\n[core]\nexcludesFile = /a\n")
    user = GitUser(home=b"/h", config_home=None, system_config=bytes(tmp_path / "config"))
    assert global_excludes(user, None) == b"/a"
    said = "the configuration of Git is obeyed up to 64 files or 1048576 bytes only"
    assert [message.partition(",")[0] for message in caplog.messages] == [said]
    caplog.clear()


def test_where_the_configuration_is(tmp_path: Path) -> None:
    home, config = bytes(tmp_path / "home"), bytes(tmp_path / "config")
    assert global_excludes(GitUser(home, config, None), None) == config + b"/git/ignore"
    fill(tmp_path, "config/git/config", content="[core]\nexcludesFile = /from-xdg\n")
    assert global_excludes(GitUser(home, config, None), None) == b"/from-xdg"
    fill(tmp_path, "home/.gitconfig", content="[core]\nexcludesFile = /from-home\n")
    assert global_excludes(GitUser(home, config, None), None) == b"/from-home"
    assert global_excludes(NOBODY, None) is None


def test_linked_worktrees_share_the_exclude_file(tmp_path: Path) -> None:
    main = tmp_path / "main"
    run = ["git", "-c", "user.name=x", "-c", "user.email=x", "-C", str(main)]
    subprocess.run(["git", "init", "-q", str(main)], check=True)
    subprocess.run([*run, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*run, "worktree", "add", "-q", str(tmp_path / "linked")], check=True, capture_output=True)
    fill(main, ".git/info/exclude", content="a\n")
    fill(tmp_path / "linked", "a", "b")
    repository = find_repository(bytes(tmp_path / "linked"))
    assert repository is not None
    assert os.path.realpath(repository.common) == bytes(main / ".git")
    assert captured(tmp_path / "linked") == {b"b"}


def test_what_only_looks_like_a_repository_is_none(tmp_path: Path) -> None:
    fill(tmp_path, ".gitignore", content="a\n")
    fill(tmp_path, "sub/a", "sub/.git/config")
    assert find_repository(bytes(tmp_path / "sub")) is None
    fill(tmp_path, "other/.git", content="gitdir: /nowhere\n")
    assert find_repository(bytes(tmp_path / "other")) is None
    assert captured(tmp_path / "sub") == {b"a"}


def test_as_git_does_nothing_is_found_above_a_file_that_leads_nowhere(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, "apart/inner/a")
    assert find_repository(bytes(tmp_path / "apart/inner")) is not None
    fill(tmp_path, "apart/.git", content="gitdir: /nowhere\n")
    for name in ("apart", "apart/inner"):
        assert find_repository(bytes(tmp_path / name)) is None
        assert subprocess.run(
            ["git", "-C", str(tmp_path / name), "status"], capture_output=True, check=False
        ).returncode


def test_a_root_that_its_repository_excludes_is_captured_all_the_same(tmp_path: Path) -> None:
    """A home directory under Git with ``*`` in its exclude rules must not empty every workspace in it."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fill(tmp_path, ".gitignore", content="*\n")
    fill(tmp_path, "project/a", "project/b")
    fill(tmp_path, "project/.gitignore", content="b\n")
    assert captured(tmp_path / "project") == {b"a", b".gitignore"}


@pytest.mark.parametrize("kind", ["device", "fifo", "directory", "link"])
def test_what_is_no_regular_file_holds_no_rules_and_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ".gitignore"
    match kind:
        case "device":
            if os.geteuid() != 0:
                pytest.skip("needs the right to make a device")
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert read_rule_file(fd, b".gitignore") is None
    finally:
        os.close(fd)


def test_what_running_programs_leave_is_left_out_and_directories_of_such_names_are_not(tmp_path: Path) -> None:
    fill(tmp_path, "server.pid", "server.sock", "d/x.pid", "pool.pid/file", "pool.sock/d/file", "x.pid.txt")
    assert captured(tmp_path) == {b"pool.pid/file", b"pool.sock/d/file", b"x.pid.txt"}


@pytest.mark.parametrize("name", ["home/.config/git/ignore", "repository/.git/info/exclude", "repository/.gitignore"])
def test_a_rule_file_from_outside_that_is_cut_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "repository")], check=True)
    fill(tmp_path, name, content="a\n" + "x" * MAX_RULES_BYTES)
    fill(tmp_path, "repository/tree/a", "repository/tree/b")
    user = GitUser(home=bytes(tmp_path / "home"), system_config=None)
    assert captured(tmp_path / "repository/tree", user) == {b"b"}
    assert caplog.messages == [f"only the first 1048576 bytes of the ignore rules in {tmp_path / name} are obeyed"]
    caplog.clear()

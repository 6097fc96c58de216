"""The exclude rules give, path by path, the answer of ``git check-ignore --no-index``, on generated trees."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.files.git.configuration import GitUser
from holdfast.files.ignore.rules import CHECKPOINTIGNORE, GITIGNORE, DirectoryRules, IgnoreSources, read_rule_file

from ..sampling import some

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git, the oracle")

NAMES = [
    b"a",
    b"b",
    b"c",
    b"foo",
    b"bar",
    b"x.py",
    b"y.log",
    b"build",
    b"a.py",
    b"!a",
    b"#b",
    b"b ",
    b"c ",
    b"ab",
    b"aXb",
]
NAMES.extend(
    (
        b"[",
        b"{a,b}",
        b"]",
        b"-",
        b"*",
        b"\\",
        b"axb",
        b"bx",
        b"#h",
        b"a\\",
        b"a b",
        b" a",
        b"\xff",
        b"x\xe9.py",
        b"A",
        b"\xc3\xa9",
    )
)
NAMES.extend(
    (
        b"a\tb",
        b"^",
        b"x.tar.gz",
        b"new\nline",
        b"a\r",
        b"foo.log.py",
        b"\t",
        b"0",
        b"a.",
        b".a",
        b"..a",
        b"a\xc3\xa9b",
        b":]",
    )
)
PARTS = [
    b"a",
    b"b",
    b"foo",
    b"bar",
    b"x.py",
    b"y.log",
    b"build",
    b"*.py",
    b"*.log",
    b"a*",
    b"*",
    b"**",
    b"?",
    b"[ab]",
    b"[!a]",
]
PARTS.extend(
    (
        b"[a-c]x",
        b"fo?",
        b"{a,b}",
        b"[[:alpha:]]",
        b"\\!a",
        b"\\#b",
        b"[",
        b"a\\",
        b"b ",
        b"c\\ ",
        b"#h",
        b"[^b]o*",
        b"**a",
    )
)
PARTS.extend(
    (
        b"a**b",
        b"[]a]",
        b"[]-a]",
        b"[a-]",
        b"\\a",
        b"\\*",
        b"***",
        b"a**",
        b"?**",
        b"[[:digit:][:punct:]]*",
        b"[\\]]",
        b"*a*b*",
    )
)
PARTS.extend(
    (
        b"[!]a-]*",
        b"[a-c-e]",
        b"[\\a-c]",
        b"[[:nope:]]",
        b"[[:alpha]",
        b"[[a]",
        b"*[",
        b"*.*",
        b"*.tar.gz",
        b"\xff",
        b"*\xe9*",
    )
)
PARTS.extend(
    (
        b"[\x80-\xff]",
        b"[!\x80-\xff]",
        b"a\tb",
        b"\t",
        b"b\\ \\ ",
        b"\\",
        b"[^]]",
        b"*\\",
        b"a\\*",
        b"*.p[y]",
        b"[[:space:]]*",
    )
)
PARTS.extend(
    (
        b"*?",
        b"?*",
        b"**?",
        b"[*]",
        b"[?]",
        b"[a/b]",
        b"x[/]y",
        b"\\/",
        b"**\\",
        b"[z-a]",
        b"*.[pP]y",
        b"f*o",
        b"[[:]",
        b"[:a]",
    )
)


def make_pattern(rng: random.Random) -> bytes:
    """One line that is likely to match something, and often odd."""
    if rng.random() < 0.1:
        return bytes(rng.choice(b"ab*?[]!^-\\/ #:\xff\r") for _ in range(rng.randint(1, 9)))
    pattern = b"/".join(
        rng.choice(PARTS if rng.random() < 0.8 else NAMES) for _ in range(rng.choice([1, 1, 1, 2, 2, 3]))
    )
    if rng.random() < 0.2:
        pattern = pattern.replace(b"/", rng.choice([b"/**/", b"**/", b"/**", b"//", b"\\/"]))
    if rng.random() < 0.25:
        pattern = b"/" + pattern
    if rng.random() < 0.25:
        pattern += b"/"
    if rng.random() < 0.25:
        pattern = b"!" + pattern
    if rng.random() < 0.1:
        pattern += rng.choice([b" ", b"  ", b"\t", b"\\ ", b" \\", b"\\  ", b"\0x"])
    return pattern


def make_rules(rng: random.Random) -> bytes:
    """A rule file: some patterns, a BOM or CRLF or no last line end now and then."""
    end = b"\r\n" if rng.random() < 0.1 else b"\n"
    content = end.join(make_pattern(rng) for _ in range(rng.randint(1, 5)))
    if rng.random() < 0.1:
        content = b"\xef\xbb\xbf" + content
    return content if rng.random() < 0.2 else content + end


def make_tree(rng: random.Random, root: bytes) -> None:
    """Files in nested directories, with rule files in some of them."""
    os.makedirs(root, exist_ok=True)
    directories = {root}
    for _ in range(30):
        at = root
        for name in rng.choices(NAMES, k=rng.choice([0, 0, 1, 1, 2, 3])):
            if os.path.lexists(at + b"/" + name) and not os.path.isdir(at + b"/" + name):
                break
            at += b"/" + name
            os.makedirs(at, exist_ok=True)
            directories.add(at)
        path = at + b"/" + rng.choice(NAMES)
        if not os.path.lexists(path):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    for at in [root, *rng.sample(sorted(directories), k=min(3, len(directories)))]:
        with open(at + b"/" + GITIGNORE, "wb") as file:
            file.write(make_rules(rng))


def walk(root: bytes, sources: IgnoreSources) -> tuple[set[bytes], set[bytes]]:
    """Every path of the tree, and those of them that the rules exclude."""
    paths: set[bytes] = set()
    excluded: set[bytes] = set()

    def visit(path: bytes, above: DirectoryRules | None) -> None:
        full = root + b"/" + path if path else root
        fd = os.open(full, os.O_RDONLY | os.O_DIRECTORY)
        try:
            gitignore = read_rule_file(fd, GITIGNORE)
        finally:
            os.close(fd)
        rules = None
        if above is not None:
            rules = above.below(path, gitignore, None) if path else above.at_root(gitignore, b"")
        for name in os.listdir(full):
            if name == b".git":
                continue
            inner = path + b"/" + name if path else name
            is_directory = os.path.isdir(full + b"/" + name) and not os.path.islink(full + b"/" + name)
            paths.add(inner)
            out = rules is None or rules.excluded(inner, name, is_directory)
            if out:
                excluded.add(inner)
            if is_directory:
                visit(inner, None if out else rules)

    visit(b"", sources.outer())
    return paths, excluded


def ask_git(directory: bytes, paths: set[bytes], home: Path) -> set[bytes]:
    """Those of ``paths`` that Git excludes."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", os.fsdecode(directory), "check-ignore", "--no-index", "-z", "--stdin"]
    asked = b"".join(b"./" + path + b"\0" for path in sorted(paths))  # a leading ":" would be pathspec magic
    done = subprocess.run(command, input=asked, capture_output=True, env=environment, check=False)
    assert done.returncode in (0, 1), done.stderr
    return {path.removeprefix(b"./") for path in done.stdout.split(b"\0") if path}


def init(root: bytes) -> None:
    """A repository without Git's own templates, which would add an exclude file."""
    subprocess.run(["git", "init", "-q", "--template=", os.fsdecode(root)], check=True)


def compare(rng: random.Random, base: Path) -> int:
    """One generated case; returns how many paths were compared."""
    home = base / "home"
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/ignore").write_bytes(make_rules(rng) if rng.random() < 0.4 else b"")
    repository = os.fsencode(base / "tree")
    make_tree(rng, repository)
    init(repository)
    if rng.random() < 0.5:
        os.makedirs(repository + b"/.git/info", exist_ok=True)
        with open(repository + b"/.git/info/exclude", "wb") as file:
            file.write(make_rules(rng))
    sources = IgnoreSources(repository, user=GitUser(home=os.fsencode(home), system_config=None))
    paths, ours = walk(repository, sources)
    theirs = ask_git(repository, paths, home)
    if ours != theirs:
        rules = {
            str(path.relative_to(base)): path.read_bytes()
            for pattern in ("**/.gitignore", "**/exclude", "**/ignore")
            for path in base.glob(pattern)
        }
        pytest.fail(f"only ours {sorted(ours - theirs)[:5]}, only git's {sorted(theirs - ours)[:5]} under {rules}")
    return len(paths)


SEEDS = int(os.environ.get("IGNORE_SEEDS", "40"))
FIRST = int(os.environ.get("IGNORE_FIRST", "0"))


@pytest.mark.parametrize("seed", some(range(FIRST, FIRST + SEEDS), 25))
def test_generated_trees(seed: int, tmp_path: Path) -> None:
    assert compare(random.Random(seed), tmp_path) > 10


def test_each_pattern_alone_on_every_name(tmp_path: Path) -> None:
    """Thousands of patterns, each against every name, one level deep and two: one directory and rule file for each."""
    rng = random.Random(4711)
    repository = os.fsencode(tmp_path / "tree")
    os.makedirs(repository)
    init(repository)
    for number in range(300):
        at = repository + b"/%d" % number
        os.makedirs(at + b"/a/b")
        os.makedirs(at + b"/foo")
        with open(at + b"/" + GITIGNORE, "wb") as file:
            file.write(make_pattern(rng) + b"\n")
        for name in (b"a/b/c", b"a/bc", b"a/x.py", b"foo/a", b"foo/b", *rng.sample(NAMES[3:], 12)):
            if not os.path.lexists(at + b"/" + name):
                os.close(os.open(at + b"/" + name, os.O_CREAT | os.O_WRONLY))
    paths, ours = walk(repository, IgnoreSources(repository, user=GitUser(system_config=None)))
    theirs = ask_git(repository, paths, tmp_path)
    assert len(paths) > 5000
    for path in sorted(ours ^ theirs)[:1]:
        with open(repository + b"/" + path.split(b"/")[0] + b"/" + GITIGNORE, "rb") as file:
            pytest.fail(f"{path!r} is {'only ours' if path in ours else 'only git´s'} under {file.read()!r}")


def test_every_byte_in_every_class(tmp_path: Path) -> None:
    repository = os.fsencode(tmp_path / "tree")
    classes = b"alnum alpha blank cntrl digit graph lower print punct space upper xdigit".split()
    os.makedirs(repository)
    init(repository)
    for name in classes:
        os.makedirs(repository + b"/" + name)
        with open(repository + b"/" + name + b"/" + GITIGNORE, "wb") as file:
            file.write(b"x[[:" + name + b":]]\n!y*\n*[^[:" + name + b":]]z\n")
        for byte in set(range(1, 256)) - {ord("/")}:
            for path in (b"x%c" % byte, b"w%cz" % byte):
                os.close(os.open(repository + b"/" + name + b"/" + path, os.O_CREAT | os.O_WRONLY))
    paths, ours = walk(repository, IgnoreSources(repository, user=GitUser(system_config=None)))
    assert ours == ask_git(repository, paths, tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_a_subdirectory_obeys_the_repository_around_it(seed: int, tmp_path: Path) -> None:
    """The workspace is a directory inside a repository: its parents' rules and the repository's own are in force."""
    rng = random.Random(seed)
    home = tmp_path / "home"
    home.mkdir()
    repository = os.fsencode(tmp_path / "tree")
    workspace = repository + b"/foo/bar"
    make_tree(rng, workspace)
    for at in (repository, repository + b"/foo"):
        with open(at + b"/" + GITIGNORE, "wb") as file:
            lines = [make_pattern(rng) for _ in range(2)] + [b"foo/bar/a*", b"bar/b*/", b"/foo/*/c"]
            file.write(b"\n".join(lines) + b"\n!foo/\n!bar/\n")
    init(repository)
    os.makedirs(repository + b"/.git/info", exist_ok=True)
    with open(repository + b"/.git/info/exclude", "wb") as file:
        file.write(b"foo/bar/y.*\n/foo/bar/ab\n")
    paths, ours = walk(workspace, IgnoreSources(workspace, user=GitUser(home=os.fsencode(home), system_config=None)))
    assert ours == ask_git(workspace, paths, home)


def test_the_same_files_without_a_repository(tmp_path: Path) -> None:
    """A folder that is no repository gives the same answers as one that is."""
    for seed in range(5):
        root = os.fsencode(tmp_path / f"tree{seed}")
        make_tree(random.Random(seed), root)
        sources = IgnoreSources(root, user=GitUser(system_config=None))
        before = walk(root, sources)
        init(root)
        assert walk(root, sources) == before
        assert before[1] == ask_git(root, before[0], tmp_path)


def test_checkpointignore_only_adds(tmp_path: Path) -> None:
    """Whatever a ``.checkpointignore`` says, what Git excludes stays excluded."""
    for seed in range(20):
        rng = random.Random(seed)
        root = os.fsencode(tmp_path / f"tree{seed}")
        make_tree(rng, root)
        outer = IgnoreSources(root, user=GitUser(system_config=None)).outer()
        fd = os.open(root, os.O_RDONLY)
        gitignore = read_rule_file(fd, GITIGNORE)
        os.close(fd)
        git_alone = outer.at_root(gitignore, b"")
        both = outer.at_root(gitignore, make_rules(rng) + b"\n!*\n")
        with_own = outer.at_root(gitignore, make_rules(rng))
        for name in os.listdir(root):
            is_directory = os.path.isdir(root + b"/" + name)
            excluded = git_alone.excluded(name, name, is_directory)
            assert both.excluded(name, name, is_directory) == excluded
            assert with_own.excluded(name, name, is_directory) or not excluded
    assert CHECKPOINTIGNORE

"""`run` in forks that lie in the home: their own directory is open to it, and nothing else there is (I7, I10)."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.forks.workspace_providers import providers_of
from holdfast.engine.sessions.registry import Sessions
from holdfast.testing.tree_state import PathState, differences, photograph

from ..contexts import context_of
from ..disks import mounted
from ..sampling import some
from .conftest import Cli
from .isolated import need_namespaces
from .test_out_of_reach import in_mounts, needs_mounts

WAYS = {"plain": (), "namespace": ("--isolation", "namespace"), "bridge": ("--bridge", "fuse")}
COPIES = [f"{made} {way}" for way in WAYS for made in ("xfs reflink", "btrfs btrfs")]
ATTEMPTS = """
import os, sys
for path in map(os.fsencode, sys.argv[1:]):
    own = os.path.join(path, b"by the run")
    tries = {
        "make": lambda: os.close(os.open(own, os.O_WRONLY | os.O_CREAT)),
        "mkdir": lambda: os.mkdir(own),
        "link": lambda: os.link(b"script", own),
        "symlink": lambda: os.symlink(b"script", own),
        "move in": lambda: os.rename(b"sub", own),
        "move": lambda: os.rename(path, path + b".moved") if not os.path.islink(path) else 1 / 0,
        "move here": lambda: os.rename(path, b"taken") if not os.path.islink(path) else 1 / 0,
        "chmod": lambda: os.chmod(path, 0o777),
    }
    for name in os.listdir(path) if os.path.isdir(path) else ():
        inner = os.path.join(path, name)
        if os.path.isfile(inner):
            tries[f"truncate {name}"] = lambda inner=inner: os.truncate(inner, 0)
            tries[f"remove {name}"] = lambda inner=inner: os.unlink(inner)
            tries[f"link here {name}"] = lambda inner=inner: os.link(inner, b"linked")
    for what, act in tries.items():
        try:
            act()
        except (OSError, ZeroDivisionError):
            continue
        print(what, os.fsdecode(path))
"""
WORK = "echo new > made && echo 2 > sub/tracked && mv script moved && mkdir -p deep/er && : > deep/er/x && rm sub/gone"


def need(way: str) -> None:
    """Skip what this machine has not the means for."""
    if way == "bridge" and not (os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)):
        pytest.skip("needs root and /dev/fuse")
    if way == "namespace":
        if shutil.which("bwrap") is None:
            pytest.skip("needs the program bwrap")
        need_namespaces()


def usable(cli: Cli, provider: str) -> None:
    """Skip where the provider can make no directories of their own here."""
    with holdfast.open(cli.root, home=cli.home) as workspace, context_of(workspace) as context:
        found = next(one.detect() for one in providers_of(context, "try") if one.name == provider)
    if not found.score or "worktree" not in found.modes:
        pytest.skip(f"{provider}: {'; '.join(found.notes)}")


def fork(cli: Cli, provider: str, name: str) -> Path:
    made = cli("session", "fork", name, "--provider", provider, "-s", "one", "--json").json
    return Path(made["root"])


@pytest.fixture(name="bench")
def _bench(bare: Cli) -> Iterator[Cli]:
    lay(bare)
    yield bare
    with Sessions(home=bytes(bare.home)) as sessions:
        for made in [one.id for one in sessions.list() if one.purpose == "fork"]:
            sessions.delete(made)
    assert str(bare.home) not in Path("/proc/self/mounts").read_text()


def lay(cli: Cli) -> None:
    subprocess.run(["git", "init", "--quiet", str(cli.root)], check=True)
    cli.write("sub/tracked", "1")
    cli.write("sub/gone", "gone")
    cli.write("script", "#!/bin/sh\n").chmod(0o755)
    git = ["git", "-C", str(cli.root), "-c", "user.name=U", "-c", "user.email=u@example.org"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "first"], check=True)
    cli("init")
    cli("session", "start", "one")


@pytest.mark.parametrize("provider", ["git", "overlay"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_changes_its_fork_and_nothing_else_in_the_home(bench: Cli, provider: str, way: str) -> None:
    """I7, I10; and all of it is undone (I1)."""
    check(bench, provider, way)


@pytest.mark.root
@pytest.mark.parametrize("case", some(COPIES, 2))
def test_a_run_changes_its_fork_that_shares_blocks(
    case: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I7, I10."""
    kind, provider, way = case.split()
    need(way)
    with mounted(kind, place) as disk:
        cli = Cli(disk / "tree", disk / "home", capsys)
        make = ["btrfs", "-q", "subvolume", "create"] if kind == "btrfs" else ["mkdir"]
        subprocess.run([*make, str(cli.root)], check=True)
        monkeypatch.setenv("HOLDFAST_HOME", str(cli.home))
        monkeypatch.chdir(cli.root)
        lay(cli)
        check(cli, provider, way)
        monkeypatch.chdir(place)


@pytest.mark.parametrize("way", ["plain", "namespace", "bridge"])
def test_git_commits_in_a_fork_and_that_is_undone(bench: Cli, way: str) -> None:
    """I1; and the user's repository stays as it is (I15), also where it is hidden; and the shadow, and what is lent
    (I7).
    """
    need(way)
    usable(bench, "git")
    side = fork(bench, "git", "side")
    elsewhere = [bench.root / ".git", *side.parent.parent.glob("shadow-*"), *side.parent.parent.glob("kept-*")]
    before = [photograph(path) for path in (*elsewhere, side)]
    assert len(before) == 4
    as_me = "git -c user.name=U -c user.email=u@example.org"
    work = (
        f"git status --short && echo 2 > sub/tracked && echo new > new && git add --all && {as_me} commit -qm second "
        f"&& git checkout -qb mine && echo 3 > sub/tracked && {as_me} commit -qam third && git rm -q new && "
        f"{as_me} stash -q -m third && git log --format=%s HEAD~3.. && git stash list --format=%gs && git fsck --strict"
    )
    done = bench.process("-w", str(side), "run", *WAYS[way], "--one-step", "--", "sh", "-ec", work, cwd=side)
    lines = done.stdout.decode().splitlines()
    assert lines[:3] == ["third", "second", f"holdfast: workspace side/{side.name}"], done.stderr
    assert lines[3].endswith(": third")
    assert git(side, "log", "-1", "--format=%s", "mine") == "third"
    bench.process("-w", str(side), "undo", cwd=side)
    for path, was in zip((*elsewhere, side), before, strict=True):
        found = differences(was, photograph(path))
        # (Git renews the time of an object's file that it comes upon, where it borrows it, too.)
        renewed = [one for one in found if path != side and "objects/" in one and ": mtime" in one]
        assert [one for one in found if one not in renewed] == [], path


def test_a_commit_that_a_fork_was_made_of_is_undone_and_the_fork_stays_whole(bench: Cli) -> None:
    """I1, I8: to make forks, and to delete them, changes nothing of what undo looks at."""
    usable(bench, "git")
    fork(bench, "git", "before")
    first = git(bench.root, "rev-parse", "HEAD")
    work = "echo 2 > sub/tracked && git -c user.name=U -c user.email=u@example.org commit -qam second"
    bench.process("run", "--one-step", "--", "sh", "-c", work, cwd=bench.root)
    second = git(bench.root, "rev-parse", "HEAD")
    after, side = fork(bench, "git", "after"), fork(bench, "git", "side")
    assert after != side
    with Sessions(home=bytes(bench.home)) as sessions:
        for name in ("before", "after"):
            sessions.delete(name)
    bench.process("undo", cwd=bench.root)
    assert git(bench.root, "rev-parse", "HEAD") == first
    assert not (bench.root / ".git/objects" / second[:2] / second[2:]).exists()
    assert git(side, "rev-parse", "HEAD~1") == second
    git(side, "fsck", "--full", "--strict")
    git(side, "log", "-p")
    assert git(bench.root, "for-each-ref", "--format=%(refname)", "refs/holdfast") == "", "it would lead nowhere"
    git(bench.root, "gc", "--quiet")
    (side / "more").write_text("more")
    assert bench("session", "fork", "further", "--provider", "git", "-s", "side", "--json").json["provider"] == "git"
    bench("session", "delete", "further", "--yes")


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


@needs_mounts
def test_a_fork_is_open_at_its_own_path_alone(bench: Cli) -> None:
    """I7: whatever mounts show the home, or the fork, elsewhere."""
    side, beside = fork(bench, "git", "side"), fork(bench, "git", "beside")
    for name in ("home", "fork", "above"):
        (side.parent.parent / name).mkdir()
    places = [side.parent.parent / name for name in ("home", "fork", "above")]
    made = [(bench.home, places[0]), (side, places[1]), (side.parent, places[2]), (side, side)]
    mount = "; ".join(shlex.join(["mount", "--bind", *map(str, pair)]) for pair in made)
    ways = [*places, places[0] / side.relative_to(bench.home), places[2] / side.name, places[2] / beside.name, beside]
    commands = "; ".join(f"touch {shlex.quote(str(way))}/made && echo {shlex.quote(str(way))}" for way in [*ways, side])
    assert in_mounts(side, mount, f"({commands}) 2> /dev/null; :") == f"{side}\n"
    assert (side / "made").exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_run_in_the_workspace_changes_none_of_its_forks(bench: Cli, way: str) -> None:
    """I7, I10."""
    need(way)
    forks: list[Path] = []
    for provider in ("git", "overlay"):
        usable(bench, provider)
        forks.append(fork(bench, provider, provider))
    before = [seen(each) for each in forks]
    inner = [Path(root) for each in forks for root, names, _ in os.walk(each) if ".git" not in root and names]
    targets = [*inner, *bench.home.glob("workspaces/*/snapshots/*/layers/*/layer/upper")]
    assert attempts(bench, bench.root, way, targets) == ""
    assert [seen(each) for each in forks] == before


def check(cli: Cli, provider: str, way: str) -> None:
    need(way)
    usable(cli, provider)
    side, beside = fork(cli, provider, "side"), fork(cli, provider, "beside")
    assert side.is_relative_to(cli.home)
    before, others = seen(side), seen(beside)
    run = ["-w", str(side), "run", *WAYS[way], "--one-step", "--"]
    cli.process(*run, "sh", "-c", WORK, cwd=side)
    assert (side / "made").read_text() == "new\n"
    assert (side / "moved").exists()
    after = seen(side)
    cli.process("-w", str(side), "undo")
    assert differences(before, seen(side)) == []
    cli.process("-w", str(side), "redo")
    assert differences(after, seen(side)) == []
    targets = [cli.home, beside, *above(side, cli.home), *cli.home.glob("workspaces/*/snapshots")]
    targets += list(cli.home.glob("workspaces/*/snapshots/*/layers/*/layer/upper"))
    targets += [*cli.home.glob("workspaces/*/undo"), *cli.home.glob("workspaces/*")]
    targets += some(sorted(cli.home.glob("workspaces/*/snapshots/git/kept-*/??")), 2)
    links = side / "leads"
    links.symlink_to(cli.home)
    targets += [links, links / beside.relative_to(cli.home), Path("..")]
    assert attempts(cli, side, way, targets) == ""
    assert differences(others, seen(beside)) == []
    assert (side / "made").exists()


def attempts(cli: Cli, root: Path, way: str, targets: list[Path]) -> str:
    """What a run has done to the targets."""
    words = ["-w", str(root), "run", *WAYS[way], "--", sys.executable, "-c", ATTEMPTS, *map(str, targets)]
    return cli.process(*words, cwd=root).stdout.decode()


def seen(root: Path) -> dict[bytes, PathState]:
    """All but the undo log, which lies in an overlay, and the time of the directory that it lies in."""
    return {path: one for path, one in photograph(root).items() if path and path.split(b"/")[0] != b".holdfast"}


def above(path: Path, top: Path) -> list[Path]:
    return [each for each in path.parents if each.is_relative_to(top)]

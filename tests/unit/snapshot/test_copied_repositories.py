"""What is copied whole leads to no repository of the user's (I15)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError
from holdfast.snapshot import provider_context as places
from holdfast.snapshot.copied_repositories import GitLinks, end_keeping_apart, find_git_links, forget_linked, keep_apart
from holdfast.snapshot.full_copy import copy_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.snapshot.recorded_provider import LEADS_OUT

GIT = ("git", "-c", "user.name=U", "-c", "user.email=u@example.org", "-c", "protocol.file.allow=always")


def git(root: Path, *words: str | Path, ok: bool = True) -> str:
    done = subprocess.run([*GIT, *map(str, words)], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not ok, done.stderr
    return done.stdout.strip()


@pytest.fixture(name="user")
def _user(tmp_path: Path) -> Path:
    """A repository with a commit."""
    root = tmp_path / "user"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / "file").write_text("1")
    git(root, "add", "file")
    git(root, "commit", "--quiet", "-m", "first")
    return root


def leads(root: Path, *without: str) -> str:
    return find_git_links(os.fsencode(root), [os.fsencode(name) for name in without]).out


def test_a_repository_of_its_own_may_be_copied(user: Path) -> None:
    assert leads(user) == ""
    assert leads(user.parent) == "", "also where it is further down"
    (user / "sub").mkdir()
    assert leads(user / "sub") == "", "and where it is further up"


def test_a_linked_work_tree_leads_to_its_repository(user: Path, tmp_path: Path) -> None:
    git(user, "worktree", "add", "--quiet", tmp_path / "linked")
    assert leads(tmp_path / "linked") == "a copy would lead to a repository of yours, by .git"
    assert leads(user) == "", "whose own are known by their paths alone"
    git(user, "worktree", "add", "--quiet", user / ".trees/inner")
    assert leads(user) == "a copy would lead to a repository of yours, by .trees/inner/.git"
    assert leads(user, ".trees") == ""


def test_a_linked_work_tree_by_relative_paths_inside_leads_to_the_copys(user: Path, tmp_path: Path) -> None:
    git(user, "worktree", "add", "--quiet", user / "inner")
    (user / "inner/.git").write_text("gitdir: ../.git/worktrees/inner\n")
    assert leads(user) == ""
    (user / "inner/.git").write_text("gitdir: ../../user/.git/worktrees/inner\n")
    assert leads(user) != ""


def test_a_submodule_leads_to_the_copys(user: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", user, tmp_path / "other")
    git(user, "submodule", "--quiet", "add", tmp_path / "other", "deep/module")
    assert leads(user) == ""
    copy = tmp_path / "copy"
    shutil.copytree(user, copy, symlinks=True)
    before = {path: path.read_bytes() for path in user.rglob("*") if path.is_file()}
    (copy / "deep/module/new").write_text("x")
    git(copy / "deep/module", "add", "new")
    git(copy / "deep/module", "commit", "--quiet", "-m", "in the copy")
    assert {path: path.read_bytes() for path in user.rglob("*") if path.is_file()} == before
    assert leads(user / "deep/module") != "", "by itself, it leads to the one that it is in"


def test_a_copy_to_work_in_knows_no_linked_work_tree_of_the_users(user: Path, tmp_path: Path) -> None:
    """By whose path Git in there would remove it, or have it belong to the copy (I15)."""
    git(tmp_path, "clone", "--quiet", user, tmp_path / "other")
    git(user, "submodule", "--quiet", "add", tmp_path / "other", "module")
    git(user, "worktree", "add", "--quiet", tmp_path / "linked")
    git(user / "module", "worktree", "add", "--quiet", "--detach", tmp_path / "of the module")
    git(user, "worktree", "add", "--quiet", user / "inner")
    (user / "inner/.git").write_text("gitdir: ../.git/worktrees/inner\n")
    (user / ".git/worktrees/inner/gitdir").write_text("../../../inner/.git\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    provider = copy_provider(ProviderContext(os.fsencode(user), os.fsencode(tmp_path / "state"), "s"))
    taken = provider.snapshot(provider.prepare("in-place"), "s")
    for prepared in (provider.prepare("worktree"), provider.branch(taken, "b", "worktree")):
        copy = Path(os.fsdecode(prepared.path))
        assert os.listdir(copy / ".git/worktrees") == ["inner"]
        for root in (copy, copy / "module"):
            git(root, "worktree", "repair")
            for path in ("linked", "of the module"):
                git(root, "worktree", "remove", "--force", tmp_path / path, ok=False)
        assert git(copy, "checkout", "--quiet", "linked") == "", "it is checked out nowhere else"
        assert {path: path.read_bytes() for path in before} == before
    for token in provider.tokens():
        provider.cleanup(token.token)
    assert os.listdir(user / ".git/modules/module/worktrees") == ["of-the-module"]


@pytest.mark.parametrize("where", ["root", "inner", "link"])
def test_a_bare_repository_that_knows_a_work_tree_of_the_users_is_not_copied_to_work_in(
    user: Path, tmp_path: Path, where: str
) -> None:
    """Git in there would remove that, and a merge of what had forgotten it would have the user's forget it (I15)."""
    bare = tmp_path / "space/deep/proj.git"
    bare.parent.mkdir(parents=True)
    git(tmp_path, "clone", "--quiet", "--bare", user, bare)
    root = bare if where == "root" else tmp_path / "space"
    provider = copy_provider(ProviderContext(os.fsencode(root), os.fsencode(tmp_path / "state"), "s"))
    taken = provider.snapshot(provider.prepare("in-place"), "before")
    git(bare, "worktree", "add", "--quiet", "--detach", bare.parent / "inside")
    (bare / "worktrees/inside/gitdir").write_text("../../../inside/.git\n")
    (bare.parent / "inside/.git").write_text("gitdir: ../proj.git/worktrees/inside\n")
    assert find_git_links(os.fsencode(tmp_path / "space"), []) == GitLinks(""), "a copy has all of it"
    shutil.rmtree(bare.parent / "inside")
    git(bare, "worktree", "prune")
    git(bare, "worktree", "add", "--quiet", "--detach", tmp_path / "linked")
    if where == "link":
        (bare / "worktrees").rename(bare / "wt")
        (bare / "worktrees").symlink_to("wt")
    known = os.path.relpath(bare / "worktrees/linked", root)
    before = {path: path.read_bytes() for path in (tmp_path / "linked").rglob("*") if path.is_file()}
    later = provider.snapshot(provider.prepare("in-place"), "in which nobody works")
    held = [one.token for one in provider.tokens()]
    for prepare in (
        lambda: provider.prepare("worktree"),
        lambda: provider.branch(later, "b", "worktree"),
    ):
        with pytest.raises(RefusedError) as caught:
            prepare()
        assert caught.value.code == LEADS_OUT
        assert caught.value.message.endswith(f"knows a work tree of yours, by {known}")
        assert [one.token for one in provider.tokens()] == held
    copy = Path(os.fsdecode(provider.branch(taken, "c", "worktree").path)) / os.path.relpath(bare, root)
    git(copy, "worktree", "repair")
    git(copy, "worktree", "remove", "--force", tmp_path / "linked", ok=False)
    assert {path: path.read_bytes() for path in before} == before
    assert provider.prepare("worktree", with_git=False).path, "which was not asked for"


def test_what_only_looks_like_a_bare_repository_may_be_copied(tmp_path: Path) -> None:
    for name in ("objects", "refs", "worktrees/x"):
        (tmp_path / "tree" / name).mkdir(parents=True)
    (tmp_path / "tree/worktrees/x/gitdir").write_text("/somewhere/.git\n")
    assert find_git_links(os.fsencode(tmp_path / "tree"), []) == GitLinks("")
    (tmp_path / "tree/HEAD").write_text("ref: refs/heads/main\n")
    assert find_git_links(os.fsencode(tmp_path / "tree"), []) == GitLinks("", (), (b"worktrees/x",))
    (tmp_path / "tree/worktrees/x/gitdir").unlink()
    assert find_git_links(os.fsencode(tmp_path / "tree"), []) == GitLinks("")


def test_what_is_forgotten_is_the_copys_also_where_a_link_leads_away(tmp_path: Path) -> None:
    for name in ("copy", "away/worktrees/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "copy/.git").symlink_to(tmp_path / "away")
    with pytest.raises(OSError, match="symbolic link"):
        forget_linked(os.fsencode(tmp_path / "copy"), [b".git/worktrees/x"])
    assert (tmp_path / "away/worktrees/x").exists()
    forget_linked(os.fsencode(tmp_path / "copy"), [b"gone/worktrees/x"])


@pytest.mark.parametrize(
    "how",
    [
        "link", "inner link", "absolute link inside", "common", "work tree", "work tree of a module", "garbage",
        "through a link", "loop", "relative out",
    ],
)  # fmt: skip
def test_every_other_way_out(user: Path, tmp_path: Path, how: str) -> None:
    away = tmp_path / "away"
    own = user / ".git"
    stays = False
    if how == "link":
        own.rename(away)
        own.symlink_to(away)
    elif how == "inner link":
        (own / "objects").rename(away)
        (own / "objects").symlink_to("../../away")
    elif how == "absolute link inside":
        own.rename(user / "real")
        own.symlink_to(user / "real")
    elif how == "common":
        (own / "commondir").write_text("../../away\n")
    elif how == "work tree":
        git(user, "config", "core.worktree", user)
    elif how == "work tree of a module":
        (own / "modules/m").mkdir(parents=True)
        (own / "modules/m/config").write_text('[core]\n\tbare = false\n[Core] WorkTree = "../../../../away"\n')
    elif how == "garbage":
        (user / "sub").mkdir()
        (user / "sub/.git").write_text("garbage")
        stays = True
    elif how == "through a link":
        away.mkdir()
        (user / "way").symlink_to(away)
        (user / "sub").mkdir()
        (user / "sub/.git").write_text("gitdir: ../way/repository\n")
    elif how == "loop":
        (user / "sub").mkdir()
        (user / "sub/.git").symlink_to(".git")
    else:
        (user / "sub").mkdir()
        (user / "sub/.git").write_text("gitdir: ../../away\n")
    assert (leads(user) == "") == stays


@pytest.mark.parametrize("value", ["../.. ;", "../..#", '"../"..', "\\\n../..", '"..\\\n/.."', '"..\\\\/.."'])
def test_what_is_no_plain_path_of_a_work_tree_is_a_way_out(user: Path, value: str) -> None:
    """Git reads it otherwise than it looks."""
    assert leads(user) == ""
    with (user / ".git/config").open("a") as file:
        file.write(f"[core]\n\tworktree = {value}\n")
    assert leads(user) != ""
    (user / ".git/config").write_text('[core]\n\tbare = false\n\tworktree = "../sub #1; more"\n')
    assert leads(user) == "", "it is quoted"


def test_what_stays_inside_is_no_way_out(user: Path) -> None:
    (user / ".git").rename(user / "real")
    (user / ".git").symlink_to("real")
    (user / "real/hooks/pre-commit").symlink_to(user.parent / "hooks/x")
    assert leads(user) == "", "nothing is written to hooks"
    (user / "closed").mkdir(mode=0)
    assert leads(user) == ""


@pytest.mark.parametrize("name", ["btrfs", "copy", "overlay", "reflink", "zfs"])
def test_every_provider_that_copies_all_asks(user: Path, tmp_path: Path, name: str, monkeypatch) -> None:
    """Whatever else it could do: what is made of the workspace, or of what was made, is refused."""
    import importlib

    from holdfast.snapshot.port import Capabilities

    where = {"copy": "full_copy", "reflink": "full_copy", "btrfs": "btrfs"}.get(name, f"{name}.provider")
    module = importlib.import_module(f"holdfast.snapshot.{where}")
    git(user, "worktree", "add", "--quiet", tmp_path / "linked")
    place = ProviderContext(os.fsencode(tmp_path / "linked"), os.fsencode(tmp_path / "state"), "s")
    provider = getattr(module, f"{name}_provider")(place)
    could = Capabilities(name, 90, ("worktree", "in-place"), carries_ignored=True)
    monkeypatch.setattr(provider._technique, "detect", lambda: could)
    found = provider.detect()
    assert (found.score, found.notes) == (0, ("a copy would lead to a repository of yours, by .git",))
    if "worktree" in provider._technique.modes:
        with pytest.raises(RefusedError) as caught:
            provider.prepare("worktree")
        assert caught.value.code == LEADS_OUT
    with pytest.raises(RefusedError) as caught:
        provider.snapshot(provider.prepare("in-place"), "s")
    assert caught.value.code == LEADS_OUT
    assert [one.kind for one in provider.tokens()] == ["workspace"]


def test_providers_that_are_asked_together_look_through_the_tree_once(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever copies looks again: it may be another tree by then (I15)."""
    looks: list[bytes] = []

    def looking(source: bytes, without: tuple[bytes, ...]) -> GitLinks:
        looks.append(source)
        return find_git_links(source, without)

    monkeypatch.setattr(places, "find_git_links", looking)
    shared = ProviderContext(bytes(user), bytes(tmp_path / "state"), "s", looked={})
    one, other = copy_provider(shared), copy_provider(shared._replace(state=bytes(tmp_path / "other")))
    assert one.detect().score
    assert other.detect().score
    assert looks == [bytes(user)]
    git(user, "worktree", "add", "--quiet", user / "inner")
    with pytest.raises(RefusedError) as caught:
        other.prepare("worktree")
    assert caught.value.code == LEADS_OUT
    assert not one.detect().score


def test_git_finds_nothing_above_a_directory_that_is_kept_apart(user: Path) -> None:
    inner = user / "a/b/c"
    inner.mkdir(parents=True)
    assert git(inner, "rev-parse", "--show-toplevel") == str(user)
    keep_apart(os.fsencode(user / "a"))
    keep_apart(os.fsencode(user / "a"))
    assert git(inner, "rev-parse", "--show-toplevel", ok=False) == ""
    git(inner, "init", "--quiet")
    assert git(inner, "rev-parse", "--show-toplevel") == str(inner), "but what is below it"
    end_keeping_apart(os.fsencode(user / "a"))
    assert (user / "a/.git").exists(), "something is in there"
    shutil.rmtree(user / "a/b")
    end_keeping_apart(os.fsencode(user / "a"))
    assert not (user / "a/.git").exists()

"""Whoever wrote a repository decides on nothing that is run, read outside of it, or shown (case 15)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError, StorageError, UnsupportedError
from holdfast.snapshot._external_program import ProgramLimits, execute
from holdfast.snapshot.git import _command as command
from holdfast.snapshot.git.provider import GitOptions, git_provider
from holdfast.snapshot.provider_context import ProviderContext

from ....waiting import wait_until
from .conftest import Beside, User

Make = Callable[..., Beside]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """It is there if something was run."""
    return tmp_path / "ran"


@pytest.fixture
def hostile(user: User, marker: Path) -> User:
    """A repository that runs something wherever Git lets it."""
    user.write(".gitattributes", "* filter=evil diff=evil merge=evil ident working-tree-encoding=UTF-8\n")
    user.git("add", ".gitattributes")
    run = f"touch '{marker}'; "
    hooks = user.root / "../hooks"
    hooks.mkdir()
    for folder in (hooks, user.git_dir / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-commit", "post-commit"):
            (folder / name).write_text(f"#!/bin/sh\n{run}\n")
            (folder / name).chmod(0o755)
    values = {
        "core.hooksPath": str(hooks.resolve()),
        "core.fsmonitor": f"{run}false",
        "core.pager": run,
        "core.editor": run,
        "core.askPass": run,
        "core.sshCommand": run,
        "core.gitProxy": run,
        "core.alternateRefsCommand": run,
        "core.worktree": "/",
        "credential.helper": f"!{run}",
        "diff.external": run,
        "diff.evil.textconv": run,
        "diff.evil.command": run,
        "merge.evil.driver": run,
        "gpg.program": run,
        "commit.gpgSign": "true",
        "alias.rev-parse": f"!{run}",
        "alias.update-ref": f"!{run}",
        "alias.worktree": f"!{run}",
        "filter.evil.clean": f"{run}cat",
        "filter.evil.smudge": f"{run}cat",
        "filter.evil.process": run,
        "filter.evil.required": "true",
        "extensions.partialClone": "origin",
        "core.repositoryFormatVersion": "1",
        "remote.origin.url": "ext::sh -c '" + run.replace("'", "") + "'",
        "remote.origin.promisor": "true",
        "protocol.ext.allow": "always",
        "uploadpack.packObjectsHook": run,
        "maintenance.auto": "true",
        "gc.auto": "1",
    }
    with (user.git_dir / "config").open("a") as file:
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            head, _, inner = section.partition(".")
            quoted = value.replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'[{head} "{inner}"]\n' if inner else f"[{head}]\n")
            file.write(f'\t{name} = "{quoted}"\n')
    return user


def test_nothing_of_it_is_run(hostile: User, beside: Make, marker: Path) -> None:
    hostile.write("a", "changed\n")
    hostile.write("new", "new\n")
    one = beside(hostile, include_untracked=True)
    notes = one.provider.detect().notes
    assert any("(evil)" in note for note in notes)
    with pytest.raises(RefusedError) as refused:
        one.take()
    assert refused.value.code == "git_filter"
    config = hostile.git_dir / "config"
    config.write_text(config.read_text().replace('required = "true"', 'required = "false"'))
    taken = one.take()
    assert one.texts(taken)["a"] == "changed\n"
    assert one.texts(taken)["new"] == "new\n"
    branch = one.provider.branch(taken, "b", "worktree")
    Path(os.fsdecode(branch.path), "a").write_text("in the branch\n")
    assert one.texts(one.provider.snapshot(branch, ""))["a"] == "in the branch\n"
    one.clean()
    assert not marker.exists()
    hostile.git("--git-dir=.git", "--work-tree=.", "status", ok=False)
    assert marker.exists(), "Git itself would have run it"


def test_a_filter_is_run_once_it_is_trusted_and_nothing_else(user: User, beside: Make, marker: Path) -> None:
    user.write(".gitattributes", "a filter=upper\n")
    user.commit()
    user.git("config", "filter.upper.clean", "tr a-z A-Z")
    user.git("config", "filter.upper.smudge", "tr A-Z a-z")
    user.git("config", "core.fsmonitor", f"touch '{marker}'; false")
    user.write("a", "some text\n")
    untrusting, trusting = beside(user), beside(user, trust_local_filters=True)
    for one, stored in ((untrusting, "some text"), (trusting, "SOME TEXT")):
        taken = one.take()
        assert one.shadow("cat-file", "-p", f"refs/holdfast/sessions/s/snapshots/{taken.id}:a") == stored
        assert one.texts(taken)["a"] == "some text\n"
    assert not marker.exists()
    assert any("(upper)" in note for note in untrusting.provider.detect().notes)
    assert not any("(upper)" in note for note in trusting.provider.detect().notes)


def test_files_are_as_they_are_also_where_the_repository_has_them_filtered(user: User, beside: Make) -> None:
    user.write(".gitattributes", "* filter=upper\n")
    user.git("config", "filter.upper.clean", "tr a-z A-Z")
    user.git("config", "filter.upper.smudge", "tr A-Z a-z")
    user.git("config", "core.fileMode", "false")
    user.write("a", "some text\n")
    user.git("add", "--all")
    user.git("update-index", "--chmod=+x", "b")
    user.commit()
    assert user.git("show", "HEAD:a") == "SOME TEXT"
    one = beside(user)
    taken = one.take()
    assert one.texts(taken)["a"] == "some text\n", "nobody has changed it"
    assert one.holds(taken)[b"b"][0], "what Git knows of it and the file does not tell"
    user.write("d/x", "changed\n")
    assert one.texts()["d/x"] == "changed\n"
    assert one.texts()["a"] == "some text\n"


def test_a_required_filter_that_is_not_run_is_refused_where_a_file_takes_it(user: User, beside: Make) -> None:
    user.write(".gitattributes", "secret filter=crypt\n")
    user.git("config", "filter.crypt.clean", "tr a-z A-Z")
    user.git("config", "filter.crypt.smudge", "tr A-Z a-z")
    user.git("config", "filter.crypt.required", "true")
    user.commit()
    one, trusting = beside(user), beside(user, trust_local_filters=True)
    assert one.texts()["a"] == "a\n", "no file takes it"
    branch = one.provider.branch(one.take(), "b", "worktree")
    work = Path(os.fsdecode(branch.path))
    (work / "secret").write_text("plain\n")
    added = subprocess.run(["git", "add", "secret"], cwd=work, capture_output=True, check=False)
    assert added.returncode, "nor does Git take it in, unfiltered, in a work tree"
    one.provider.cleanup(branch.token)
    user.write("secret", "plain\n")
    user.commit()
    with pytest.raises(RefusedError, match="secret") as refused:
        one.take()
    assert refused.value.code == "git_filter"
    taken = trusting.take()
    assert trusting.texts(taken)["secret"] == "plain\n"
    untrusting = git_provider(ProviderContext(bytes(user.root), bytes(trusting.state), "s"), GitOptions())
    with pytest.raises(RefusedError) as refused:
        untrusting.mount(taken)
    assert refused.value.code == "git_filter"
    user.git("config", "--global", "filter.crypt.clean", "tr a-z A-Z")
    user.git("config", "--global", "filter.crypt.smudge", "tr A-Z a-z")
    assert one.texts()["secret"] == "plain\n", "it is the user's own"


def test_a_filter_of_the_users_own_is_obeyed(user: User, beside: Make) -> None:
    user.git("config", "--global", "filter.upper.clean", "tr a-z A-Z")
    user.git("config", "filter.upper.clean", "false")
    user.write(".gitattributes", "a filter=upper\n")
    user.write("a", "some text\n")
    one = beside(user)
    assert one.texts()["a"] == "SOME TEXT\n"


def test_pointers_of_large_files_stay_pointers(user: User, beside: Make) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"
    user.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    user.write("large.bin", pointer)
    user.commit()
    assert beside(user).texts()["large.bin"] == pointer


def test_attributes_and_rules_that_are_no_files(user: User, beside: Make) -> None:
    user.git("config", "core.attributesFile", "/dev/zero")
    user.git("config", "core.excludesFile", "/dev/zero")
    (user.root / ".gitattributes").symlink_to("/dev/zero")
    (user.root / "d/.gitignore").symlink_to("/dev/zero")
    (user.git_dir / "info").mkdir(exist_ok=True)
    (user.git_dir / "info/attributes").symlink_to("/dev/zero")
    user.write(
        "d/.gitattributes", "[attr]x y\n" + "\\" * 5000 + " x\n" + "*" * 1000 + " filter=a\n**/**/** -x\n" * 1000
    )
    user.write("a", "changed\n")
    assert beside(user, include_untracked=True).texts()["a"] == "changed\n"


def test_alternates_that_lead_nowhere_and_in_circles(user: User, beside: Make) -> None:
    objects = user.git_dir / "objects"
    (objects / "info/alternates").write_text(f"/nowhere\n{objects}\n../../.git/objects\n")
    user.write("a", "changed\n")
    assert beside(user).texts()["a"] == "changed\n"


def test_refs_that_look_like_options_or_like_ours(user: User, beside: Make) -> None:
    head = user.git("rev-parse", "HEAD")
    for name in (
        "refs/heads/-x",
        "refs/heads/--exec=x",
        "refs/tags/HEAD",
        f"refs/heads/{head}",
        "refs/heads/" + "n" * 200,
    ):
        path = user.git_dir / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(head + "\n")
    (user.git_dir / "HEAD").write_text("ref: refs/heads/-x\n")
    assert beside(user).texts()["a"] == "a\n"


def test_the_users_environment_leads_git_nowhere(user: User, beside: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_CONFIG_GLOBAL",
        "GIT_EXEC_PATH",
    ):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("GIT_TRACE", str(user.root / "trace"))
    one = Beside(user.root, user.root.parent / "state")
    assert one.provider.prepare("worktree")
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    assert not (user.root / "trace").exists()


def test_a_configuration_that_is_none_is_an_error(user: User, tmp_path: Path) -> None:
    (user.git_dir / "config").write_text("[core\n\x1b[31m")
    one = Beside(user.root, tmp_path / "state")
    assert one.provider.detect().score == 0
    with pytest.raises(StorageError) as failed:
        one.provider.prepare("worktree")
    assert failed.value.code == "git_failed"
    assert failed.value.message.isprintable()


def test_what_takes_too_long_or_says_too_much_is_stopped(tmp_path: Path) -> None:
    """And nothing of it goes on."""
    alive = tmp_path / "pid"
    words = ["sh", "-c", f"sleep 1000 & echo $! > {alive}; wait"]
    with pytest.raises(StorageError) as slow:
        execute(words, dict(os.environ), bytes(tmp_path), ProgramLimits(10, 0.5, "git_slow"))
    assert slow.value.code == "git_slow"
    number = alive.read_text().strip()
    wait_until(lambda: not Path(f"/proc/{number}/cmdline").exists() or not Path(f"/proc/{number}/cmdline").read_bytes())
    with pytest.raises(UnsupportedError):
        execute(["yes"], dict(os.environ), bytes(tmp_path), ProgramLimits(10_000, 60, "git_slow"))


def test_nothing_is_said_to_a_person_or_asked_of_one() -> None:
    given = command.environment({"HOME": "/h", "GIT_DIR": "/x", "SSH_AUTH_SOCK": "/s", "LD_PRELOAD": "/l"})
    assert not {"GIT_DIR", "SSH_AUTH_SOCK", "LD_PRELOAD"} & given.keys()
    assert given["GIT_TERMINAL_PROMPT"] == "0"


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("name", [".gitmodules", ".gitattributes", ".gitignore"])
def test_a_pipe_that_git_would_wait_for_is_refused(user: User, beside: Make, name: str, link: bool) -> None:
    """Git opens it, and whoever made it need never write to it: the snapshot would take half an hour, and fail."""
    user.write(name, "")
    user.commit()
    one = beside(user, include_untracked=True)
    before = one.texts()
    (user.root / name).unlink()
    pipe = user.git_dir / "pipe" if link else user.root / name
    os.mkfifo(pipe)
    if link:
        (user.root / name).symlink_to(pipe)
    with pytest.raises(RefusedError, match="is a pipe") as refused:
        one.take()
    assert refused.value.code == "git_pipe"
    pipe.unlink()
    (user.root / name).unlink(missing_ok=True)
    (user.root / name).symlink_to("nowhere")
    assert one.texts().keys() == before.keys()


def test_a_link_that_the_workspace_was_replaced_by_leads_no_work_tree_away(user: User, beside: Make) -> None:
    """What a fork's files would have been is yours (I7)."""
    victim = user.root / "../victim"
    victim.mkdir()
    (victim / "precious").write_text("yours\n")
    inner = User(user.root / "d", user.git_dir)
    one = beside(inner)
    line = one.provider.prepare("in-place")
    for target in (str(victim.resolve()), "../victim", "a"):
        (user.root / "d").rename(user.root / "was")
        (user.root / "d").symlink_to(target)
        user.git("add", "--all")
        taken = one.provider.snapshot(line, "")
        (user.root / "d").unlink()
        (user.root / "was").rename(user.root / "d")
        user.git("add", "--all")
        assert one.shadow("ls-tree", f"refs/holdfast/sessions/s/snapshots/{taken.id}", "d").startswith("120000 ")
        before = {each.token for each in one.provider.tokens()}
        with pytest.raises(RefusedError) as refused:
            one.provider.branch(taken, "b", "worktree")
        assert (refused.value.code, refused.value.message.split(",")[0]) == ("git_inside", "d")
        with pytest.raises(RefusedError, match="not a directory in the commit"):
            one.provider.mount(taken)
        assert {each.token for each in one.provider.tokens()} == before
        assert os.listdir(one.state / "worktrees") == [".git"]
    assert os.listdir(victim) == ["precious"]
    assert os.listdir(one.provider.prepare("worktree").path) == [b"x", b"y"], "made of what is there now"


@pytest.mark.parametrize("how", ["at once", "by another", "on a condition", "by a link"])
def test_a_pipe_that_the_configuration_includes_is_refused(user: User, beside: Make, tmp_path: Path, how: str) -> None:
    """Git would wait for what is written to it, and be stopped after a minute."""
    one = beside(user)
    pipe = user.git_dir / "pipe"
    os.mkfifo(pipe)
    if how == "by another":
        user.git("config", "include.path", "more")
        (user.git_dir / "more").write_text("[include]\n\tpath = pipe\n")
    elif how == "on a condition":
        user.git("config", "includeIf.onbranch:main.path", str(pipe))
    elif how == "by a link":
        (user.git_dir / "link").symlink_to(pipe)
        user.git("config", "include.path", "link")
    else:
        user.git("config", "include.path", "pipe")
    with pytest.raises(RefusedError, match="is a pipe") as refused:
        one.provider.prepare("worktree")
    assert refused.value.code == "git_pipe"
    pipe.unlink()
    pipe.write_text("[user]\n\tname = X\n")
    assert one.provider.prepare("worktree")


def test_configurations_that_include_each_other_are_looked_at_once(user: User, beside: Make) -> None:
    """What Git makes of that, it says itself."""
    user.git("config", "include.path", "config")
    with pytest.raises(StorageError) as failed:
        beside(user).provider.prepare("worktree")
    assert failed.value.code == "git_failed"

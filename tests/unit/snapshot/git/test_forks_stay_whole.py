"""What is committed in a fork stays whole whatever the user's gc removes: it borrows from a store that only grows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError
from holdfast.snapshot.git import fork_objects
from holdfast.snapshot.git.provider import GitOptions, git_provider
from holdfast.snapshot.provider_context import ProviderContext

from .conftest import Beside, User, hashed
from .test_fork_objects import collect

Make = Callable[..., Beside]


def work_in(one: Beside) -> User:
    """A fork of the workspace as it is now."""
    return User(Path(os.fsdecode(one.provider.prepare("worktree").path)))


def check(fork: User) -> None:
    """Every commit of the fork is there with all that it holds."""
    assert "missing" not in fork.git("fsck", "--full", "--strict", "--no-dangling")
    fork.git("log", "-p", "--all", "HEAD")
    head = fork.git("rev-parse", "HEAD")
    for commit in fork.git("rev-list", "HEAD").split():
        fork.git("checkout", "--quiet", "--force", commit)
    fork.git("checkout", "--quiet", "--force", head)
    assert fork.git("status", "--porcelain") == ""


@pytest.fixture(params=["sha1", "sha256"])
def theirs(tmp_path: Path, request: pytest.FixtureRequest) -> User:
    """A repository with objects of every kind that gc may take away: loose and packed, of a branch and of nothing."""
    (tmp_path / "tree").mkdir()
    user = User(tmp_path / "tree")
    user.git("init", "--quiet", "--initial-branch=main", f"--object-format={request.param}")
    for name in ("a", "b", "d/x"):
        user.write(name, f"{name}\n")
    user.commit()
    user.git("checkout", "--quiet", "-b", "packed")
    user.write("packed", "of a branch that is packed\n")
    user.write("tree/of/packed", "with a tree\n")
    user.commit()
    user.git("checkout", "--quiet", "main")
    user.git("repack", "-a", "-d", "--quiet")
    user.git("checkout", "--quiet", "-b", "loose")
    user.write("loose", "of a branch that is loose\n")
    user.commit()
    user.git("checkout", "--quiet", "main")
    user.git("hash-object", "-w", str(user.write("../dangling", "of nothing\n")))
    return user


@pytest.mark.parametrize("committed", [False, True])
def test_what_the_user_drops_at_any_moment(theirs: User, beside: Make, committed: bool) -> None:
    """Before it is committed in the fork, and after."""
    one = beside(theirs)
    fork = work_in(one)
    for name, text, branch in (
        ("dangling", "of nothing\n", ""),
        ("packed", "of a branch that is packed\n", ""),
        ("tree/of/packed", "with a tree\n", "packed"),
        ("loose", "of a branch that is loose\n", "loose"),
    ):
        fork.write(name, text)
        fork.git("add", name)
        if committed:
            fork.commit()
        if branch:
            theirs.git("branch", "-D", branch)
        collect(theirs)
        if not committed:
            fork.git("commit", "--quiet", "-m", "m")
        check(fork)
    theirs.git("checkout", "--quiet", "--orphan", "fresh")
    theirs.git("rm", "-r", "--quiet", "--cached", ".")
    theirs.write("a", "nothing of before\n")
    theirs.git("commit", "--quiet", "--allow-empty", "-m", "m")
    theirs.git("branch", "-D", "main")
    collect(theirs)
    check(fork)


def test_what_comes_to_the_user_after_the_fork(theirs: User, beside: Make) -> None:
    one = beside(theirs)
    fork = work_in(one)
    theirs.git("checkout", "--quiet", "-b", "later")
    for user in (theirs, fork):
        user.write("later/in/a/tree", "the same on both sides\n")
        user.git("add", "--all")
    theirs.commit()
    theirs.git("repack", "-a", "-d", "--quiet")
    fork.write("later/in/another", "the same on both sides\n")
    fork.commit()
    theirs.git("checkout", "--quiet", "main")
    theirs.git("branch", "-D", "later")
    collect(theirs)
    check(fork)


def test_forks_of_what_was_committed_in_a_fork(theirs: User, beside: Make) -> None:
    """Each stands by itself, also where the one that it was made of is gone."""
    first = beside(theirs)
    fork = work_in(first)
    fork.write("again", "of nothing\n")
    fork.git("hash-object", "-w", str(fork.write("../../../dangling in the fork", "of nothing, in the fork\n")))
    fork.commit()
    collect(theirs)
    second = beside(fork)
    inner = work_in(second)
    inner.write("more", "of nothing, in the fork\n")
    inner.commit()
    collect(theirs)
    collect(fork)
    check(inner)
    third = beside(inner)
    innermost = work_in(third)
    innermost.git("checkout", "--quiet", "packed")
    innermost.git("checkout", "--quiet", "--detach", "loose")
    for branch in ("packed", "loose"):
        theirs.git("branch", "-D", branch)
    collect(theirs)
    snapshot = third.take()
    fork.root.rename(fork.root.parent / "away")  # as whoever deletes it by hand
    try:
        check(innermost)
        assert third.texts(snapshot)["again"] == "of nothing\n"
        check(work_in(third))
    finally:
        (fork.root.parent / "away").rename(fork.root)
    first.clean()
    assert not list(first.state.glob("kept-*"))
    check(inner)
    check(innermost)
    third.clean()


@pytest.mark.parametrize("where", ["shallow", "partial", "borrows"])
def test_of_a_repository_that_does_not_hold_all_of_it(user: User, beside: Make, tmp_path: Path, where: str) -> None:
    user.write("a", "2\n")
    user.write("b", "2\n")
    user.commit()
    user.git("config", "uploadpack.allowFilter", "true")
    words = {"shallow": ["--depth=1"], "partial": ["--filter=blob:none"], "borrows": ["--shared"]}[where]
    url = str(user.root) if where == "borrows" else user.root.as_uri()
    user.git("clone", "--quiet", *words, url, tmp_path / "clone")
    clone = User(tmp_path / "clone")
    clone.git("hash-object", "-w", str(clone.write("../dangling", "of nothing\n")))
    one = beside(clone)
    clone.write("a", "3\n")
    fork = work_in(one)
    fork.write("new", "of nothing\n")
    fork.commit()
    collect(clone)
    user.git("checkout", "--quiet", "--orphan", "fresh")
    user.git("branch", "-D", "main")
    if where == "borrows":
        collect(user)
    assert fork.git("log", "--format=%s", "-1") == "m"
    fork.git("show", "HEAD", "HEAD~1")
    fork.git("checkout", "--quiet", "HEAD~1")
    assert (fork.root / "a").read_text() == "3\n"
    if where != "partial":
        check(fork)


def times(root: Path) -> dict[Path, tuple[int, int, int]]:
    """Of each file of objects: how many names it has, its mode, and when it was changed last."""
    found = {path: path.stat() for path in (root / ".git/objects").rglob("*") if path.is_file()}
    return {path: (about.st_nlink, about.st_mode, about.st_ctime_ns) for path, about in found.items()}


def test_what_is_kept_leaves_the_users_files_alone_and_goes_with_the_last(theirs: User, beside: Make) -> None:
    """Undo tells by their times whether somebody has edited what a step has left (I8)."""
    one = beside(theirs)
    before = times(theirs.root)
    first, second = one.provider.prepare("worktree"), one.provider.prepare("worktree")
    (store,) = one.state.glob("kept-*")
    for path in (path for path in before if path.parent.name != "info"):
        kept_path = store / path.relative_to(theirs.root / ".git/objects")
        assert kept_path.read_bytes() == path.read_bytes()
        assert not kept_path.stat().st_mode & 0o222
    one.provider.cleanup(first.token)
    assert store.exists()
    check(User(Path(os.fsdecode(second.path))))
    one.provider.cleanup(second.token)
    assert not store.exists()
    assert times(theirs.root) == before


def test_what_is_kept_already_is_the_same_file(theirs: User, beside: Make) -> None:
    one = beside(theirs)
    fork = work_in(one)
    (store,) = one.state.glob("kept-*")
    fork.write("own", "of the fork alone\n")
    fork.commit()
    fork.git("repack", "-a", "-d", "-l", "--quiet")
    inner = beside(fork)
    check(work_in(inner))
    (further,) = inner.state.glob("kept-*")
    kept_files = [path.relative_to(store) for path in store.rglob("*") if path.is_file()]
    assert kept_files
    if not all((store / path).samefile(further / path) for path in kept_files):
        pytest.skip("files can share their blocks here, and need no second name")
    assert not any(path.stat().st_nlink > 1 for path in (fork.root / ".git").rglob("*") if path.is_file())
    inner.clean()
    one.clean()


def test_no_file_of_the_users_gets_a_second_name_however_large(theirs: User, tmp_path: Path) -> None:
    """Who may write to it by the one name would change what is read by the other."""
    store = theirs.git_dir / "objects"
    large = store / "pack/pack-of-holes"
    for end, length in ((".pack", 300 << 20), (".idx", 100)):
        Path(f"{large}{end}").touch()
        os.truncate(f"{large}{end}", length)
    before = times(theirs.root)
    fork_objects.ForkObjects(bytes(tmp_path / "kept")).take([bytes(store)], most_bytes=0)
    assert (tmp_path / "kept/pack/pack-of-holes.pack").stat().st_size == 300 << 20
    (pack,) = (path for path in before if path.suffix == ".pack" and path.name != "pack-of-holes.pack")
    kept_pack = tmp_path / "kept" / pack.relative_to(store)
    content = pack.read_bytes()
    assert times(theirs.root) == before
    pack.chmod(0o600)
    with pack.open("r+b") as file:
        file.write(b"what runs there may write there")
    assert kept_pack.read_bytes() == content


def test_a_home_on_another_file_system_holds_a_copy(theirs: User, elsewhere: Path) -> None:
    provider = git_provider(ProviderContext(bytes(theirs.root), bytes(elsewhere / "state"), "s"))
    fork = User(Path(os.fsdecode(provider.prepare("worktree").path)))
    for branch in ("packed", "loose"):
        theirs.git("branch", "-D", branch)
    fork.write("packed", "of a branch that is packed\n")
    fork.commit()
    collect(theirs)
    check(fork)


def test_more_than_may_be_copied_is_refused_and_nothing_is_left(theirs: User, elsewhere: Path) -> None:
    provider = git_provider(ProviderContext(bytes(theirs.root), bytes(elsewhere / "state"), "s", most_bytes=10))
    with pytest.raises(RefusedError, match=r"snapshot\.max_copy_bytes") as refused:
        provider.prepare("worktree")
    assert refused.value.code == "git_objects"
    assert list(provider.tokens()) == []
    assert not [path for path in (elsewhere / "state").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_link_among_the_objects_is_refused(theirs: User, tmp_path: Path) -> None:
    """What it leads to would be seen where it cannot be seen otherwise."""
    (pack,) = (theirs.git_dir / "objects/pack").glob("*.pack")
    pack.rename(tmp_path / pack.name)
    pack.symlink_to(tmp_path / pack.name)
    provider = git_provider(ProviderContext(bytes(theirs.root), bytes(tmp_path / "state"), "s"))
    with pytest.raises(RefusedError, match="is a link") as refused:
        provider.prepare("worktree")
    assert refused.value.code == "git_objects"
    theirs.git("repack", "-a", "-d", "--quiet")
    assert provider.prepare("worktree")


@pytest.mark.parametrize("name", ["pack", "ab", "info/commit-graphs"])
def test_a_link_in_place_of_a_directory_is_refused(theirs: User, user_of: Callable[[str], User], name: str) -> None:
    """A command in the workspace, from which a repository is hidden, has this one's objects lie in that."""
    objects, secret = theirs.git_dir / "objects", user_of("secret").git_dir / "objects"
    (objects / name).mkdir(parents=True, exist_ok=True)
    (objects / name).rename(secret / "lent")
    (objects / name).symlink_to(secret / "lent")
    place = ProviderContext(bytes(theirs.root), bytes(theirs.root.parent / "state"), "s")
    with pytest.raises(RefusedError, match="a link") as refused:
        git_provider(place, GitOptions(hidden=(bytes(secret),))).prepare("worktree")
    assert refused.value.code == "git_objects"


@pytest.mark.parametrize("name", ["packed-refs", "info", "config", "refs/heads"])
def test_a_part_of_the_repository_that_leads_to_what_is_hidden_is_refused(
    theirs: User, user_of: Callable[[str], User], name: str
) -> None:
    theirs.git("pack-refs", "--all")
    secret = user_of("secret").git_dir
    (theirs.git_dir / name).rename(secret / "lent")
    (theirs.git_dir / name).symlink_to(secret / "lent")
    place = ProviderContext(bytes(theirs.root), bytes(theirs.root.parent / "state"), "s")
    with pytest.raises(RefusedError, match="hidden from runs") as refused:
        git_provider(place, GitOptions(hidden=(bytes(secret),))).prepare("worktree")
    assert refused.value.code == "git_hidden"
    assert git_provider(place, GitOptions()).prepare("worktree"), "it may lead elsewhere"


def test_what_is_hidden_or_another_forks_is_not_borrowed(theirs: User, user_of: Callable[[str], User]) -> None:
    """Whoever works in a fork writes its `.git`, and could have it name any directory."""
    secret, home = user_of("secret"), theirs.root.parent / "home"
    named = secret.git("hash-object", "-w", str(secret.write("key", "secret\n")))
    public = user_of("public")
    shown = public.git("hash-object", "-w", str(public.write("key", "public\n")))
    others = git_provider(ProviderContext(bytes(user_of("other").root), bytes(home / "2"), "s")).prepare("worktree")
    other = User(Path(os.fsdecode(others.path)))
    private = other.git("hash-object", "-w", str(other.write("key", "of another fork\n")))
    alternates = theirs.git_dir / "objects/info/alternates"
    alternates.parent.mkdir(exist_ok=True)
    options = GitOptions(hidden=(bytes(secret.root),))
    place = ProviderContext(bytes(theirs.root), bytes(home / "1"), "s", own=(bytes(home),))
    provider = git_provider(place, options)
    for stolen, one in ((named, secret), (private, other)):
        alternates.write_text(f"{public.git_dir}/objects\n{one.git_dir}/objects\n")
        if len(stolen) == len(shown) == len(theirs.git("rev-parse", "HEAD")):
            theirs.git("update-index", "--add", "--cacheinfo", f"100644,{stolen},stolen")
            theirs.git("update-index", "--skip-worktree", "stolen")
        with pytest.raises(RefusedError, match="hidden from runs") as refused:
            provider.prepare("worktree")
        assert refused.value.code == "git_hidden"
        theirs.git("update-index", "--force-remove", "stolen")
    alternates.write_text(f"{public.git_dir}/objects\n")
    fork = User(Path(os.fsdecode(provider.prepare("worktree").path)))
    if len(named) == len(theirs.git("rev-parse", "HEAD")):
        assert fork.git("cat-file", "-p", shown) == "public"
    for hidden in (named, private):
        with pytest.raises(AssertionError, match=r"(?i)not a valid object"):
            fork.git("cat-file", "-p", hidden)


def repository_that_is(user: User, secret: Path, way: str) -> None:
    """Have the repository of a user be the one in the directory ``secret``, by way of files that Git follows."""
    user.git_dir.rename(user.root / "before")
    if way == "gitdir":
        user.git_dir.write_text(f"gitdir: {secret}\n")
        return
    user.git_dir.mkdir()
    (user.git_dir / "HEAD").write_text("ref: refs/heads/main\n")
    if way == "commondir":
        (user.git_dir / "commondir").write_text(f"{secret}\n")
        return
    between = user.root / "between"
    for name in ("objects", "refs"):
        (between / name).mkdir(parents=True)
    (between / "HEAD").write_text("ref: refs/heads/main\n")
    (between / "commondir").write_text(f"{secret}\n")
    (user.git_dir / "commondir").write_text(f"{between}\n")


@pytest.mark.parametrize("way", ["gitdir", "commondir", "commondir of commondir"])
def test_a_repository_that_is_hidden_itself_is_neither_read_nor_written(
    user: User, user_of: Callable[[str], User], way: str
) -> None:
    secret = user_of("secret")
    repository_that_is(user, secret.git_dir, way)
    times = {path: path.stat().st_mtime_ns for path in (secret.git_dir, secret.git_dir / "refs")}
    before = hashed(secret.root)
    place = ProviderContext(bytes(user.root), bytes(user.root.parent / "state"), "s")
    with pytest.raises(RefusedError, match="hidden from runs") as refused:
        git_provider(place, GitOptions(hidden=(bytes(secret.root),))).prepare("worktree")
    assert refused.value.code == "git_hidden"
    assert hashed(secret.root) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times, "nor is a lock made there, for a moment"


def test_a_link_among_the_refs_that_leads_to_what_is_hidden(user: User, user_of: Callable[[str], User]) -> None:
    secret = user_of("secret")
    (user.git_dir / "refs/heads/theirs").symlink_to(secret.git_dir / "refs/heads")
    place = ProviderContext(bytes(user.root), bytes(user.root.parent / "state"), "s")
    with pytest.raises(RefusedError, match="hidden from runs") as refused:
        git_provider(place, GitOptions(hidden=(bytes(secret.root),))).prepare("worktree")
    assert refused.value.code == "git_hidden"


@pytest.mark.parametrize(
    "written",
    [
        "{0}\n",
        '"{0}"\n',
        '"{0}"and more\n',
        '"over\nlines/../{1}"\n',
        "return\r/../{1}\n",
        "# {1}\n{1}",
    ],
)
def test_what_is_borrowed_from_is_read_as_git_reads_it(
    user: User, user_of: Callable[[str], User], written: str
) -> None:
    secret = user_of("secret")
    blob = secret.git("hash-object", "-w", str(secret.write("key", "secret\n")))
    objects = user.git_dir / "objects"
    for name in ("over\nlines", "return\r"):
        (objects / name).mkdir()
    theirs = secret.git_dir / "objects"
    (objects / "info/alternates").write_bytes(written.format(theirs, os.path.relpath(theirs, objects)).encode())
    assert user.git("cat-file", "-p", blob) == "secret"
    place = ProviderContext(bytes(user.root), bytes(user.root.parent / "state"), "s")
    with pytest.raises(RefusedError, match="hidden from runs"):
        git_provider(place, GitOptions(hidden=(bytes(secret.root),))).prepare("worktree")


def test_too_many_to_borrow_from_are_refused(user: User, user_of: Callable[[str], User]) -> None:
    """What is looked at must be all that Git follows."""
    secret = user_of("secret")
    before = "".join(f"/nowhere/{number}\n" for number in range(300))
    (user.git_dir / "objects/info/alternates").write_text(f"{before}{secret.git_dir}/objects\n")
    place = ProviderContext(bytes(user.root), bytes(user.root.parent / "state"), "s")
    with pytest.raises(RefusedError, match="more than") as refused:
        git_provider(place, GitOptions(hidden=(bytes(secret.root),))).prepare("worktree")
    assert refused.value.code == "git_objects"


@pytest.mark.parametrize("at", ["refs/holdfast", "refs/holdfast/s", "logs/refs/holdfast"])
def test_no_pin_is_written_through_a_link(user: User, user_of: Callable[[str], User], tmp_path: Path, at: str) -> None:
    """Whoever works in the repository could have a ref, or a line of a log, appear in what only others may write."""
    victim = user_of("victim")
    written = victim.git_dir / "refs/heads"
    if at.startswith("logs"):
        head = user.git("rev-parse", "HEAD")
        (written.parent / "s").mkdir()
        (written.parent / "s" / head).write_text("a file of theirs\n")
        written = written.parent
    before = hashed(victim.root)
    link = user.git_dir / at
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(written)
    provider = git_provider(ProviderContext(bytes(user.root), bytes(tmp_path / "state"), "s"))
    with pytest.raises(RefusedError, match="is a link") as refused:
        provider.prepare("worktree")
    assert refused.value.code == "git_objects"
    assert hashed(victim.root) == before
    assert list(provider.tokens()) == []
    link.unlink()
    assert provider.prepare("worktree")


def test_a_graph_of_commits_is_taken_if_all_of_them_are_there(user: User, beside: Make) -> None:
    one = beside(user)
    for number in range(3):
        user.write("a", f"{number}\n")
        user.commit()
        user.git("commit-graph", "write", "--reachable", "--split=no-merge")
    fork = work_in(one)
    (store,) = one.state.glob("kept-*")
    assert len(list((store / "info/commit-graphs").iterdir())) == 4
    fork.git("commit-graph", "verify")
    check(fork)
    user.git("checkout", "--quiet", "-b", "gone")
    user.write("a", "gone\n")
    user.commit()
    user.git("commit-graph", "write", "--reachable")
    user.git("checkout", "--quiet", "main")
    user.git("branch", "-D", "gone")
    user.git("reflog", "expire", "--expire=now", "--all")
    user.git("prune", "--expire=now")
    damaged = subprocess.run(["git", "fsck"], cwd=user.root, capture_output=True, check=False)
    assert b"failed to parse commit" in damaged.stderr
    check(work_in(one))
    assert not (store / "info/commit-graph").exists()
    user.git("commit-graph", "write", "--reachable")
    check(work_in(one))
    assert (store / "info/commit-graph").exists()


@pytest.fixture
def user_of(tmp_path: Path) -> Callable[[str], User]:
    """Makes a repository with one commit, by the name of a directory."""

    def make(name: str) -> User:
        (tmp_path / name).mkdir()
        found = User(tmp_path / name)
        found.git("init", "--quiet")
        found.commit()
        return found

    return make

"""Try the snapshot provider ``git`` on real repositories: an agent changes clones of them, and everything is compared.

    python benchmarks/real_git.py REPOSITORY... [--as clone sparse ...] [--submodule NAME=REPOSITORY]
                                  [--lfs PATTERN] [--seed 1] [--dir DIR]

Each REPOSITORY is cloned as ``--as`` says (KINDS below; by default ``clone``), with those submodules whose repositories
are given, and changed in every way that there is (`real_git_edits.py`). Then snapshots are taken, with and without files
that are not tracked; views and work trees are made of them, and one is worked in, captured and branched again. Every
file's content, type and executable bit has to be what Git itself makes of the same files: what is staged by an index
apart from the user's, and written out to an empty directory. What differs from the user's own work tree has to be
governed by an attribute, or by the configuration of the ends of lines. Then the user commits all, amends that, expires
the reflogs and has `git gc --prune=now` remove what is left; the snapshots are read again, and all is cleaned up.

Whatever the provider does, the user's whole repository, work tree and ``.git``, has to stay byte for byte what it was;
in the end no ref, no work tree, no file and no process may be left. The first difference ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from holdfast.snapshot.git.provider import GitOptions, git_provider
from holdfast.snapshot.port import Provider, Snapshot
from holdfast.snapshot.provider_context import ProviderContext
from real_git_edits import FOUNDED, Agent, User

KINDS = {
    "clone": "as anyone clones it",
    "shallow": "the last three commits of it",
    "partial": "without the blobs that no work tree needs (--filter=blob:none)",
    "sparse": "the work tree has half of its directories, in cone mode",
    "patterns": "the work tree has some of its files, by patterns, and none of a few",
    "linked": "a linked work tree of a clone",
    "apart": "the repository is elsewhere, and .git a file",
    "sha256": "its files, committed to a repository with names of objects by SHA-256",
    "split": "with a split index, a cache of untracked files and version 4 of the index",
    "autocrlf": "with core.autocrlf and core.safecrlf in the user's own configuration",
    "trusted": "the filters of the repository's own configuration are trusted",
    "lfs": "some files by LFS, with what they hold",
    "pointers": "some files by LFS, as pointers",
}
CONFIGURATION = """\
[user]
	name = A User
	email = user@example.org
[init]
	defaultBranch = main
[gc]
	auto = 0
[protocol "file"]
	allow = always
[filter "mine"]
	clean = tr a-z n-za-m
	smudge = tr n-za-m a-z
[filter "lfs"]
	clean = git-lfs clean -- %f
	smudge = git-lfs smudge -- %f
	process = git-lfs filter-process
	required = true
"""
_GOVERNING = ("text", "eol", "filter", "ident", "working-tree-encoding", "crlf")

Files = dict[bytes, tuple[str, str]]
"""Path -> kind, and the hash of the content or the target."""


class Trial:
    """One repository, as one kind, and the provider beside it."""

    def __init__(self, source: Path, kind: str, where: Path, options: argparse.Namespace) -> None:
        self.where, self.kind = where, kind
        self.source, self.options = source, options
        self.root = where / "tree"
        self.user = User(self.root)
        self.watched = [self.root]
        self.compared = self.governed = 0

    # -- the repository -----------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Have the repository, with all that the trial is founded on."""
        above, kind = User(self.where), self.kind
        address = f"file://{self.source}"
        if kind in ("lfs", "pointers"):
            address = self._with_lfs(above)
        words = {
            "shallow": ["--depth=3"],
            "partial": ["--filter=blob:none"],
            "apart": [f"--separate-git-dir={self.where / 'apart.git'}"],
        }.get(kind, [])
        skipped = {"GIT_LFS_SKIP_SMUDGE": "1"} if kind != "lfs" else {}
        target = self.where / "main" if kind == "linked" else self.root
        above.git("clone", "--quiet", "--no-tags", *words, address, target, given=skipped)
        if kind == "linked":
            User(target).git("worktree", "add", "--quiet", self.root)
            self.watched.append(target)
        if kind == "apart":
            self.watched.append(self.where / "apart.git")
        if kind == "sha256":
            shutil.rmtree(self.root / ".git")
            self.user.git("init", "--quiet", "--object-format=sha256")
            self.user.commit()
        self._check_submodules_out()
        if kind == "split":
            self.user.git("update-index", "--index-version", "4")
            self.user.git("update-index", "--split-index", "--untracked-cache")
            self.user.git("config", "core.untrackedCache", "true")
        if kind == "autocrlf":
            self.user.git("config", "--global", "core.autocrlf", "true")
            self.user.git("config", "--global", "core.safecrlf", "true")
        for name, command in (("clean", "tr a-z b-za"), ("smudge", "tr b-za a-z")):
            self.user.git("config", f"filter.theirs.{name}", command)
        self._make_sparse()

    def _with_lfs(self, above: User) -> str:
        made = User(self.where / "with lfs")
        above.git(
            "clone", "--quiet", "--no-tags", f"file://{self.source}", made.root, given={"GIT_LFS_SKIP_SMUDGE": "1"}
        )
        made.git("lfs", "track", *self.options.lfs)
        made.git("add", "--renormalize", ".")
        made.commit()
        tracked = made.text("lfs", "ls-files").splitlines()
        if not tracked:
            raise SystemExit(f"no file of it is called like {self.options.lfs}")
        served = self.where / "served.git"
        above.git("clone", "--quiet", "--bare", made.root, served)
        made.git("lfs", "push", "--all", f"file://{served}")
        print(f"    {len(tracked)} files by LFS", flush=True)
        return f"file://{served}"

    def _check_submodules_out(self) -> None:
        for each in self.options.submodule:
            name, _, path = each.partition("=")
            if self.user.git("config", "--file", ".gitmodules", f"submodule.{name}.url", ok=False):
                self.user.git("submodule", "--quiet", "init", name)
                self.user.git("config", f"submodule.{name}.url", f"file://{Path(path).resolve()}")
                self.user.git("submodule", "--quiet", "update", name)
                print(f"    with the submodule {name}", flush=True)

    def _make_sparse(self) -> None:
        directories = sorted(path.name for path in self.root.iterdir() if path.is_dir() and path.name != ".git")
        if self.kind == "sparse":
            self.user.git("sparse-checkout", "set", "--cone", "--skip-checks", *directories[::2], *FOUNDED)
        if self.kind == "patterns":
            self.user.git(
                "sparse-checkout", "set", "--no-cone", "/*", "!*.md", *(f"!/{name}" for name in directories[::3])
            )

    # -- what has to be -----------------------------------------------------------------------------------------------

    def expected(self, user: User, *, untracked: bool) -> tuple[str, Files]:
        """What Git itself makes of the files as they are: the tree, and what it writes out of it. The user's
        repository is only read: the index is a copy, and new objects go elsewhere.
        """
        with tempfile.TemporaryDirectory(dir=self.where, prefix="expected-") as name:
            out = os.path.join(name, "out")
            os.mkdir(out)
            own = user.text("rev-parse", "--absolute-git-dir")
            index = os.path.join(name, "index")
            shutil.copy2(os.path.join(own, "index"), index)
            theirs = user.text("rev-parse", "--path-format=absolute", "--git-path", "objects")
            given = {
                "GIT_INDEX_FILE": index,
                "GIT_OBJECT_DIRECTORY": name,
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{theirs}"',
                "GIT_LFS_SKIP_SMUDGE": "1",
                "GIT_NO_LAZY_FETCH": "1",
            }
            self._stage_all(user, given, untracked)
            tree = os.fsdecode(user.git("write-tree", "--missing-ok", given=given)).strip()
            words = [*self._unfiltered(), f"--work-tree={out}"]
            given["GIT_INDEX_FILE"] = os.path.join(name, "of what is written out")
            user.git(*words, "read-tree", "-m", "-u", tree, given={**given, "GIT_DIR": own})
            return tree, files_of(out)

    def of_submodules(self, around: User) -> Files:
        """What Git itself writes out of the commits of submodules, where these are repositories, and of those in them.
        Ends the run if one is at another commit than the repository around it says.
        """
        found: Files = {}
        for link in around.listed("ls-files", "--stage", "-z"):
            mode, commit, _ = link.partition(b"\t")[0].split(b" ")
            path = link.partition(b"\t")[2]
            inner = User(around.root / os.fsdecode(path))
            if mode != b"160000" or not os.path.lexists(inner.root / ".git"):
                continue
            if (head := inner.text("rev-parse", "HEAD")) != commit.decode():
                raise SystemExit(f"the submodule {inner.root} is at {head}, and not at {commit.decode()}")
            with tempfile.TemporaryDirectory(dir=self.where, prefix="submodule-") as name:
                own = inner.text("rev-parse", "--absolute-git-dir")
                given = {"GIT_INDEX_FILE": os.path.join(name, ".git"), "GIT_DIR": own}
                inner.git(f"--work-tree={name}", "read-tree", "-m", "-u", "HEAD", given=given)
                files = {**files_of(name), **self.of_submodules(inner)}
            found |= {os.path.join(path, each): file for each, file in files.items()}
        return found

    def _stage_all(self, user: User, given: dict[str, str], untracked: bool) -> None:
        """Have the index hold what is in the files."""
        words = ["-c", "core.safecrlf=false", "-c", "core.splitIndex=false", *self._unfiltered()]
        root = bytes(user.root)
        marked = user.listed("-c", "sparse.expectFilesOutsideOfPatterns=true", "ls-files", "-v", "-z", given=given)
        for option, marks in (("--no-assume-unchanged", b"hs"), ("--no-skip-worktree", b"Ss")):
            paths = [
                item[2:] for item in marked if item[:1] in marks and (item[:1].islower() or is_there(root, item[2:]))
            ]
            user.git("update-index", option, "-z", "--stdin", data=ended(paths), given=given)
        user.git(*words, "update-index", "-q", "--refresh", ok=False, given=given)
        changed = user.listed(*words, "diff-files", "--name-only", "-z", "--ignore-submodules=dirty", given=given)
        if not self.trusted:
            told = user.listed(
                "check-attr", "-z", "--stdin", "filter", data=user.git("ls-files", "-z", given=given), given=given
            )
            theirs = [path for path, name in zip(told[::3], told[2::3], strict=True) if name == b"theirs"]
            theirs = [path for path in theirs if path not in changed and is_there(root, path)]
            user.git("update-index", "-z", "--force-remove", "--stdin", data=ended(theirs), given=given)
            changed += theirs
        if untracked:
            others = user.listed("ls-files", "--others", "--exclude-standard", "-z", given=given)
            changed += [path for path in others if not path.endswith(b"/")]
        gone = [path for path in changed if not is_there(root, path)]
        user.git("update-index", "-z", "--force-remove", "--stdin", data=ended(gone), given=given)
        there = [path for path in changed if is_there(root, path)]
        user.git(
            *words, "update-index", "-z", "--add", "--remove", "--replace", "--stdin", data=ended(there), given=given
        )

    @property
    def trusted(self) -> bool:
        return self.kind == "trusted"

    def _unfiltered(self) -> list[str]:
        """The repository's own filter is not run, unless it is trusted."""
        return [] if self.trusted else ["-c", "filter.theirs.clean=", "-c", "filter.theirs.smudge="]

    def check(self, what: str, path: bytes, wanted: Files) -> None:
        """End the run unless the files at ``path`` are those."""
        found = files_of(path)
        self.compared += len(wanted)
        same(f"{what}, against what Git makes of the same files", wanted, found)

    def check_governed(self, user: User, wanted: Files) -> None:
        """End the run unless what would be written out is as it is in the tree, or governed by an attribute."""
        there = files_of(user.root)
        other = [path for path, file in wanted.items() if path in there and there[path] != file]
        told = user.listed("check-attr", "-z", "--stdin", *_GOVERNING, data=ended(other))
        governed = {
            path for path, value in zip(told[::3], told[2::3], strict=True) if value not in (b"unspecified", b"unset")
        }
        if self.kind != "autocrlf":
            same(
                "what is written out, against the tree",
                *({path: of[path] for path in other if path not in governed} for of in (there, wanted)),
            )
        self.governed += len(other)

    # -- the trial ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.make()
        agent = Agent(self.user, self.options.seed)
        agent.found_on()
        changes = agent.work()
        worktrees = self.user.git("worktree", "list", "--porcelain")
        count = len(self.user.listed("ls-files", "-z"))
        print(f"    {count:,} files, {changes} changes", flush=True)
        state = self.where / "state"
        providers = [
            (
                untracked,
                git_provider(
                    ProviderContext(bytes(self.root), os.fsencode(state / str(untracked)), "trial"),
                    GitOptions(untracked, self.trusted),
                ),
            )
            for untracked in (False, True)
        ]
        taken: list[tuple[bool, Provider, Snapshot, str, Files]] = []
        seconds: list[float] = []
        for number in range(2):
            for untracked, provider in providers:
                with Untouched(self, "a snapshot"):
                    line = provider.prepare("in-place")
                    begun = time.monotonic()
                    snapshot = provider.snapshot(line, f"number {number}")
                    seconds.append(time.monotonic() - begun)
                tree, wanted = self.expected(self.user, untracked=untracked)
                taken.append((untracked, provider, snapshot, tree, wanted))
                self.read_again(provider, snapshot, tree, wanted, f"{number}-{untracked}")
                self.check_governed(self.user, wanted)
            if not number:
                changes = agent.work()
        for untracked, provider, snapshot, *_ in taken[:2]:
            self.work_in_a_fork(provider, snapshot, untracked)
        shown = ", ".join(f"{each * 1000:,.0f}" for each in seconds)
        print(f"    snapshots in {shown} ms; {changes} changes between the first and the last two", flush=True)
        self.rewrite_history()
        self.check_whole(*taken[0][1:3])
        for number, (_, provider, snapshot, tree, wanted) in enumerate(taken):
            self.read_again(provider, snapshot, tree, wanted, f"again-{number}")
        with Untouched(self, "cleaning up", pins=False):
            for _, provider in providers:
                for made in provider.tokens():
                    provider.cleanup(made.token)
        self.check_nothing_left(state, worktrees)
        print(
            f"    all the same: {self.compared:,} files compared, {self.governed:,} of them other than in the tree, "
            "as attributes say",
            flush=True,
        )

    def read_again(self, provider: Provider, snapshot: Snapshot, tree: str, wanted: Files, name: str) -> None:
        """Compare a view and a work tree of a snapshot, and what its commit holds, and remove both."""
        with Untouched(self, "views and work trees"):
            view = provider.mount(snapshot)
            self.check("a view", view.path, wanted)
            branch = provider.branch(snapshot, name, "worktree")
            fork = User(Path(os.fsdecode(branch.path)))
            self.check("a work tree", branch.path, {**wanted, **self.of_submodules(fork)})
            if (found := fork.text("rev-parse", "HEAD^{tree}")) != tree:
                raise SystemExit(f"the snapshot's tree is {found}, and Git makes {tree} of the same files")
            if self.kind != "partial":
                fork.git("rev-list", "--objects", "--quiet", "HEAD", "--not", "--glob=refs/remotes")
            provider.cleanup(view.token)
            provider.cleanup(branch.token)

    def check_whole(self, provider: Provider, snapshot: Snapshot) -> None:
        """End the run unless all that a work tree's repository knows is there, now that the user's has less."""
        branch = provider.branch(snapshot, "whole", "worktree")
        if self.kind != "partial":
            User(Path(os.fsdecode(branch.path))).git("fsck", "--connectivity-only", "--no-dangling")
        provider.cleanup(branch.token)

    def work_in_a_fork(self, provider: Provider, snapshot: Snapshot, untracked: bool) -> None:
        """Have an agent work in a work tree, capture and branch that, and compare it."""
        with Untouched(self, "work in a fork"):
            branch = provider.branch(snapshot, f"worked-in-{untracked}", "worktree")
            fork = User(Path(os.fsdecode(branch.path)))
            Agent(fork, self.options.seed + 1).work()
            tree, wanted = self.expected(fork, untracked=untracked)
            before = everything([fork.root])
            again = provider.snapshot(branch, "of a fork")
            same("a fork that is captured", before, everything([fork.root]))
            self.read_again(provider, again, tree, wanted, f"of-a-fork-{untracked}")
            fork.commit()
            provider.cleanup(branch.token)
            self.read_again(provider, again, tree, wanted, f"of-a-fork-again-{untracked}")

    def rewrite_history(self) -> None:
        """What the user does that takes objects away."""
        self.user.git("config", "filter.theirs.clean", "cat")
        self.user.commit()
        self.user.git("commit", "--quiet", "--no-verify", "--amend", "-m", "amended")
        for option in ("--no-assume-unchanged", "--no-skip-worktree"):
            self.user.git("update-index", option, "-z", "--stdin", data=self.user.git("ls-files", "-z", "marked"))
        self.user.git("reset", "--quiet", "--hard", "HEAD~2")
        self.user.git("stash", "clear")
        if self.kind not in ("partial", "sha256"):
            self.user.git("symbolic-ref", "--delete", "refs/remotes/origin/HEAD", ok=False)
            self.user.git("remote", "remove", "origin")
        self.user.git("reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
        self.user.git("gc", "--quiet", "--prune=now")
        self.user.git("fsck", "--connectivity-only", "--no-dangling")

    def check_nothing_left(self, state: Path, worktrees: bytes) -> None:
        refs = self.user.text("for-each-ref", "--format=%(refname)", "refs/holdfast")
        if refs:
            raise SystemExit(f"refs are left in the user's repository: {refs}")
        if (now := self.user.git("worktree", "list", "--porcelain")).count(b"worktree ") != worktrees.count(
            b"worktree "
        ):
            raise SystemExit(f"work trees are left: {now}")
        left = [path for path in state.rglob("*") if path.is_file() and path.suffix != ".lock"]
        if left:
            raise SystemExit(f"files are left: {left[:20]}")
        processes = [
            pid for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) != os.getpid() and uses(pid, state)
        ]
        if processes:
            raise SystemExit(f"processes are left: {processes}")


class Untouched:
    """Ends the run unless the user's repository is afterwards what it was before, but for the pins."""

    def __init__(self, trial: Trial, what: str, *, pins: bool = True) -> None:
        self._trial, self._what = trial, what
        self._pins = pins

    def __enter__(self) -> None:
        self._before = everything(self._trial.watched)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            same(f"the user's repository after {self._what}", self._before, everything(self._trial.watched))


def everything(directories: Iterable[Path]) -> Files:
    """Every file of a repository, work tree and Git's own: what it holds, and its type and mode; of all but objects,
    which Git touches as it comes upon them, and the file that a pin may be packed in, when it was changed. No pins.
    """
    found: Files = {}
    for directory in directories:
        for at, folders, names in os.walk(os.fsencode(directory)):
            if at.endswith(b"/refs") and b"holdfast" in folders:
                folders.remove(b"holdfast")
            for name in [*names, *folders]:
                path = os.path.join(at, name)
                about = os.lstat(path)
                timeless = stat.S_ISDIR(about.st_mode) or b"/objects/" in path or name == b"packed-refs"
                time_of = 0 if timeless else about.st_mtime_ns
                found[path] = (
                    f"{about.st_mode:o} {time_of}",
                    digest(path, about.st_mode, packed=name == b"packed-refs"),
                )
    return found


def digest(path: bytes, mode: int, *, packed: bool = False) -> str:
    """The hash of what a file or a link holds; of anything else nothing."""
    if stat.S_ISLNK(mode):
        return hashlib.sha256(os.readlink(path)).hexdigest()
    if not stat.S_ISREG(mode):
        return ""
    with open(path, "rb") as file:
        if packed:
            return hashlib.sha256(b"".join(line for line in file if b" refs/holdfast/" not in line)).hexdigest()
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(root: bytes | str | Path) -> Files:
    """Every file and link of a work tree, but those of Git: what it holds, its type, and whether it can be executed."""
    found: Files = {}
    top = os.fsencode(root)
    for at, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != b".git"]
        for name in [*names, *folders]:
            path = os.path.join(at, name)
            mode = os.lstat(path).st_mode
            if name != b".git" and (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                kind = "link" if stat.S_ISLNK(mode) else "program" if mode & 0o100 else "file"
                found[os.path.relpath(path, top)] = (kind, digest(path, mode))
    return found


def same(what: str, wanted: Files, found: Files) -> None:
    wrong = sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    if wrong:
        shown = "\n".join(f"  {path}: {wanted.get(path)} -> {found.get(path)}" for path in wrong[:20])
        raise SystemExit(f"{what}: {len(wrong)} of {len(wanted)} files differ\n{shown}")


def is_there(root: bytes, path: bytes) -> bool:
    """Whether there is something that Git can take in, which is nothing behind a link."""
    above = path
    while above := os.path.dirname(above):
        if os.path.islink(os.path.join(root, above)):
            return False
    try:
        mode = os.lstat(os.path.join(root, path)).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode) or os.path.lexists(os.path.join(root, path, b".git"))


def ended(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


def uses(pid: str, state: Path) -> bool:
    """Whether a process works in the directory, or was told of it."""
    try:
        told = Path(f"/proc/{pid}/cmdline").read_bytes()
        return os.fsencode(state) in told or os.readlink(f"/proc/{pid}/cwd").startswith(str(state))
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", metavar="REPOSITORY", type=Path, nargs="+")
    parser.add_argument(
        "--as",
        dest="kinds",
        metavar="KIND",
        choices=KINDS,
        nargs="+",
        default=["clone"],
        help="; ".join(f"{kind}: {what}" for kind, what in KINDS.items()),
    )
    parser.add_argument("--submodule", metavar="NAME=REPOSITORY", action="append", default=[])
    parser.add_argument("--lfs", metavar="PATTERN", action="append", help="what is tracked by LFS (default: *.png)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where clones are made (default: the temporary directory)")
    options = parser.parse_args()
    options.lfs = options.lfs or ["*.png"]
    for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_", "HOLDFAST_"))]:
        del os.environ[name]
    for source in options.repositories:
        for kind in options.kinds:
            with tempfile.TemporaryDirectory(dir=options.dir, prefix="holdfast-real-git-") as name:
                where = Path(name).resolve()
                print(f"{source.resolve()}, {kind} (seed {options.seed})", flush=True)
                os.environ["HOME"] = str(where)
                (where / ".gitconfig").write_text(CONFIGURATION)
                Trial(source.resolve(), kind, where, options).run()


if __name__ == "__main__":
    main()

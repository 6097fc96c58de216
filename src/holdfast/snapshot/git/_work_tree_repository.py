"""The repository of a work tree for commands: a ``.git`` of its own, which borrows objects from the store for forks
(`kept`), and never from the user's.

Git writes only into the work tree there: a command with access to that alone, and not to the home, can commit, and an
undo there reverses Git's changes as well. Borrowed objects are only read (I15).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.errors import RefusedError
from holdfast.snapshot.git._alternates import alternate
from holdfast.snapshot.git._command import QUICK_SECONDS, Git
from holdfast.snapshot.git._shadow_repository import own_config_text, same_sparsity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.snapshot.git._shadow_repository import ShadowRepository
    from holdfast.snapshot.git._user_repository import RepositorySettings


def git_directory(work_tree: bytes) -> bytes:
    """Where the repository of a work tree is."""
    return os.path.join(work_tree, b".git")


def make_repository(
    work_tree: bytes,
    shadow: ShadowRepository,
    settings: RepositorySettings,
    *,
    commit: str,
    base: str,
    more: Sequence[str],
    kept: bytes,
    refs: Mapping[str, str],
    branch: str,
    trust_filters: bool,
) -> None:
    """Make the new directory ``work_tree`` a repository without checked out files. HEAD is ``commit``, a commit of the
    shadow that follows the user's ``base`` (empty: none); the repository has ``more`` of the shadow's objects. It
    borrows from the directory of objects ``kept``, which has ``base`` and the objects of ``refs``, which become its
    refs. HEAD is detached, or on the ``branch``, which is new, or was at ``base``. Raises `RefusedError`
    (``branch_exists``) if that is at another commit, `StorageError`, `OSError`.
    """
    own = git_directory(work_tree)
    os.mkdir(work_tree, 0o700)
    _furnish(own, settings, kept, own_config_text(settings, trust_filters=trust_filters))
    if not settings.partial:  # a partial one may lack objects, so all of the shadow's are kept
        pack = os.path.join(own, b"objects/pack/pack")
        wanted = "".join(f"{name}\n" for name in (commit, *more)) + (f"^{base}\n" if base else "")
        shadow.git()("pack-objects", "--quiet", "--revs", "--non-empty", pack, stdin=wanted.encode())
    git = Git(work_tree, git_dir=own)
    _begin_at(git, own, commit, refs)
    if branch:
        _check_out_branch(git, branch, commit, base)


def make_inner_repository(
    work_tree: bytes,
    own: bytes,
    settings: RepositorySettings,
    *,
    commit: str,
    kept: bytes,
    refs: Mapping[str, str],
    trust_filters: bool,
) -> None:
    """Make the empty directory ``work_tree``, of a submodule, a repository without checked out files, with HEAD at
    ``commit`` and its other files in the new directory ``own``. It borrows from ``kept``, which has that commit. Raises
    `StorageError`, `OSError`; an incomplete result stays.
    """
    is_apart = own != git_directory(work_tree)
    more = {"core.worktree": os.fsdecode(os.path.relpath(work_tree, own))} if is_apart else {}
    os.makedirs(os.path.dirname(own), exist_ok=True)
    os.mkdir(own)
    _furnish(own, settings, kept, own_config_text(settings, more, trust_filters=trust_filters))
    if is_apart:
        with open(git_directory(work_tree), "xb") as file:
            file.write(b"gitdir: " + os.path.relpath(own, work_tree) + b"\n")
    _begin_at(Git(work_tree, git_dir=own), own, commit, refs)


def _furnish(own: bytes, settings: RepositorySettings, kept: bytes, configuration: bytes) -> None:
    """Make ``own`` the directory of a repository of nothing, which takes in and writes out files as the one with these
    ``settings`` does.
    """
    words = ("--quiet", "--bare", "--template=", f"--object-format={settings.object_format}")
    Git(os.path.dirname(own), seconds=QUICK_SECONDS)("init", *words, own)
    files = {b"config": configuration, b"objects/info/alternates": alternate(kept) + b"\n"}
    if settings.shallow:
        files[b"shallow"] = settings.shallow
    files |= {b"info/" + name: text for name, text in settings.rules.items()}
    for name, text in files.items():
        path = os.path.join(own, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text)
    same_sparsity(own, settings)


def _begin_at(git: Git, own: bytes, commit: str, refs: Mapping[str, str]) -> None:
    _give_refs(git, own, refs)
    git("update-ref", "--no-deref", "HEAD", commit)


def _check_out_branch(git: Git, branch: str, commit: str, base: str) -> None:
    ref = f"refs/heads/{branch}"
    at = git("rev-parse", "--verify", "--quiet", ref, allowed=(0, 1)).decode("ascii", "replace").strip()
    if at and at != base:
        raise RefusedError(
            f"there is a branch {branch} in the repository, and another one is checked out there",
            hint="choose a name that is new, or the branch that the workspace is on",
            code="branch_exists",
        )
    git("update-ref", ref, commit)
    git("symbolic-ref", "HEAD", ref)


def _give_refs(git: Git, own: bytes, refs: Mapping[str, str]) -> None:
    """Write those of the refs whose objects exist into the new repository ``own``, all in one file, however many.
    (Others may be of another repository, to which a link led when Git read them.) Source: gitrepository-layout(5).
    """
    if not refs:
        return
    values = "".join(f"{value}\n" for value in sorted(set(refs.values())))
    found = git("cat-file", "--batch-check", "--buffer", stdin=values.encode()).decode()
    missing = {line.partition(" ")[0] for line in found.splitlines() if line.endswith(" missing")}
    names = sorted((name for name, value in refs.items() if value not in missing), key=os.fsencode)
    lines = "".join(f"{refs[name]} {name}\n" for name in names)
    with open(os.path.join(own, b"packed-refs"), "wb") as file:
        file.write(b"# pack-refs with: sorted \n" + os.fsencode(lines))
    git("pack-refs", "--all")  # Git itself adds what tags lead to, and need not look for that each time


def renew_index(work_tree: bytes, own: bytes) -> None:
    """Let Git check rewritten files of a work tree again, whose index is in the directory ``own``. Without that, Git
    takes a file for changed, without reading it, if its length differs from the one that Git wrote: line ends,
    identifiers or LFS make two files of one object. Raises `StorageError`.
    """
    git = Git(work_tree, git_dir=own, work_tree=work_tree)
    git("update-index", "-q", "--refresh", allowed=(0, 1))
    found = git.fields("diff-files", "--raw", "-z", "--no-abbrev", "--ignore-submodules=all")
    again: list[bytes] = []
    unmerged = {path for about, path in zip(found[::2], found[1::2], strict=True) if about.endswith(b"U")}
    for about, path in zip(found[::2], found[1::2], strict=True):
        before, after, name, _, status = about.removeprefix(b":").split(b" ")
        if status == b"M" and before == after and path not in unmerged:
            again.append(b"%s %s 0\t%s\0" % (before, name, path))  # without its stat data
    if again:
        git("update-index", "-z", "--index-info", stdin=b"".join(again))
        git("update-index", "-q", "--refresh", allowed=(0, 1))

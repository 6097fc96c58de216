"""The user's repository, read without running anything that it could decide on.

Git is run in it for three things only: to resolve HEAD, which reads no object, to list refs, and to set the pin.
Everything else is read from files (gitrepository-layout(5)), or by way of the shadow.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.files.git.configuration import find_repository
from holdfast.files.linux.regular_file import read_regular
from holdfast.model.errors import RefusedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.snapshot.git._command import QUICK_SECONDS, Git

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.snapshot.git._alternates import ReadFile

_UNDER_WAY = (
    (b"rebase-merge", "a rebase", "git rebase --continue or --abort"),
    (b"rebase-apply", "a rebase or an am", "git rebase or git am, with --continue or --abort"),
    (b"MERGE_HEAD", "a merge", "git merge --continue or --abort"),
    (b"CHERRY_PICK_HEAD", "a cherry-pick", "git cherry-pick --continue or --abort"),
    (b"REVERT_HEAD", "a revert", "git revert --continue or --abort"),
    (b"sequencer", "a cherry-pick or a revert of several commits", "git cherry-pick or git revert, with --continue"),
    (b"BISECT_LOG", "a bisect", "git bisect reset"),
)
_READ_BY_GIT = (b"HEAD", b"packed-refs", b"config", b"config.worktree", b"commondir", b"shallow")
_SHOWN_REFS = ("refs/heads", "refs/tags", "refs/remotes", "refs/notes")
_OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_MAX_CONFIG = 1 << 20
_MAX_RULES = 1 << 20
_MAX_SHALLOW = 64 << 20
_MOST_INCLUDED = 64
_RULES = (b"attributes", b"exclude")
_NOWHERE = b"/dev/null"
_THE_USERS_OWN = (b"system", b"global")
_PLAIN = re.compile(r"[A-Za-z0-9-]{1,32}\Z")
_CONTENT_KEYS = (
    "autocrlf",
    "eol",
    "filemode",
    "ignorecase",
    "symlinks",
    "precomposeunicode",
    "trustctime",
    "checkstat",
)
"""Of ``core``, what decides what a file's content and mode are; lower case, as Git lists them."""
_FILE_KEYS = ("excludesfile", "attributesfile")
_FILTER_KEYS = ("clean", "smudge", "process", "required")


class UserRepository(NamedTuple):
    """A work tree of Git, and where Git keeps what belongs to it."""

    work_tree: bytes | None
    """None: a bare repository."""
    own: bytes
    """The Git directory of this work tree: its index, its HEAD."""
    common: bytes
    """The directory that all work trees of the repository share."""
    inside: bytes = b""
    """Where in the work tree the workspace is."""


class RepositorySettings(NamedTuple):
    """A repository's settings, beside its tree, that concern content. All of it is untrusted."""

    core: Mapping[str, str]
    filters: Mapping[str, str]
    """The keys ``filter.*.*`` whole, with their values: commands."""
    identity: Mapping[str, str]
    sparse: bool
    cone: bool
    partial: bool
    """Objects are missing that a server has promised."""
    object_format: str
    rules: Mapping[bytes, bytes] = MappingProxyType({})
    """The files in its directory ``info``, by name, that affect captures."""
    patterns: bytes | None = None
    """Those of the sparse checkout; None without one."""
    shallow: bytes = b""
    """Where the history was cut off; empty: nowhere."""
    included: tuple[str, ...] = ()
    """See `included_for`. These are the user's own."""

    @property
    def required(self) -> list[str]:
        """Those of `drivers` that the repository requires for its files."""
        return [name for name in self.drivers if _is_true(self.filters.get(f"filter.{name}.required"))]

    @property
    def drivers(self) -> list[str]:
        """The names of the filters that the repository defines."""
        return sorted({key.partition(".")[2].rpartition(".")[0] for key in self.filters})


def find_user_repository(root: bytes) -> UserRepository | None:
    """The repository that contains the directory ``root``, or that it is (a bare one); None without one."""
    if all(os.path.lexists(os.path.join(root, name)) for name in (b"HEAD", b"objects", b"refs", b"config")):
        return UserRepository(None, root, root)
    found = find_repository(root)
    if found is None:
        return None
    inside = os.path.relpath(root, found.worktree)
    own, common = os.path.realpath(found.own), os.path.realpath(found.common)
    return UserRepository(found.worktree, own, common, b"" if inside == b"." else inside)


def refuse_unfinished(source: UserRepository) -> None:
    """Raise `RefusedError` with the code ``git_operation`` if an operation of Git is under way in the work tree."""
    for name, what, how in _UNDER_WAY:
        if os.path.lexists(os.path.join(source.own, name)):
            where = display(source.work_tree or source.own)
            raise RefusedError(
                f"{what} is under way in {where}: its state is no one state of the files",
                hint=f'finish it ({how}), try again; or set git.include_conflicts = "yes": its files are captured',
                code="git_operation",
            )


def refuse_pipes(source: UserRepository, stores: Iterable[bytes], directory: bytes) -> None:
    """Raise `RefusedError` (``git_pipe``) for a pipe that Git would read, and wait for a writer: in the repository, in
    its ``stores`` of objects, or included by its configuration, which Git parses in ``directory``.
    """
    borrowed = (os.path.join(store, b"info/alternates") for store in stores)
    parts = (os.path.join(each, name) for each in {source.own, source.common} for name in _READ_BY_GIT)
    included = _included(os.path.join(source.common, b"config"), directory)
    more = _included(os.path.join(source.own, b"config.worktree"), directory)
    for path in itertools.chain(parts, borrowed, _below(os.path.join(source.common, b"refs")), included, more):
        with suppress(OSError):  # nothing, or a link that leads nowhere
            if stat.S_ISFIFO(os.stat(path).st_mode):
                raise RefusedError(
                    f"{display(path)} is a pipe, which Git would read and wait for",
                    hint="remove it, or put a file there",
                    code="git_pipe",
                )


def _included(path: bytes, directory: bytes) -> Iterator[bytes]:
    """The files that a configuration file includes, under any condition, directly or indirectly."""
    left, seen = [path], {path}
    while left:
        at = left.pop()
        with suppress(OSError, StorageError):  # Git reports the fault
            text = read_regular(at, _MAX_CONFIG) or b""
            for key, value in _variables(text, directory) if b"include" in text.lower() else ():
                if key == "include.path" or (key.startswith("includeif.") and key.endswith(".path")):
                    found = os.path.join(os.path.dirname(at), os.path.expanduser(os.fsencode(value)))
                    yield found
                    if found not in seen and len(seen) < _MOST_INCLUDED:
                        seen.add(found)
                        left.append(found)


def _below(directory: bytes) -> Iterator[bytes]:
    """Every path below a directory that is neither a file nor a directory."""
    left = [directory]
    while left:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(left.pop()) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    yield entry.path


def links_below(directory: bytes) -> Iterator[bytes]:
    """Every link below a directory."""
    return (path for path in _below(directory) if os.path.islink(path))


def head_of(source: UserRepository) -> str:
    """The name of HEAD's commit; empty without one. Reads no object. Raises `StorageError`."""
    git = Git(source.own, git_dir=source.own, seconds=QUICK_SECONDS)
    found = git("rev-parse", "--verify", "--quiet", "HEAD", allowed=(0, 1)).decode("ascii", "replace").strip()
    return found if _OBJECT.match(found) else ""


def refs_of(common: bytes) -> dict[str, str]:
    """The branches, tags, remote branches and notes of a repository, and the objects that they name. Raises
    `StorageError`.
    """
    git = Git(common, git_dir=common)
    listed = git("for-each-ref", "--format=%(objectname) %(refname)", *_SHOWN_REFS)
    found: dict[str, str] = {}
    for line in listed.splitlines():
        value, _, name = line.partition(b" ")
        found[os.fsdecode(name)] = value.decode("ascii", "replace")
    return found


def pin_name(session: str, base: str) -> str:
    """The one kind of ref that appears in the user's repository."""
    return f"refs/holdfast/{session}/{base}"


def pin(common: bytes, session: str, base: str) -> None:
    """Make the user's own gc keep the commit ``base``, with all its objects. Idempotent. Raises `RefusedError`
    (``git_objects``) where a link would redirect Git's writes, `StorageError`.
    """
    if base:
        if link := _link_to_pin(common, session, base):
            raise RefusedError(
                f"{display(link)} is a link: what keeps the commit of a fork would be written where it leads",
                hint="remove it; or use another provider of snapshots",
                code="git_objects",
            )
        Git(common, git_dir=common, seconds=QUICK_SECONDS)("update-ref", "--no-deref", pin_name(session, base), base)


def unpin(common: bytes, session: str, base: str) -> None:
    """Remove the pin, if it and the repository exist. Behind a link there is none of ours. Raises `StorageError`."""
    if base and os.path.lexists(os.path.join(common, b"HEAD")) and not _link_to_pin(common, session, base):
        Git(common, git_dir=common, seconds=QUICK_SECONDS)("update-ref", "--no-deref", "-d", pin_name(session, base))
        with suppress(OSError):  # another one is in it; or Git, which keeps it, does not keep refs in directories
            os.rmdir(os.path.join(common, b"refs/holdfast"))


def _link_to_pin(common: bytes, session: str, base: str) -> bytes:
    """A link that is, or leads to, the pin or its log; empty without one."""
    for at in (common, os.path.join(common, b"logs")):
        for name in (b"", *os.fsencode(pin_name(session, base)).split(b"/")):
            at = os.path.join(at, name) if name else at
            if at != common and os.path.islink(at):
                return at
    return b""


def read_settings(source: UserRepository, directory: bytes, read: ReadFile) -> RepositorySettings:
    """The settings in the repository's own files; ``read`` reads them, and Git parses its configuration, in
    ``directory``. Included files are not read. Raises `StorageError` for an invalid configuration, and the errors of
    ``read``.
    """
    listed = _listed(os.path.join(source.common, b"config"), directory, read)
    if _is_true(listed.get("extensions.worktreeconfig")):
        listed |= _listed(os.path.join(source.own, b"config.worktree"), directory, read)
    core = {key: value for key in _CONTENT_KEYS if _PLAIN.match(value := listed.get(f"core.{key}", ""))}
    for key in _FILE_KEYS:
        path = os.path.expanduser(listed.get(f"core.{key}", ""))
        if os.path.isabs(path) and os.path.isfile(path):
            core[key] = path
    return RepositorySettings(
        core=core,
        filters={
            key: value
            for key, value in listed.items()
            if key.startswith("filter.") and key.count(".") > 1 and key.rpartition(".")[2] in _FILTER_KEYS
        },
        identity={key: listed[key] for key in ("user.name", "user.email") if key in listed},
        sparse=_is_true(listed.get("core.sparsecheckout")),
        cone=_is_true(listed.get("core.sparsecheckoutcone")),
        partial="extensions.partialclone" in listed
        or any(key.startswith("remote.") and key.endswith(".promisor") for key in listed),
        object_format="sha256" if listed.get("extensions.objectformat", "").lower() == "sha256" else "sha1",
        rules={name: read(os.path.join(source.common, b"info", name), _MAX_RULES) or b"" for name in _RULES},
        patterns=read(os.path.join(source.own, b"info/sparse-checkout"), _MAX_RULES),
        shallow=read(os.path.join(source.common, b"shallow"), _MAX_SHALLOW) or b"",
    )


def included_for(source: UserRepository, directory: bytes) -> list[str]:
    """The files that the user's own configuration includes only for this repository (``includeIf``), in the order of
    their inclusion. Raises `StorageError`.
    """
    nowhere = Git(directory, git_dir=_NOWHERE, seconds=QUICK_SECONDS)
    everywhere = _origins(nowhere)
    found: list[str] = []
    for origin in _origins(Git(source.work_tree or source.own, git_dir=source.own, seconds=QUICK_SECONDS)):
        # A file that an earlier one of them includes comes with that one, in its place.
        if origin not in everywhere and not any(origin in _parts(nowhere, os.fsencode(each)) for each in found):
            found.append(origin)
    return found


def _origins(git: Git) -> dict[str, None]:
    """The files of the user's own configuration for ``git``'s directory, in order. (Those of a repository's own
    configuration are listed as well, and left out.)
    """
    fields = git.fields("config", "--includes", "-z", "--show-scope", "--show-origin", "--name-only", "--list")
    triples = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
    return {_path_of(origin): None for scope, origin, _ in triples if scope in _THE_USERS_OWN}


def _parts(git: Git, path: bytes) -> set[str]:
    """A configuration file, and those that it includes."""
    listed = git.fields("config", "--file", path, "--includes", "-z", "--show-origin", "--name-only", "--list")
    return {_path_of(origin) for origin in listed[::2]}


def _path_of(origin: bytes) -> str:
    return os.fsdecode(origin.removeprefix(b"file:"))


def _listed(path: bytes, directory: bytes, read: ReadFile) -> dict[str, str]:
    """Every key of a configuration file with its last value; a key alone is true."""
    text = read(path, _MAX_CONFIG + 1) or b""
    if len(text) > _MAX_CONFIG:
        raise StorageError(f"{display(path)} is longer than {_MAX_CONFIG} bytes", code="git_failed")
    try:
        return dict(_variables(text, directory)) if text else {}
    except StorageError as error:
        raise StorageError(f"{display(path)} is no configuration: {error.message}", code=error.code) from error


def _variables(text: bytes, directory: bytes) -> Iterator[tuple[str, str]]:
    """Every key of a configuration with its value. (Git gets the text, not a path, which might be another file by then,
    or a pipe.)
    """
    git = Git(directory, seconds=QUICK_SECONDS)
    words = ("config", "--file", "-", "--no-includes", "-z", "--list")
    for item in git.fields(*words, stdin=text, limit=4 * _MAX_CONFIG):
        key, separator, value = item.partition(b"\n")
        yield os.fsdecode(key), os.fsdecode(value) if separator else "true"


def _is_true(value: str | None) -> bool:
    return value is not None and value.lower() in ("true", "yes", "on", "1")

"""The shadow: a bare repository in the home with an object store of its own, which borrows from the user's.

Every command that reads files runs in it, so that its configuration applies, which is written here: the user's
repository's settings for content, and its filters if they are trusted.
"""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux.regular_file import read_regular
from holdfast.model.errors import RefusedError
from holdfast.snapshot.git._alternates import alternate
from holdfast.snapshot.git._command import LONG_SECONDS, QUICK_SECONDS, Git
from holdfast.snapshot.git._loose_objects import names_in
from holdfast.snapshot.git.fork_objects import OBJECTS
from holdfast.snapshot.private_directories import make_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.snapshot.git._user_repository import RepositorySettings


def shadow_name(object_format: str) -> str:
    """The name, in the state directory, of the shadow of a repository with such object names."""
    return f"shadow-{object_format}.git"


class ShadowRepository:
    """The shadow at a path; `prepare` makes it, and makes it follow the user's repository."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.objects = os.path.join(path, b"objects")

    def git(
        self,
        *,
        work_tree: bytes | None = None,
        index: bytes | None = None,
        borrows: bytes | None = None,
        seconds: float = LONG_SECONDS,
    ) -> Git:
        """Git in the shadow, and in ``work_tree``'s directory if there is one; it also reads objects from the directory
        ``borrows``.
        """
        directory = work_tree or self.path
        return Git(
            directory,
            git_dir=self.path,
            work_tree=work_tree,
            index=index,
            borrows=None if borrows is None else alternate(borrows, b":"),
            seconds=seconds,
        )

    def filters(self) -> set[str]:
        """The names of the filters that run in it: those with a command."""
        return filters_run_by(self.git(seconds=QUICK_SECONDS))

    def exists(self) -> bool:
        """Whether there is one."""
        return os.path.isdir(self.path)

    def prepare(
        self, settings: RepositorySettings, stores: Sequence[bytes], *, kept: bytes, trust_filters: bool
    ) -> None:
        """Make or update a shadow that borrows from the directories ``stores``, all those with objects of the user's
        repository, and from the objects ``kept`` for forks, if any, and that captures files as that repository does.
        The shared lock is held; atomic. Raises `StorageError`, `OSError`.
        """
        borrowed = [*stores, *([kept] if os.path.isdir(kept) else [])]
        if not self.exists():
            self._make(settings.object_format)
        files = {
            b"config": _config_text(settings, trust_filters=trust_filters),
            b"objects/info/alternates": b"".join(alternate(path) + b"\n" for path in borrowed),
        }
        files |= {b"info/" + name: text for name, text in settings.rules.items()}
        for name, text in files.items():
            self._write(name, text)

    def _make(self, object_format: str) -> None:
        fresh = self.path + b".new"
        remove_whole(fresh)
        make_private(os.path.dirname(fresh))
        git = Git(os.path.dirname(fresh), seconds=QUICK_SECONDS)
        git("init", "--quiet", "--bare", "--template=", f"--object-format={object_format}", fresh)
        os.chmod(fresh, 0o700)
        for name in (b"info", b"objects/info"):
            os.makedirs(os.path.join(fresh, name), exist_ok=True)
        with open(os.path.join(fresh, b"config.worktree"), "wb") as file:
            file.write(b"[core]\n\tbare = true\n")
        os.rename(fresh, self.path)

    def _write(self, name: bytes, text: bytes) -> None:
        path = os.path.join(self.path, name)
        if read_regular(path, len(text) + 1) == text:
            return
        with open(path + b".new", "wb") as file:
            file.write(text)
        os.rename(path + b".new", path)

    def keep(self, git: Git, names: Iterable[str], *, promised: bool, only: bytes | None) -> None:
        """Copy these objects to the shadow's own store, durably: they stay, whatever the user's gc does. They come from
        the directory ``only`` alone, if given: Git itself follows every store that the user's borrows from now.

        ``promised``: the user's repository is a partial clone; objects that it has never fetched are neither available
        nor lost. Raises `StorageError` if another one is missing, `RefusedError` (``git_objects``) if it is not in
        ``only``.
        """
        own = _OwnObjects(self.objects)
        borrowed = [name for name in names if not own.holds(name)]
        if borrowed and promised:
            lines = git("cat-file", "--batch-check", stdin="\n".join(borrowed).encode() + b"\n").decode().splitlines()
            borrowed = [line.partition(" ")[0] for line in lines if not line.endswith(" missing")]
        if borrowed and only is not None:
            held = Git(self.path, git_dir=self.path, objects=only)
            if b" missing" in held("cat-file", "--batch-check", stdin="\n".join(borrowed).encode() + b"\n"):
                raise RefusedError(
                    "objects have come to the repository, or to what it borrows from, while it was captured",
                    hint="try again when nothing is added or committed there; or use another provider of snapshots",
                    code=OBJECTS,
                )
        if borrowed:
            pack = os.path.join(self.objects, b"pack/pack")
            git("pack-objects", "--quiet", pack, stdin="\n".join(borrowed).encode() + b"\n")


def filters_run_by(git: Git) -> set[str]:
    """The names of the filters that have a command where ``git`` works. Raises `StorageError`."""
    words = ("config", "-z", "--get-regexp", r"^filter\..*\.(clean|smudge|process)$")
    listed = git(*words, allowed=(0, 1)).split(b"\0")[:-1]
    keys = (os.fsdecode(item.partition(b"\n")[0]) for item in listed)
    return {key.partition(".")[2].rpartition(".")[0] for key in keys}


class _OwnObjects:
    """The objects of a store itself, without those that it borrows: no command of Git lists them."""

    def __init__(self, objects: bytes) -> None:
        self._objects = objects
        self._packed: set[str] | None = None

    def holds(self, name: str) -> bool:
        """Whether the object exists, loose or in a pack."""
        if os.path.lexists(os.path.join(self._objects, name[:2].encode(), name[2:].encode())):
            return True
        if self._packed is None:
            self._packed = set()
            folder = os.path.join(self._objects, b"pack")
            for index in os.listdir(folder) if os.path.isdir(folder) else ():
                if index.endswith(b".idx"):
                    self._packed |= names_in(os.path.join(folder, index), len(name))
        return name in self._packed


def _config_text(settings: RepositorySettings, *, trust_filters: bool) -> bytes:
    """The shadow's configuration, for the same settings always the same."""
    values = {
        "extensions.worktreeconfig": "true",
        "core.logallrefupdates": "false",
        "receive.denycurrentbranch": "ignore",
    }
    return _text(settings.included, values | _content_values(settings, trust_filters=trust_filters))


def own_config_text(
    settings: RepositorySettings, more: Mapping[str, str] = MappingProxyType({}), *, trust_filters: bool
) -> bytes:
    """The configuration of a repository that captures and writes out files as the shadow does, with ``more`` in it."""
    values = {"core.bare": "false", **more} | _content_values(settings, trust_filters=trust_filters)
    return _text(settings.included, values)


def _content_values(settings: RepositorySettings, *, trust_filters: bool) -> dict[str, str]:
    values: dict[str, str] = {
        "core.repositoryformatversion": "1",
        "gc.auto": "0",
        "maintenance.auto": "false",
        **{f"core.{key}": value for key, value in settings.core.items()},
        **settings.identity,
    }
    if settings.object_format != "sha1":
        values["extensions.objectformat"] = settings.object_format
    if settings.sparse:
        values["core.sparsecheckout"] = "true"
        values["core.sparsecheckoutcone"] = "true" if settings.cone else "false"
    if trust_filters:
        values |= settings.filters
    else:  # so Git itself, in our work trees as well, takes in and writes out nothing that such a filter is missing for
        values |= {f"filter.{name}.required": "true" for name in settings.required}
    return values


def _text(included: Iterable[str], values: Mapping[str, str]) -> bytes:
    """Included files come first, as the user's own configuration comes before a repository's."""
    return b"".join(
        config_section(*each) for each in [*(("include.path", path) for path in included), *sorted(values.items())]
    )


def config_section(name: str, value: str) -> bytes:
    """One variable of a configuration file, in a section of its own. Source: git-config(1), on syntax."""
    section, _, rest = name.partition(".")
    inner, _, key = rest.rpartition(".")
    head = f'[{section} "{_escaped(inner)}"]' if inner else f"[{section}]"
    text = _escaped(value).replace("\n", "\\n").replace("\t", "\\t").replace("\b", "\\b")
    return os.fsencode(f'{head}\n\t{key} = "{text}"\n')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def same_sparsity(own: bytes, settings: RepositorySettings) -> None:
    """Have the work tree whose Git directory is ``own`` hold the files that the user's sparse checkout does. Raises
    `OSError`.
    """
    if not settings.sparse:
        return
    os.makedirs(os.path.join(own, b"info"), exist_ok=True)
    with open(os.path.join(own, b"info/sparse-checkout"), "wb") as file:
        file.write(settings.patterns or b"/*\n")

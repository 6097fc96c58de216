"""The changes that configure a client, or reverse that, for the present files; and carrying them out.

All changes are planned before the first one, so that an impossible one stops all. The content before our first change
is kept in the home until the file is the same again, to the byte. The absence of a file is recorded, too: otherwise a
person's own entries that call us would count as ours.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.integrations import _config_entries as config_entries
from holdfast.engine.integrations import _config_files as config_files
from holdfast.engine.integrations.hook_call import find_client
from holdfast.engine.opening.home import default_home, make_private
from holdfast.files.write.rooted_access import Root, open_root
from holdfast.model.errors import FormatError, HoldfastError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.integrations._config_files import ConfigFile
    from holdfast.engine.integrations.client import Client, ClientTarget, File

KEPT = b"integrations"
"""The directory in the home that holds what files were before us, by a hash of their path."""

_ABSENT = b".absent"
"""Suffix of a backup that stands for a missing file."""

_BY_HAND = b".by-hand"
"""Suffix of a backup of a file before our entries were removed, if it was not as we had made it: additions of others to
our entries are removed with them.
"""


class FileChange(NamedTuple):
    """The change of one file."""

    found: ConfigFile
    after: bytes | None
    """The new content; None: delete the file."""
    kept: bytes
    """The path of the backup of its present content."""
    keeps: bool
    """True if the backup must stay: the file has another program's entries that no other copy has."""
    spent: bytes | None = None
    """The path of the backup of its original content, which is no longer needed: the file is the same again."""

    @property
    def is_none(self) -> bool:
        """True if it is so already."""
        return self.found.content == self.after


class ConfigPlan(NamedTuple):
    """The changes, file by file."""

    client: Client
    changes: Sequence[FileChange]
    """Changes of files that need one."""
    root: bytes
    """The real path of the place that it is about."""
    remove: bool


def plan(name: str, place: ClientTarget, *, home: bytes | None = None, remove: bool = False) -> ConfigPlan:
    """Plan the configuration of a client, or (``remove``) its reversal. Changes nothing.

    Raises `RefusedError` if a file is malformed, or cannot be changed without harm; its hint shows the required entry.
    """
    about = find_client(name)
    folder = os.path.join(os.path.abspath(home) if home is not None else default_home(place.environ), KEPT)
    root = os.path.realpath(os.fsencode(place.root))
    changes = [_change(about, file, place, folder, remove=remove) for file in about.files(place)]
    return ConfigPlan(about, [change for change in changes if change is not None and not change.is_none], root, remove)


def carry_out(plan: ConfigPlan) -> None:
    """Carry out the plan, file by file. Raises `RefusedError` if a file has changed since the plan; the error names the
    finished files, which a repeated command skips.
    """
    done: list[str] = []
    for change in plan.changes:
        try:
            if change.keeps:
                _keep(change)
            config_files.replace_file(change.found, change.after)
            if change.spent is not None:
                config_files.delete_file(change.spent)
                config_files.delete_file(change.spent + _ABSENT)
            if plan.remove:
                _clear(os.path.dirname(change.found.path), plan.root)
        except HoldfastError as error:
            error.message += f"; done already: {', '.join(done)}" if done else ""
            raise
        done.append(display(change.found.path))


def _change(about: Client, file: File, place: ClientTarget, folder: bytes, *, remove: bool) -> FileChange | None:
    found = config_files.read_file(file.path, beneath=place.root if place.scope == "project" else None)
    kept = os.path.join(folder, hash_bytes(found.path).hex().encode() + b"-" + os.path.basename(found.path))
    try:
        text = None if found.content is None else _decoded(found.content)
        is_there = text is not None and config_entries.has_entries(about.name, file, text)
        is_known = os.path.lexists(kept) or os.path.lexists(kept + _ABSENT)
        if not remove:
            after = config_entries.add_entries(about.name, file, text)
            return FileChange(found, after.encode(), kept, not is_there or not is_known)
        if text is None or not is_there:
            return None
        copy = config_files.read_file(os.fsdecode(kept)).content if is_known else None
        before = None if copy is None else _decoded(copy)
        taken_out = config_entries.remove_entries(about.name, file, text, before)
        after = None if taken_out is None else taken_out.encode()
        keeps = not is_known or not config_entries.is_unchanged(about.name, file, text, before)
        return FileChange(found, after, kept + _BY_HAND, keeps, kept if is_known and after == copy else None)
    except (FormatError, RefusedError) as error:
        hint = None if remove else config_entries.manual_steps(file)
        code = "malformed" if isinstance(error, FormatError) else error.code
        raise RefusedError(f"{display(found.path)}: {error.message}", hint=hint, code=code) from error


def _clear(folder: bytes, root: bytes) -> None:
    """Remove directories that are empty without our file, up to the root, but none reached by a link."""
    if not folder.startswith(root + b"/"):
        return
    at = folder[len(root) + 1 :]
    try:
        with Root(open_root(root)) as tree:
            while at and tree.rmdir(at):
                at = at.rpartition(b"/")[0]
    except (OSError, HoldfastError):
        return  # the file is done, and an empty directory is harmless


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"byte {error.start} is not UTF-8") from error


def _keep(change: FileChange) -> None:
    folder = os.path.dirname(change.kept)
    make_private(os.path.dirname(folder))
    make_private(folder)
    absent = change.kept + _ABSENT
    copy, other = (absent, change.kept) if change.found.content is None else (change.kept, absent)
    config_files.replace_file(config_files.read_file(os.fsdecode(copy)), change.found.content or b"")
    os.chmod(copy, 0o600)
    config_files.delete_file(other)

"""What configuring a client, or taking that back, comes to for the files that are there; and doing it.

Everything is worked out before anything is written, so that what cannot be done stops all of it. What a file was before
our first change is kept in the home until the file is that again, to the byte: also that there was none, or what a
person has written by hand to call us would be taken for what we have written.
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
"""What the name of a copy ends with that stands for no file."""

_BY_HAND = b".by-hand"
"""What the name of a copy ends with of a file as it was when our entries were taken out of it, if it was not as we had
made it: what others have put into an entry of ours went with that.
"""


class FileChange(NamedTuple):
    """What is to become of one file."""

    found: ConfigFile
    after: bytes | None
    """What it is to hold; None if it is to be gone."""
    kept: bytes
    """Where what it holds now is kept, or would be."""
    keeps: bool
    """True if that is to be kept: another program has written of it what is in no other copy."""
    spent: bytes | None = None
    """Where the copy is, of what it was before us, that is needed no longer: the file is that again."""

    @property
    def is_none(self) -> bool:
        """True if it is so already."""
        return self.found.content == self.after


class ConfigPlan(NamedTuple):
    """What is to be done, file by file."""

    client: Client
    changes: Sequence[FileChange]
    """Those of files that need one."""
    root: bytes
    """The real path of the place that it is about."""
    remove: bool


def plan(name: str, place: ClientTarget, *, home: bytes | None = None, remove: bool = False) -> ConfigPlan:
    """Work out what configuring a client means, or (``remove``) taking it back. Changes nothing.

    Raises `RefusedError` if a file is malformed, or cannot be changed without harm; its hint says what belongs there.
    """
    about = find_client(name)
    folder = os.path.join(os.path.abspath(home) if home is not None else default_home(place.environ), KEPT)
    root = os.path.realpath(os.fsencode(place.root))
    changes = [_change(about, file, place, folder, remove=remove) for file in about.files(place)]
    return ConfigPlan(about, [change for change in changes if change is not None and not change.is_none], root, remove)


def carry_out(plan: ConfigPlan) -> None:
    """Do it, file by file. Raises `RefusedError` if one has changed since it was looked at; it names those that are
    done, which the same command, done again, leaves as they are.
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
    """Remove the directories that are empty without our file, up to the root, and none that a link leads to."""
    if not folder.startswith(root + b"/"):
        return
    at = folder[len(root) + 1 :]
    try:
        with Root(open_root(root)) as tree:
            while at and tree.rmdir(at):
                at = at.rpartition(b"/")[0]
    except (OSError, HoldfastError):
        return  # what it was about is done; an empty directory does no harm


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

"""The tree compared with its last checkpoint, and its uncaptured paths; nothing is stored."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from holdfast.engine.opening.context import SavedState, saved_state
from holdfast.engine.opening.home import CREDENTIALS_REPORTED
from holdfast.engine.opening.opener import MAX_WORKSPACE_FILE_BYTES, WORKSPACE_FILE
from holdfast.engine.opening.operation_journal import read_operation
from holdfast.files.git.configuration import MAX_RULES_BYTES
from holdfast.files.ignore.rules import CHECKPOINTIGNORE, GITIGNORE, rules_excluding
from holdfast.files.ignore.sqlite_files import database_of
from holdfast.files.note_file import NoteFile
from holdfast.files.scan.secret_files import CREDENTIALS
from holdfast.files.tree import ROOT_GONE, ScanResult
from holdfast.files.write.rooted_access import Root
from holdfast.model.command_results import Status
from holdfast.model.content import HashSink
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.message_text import named_steps
from holdfast.store.catalog_records import last_seen_path
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.files.ignore.rules import DirectoryRules
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change, NotCaptured
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.manifests.manifest import PageSource

_LOG = Log(__name__)


class TreeState(NamedTuple):
    """The tree's state as a manifest of which only the new pages are in memory."""

    head: Checkpoint | None
    root: Hash
    pages: PageSource
    """Reads stored pages and the new ones alike."""
    files: int
    not_captured: Sequence[NotCaptured]
    new_pages: Mapping[Hash, bytes]
    """Pages that are not stored."""

    def changes(self) -> list[Change]:
        """The changes since the last checkpoint (without one, since the empty tree)."""
        return manifest.diff(self.pages, None if self.head is None else self.head.root, self.root)


def scan_tree(context: Context, *, gone_is_empty: bool = False) -> TreeState:
    """Look at the tree. Needs the lock, since the tree's index has one user at a time.

    Raises `NotFoundError` if its directory is gone; with ``gone_is_empty`` that is a tree without any file.
    """
    catalog = context.catalog
    head_id = catalog.cursor(context.workspace.id).head
    head = None if head_id is None else catalog.checkpoint(head_id)
    try:
        scan = context.tree.scan(HashSink(), base=None if head is None else head.root, saved=saved_state(context, head))
    except NotFoundError as error:
        if not gone_is_empty or error.code != ROOT_GONE:
            raise
        scan = ScanResult(None, {}, [], 0)
    scan, hidden = with_hidden_files(context, head, scan)
    if head is not None and scan.base is not None:
        if not scan.changes:
            if not hidden:
                context.tree.settle(head.root)
            return TreeState(head, head.root, context.store.pages, head.total_files, scan.not_captured, {})
        built = manifest.update(context.store.pages, head.root, scan.changes)
    else:
        built = manifest.build((path, entry) for path, entry in sorted(scan.changes.items()) if entry is not None)
    pages = context.store.pages_with(built.new_pages)
    return TreeState(head, built.root, pages, built.files, scan.not_captured, built.new_pages)


def with_hidden_files(context: Context, head: Checkpoint | None, scan: ScanResult) -> tuple[ScanResult, bool]:
    """``scan`` with files added that the state ``head`` holds although its own rules ignore them, with their saved
    entries; and whether there are any.

    Such a state comes from another workspace. These files belong to it: an undo that did not know them would leave
    them, and the rules with them.
    """
    if head is None:
        return scan, False
    if scan.base is not None:
        gone = [path for path, entry in scan.changes.items() if entry is None]
    else:
        gone = [path for path, _ in manifest.iterate(context.store.pages, head.root) if path not in scan.changes]
    if not gone:
        return scan, False
    try:
        left = files_on_disk(context.workspace.path, sorted(gone))
    except (NotFoundError, StorageError):
        return scan, False
    hidden = ignored_paths(context, head.root, left) if left else set[bytes]()
    # A log follows its database, whatever the rules say.
    hidden = {path for path in hidden if (database_of(path) or path) in hidden}
    if not hidden:
        return scan, False
    entries = manifest.get_many(context.store.pages, head.root, sorted(hidden))
    changes = {path: entry for path, entry in scan.changes.items() if path not in hidden}
    return scan._replace(changes=changes if scan.base is not None else {**changes, **entries}), True


def status(context: Context, *, watching: bool) -> Status:
    """The differences between the tree and its checkpoint. Changes nothing."""
    with context.lock():
        now = scan_tree(context)
        unfinished = read_operation(context.folder)
        if unfinished is not None and unfinished.steps:
            _LOG.warning(
                "the %s of %s was cut short: the next command that changes anything finishes it first",
                unfinished.kind,
                named_steps(unfinished.steps),
            )
        return Status(
            workspace=context.workspace.path,
            last_checkpoint=now.head,
            changes=now.changes(),
            not_captured=now.not_captured,
            watching=watching,
            unfinished_restore=None if unfinished is None else unfinished.target or None,
        )


# The rule files in a saved state: needed when a restore changes rules and ignored files appear.

_RULE_FILES = (GITIGNORE, CHECKPOINTIGNORE)


def changes_ignore_rules(changes: Iterable[Change]) -> bool:
    """True if any of ``changes`` is about a rule file: what a workspace's own settings leave out is ignored, too."""
    return any(change.path == WORKSPACE_FILE or change.path.rpartition(b"/")[2] in _RULE_FILES for change in changes)


def saved_exclude(context: Context, root: Hash) -> tuple[str, ...]:
    """The patterns of ``capture.exclude`` in the workspace's settings in the stored manifest ``root``, even if other
    settings there are wrong.
    """
    content = SavedState(context, root).read(WORKSPACE_FILE, MAX_WORKSPACE_FILE_BYTES + 1)
    if not content or len(content) > MAX_WORKSPACE_FILE_BYTES:
        return ()
    import tomllib

    from holdfast.model.config.values import parse_value

    try:
        return parse_value("capture.exclude", tomllib.loads(content.decode())["capture"]["exclude"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return ()


def ignored_paths(context: Context, root: Hash, paths: Iterable[bytes]) -> set[bytes]:
    """Those of ``paths`` that the rule files in the stored manifest ``root`` exclude.

    Rules outside the tree do not count: no restore changes them.
    """
    rules = _SavedRules(context, root)
    return {path for path in paths if rules.excluded(path)}


class _SavedRules:
    def __init__(self, context: Context, root: Hash) -> None:
        self._saved = SavedState(context, root)
        self._above = rules_excluding(saved_exclude(context, root))
        self._known: dict[bytes, DirectoryRules] = {}
        self._excluded: dict[bytes, bool] = {b"": False}

    def excluded(self, path: bytes) -> bool:
        parent, _, name = path.rpartition(b"/")
        return self._directory(parent) or self._in(parent).excluded(path, name, False)

    def _directory(self, path: bytes) -> bool:
        known = self._excluded.get(path)
        if known is None:
            parent, _, name = path.rpartition(b"/")
            known = self._excluded[path] = self._directory(parent) or self._in(parent).excluded(path, name, True)
        return known

    def _in(self, directory: bytes) -> DirectoryRules:
        known = self._known.get(directory)
        if known is None:
            gitignore, own = (self._read(directory, name) for name in _RULE_FILES)
            if directory:
                known = self._in(directory.rpartition(b"/")[0]).below(directory, gitignore, own)
            else:
                known = self._above.at_root(gitignore, own)
            self._known[directory] = known
        return known

    def _read(self, directory: bytes, name: bytes) -> bytes | None:
        return self._saved.read(directory + b"/" + name if directory else name, MAX_RULES_BYTES + 1)


# Files that a line of work has not deleted, although its later states lack them: it stopped capturing them.
#
# A file that a user begins to ignore, or that grows beyond `capture.max_file_bytes`, is missing in later states as if
# it were deleted. But it still exists, so a merge of this line must not delete it elsewhere.


def only_uncaptured_paths(context: Context, state: CheckpointId, changes: Sequence[Change]) -> frozenset[bytes]:
    """The paths that ``changes``, which lead to ``state``, seem to delete, but that were not deleted.

    If the state's directory exists, it decides: a path that still has a file or link, or that the state lists as not
    captured, was not deleted. If the directory has changed since the state, only paths that the state's own rules
    ignore are checked. Without the directory, the rules and the list alone decide: paths that they name do not count as
    deleted.
    """
    gone = [change.path for change in changes if change.after is None]
    if not gone:
        return frozenset()
    catalog = context.catalog
    checkpoint = catalog.checkpoint(state)
    standing = catalog.cursor(checkpoint.workspace).head == state
    missed = {path for path, _ in catalog.not_captured(state)}.intersection(gone)
    ignored = ignored_paths(context, checkpoint.root, gone) if changes_ignore_rules(changes) else set[bytes]()
    if not ignored and not standing:
        return frozenset(missed)
    try:
        owner = catalog.workspace(checkpoint.workspace)
        path = last_seen_path(owner.path)
        about = os.lstat(path)
        # A mounted fork, as of a session, has another device or inode each time.
        if (about.st_dev, about.st_ino) != (owner.device, owner.inode) and not os.path.ismount(path):
            return frozenset(ignored | missed)
        if standing:
            return files_on_disk(path, gone, whatever=missed)
        return files_on_disk(path, sorted(ignored)) | missed
    except (OSError, NotFoundError, StorageError):
        return frozenset(ignored | missed)


def only_in_directory(there: bytes, here: bytes | None, missed: Iterable[NotCaptured]) -> list[NotCaptured]:
    """Those of ``missed``, which no checkpoint holds, that exist in the directory ``there`` and not in ``here`` (None:
    nothing to compare with).

    A file of the same type, size and time in both existed before ``there`` was made from ``here``. A file that cannot
    be examined counts as existing only there.
    """
    return [
        one
        for one in missed
        if _is_only_in(os.path.join(there, one.path), None if here is None else os.path.join(here, one.path))
    ]


def _is_only_in(there: bytes, here: bytes | None) -> bool:
    try:
        mine = os.lstat(there)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    if here is None:
        return True
    try:
        other = os.lstat(here)
    except OSError:
        return True
    kind = stat.S_IFMT(mine.st_mode)
    if stat.S_ISDIR(mine.st_mode) or kind != stat.S_IFMT(other.st_mode):
        return True
    return (mine.st_size, mine.st_mtime_ns) != (other.st_size, other.st_mtime_ns)


def files_on_disk(directory: bytes, paths: Sequence[bytes], *, whatever: Container[bytes] = ()) -> frozenset[bytes]:
    """Those of ``paths`` that are files or links in ``directory``, or of any type if they are in ``whatever``.

    No link is followed on the way.

    Raises `StorageError` or `NotFoundError` if the directory cannot be opened.
    """
    found: set[bytes] = set()
    with Root(directory) as root:
        for path in paths:
            try:
                mode = root.lstat(path).st_mode
            except (NotFoundError, EscapeError, StorageError):
                continue
            if stat.S_ISREG(mode) or stat.S_ISLNK(mode) or path in whatever:
                found.add(path)
    return frozenset(found)


# Credential files that were reported as not captured: each is reported once, not with every status.
#
# The file is specified in ``docs/formats/told.md``.

_FILE = NoteFile(
    name=CREDENTIALS_REPORTED,
    magic=b"HFTD 1 ",
    what="a note of shown messages",
    max_bytes=1 << 20,
    advice="it is not needed",
)


def without_reported(folder: bytes, missed: Sequence[NotCaptured]) -> list[NotCaptured]:
    """Those of ``missed`` that were not reported before; only credential files are reported once. Losing the note is
    harmless: they are reported again.
    """
    credentials = {path for path, reason in missed if reason == CREDENTIALS}
    if not credentials:
        return list(missed)
    told: set[bytes] = set()
    with suppress(HoldfastError):
        told.update((_FILE.read(folder) or b"").split(b"\0"))
    if not credentials <= told:
        with suppress(HoldfastError):
            _FILE.write(folder, b"\0".join(sorted(credentials)))
    return [one for one in missed if one.path not in credentials & told]

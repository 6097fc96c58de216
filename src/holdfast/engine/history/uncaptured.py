"""What a line of work has not deleted, though its states lack it: what it only captures no more.

A file that somebody begins to ignore is in no later state, as if it were deleted; so is one that has grown beyond
`capture.max_file_bytes`. It is there all the same, so that nobody who brings this line of work elsewhere would expect
it to be deleted there.
"""

from __future__ import annotations

import os
import stat

from holdfast.engine.history.saved_rules import left_out, touches_rules
from holdfast.files.rooted import Root
from holdfast.model.errors import EscapeError, NotFoundError, StorageError
from holdfast.model.typed import TYPE_CHECKING
from holdfast.store.records import seen_at

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Change, NotCaptured
    from holdfast.model.ids import CheckpointId


def only_uncaptured(context: Context, state: CheckpointId, changes: Sequence[Change]) -> frozenset[bytes]:
    """The paths that ``changes``, which lead to ``state``, seem to delete, and which nobody has deleted.

    The disk tells, where the directory that this is a state of is there: what is a file or a link in it still, was not
    deleted; nor was what the state says that it does not capture, whatever it is. Once it has gone on from the state,
    only what the state's own rules leave out is looked for. Without the directory those rules, and what the state says,
    alone tell: what they leave out is not taken for deleted.
    """
    gone = [change.path for change in changes if change.after is None]
    if not gone:
        return frozenset()
    catalog = context.catalog
    checkpoint = catalog.checkpoint(state)
    standing = catalog.cursor(checkpoint.workspace).head == state
    missed = {path for path, _ in catalog.not_captured(state)}.intersection(gone)
    ignored = left_out(context, checkpoint.root, gone) if touches_rules(changes) else set[bytes]()
    if not ignored and not standing:
        return frozenset(missed)
    try:
        owner = catalog.workspace(checkpoint.workspace)
        path = seen_at(owner.path)
        about = os.lstat(path)
        # (A fork that is mounted, as those of sessions may be, is another directory each time.)
        if (about.st_dev, about.st_ino) != (owner.device, owner.inode) and not os.path.ismount(path):
            return frozenset(ignored | missed)
        if standing:
            return on_disk(path, gone, whatever=missed)
        return on_disk(path, sorted(ignored)) | missed
    except (OSError, NotFoundError, StorageError):
        return frozenset(ignored | missed)


def only_there(there: bytes, here: bytes | None, missed: Iterable[NotCaptured]) -> list[NotCaptured]:
    """Those of ``missed``, which no checkpoint holds, that the directory ``there`` has and ``here`` has not.

    (None: there is nothing to compare with.)

    What is of the same kind, size and time in both was there when ``there`` was made of ``here``. Whatever cannot be
    looked at is taken for something that is only there.
    """
    return [
        one
        for one in missed
        if _only_there(os.path.join(there, one.path), None if here is None else os.path.join(here, one.path))
    ]


def _only_there(there: bytes, here: bytes | None) -> bool:
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


def on_disk(directory: bytes, paths: Sequence[bytes], *, whatever: Container[bytes] = ()) -> frozenset[bytes]:
    """Those of ``paths`` that are files or links in ``directory``, and those in ``whatever`` that are anything there.

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

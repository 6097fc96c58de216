"""The HEAD of the repository around a workspace at each saved state.

A restore changes files but never `.git` (I14, I15), so it warns about commits that stay. Where the HEAD is unknown or
cannot be recorded, there is no warning. The format is specified in ``docs/formats/git-heads.md``.
"""

from __future__ import annotations

from holdfast.engine.opening.home import GIT_HEADS
from holdfast.files.git.configuration import find_repository
from holdfast.files.linux.regular_file import read_bounded
from holdfast.files.note_file import NoteFile
from holdfast.model.command_results import beginnings
from holdfast.model.errors import FormatError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.message_text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint

_LOG = Log(__name__)

_HEADS_FILE = NoteFile(
    name=GIT_HEADS,
    magic=b"HFGH 1 ",
    what="a list of heads of Git",
    max_bytes=1 << 20,
    advice="undo and restore do not mention later commits",
)
_MAX_HEADS = 1000
_MAX_REF = 512
_MAX_PACKED = 32 << 20
_BRANCHES = b"refs/heads/"
_DIGITS = frozenset(b"0123456789abcdef")
_COMMIT_DIGITS = (40, 64)
_NOT_IN_NAMES = frozenset((*range(0x21), 0x7F))
_DETACHED = b"-"
_SHOWN_DIGITS = 12


class _NotedHead(NamedTuple):
    checkpoint: bytes
    """The state that the tree was in."""
    at: int
    """When this was noted, in microseconds since 1970."""
    ref: bytes
    commit: bytes
    event: int | None
    """The newest event in the history then."""


def record_git_head(context: Context, checkpoint: Checkpoint) -> None:
    """Record the present HEAD for ``checkpoint``, the tree's state, unless it is recorded already. Needs the lock."""
    now = read_head(context.workspace.path)
    if now is None:
        return
    known = _read_heads(context)
    then = _head_of(context, known, checkpoint)
    if then is not None and now == (then.ref, then.commit):
        return
    newest = context.catalog.events(context.workspace.id, limit=1)
    event = newest[0].seq if newest else 0
    lines = [*known[-(_MAX_HEADS - 1) :], _NotedHead(checkpoint.id.encode(), context.clock.now(), *now, event)]
    try:
        _HEADS_FILE.write(context.folder, b"".join(map(_encode, lines)))
    except StorageError as error:
        _LOG.debug("%s", error.message)


def warn_of_commits(context: Context, target: Checkpoint) -> None:
    """Warn about the commit that stays, if HEAD differs from that of ``target``, to which the tree was restored."""
    if target.workspace != context.workspace.id:
        return
    now, then = read_head(context.workspace.path), _head_of(context, _read_heads(context), target)
    if now is None or then is None or now == (then.ref, then.commit):
        return
    ref, commit = now
    before = "" if ref == then.ref else f"{_ref_text(then.ref)} at "
    _LOG.warning(
        "%s stays at %s (it was %s%s when that state was saved): Holdfast brings back files, never commits%s",
        _ref_text(ref),
        commit[:_SHOWN_DIGITS].decode(),
        before,
        then.commit[:_SHOWN_DIGITS].decode(),
        "" if before else f"; `git reset {then.commit[:_SHOWN_DIGITS].decode()}` sets it there, and leaves the files",
    )


def _head_of(context: Context, known: Sequence[_NotedHead], target: Checkpoint) -> _NotedHead | None:
    """The last HEAD while the tree was at the target; None if unknown."""
    wanted = target.id.encode()
    while_it_was = [head for head in known if head.checkpoint == wanted]
    if while_it_was or not known:
        return while_it_was[-1] if while_it_was else None
    newest = context.catalog.checkpoints(context.workspace.id, limit=1)
    if newest and newest[0].id == target.id:
        return known[-1]
    made = beginnings(context.catalog.events(context.workspace.id)).get(target.id)
    # Earlier versions recorded no event, and imported checkpoints have none.
    before = [
        head
        for head in known
        if (head.at <= target.created_at if made is None or head.event is None else head.event < made)
    ]
    return before[-1] if before else None


def _ref_text(ref: bytes) -> str:
    if ref == _DETACHED:
        return "HEAD, which is on no branch,"
    return f"the branch {visible(ref.decode('utf-8', 'replace').removeprefix('refs/heads/'))}"


def read_head(root: bytes) -> tuple[bytes, bytes] | None:
    """The checked-out branch and its commit; None without one, or if it cannot be read."""
    repository = find_repository(root)
    if repository is None:
        return None
    text = (read_bounded(repository.own + b"/HEAD", _MAX_REF) or b"").strip()
    if _is_commit(text):
        return _DETACHED, text
    ref = text.removeprefix(b"ref: ")
    if not ref.startswith(_BRANCHES) or ref == _BRANCHES or b"/../" in ref or not _NOT_IN_NAMES.isdisjoint(ref):
        return None
    commit = (read_bounded(repository.common + b"/" + ref, _MAX_REF) or b"").strip() or _packed_commit(
        repository.common, ref
    )
    return (ref, commit) if _is_commit(commit) else None


def _packed_commit(common: bytes, ref: bytes) -> bytes:
    packed = b"\n%b\n" % (read_bounded(common + b"/packed-refs", _MAX_PACKED) or b"")
    end = -1
    while (end := packed.find(b" %b\n" % ref, end + 1)) >= 0:
        if _is_commit(commit := packed[packed.rfind(b"\n", 0, end) + 1 : end]):
            return commit
    return b""


def _is_commit(text: bytes) -> bool:
    return len(text) in _COMMIT_DIGITS and _DIGITS.issuperset(text)


def _encode(head: _NotedHead) -> bytes:
    words = b"%b %d %b %b" % (head.checkpoint, head.at, head.ref, head.commit)
    return words + (b"\n" if head.event is None else b" %d\n" % head.event)


def _read_heads(context: Context) -> list[_NotedHead]:
    try:
        body = _HEADS_FILE.read(context.folder) or b""
        words = (line.split(b" ") for line in body.splitlines())
        return [
            _NotedHead(checkpoint, int(at), ref, commit, int(event[0]) if event else None)
            for checkpoint, at, ref, commit, *event in words
        ]
    except (FormatError, StorageError, ValueError) as error:
        _LOG.debug("%s", error)
        return []

"""Where HEAD of the repository around a workspace stood when states were saved, so that going back to one can say which
commits stay: files are brought back, and `.git` never is (I14, I15).

It is for a word of warning alone: where it is not known, or cannot be written, nothing is said. The format is specified
in ``docs/formats/git-heads.md``.
"""

from __future__ import annotations

from holdfast.engine.opening.folder import GIT_HEADS
from holdfast.engine.results.results import beginnings
from holdfast.files.gitconfig import find_repository, read_bounded
from holdfast.files.notes import NoteFile
from holdfast.model.errors import FormatError, StorageError
from holdfast.model.log import Log
from holdfast.model.named import NamedTuple
from holdfast.model.typed import TYPE_CHECKING
from holdfast.model.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint

_LOG = Log(__name__)
_FILE = NoteFile(
    name=GIT_HEADS,
    magic=b"HFGH 1 ",
    what="a list of heads of Git",
    max_bytes=1 << 20,
    advice="going back says nothing of commits meanwhile",
)
_MOST = 1000
_MAX_REF = 512
_MAX_PACKED = 32 << 20
_BRANCHES = b"refs/heads/"
_DIGITS = frozenset(b"0123456789abcdef")
_COMMIT_DIGITS = (40, 64)
_NOT_IN_NAMES = frozenset((*range(0x21), 0x7F))
_DETACHED = b"-"
_SHOWN = 12


class _Head(NamedTuple):
    checkpoint: bytes
    """The state that the tree was in."""
    at: int
    """When this was noted, in microseconds since 1970."""
    ref: bytes
    commit: bytes
    event: int | None
    """The newest event in the history then."""


def remember(context: Context, checkpoint: Checkpoint) -> None:
    """Note where HEAD stands, unless that is what is known of ``checkpoint``, which the tree was just saved as, or was
    already. Needs the lock.
    """
    now = _head(context.workspace.path)
    if now is None:
        return
    known = _read(context)
    then = _at(context, known, checkpoint)
    if then is not None and now == (then.ref, then.commit):
        return
    newest = context.catalog.events(context.workspace.id, limit=1)
    event = newest[0].seq if newest else 0
    lines = [*known[-(_MOST - 1) :], _Head(checkpoint.id.encode(), context.clock.now(), *now, event)]
    try:
        _FILE.write(context.folder, b"".join(map(_line, lines)))
    except StorageError as error:
        _LOG.debug("%s", error.message)


def warn_of_commits(context: Context, target: Checkpoint) -> None:
    """Say which commit stays, if HEAD stands elsewhere than when the tree was ``target``, to which it was brought."""
    if target.workspace != context.workspace.id:
        return
    now, then = _head(context.workspace.path), _at(context, _read(context), target)
    if now is None or then is None or now == (then.ref, then.commit):
        return
    ref, commit = now
    before = "" if ref == then.ref else f"{_shown(then.ref)} at "
    _LOG.warning(
        "%s stays at %s (it was %s%s when that state was saved): files were brought back, and commits never are%s",
        _shown(ref),
        commit[:_SHOWN].decode(),
        before,
        then.commit[:_SHOWN].decode(),
        "" if before else f"; `git reset {then.commit[:_SHOWN].decode()}` sets it there, and leaves the files",
    )


def _at(context: Context, known: Sequence[_Head], target: Checkpoint) -> _Head | None:
    """Where HEAD stood last while the tree was the target; None if nobody knows."""
    wanted = target.id.encode()
    while_it_was = [head for head in known if head.checkpoint == wanted]
    if while_it_was or not known:
        return while_it_was[-1] if while_it_was else None
    newest = context.catalog.checkpoints(context.workspace.id, limit=1)
    if newest and newest[0].id == target.id:
        return known[-1]
    made = beginnings(context.catalog.events(context.workspace.id)).get(target.id)
    # (An earlier version has noted no event, and what was imported has none.)
    before = [
        head
        for head in known
        if (head.at <= target.created_at if made is None or head.event is None else head.event < made)
    ]
    return before[-1] if before else None


def _shown(ref: bytes) -> str:
    if ref == _DETACHED:
        return "HEAD, which is on no branch,"
    return f"the branch {visible(ref.decode('utf-8', 'replace').removeprefix('refs/heads/'))}"


def _head(root: bytes) -> tuple[bytes, bytes] | None:
    """The branch that is checked out, and its commit; None where there is none, or it cannot be told."""
    repository = find_repository(root)
    if repository is None:
        return None
    text = (read_bounded(repository.own + b"/HEAD", _MAX_REF) or b"").strip()
    if _is_commit(text):
        return _DETACHED, text
    ref = text.removeprefix(b"ref: ")
    if not ref.startswith(_BRANCHES) or ref == _BRANCHES or b"/../" in ref or not _NOT_IN_NAMES.isdisjoint(ref):
        return None
    commit = (read_bounded(repository.common + b"/" + ref, _MAX_REF) or b"").strip() or _packed(repository.common, ref)
    return (ref, commit) if _is_commit(commit) else None


def _packed(common: bytes, ref: bytes) -> bytes:
    packed = b"\n%b\n" % (read_bounded(common + b"/packed-refs", _MAX_PACKED) or b"")
    end = -1
    while (end := packed.find(b" %b\n" % ref, end + 1)) >= 0:
        if _is_commit(commit := packed[packed.rfind(b"\n", 0, end) + 1 : end]):
            return commit
    return b""


def _is_commit(text: bytes) -> bool:
    return len(text) in _COMMIT_DIGITS and _DIGITS.issuperset(text)


def _line(head: _Head) -> bytes:
    words = b"%b %d %b %b" % (head.checkpoint, head.at, head.ref, head.commit)
    return words + (b"\n" if head.event is None else b" %d\n" % head.event)


def _read(context: Context) -> list[_Head]:
    try:
        body = _FILE.read(context.folder) or b""
        words = (line.split(b" ") for line in body.splitlines())
        return [
            _Head(checkpoint, int(at), ref, commit, int(event[0]) if event else None)
            for checkpoint, at, ref, commit, *event in words
        ]
    except (FormatError, StorageError, ValueError) as error:
        _LOG.debug("%s", error)
        return []

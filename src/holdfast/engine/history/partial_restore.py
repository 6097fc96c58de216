"""What may still be done of a restore that was cut short: what somebody has changed since stays as it is (I8).

The restore was on its way from one state to another, and replaces each path at once. So what is at a path is still the
one, or already the other; whatever else is there was put there since, or taken away, by somebody.
"""

from __future__ import annotations

from holdfast.model.entries import NotCaptured
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.model.typed import TYPE_CHECKING
from holdfast.store import manifest

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from holdfast.model.entries import Change, Entry
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.blob_reader import BlobReader
    from holdfast.store.manifest import Pages
    from holdfast.store.store import Store

_PIECE = 1 << 16


class Plan(NamedTuple):
    """What has to happen to the tree."""

    deletes: Sequence[Change]
    writes: Sequence[Change]


class Mending(NamedTuple):
    """What finishing a restore that was cut short, or taking it back, may change."""

    evidence: Hash
    """The manifest outside which nothing is deleted (I5)."""
    ends: tuple[Hash, Hash]
    """The manifests that it was on its way between: what is at a path and in neither, somebody has put there."""
    again: bool
    """True if what it is doing was begun before."""
    apart: int | None
    """The state before it, where steps have come in between: it is a change of its own then, the newest. None: it is
    one change with what was done before it was cut short.
    """


class Sifted(NamedTuple):
    """A plan without what it may not touch."""

    plan: Plan
    spared: list[NotCaptured]
    """What somebody has changed since, with how to get the other version of it."""


def sift(
    pages: Pages,
    plan: Plan,
    first: Plan,
    mending: Mending,
    target: CheckpointId,
    *,
    empty: bool,
    half: Container[bytes],
) -> Sifted:
    """What may be done of ``plan``, which leads from what is there now to ``target``.

    ``first`` leads there from the manifest that ``mending`` has as evidence. ``empty``: there is no file at all, as in
    a directory that was made again; then there is nothing that anybody could lose. ``half`` is what the restore itself
    has left half written. What did not exist when the restore began, and is in nobody's way, stays without a word.
    """
    paths = sorted({change.path for change in (*plan.deletes, *plan.writes)})
    either = [manifest.get_many(pages, root, paths) for root in mending.ends]
    known = manifest.get_many(pages, mending.evidence, [change.path for change in sorted(plan.deletes, key=_path_of)])
    spared: list[NotCaptured] = []

    def may_go(change: Change) -> bool:
        if empty or change.path in half or any(change.before == entries.get(change.path) for entries in either):
            return True
        spared.append(NotCaptured(change.path, _said(change, target)))
        return False

    deletes = {one.path: one for one in plan.deletes if known.get(one.path) is not None and may_go(one)}
    writes = [one for one in plan.writes if may_go(one)]
    if mending.again:
        # What was deleted before it was cut short may have left directories behind, which go with it.
        there = {change.path for change in plan.deletes}
        deletes |= {one.path: one for one in first.deletes if one.path not in there}
    return Sifted(Plan(list(deletes.values()), writes), spared)


def half_written(
    store: Store, writes: Sequence[Change], mending: Mending, in_place: Container[bytes]
) -> frozenset[bytes]:
    """Those of the paths ``in_place`` that hold nothing but bytes of the two versions that the restore was on its way
    between.
    """
    paths = sorted(change.path for change in writes if change.path in in_place)
    if not paths:
        return frozenset()
    found = {change.path: change.before for change in writes}
    before, after = (manifest.get_many(store.pages, root, paths) for root in mending.ends)

    def is_half(path: bytes) -> bool:
        entries = found[path], before.get(path), after.get(path)
        return None not in entries and _mixes(*(_pieces(store.reader, entry) for entry in entries if entry is not None))

    return frozenset(path for path in paths if is_half(path))


def _pieces(reader: BlobReader, entry: Entry) -> Iterator[bytes]:
    """The content in pieces of one size, the last one shorter; then nothing, without end."""
    for content in reader.fetch([entry]):
        rest = b""
        for piece in (content,) if isinstance(content, bytes) else content:
            rest += piece
            while len(rest) >= _PIECE:
                yield rest[:_PIECE]
                rest = rest[_PIECE:]
        yield rest
    while True:
        yield b""


def _mixes(now: Iterator[bytes], before: Iterator[bytes], after: Iterator[bytes]) -> bool:
    """Whether each byte of ``now`` is that of one of the others at its place."""
    while here := next(now):
        ends = next(before), next(after)
        if not any(end.startswith(here) for end in ends):
            for at, byte in enumerate(here):
                if all(end[at : at + 1] != bytes((byte,)) for end in ends):
                    return False
    return True


def _said(change: Change, target: CheckpointId) -> str:
    import shlex

    if change.after is None:
        return f"changed after that was cut short; {target[:12]} has nothing there: delete it, if it is not needed"
    what = "deleted" if change.before is None else "changed"
    path = shlex.quote(display(change.path))
    return f"{what} after that was cut short; `holdfast restore {target[:12]} {path}` brings the other version"


def _path_of(change: Change) -> bytes:
    return change.path

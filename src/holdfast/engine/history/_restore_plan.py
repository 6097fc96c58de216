"""The writes of a restore, with their sources, and the files it spares: logs of databases, and others' changes (I8).

An interrupted restore was between two states, and it replaces each path at once. So each path must hold its version
from one of the two states; any other content or absence comes from another process.
"""

from __future__ import annotations

import os
import stat

from holdfast.files.ignore.sqlite_files import INDEX, LOGS, MAGIC, database_of, is_database, openers_of
from holdfast.files.write.rooted_access import Root
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import HoldfastError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.paths import display, under
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Change, Entry
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.blobs.content_reader import BlobReader
    from holdfast.store.manifests.manifest import PageSource
    from holdfast.store.store import Store

_PIECE = 1 << 16


class Plan(NamedTuple):
    """The changes to make in the tree."""

    deletes: Sequence[Change]
    writes: Sequence[Change]


class Resumption(NamedTuple):
    """The limits of finishing or reversing a restore that was cut short."""

    evidence: Hash
    """The manifest outside which nothing is deleted (I5)."""
    ends: tuple[Hash, Hash]
    """The manifests of its start and target: a path that matches neither was changed by another process."""
    again: bool
    """True if this direction was begun before the interruption."""
    apart: int | None
    """The state before it, if steps ran since the interruption: it becomes a change of its own, the newest. None: it is
    one change with the part before the interruption.
    """


class SafePlan(NamedTuple):
    """A plan without protected paths."""

    plan: Plan
    spared: list[NotCaptured]
    """Paths that others have changed since, with the way to get the other version."""


def exclude_conflicts(
    pages: PageSource,
    plan: Plan,
    first: Plan,
    mending: Resumption,
    target: CheckpointId,
    *,
    empty: bool,
    half: Container[bytes],
) -> SafePlan:
    """The allowed part of ``plan``, which leads from the present tree to ``target``.

    ``first`` leads there from the manifest that ``mending`` has as evidence. ``empty``: the tree has no files, as in a
    directory that was made anew, so nothing can be lost. ``half`` are files that the restore itself left half written.
    Files that are newer than the restore and block nothing stay, unreported.
    """
    paths = sorted({change.path for change in (*plan.deletes, *plan.writes)})
    either = [manifest.get_many(pages, root, paths) for root in mending.ends]
    known = manifest.get_many(pages, mending.evidence, [change.path for change in sorted(plan.deletes, key=_path_of)])
    spared: list[NotCaptured] = []

    def may_go(change: Change) -> bool:
        if empty or change.path in half or any(change.before == entries.get(change.path) for entries in either):
            return True
        spared.append(NotCaptured(change.path, _reason(change, target)))
        return False

    deletes = {one.path: one for one in plan.deletes if known.get(one.path) is not None and may_go(one)}
    writes = [one for one in plan.writes if may_go(one)]
    if mending.again:
        # Deletions before the interruption may have left empty directories, which must go as well.
        there = {change.path for change in plan.deletes}
        deletes |= {one.path: one for one in first.deletes if one.path not in there}
    return SafePlan(Plan(list(deletes.values()), writes), spared)


def half_written_paths(
    store: Store, writes: Sequence[Change], mending: Resumption, in_place: Container[bytes]
) -> frozenset[bytes]:
    """Those of the paths ``in_place`` whose every byte is from one of the two versions, that of the start or of the
    target.
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
    """The content in pieces of equal size, the last one shorter; then endless empty ones."""
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


def _reason(change: Change, target: CheckpointId) -> str:
    import shlex

    if change.after is None:
        return f"changed after the interruption; {target[:12]} has nothing there: delete it if you do not need it"
    what = "deleted" if change.before is None else "changed"
    path = shlex.quote(display(change.path))
    return f"{what} after the interruption; `holdfast restore {target[:12]} {path}` brings the other version"


def _path_of(change: Change) -> bytes:
    return change.path


# A restore that writes an SQLite database: its logs belong to it, and a database in use is not touched.
#
# A foreign log beside a database corrupts it (https://sqlite.org/howtocorrupt.html).

_LEAST_PAGE = 512
"""A database is a multiple of its page's size, which is a power of two from this on."""


class PlanWithLogs(NamedTuple):
    """A plan in which each database goes with its logs."""

    plan: Plan
    spared: list[NotCaptured]
    """Databases that stay unchanged, because they are in use or no checkpoint holds their logs."""
    logs: frozenset[bytes]
    """The logs in the plan: they follow their databases, whatever ignore rules say."""


def with_sqlite_logs(
    context: Context,
    plan: Plan,
    changes: Sequence[Change],
    pages: PageSource,
    now: Hash,
    target: Hash,
    paths: Sequence[bytes],
) -> PlanWithLogs:
    """``plan``, the part of the ``changes`` from the manifest ``now``, which the tree holds, to ``target`` that is at
    ``paths``, with what belongs to its databases. Both are among ``pages``; ``now`` may not be stored yet.
    """
    chosen = {change.path: change for change in (*plan.deletes, *plan.writes)}
    by_path = {change.path: change for change in changes}
    bases = {database_of(path) or path for path, change in chosen.items() if _may_concern(change)}
    for path in by_path if paths else ():
        base = database_of(path)
        if base is not None and any(under(base, one) for one in paths):
            bases.add(base)  # it may have the content of the target already
    if not bases:
        return PlanWithLogs(plan, [], frozenset())
    spared: dict[bytes, str] = {}
    logs: set[bytes] = set()
    try:
        root = Root(context.workspace.path)
    except HoldfastError:
        return PlanWithLogs(plan, [], frozenset())  # there is no database file that a log could corrupt
    with root:
        for base in sorted(bases):
            if not _is_database(context, root, base, manifest.get_many(pages, target, [base]).get(base)):
                continue
            members = [path for path in (base, *(base + end for end in LOGS)) if path in by_path]
            reason = _reason_against(context.workspace.path, root, base, pages, now)
            if reason is not None:
                spared |= dict.fromkeys(members, reason)
                continue
            chosen |= {path: by_path[path] for path in members}
            logs.update(path for path in members if path != base)
    left = [change for path, change in sorted(chosen.items()) if path not in spared]
    return PlanWithLogs(
        Plan([one for one in left if one.after is None], [one for one in left if one.after is not None]),
        [NotCaptured(path, reason) for path, reason in sorted(spared.items())],
        frozenset(logs),
    )


def _may_concern(change: Change) -> bool:
    sizes = {entry.size for entry in (change.before, change.after) if entry is not None and not entry.is_symlink}
    return database_of(change.path) is not None or any(size and not size % _LEAST_PAGE for size in sizes)


def exclude_split_databases(plan: Plan, logs: frozenset[bytes], spared: Iterable[NotCaptured]) -> Plan:
    """``plan`` without what belongs to a database of ``logs`` of which a part is ``spared``."""
    bases = {database_of(log) for log in logs}
    parted = {base for path, _ in spared for base in (path, database_of(path)) if base is not None and base in bases}
    if not parted:
        return plan
    gone = {member for base in parted for member in (base, *(base + end for end in LOGS))}
    return Plan(
        [change for change in plan.deletes if change.path not in gone],
        [change for change in plan.writes if change.path not in gone],
    )


def _is_database(context: Context, root: Root, path: bytes, goal: Entry | None) -> bool:
    """Whether it is a database now, or will be one."""
    try:
        if is_database(*root.locate(path)):
            return True
    except HoldfastError:
        pass
    if goal is None or goal.is_symlink or not goal.size or goal.size % _LEAST_PAGE:
        return False
    contents = context.store.reader.fetch([goal])
    content = next(contents)
    first = content if isinstance(content, bytes) else next(content, b"")
    for one in (content, contents):
        if close := getattr(one, "close", None):
            close()
    return first.startswith(MAGIC)


def _reason_against(top: bytes, root: Root, base: bytes, pages: PageSource, now: Hash) -> str | None:
    """Why the database in the tree ``root`` at ``top`` must not be changed; None if it may."""
    parts = [base, *(base + end for end in (*LOGS, INDEX))]
    found = {path: info for path in parts if (info := _look(root, path))}
    files = {(info.st_dev, info.st_ino) for info in found.values()}
    users = openers_of(files, [os.path.join(top, path) for path in parts])
    if users:
        named = ", ".join(f"{user.command} (process {user.pid})" for user in users[:3])
        return f"the database {display(base)} is in use by {named}: end that, and try again"
    logs = [base + end for end in LOGS if base + end in found and found[base + end].st_size]
    held = manifest.get_many(pages, now, sorted(logs))
    for path in logs:
        entry = held.get(path)
        if entry is None or entry.size != found[path].st_size:
            return (
                f"{display(path)}, which belongs to the database {display(base)}, is in the way: no "
                "checkpoint holds it in its present state"
            )
    return None


def _look(root: Root, path: bytes) -> os.stat_result | None:
    try:
        info = root.lstat(path)
    except HoldfastError:
        return None
    return info if stat.S_ISREG(info.st_mode) else None

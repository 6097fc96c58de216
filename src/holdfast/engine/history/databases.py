"""A restore that writes a database of SQLite's: its logs go with it, and none of it is touched while it is in use.

A log beside a database that it does not belong to makes that malformed (https://sqlite.org/howtocorrupt.html).
"""

from __future__ import annotations

import os
import stat

from holdfast.engine.history.partial_restore import Plan
from holdfast.files.databases import INDEX, LOGS, MAGIC, database_of, is_database, openers_of
from holdfast.files.rooted import Root
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import HoldfastError
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display, under
from holdfast.model.typed import TYPE_CHECKING
from holdfast.store import manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Change, Entry
    from holdfast.model.ids import Hash
    from holdfast.store.manifest import Pages

_LEAST_PAGE = 512
"""A database is a multiple of its page's size, which is a power of two from this on."""


class WithLogs(NamedTuple):
    """A plan in which each database goes with its logs."""

    plan: Plan
    spared: list[NotCaptured]
    """What is left alone of databases that are in use, or whose logs no checkpoint holds."""
    logs: frozenset[bytes]
    """The logs in the plan: whatever ignore rules say, they go with their databases."""


def with_logs(
    context: Context,
    plan: Plan,
    changes: Sequence[Change],
    pages: Pages,
    now: Hash,
    target: Hash,
    paths: Sequence[bytes],
) -> WithLogs:
    """``plan``, the part of the ``changes`` from the manifest ``now``, which the tree holds, to ``target`` that is at
    ``paths``, with what belongs to its databases. Both are among ``pages``; ``now`` may not be stored yet.
    """
    chosen = {change.path: change for change in (*plan.deletes, *plan.writes)}
    by_path = {change.path: change for change in changes}
    bases = {database_of(path) or path for path, change in chosen.items() if _may_concern(change)}
    for path in by_path if paths else ():
        base = database_of(path)
        if base is not None and any(under(base, one) for one in paths):
            bases.add(base)  # it may be as it is to be itself
    if not bases:
        return WithLogs(plan, [], frozenset())
    spared: dict[bytes, str] = {}
    logs: set[bytes] = set()
    try:
        root = Root(context.workspace.path)
    except HoldfastError:
        return WithLogs(plan, [], frozenset())  # nothing is there that a log could be left beside
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
    return WithLogs(
        Plan([one for one in left if one.after is None], [one for one in left if one.after is not None]),
        [NotCaptured(path, reason) for path, reason in sorted(spared.items())],
        frozenset(logs),
    )


def _may_concern(change: Change) -> bool:
    sizes = {entry.size for entry in (change.before, change.after) if entry is not None and not entry.is_symlink}
    return database_of(change.path) is not None or any(size and not size % _LEAST_PAGE for size in sizes)


def kept_together(plan: Plan, logs: frozenset[bytes], spared: Iterable[NotCaptured]) -> Plan:
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
    """Whether it is a database on the disk, or is to be one."""
    try:
        if is_database(*root.place(path)):
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


def _reason_against(top: bytes, root: Root, base: bytes, pages: Pages, now: Hash) -> str | None:
    """Why nothing of the database, in the tree ``root`` at ``top``, can be changed; None if it can."""
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
                f"{display(path)}, which belongs to the database {display(base)}, is in no checkpoint as it is: it is "
                "in the way"
            )
    return None


def _look(root: Root, path: bytes) -> os.stat_result | None:
    try:
        info = root.lstat(path)
    except HoldfastError:
        return None
    return info if stat.S_ISREG(info.st_mode) else None

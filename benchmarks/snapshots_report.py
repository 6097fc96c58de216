"""The lists that ``snapshots.py --json`` gives, for report.py."""

from __future__ import annotations

import statistics
from typing import Any

WORK_TREE, COPY, STASH = "git worktree add", "cp -a --reflink=auto", "git stash create"
FORKED, FORKED_AGAIN = "fork of the workspace", "fork of a snapshot"
CAPTURED, CAPTURED_FORK = "snapshot of the workspace", "snapshot of a fork"
SESSION, WORKED = "fork of a session", "a command in it that reads every file"
BOTH = "both"
PARTS = {
    "forks": ((FORKED, FORKED, WORK_TREE), (FORKED_AGAIN, FORKED, WORK_TREE)),
    "snapshots": ((CAPTURED, CAPTURED, STASH), (CAPTURED_FORK, CAPTURED, STASH)),
    "both": ((BOTH, BOTH, WORK_TREE),),
}
"""What a line says of a provider: for each row, what its ratio is to, a row and who is meant in it."""

Rows = dict[str, dict[str, list[float]]]


def _both(rows: Rows) -> dict[str, list[float]]:
    """Forking and working, round by round. A session's fork by a provider with several modes is a worktree."""
    forked = {**rows.get(SESSION, {}), **{name: rows[FORKED][name] for name in (WORK_TREE, COPY)}}
    worked = rows.get(WORKED, {})
    return {
        worktree if (worktree := f"{name} (worktree)") in rows[FORKED] else name: [
            sum(pair) for pair in zip(times, worked[name], strict=False)
        ]
        for name, times in forked.items()
        if name in worked
    }


def _line(rows: Rows, subject: str) -> str:
    parts: list[str] = []
    for part, found in PARTS.items():
        ratios = [
            f"{statistics.median(values) / statistics.median(rows[row][other]):.2f}"
            for name, row, other in found
            if (values := rows.get(name, {}).get(subject))
        ]
        parts += [f"{part} {', '.join(ratios)}"] if ratios else []
    return f"- {subject}: {'; '.join(parts)}"


def _lines(rows: Rows) -> list[str]:
    subjects = dict.fromkeys(subject for part in PARTS.values() for row, _, _ in part for subject in rows.get(row, {}))
    return [*(_line(rows, subject) for subject in subjects if subject not in (WORK_TREE, STASH)), ""]


def tables(results: dict[str, Any]) -> list[str]:
    """What one run of snapshots.py has measured, as lines of Markdown."""
    load = ", ".join(f"{value:.1f}" for value in results["load"])
    when = f"{results['date']}: {results['machine']}; load before and after: {load}"
    changed = f"Before each snapshot {results['changed']} files changed. "
    changed += f"Forks (of the workspace, of a snapshot) and both in multiples of `{WORK_TREE}`, "
    changed += f"snapshots (of the workspace, of a fork) of `{STASH}`"
    rounds = "1 round" if results["rounds"] == 1 else f"{results['rounds']} rounds; medians"
    lines = [f"Measured on {when}. {rounds}. {changed}.", ""]
    for found in results["runs"]:
        rows: Rows = {**found["rows"], BOTH: _both(found["rows"])}
        lines += [f"### {found['file_system']}, {found['files']:,} files", ""]
        lines += _lines(rows)
        said = [f"- {name} failed: {' '.join(why.split())}" for name, why in found["failed"].items()]
        lines += [*said, *([""] if said else [])]
    return lines

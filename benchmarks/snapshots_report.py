"""The tables that ``snapshots.py --json`` gives, for report.py."""

from __future__ import annotations

import statistics
from typing import Any

WORK_TREE, COPY, STASH = "git worktree add", "cp -a --reflink=auto", "git stash create"
FORKED, FORKED_AGAIN = "fork of the workspace", "fork of a snapshot"
CAPTURED, CAPTURED_FORK = "snapshot of the workspace", "snapshot of a fork"
SESSION, WORKED = "fork of a session", "a command in it that reads every file"
BOTH = "both"
COLUMNS = (
    (FORKED, FORKED, WORK_TREE),
    (FORKED_AGAIN, FORKED, WORK_TREE),
    (CAPTURED, CAPTURED, STASH),
    (CAPTURED_FORK, CAPTURED, STASH),
    (BOTH, BOTH, WORK_TREE),
)
"""Each with what its ratio is to: a row, and who is meant in it."""

Rows = dict[str, dict[str, list[float]]]


def _both(rows: Rows) -> dict[str, list[float]]:
    """Forking and working, round by round."""
    forked = {**rows.get(SESSION, {}), **{name: rows[FORKED][name] for name in (WORK_TREE, COPY)}}
    worked = rows.get(WORKED, {})
    return {
        name: [sum(pair) for pair in zip(times, worked[name], strict=False)]
        for name, times in forked.items()
        if name in worked
    }


def _cells(rows: Rows, subject: str) -> list[str]:
    cells: list[str] = []
    for column, row, other in COLUMNS:
        values = rows.get(column, {}).get(subject)
        if not values:
            cells.append("")
            continue
        middle = statistics.median(values)
        cells.append(f"{middle / statistics.median(rows[row][other]):.2f}")
    return cells


def _table(rows: Rows) -> list[str]:
    subjects = dict.fromkeys(subject for row, _, _ in COLUMNS for subject in rows.get(row, {}))
    return [
        "| | fork of the workspace | of a snapshot | snapshot of the workspace | of a fork | both |",
        "| --- |" + " ---: |" * len(COLUMNS),
        *(
            f"| {subject} | " + " | ".join(_cells(rows, subject)) + " |"
            for subject in subjects
            if subject not in (WORK_TREE, STASH)
        ),
        "",
    ]


def tables(results: dict[str, Any]) -> list[str]:
    """What one run of snapshots.py has measured, as lines of Markdown."""
    load = " and ".join(f"{value:.1f}" for value in results["load"])
    when = f"{results['date']}: {results['machine']}; load before and after: {load}"
    changed = f"Before each snapshot {results['changed']} files were given another content. "
    changed += f"Forks, and both, in multiples of `{WORK_TREE}`, snapshots of `{STASH}`"
    rounds = "1 round" if results["rounds"] == 1 else f"{results['rounds']} rounds; medians"
    lines = [f"Measured on {when}. {rounds}. {changed}.", ""]
    for found in results["runs"]:
        rows: Rows = {**found["rows"], BOTH: _both(found["rows"])}
        lines += [f"### {found['file_system']}, {found['files']:,} files", ""]
        lines += _table(rows)
        said = [f"- {name} failed: {' '.join(why.split())}" for name, why in found["failed"].items()]
        lines += [*said, *([""] if said else [])]
    return lines

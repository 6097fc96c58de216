"""The tables that ``snapshots.py --json`` gives, for report.py."""

from __future__ import annotations

import statistics
from typing import Any

WORK_TREE, COPY, STASH = "git worktree add", "cp -a", "git stash create"
FORKED, FORKED_AGAIN = "fork of the workspace", "fork of a snapshot"
CAPTURED, CAPTURED_FORK = "snapshot of the workspace", "snapshot of a fork"
COLUMNS = (
    (FORKED, ((FORKED, WORK_TREE), (FORKED, COPY))),
    (FORKED_AGAIN, ((FORKED, WORK_TREE),)),
    (CAPTURED, ((CAPTURED, STASH),)),
    (CAPTURED_FORK, ((CAPTURED, STASH),)),
)
"""Each with what its ratios are to: a row, and who is meant in it."""

Rows = dict[str, dict[str, list[float]]]


def _cells(rows: Rows, subject: str) -> list[str]:
    cells: list[str] = []
    for column, baselines in COLUMNS:
        values = rows.get(column, {}).get(subject)
        if not values:
            cells += [""] * (1 + len(baselines))
            continue
        middle = statistics.median(values)
        cells.append(f"{middle * 1000:,.1f} ms")
        cells += [f"{middle / statistics.median(rows[row][other]):.2f}" for row, other in baselines]
    return cells


def tables(results: dict[str, Any]) -> list[str]:
    """What one run of snapshots.py has measured, as lines of Markdown."""
    load = " and ".join(f"{value:.1f}" for value in results["load"])
    when = f"{results['date']}: {results['machine']}; load before and after: {load}"
    changed = f"Before each snapshot {results['changed']} files were given another content"
    rounds = "1 round" if results["rounds"] == 1 else f"{results['rounds']} rounds; medians"
    lines = [f"Measured on {when}. {rounds}. {changed}.", ""]
    heads = [head for column, baselines in COLUMNS for head in (column, *(f"to `{other}`" for _, other in baselines))]
    for found in results["runs"]:
        rows: Rows = found["rows"]
        subjects = dict.fromkeys(subject for values in rows.values() for subject in values)
        lines += [f"### {found['file_system']}, {found['files']:,} files", ""]
        lines += ["| | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
        lines += [f"| {subject} | " + " | ".join(_cells(rows, subject)) + " |" for subject in subjects]
        lines += ["", *(f"- {name} failed: {' '.join(why.split())}" for name, why in found["failed"].items())]
        left_out = found.get("left_out", {})
        lines += [f"- {name} was left out: {' '.join(why.split())}" for name, why in left_out.items()]
        if found["failed"] or left_out:
            lines.append("")
    return lines

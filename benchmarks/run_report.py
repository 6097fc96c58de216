"""The lists that ``run.py --json`` gives, against the budgets, for report.py."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

PEER = "by Python"


class Budget(NamedTuple):
    """How many times as long something may take: the limit, and the aim."""

    must: float
    aim: float

    def __str__(self) -> str:
        return f"{self.must:g} ({self.aim:g})"

    def shown(self, ratio: float) -> str:
        """The ratio, bold where it misses the limit."""
        return f"{ratio:.2f}" if ratio <= self.must else f"**{ratio:.2f}**"


SEQUENTIAL = ("sequential read", "sequential write")
READING = ("walk", "open, read, close", "git status", "grep", *SEQUENTIAL)
TASKS = ("git clone", "npm install")
FRESH = ("unlink, just written", "rm -rf, just written")

Group = tuple[str, Budget, tuple[str, ...]]
"""What to call rows with one budget, the budget, and the rows."""
ON_DISK: tuple[Group, ...] = (
    ("reading and sequential", Budget(1.1, 1.02), READING),
    ("making and changing", Budget(3.5, 2), ("create", "rename", "overwrite", "untar")),
    ("clone and install", Budget(1.3, 1.1), TASKS),
    ("deleting", Budget(2, 1.5), ("unlink", "rm -rf", *FRESH)),
)
IN_MEMORY: tuple[Group, ...] = (
    ("reading and sequential", Budget(1.1, 1.02), READING),
    ("create and rename", Budget(6, 4), ("create", "rename")),
    ("untar", Budget(4, 3), ("untar",)),
    ("overwrite", Budget(3.5, 2), ("overwrite",)),
    ("clone and install", Budget(1.3, 1.1), TASKS),
    ("rm -rf", Budget(4, 2), ("rm -rf",)),
    ("unlink, and what was just written", Budget(2, 1.5), ("unlink", *FRESH)),
)
"""On tmpfs, where the work itself costs next to nothing."""
UNDO = "undo of rm -rf"
UNDO_BUDGET = Budget(1, 0.5)
INTERCEPTION = {"interception, reading": Budget(1.05, 1.01), "interception, writing": Budget(1.15, 1.05)}

Values = dict[str, list[float]]


def middle(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:,.1f}"


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(above) / statistics.median(below)


def _row(name: str, values: Values, failed: dict[str, str], budget: Budget) -> str:
    native = values["native"]
    peer = f" ({ratio(values[PEER], native):.2f})" if PEER in values else " (failed)" if PEER in failed else ""
    return f"- {name}: {budget.shown(ratio(values['holdfast'], native))}{peer}"


def _against_others(rows: dict[str, Values]) -> list[str]:
    """Undo, and interception: each measured against something else than native work."""
    found: list[tuple[str, str, list[float], list[float], Budget]] = []
    if UNDO in rows:
        found.append((UNDO, "`rm -rf` under `run`", rows["rm -rf"]["holdfast"], rows[UNDO]["holdfast"], UNDO_BUDGET))
    for name, budget in INTERCEPTION.items():
        if name in rows:
            found.append((name, "supervised but not recorded", rows[name]["passed on"], rows[name]["recorded"], budget))
    return [
        f"- {name}: {budget.shown(ratio(own, base))} × {against}, budget {budget}"
        for name, against, base, own, budget in found
    ]


def beside(results: dict[str, Any]) -> list[str]:
    """The end of the list: the starts, who is left out, and who has failed at what."""
    starts = [
        f"- `holdfast run -- true`, {name.partition(', ')[2]}: {middle(values['holdfast'])} ms; `true`: {middle(values['native'])}"
        for name, values in results["rows"].items()
        if name.startswith("start, ")
    ]
    absent = [
        f"- Left out: {name} ({' '.join(reason.split())})."
        for name, reason in results["absent"].items()
        if name == PEER
    ]
    failed = [
        f"- {name} failed: {row}. `{' '.join(reason.split())}`"
        for row, found in results["failed"].items()
        for name, reason in found.items()
    ]
    return [*starts, *absent, *failed, ""]


def measured(results: dict[str, Any]) -> str:
    """When and on what, and what the numbers are."""
    load = ", ".join(f"{value:.1f}" for value in results["load"])
    return (
        f"Measured on {results['date']}: {results['machine']}; load before and after: {load}. "
        f"{results['rounds']} rounds; medians. Create, rename, overwrite, unlink: {results['part']:,} files; "
        f"sequential: {results['megabytes']} MiB."
    )


def tables(results: dict[str, Any]) -> list[str]:
    """What one run of run.py has measured, as lines of Markdown."""
    rows: dict[str, Values] = results["rows"]
    groups = IN_MEMORY if results["file_system"] == "tmpfs" else ON_DISK
    budgets = {row: budget for _, budget, names in groups for row in names}
    said = ", ".join(f"{name} {budget}" for name, budget, _ in groups)
    return [
        f"### {results['file_system']}, {results['files']:,} files",
        "",
        measured(results),
        "",
        f"Times as long as native ({PEER}). Budgets (aims): {said}. Bold misses the budget.",
        "",
        *(
            _row(name, values, results["failed"].get(name, {}), budgets[name])
            for name, values in rows.items()
            if name in budgets
        ),
        *_against_others(rows),
        *beside(results),
    ]

"""The tables that ``run.py --json`` gives, against the budgets, for report.py."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

PEERS = ("by Python",)


class Budget(NamedTuple):
    """How many times as long something may take: the limit, and the aim."""

    must: float
    aim: float

    def __str__(self) -> str:
        return f"{self.must:g} ({self.aim:g})"

    def verdict(self, ratio: float) -> str:
        if ratio <= self.aim:
            return "kept, aim reached"
        return "kept" if ratio <= self.must else "**missed**"


READING, CHANGING, REMOVING, WORKING = Budget(1.1, 1.02), Budget(3.5, 2), Budget(2, 1.5), Budget(1.3, 1.1)
BUDGETS = dict.fromkeys(
    ("walk", "open, read, close", "git status", "grep", "sequential read", "sequential write"), READING
)
BUDGETS |= dict.fromkeys(("create", "rename", "overwrite", "untar"), CHANGING)
BUDGETS |= dict.fromkeys(("git clone", "npm install"), WORKING)
BUDGETS |= dict.fromkeys(("unlink", "rm -rf", "unlink, just written", "rm -rf, just written"), REMOVING)
IN_MEMORY = BUDGETS | {"create": Budget(6, 4), "rename": Budget(6, 4), "untar": Budget(4, 3), "rm -rf": Budget(4, 2)}
"""On tmpfs, where the work itself costs next to nothing."""
UNDO = "undo of rm -rf"
UNDO_BUDGET = Budget(1, 0.5)
INTERCEPTION = {"interception, reading": Budget(1.05, 1.01), "interception, writing": Budget(1.15, 1.05)}

Values = dict[str, list[float]]


def middle(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:,.1f} ms"


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(above) / statistics.median(below)


def judged(budget: Budget | None, value: float) -> str:
    return f"**{value:.2f}** | {budget}, {budget.verdict(value)}" if budget else f"**{value:.2f}** | "


def _row(name: str, values: Values, failed: dict[str, str], peers: list[str], budgets: dict[str, Budget]) -> str:
    native, own = values["native"], values["holdfast"]
    others = [f"{ratio(values[peer], native):.2f}" if peer in values else "failed" * (peer in failed) for peer in peers]
    cells = [name, middle(own), judged(budgets.get(name), ratio(own, native)), *others]
    return "| " + " | ".join(cells) + " |"


def _against_others(rows: dict[str, Values]) -> list[str]:
    """Undo, and interception: each measured against something else than native work."""
    found: list[tuple[str, str, list[float], list[float], Budget]] = []
    if UNDO in rows:
        found.append((UNDO, "`rm -rf` under `run`", rows["rm -rf"]["holdfast"], rows[UNDO]["holdfast"], UNDO_BUDGET))
    for name, budget in INTERCEPTION.items():
        if name in rows:
            found.append((name, "supervised, not recorded", rows[name]["passed on"], rows[name]["recorded"], budget))
    if not found:
        return []
    return [
        "| work | against | takes | ratio | budget (aim) |",
        "| --- | --- | ---: | ---: | --- |",
        *(
            f"| {name} | {against} | {middle(own)} | {judged(budget, ratio(own, base))} |"
            for name, against, base, own, budget in found
        ),
        "",
    ]


def beside(results: dict[str, Any]) -> list[str]:
    """What to say beside the table: who is left out, and who has failed at what."""
    starts = [
        f"- `holdfast run -- true`, {name.partition(', ')[2]}: {middle(values['holdfast'])}; `true`: {middle(values['native'])}"
        for name, values in results["rows"].items()
        if name.startswith("start, ")
    ]
    absent = [
        f"- Left out: {name} ({' '.join(reason.split())})."
        for name, reason in results["absent"].items()
        if name in PEERS
    ]
    failed = [
        f"- {name} failed: {row}. `{' '.join(reason.split())}`"
        for row, found in results["failed"].items()
        for name, reason in found.items()
    ]
    return [*starts, *absent, *failed, ""] if starts or absent or failed else []


def measured(results: dict[str, Any]) -> str:
    """When and on what, and what the numbers are."""
    load = " and ".join(f"{value:.1f}" for value in results["load"])
    return (
        f"Measured on {results['date']}: {results['machine']}, {results['file_system']}; load before and after: {load}. "
        f"{results['rounds']} rounds; medians. Create, rename, overwrite and unlink are of "
        f"{results['part']:,} files; sequential are {results['megabytes']} MiB."
    )


def tables(results: dict[str, Any]) -> list[str]:
    """What one run of run.py has measured, as lines of Markdown."""
    rows: dict[str, Values] = results["rows"]
    peers = [peer for peer in PEERS if any(peer in values for values in rows.values())]
    budgets = IN_MEMORY if results["file_system"] == "tmpfs" else BUDGETS
    heads = ["work", "`holdfast run`", "ratio to native", "budget (aim)", *peers]
    return [
        f"### {results['file_system']}, {results['files']:,} files",
        "",
        measured(results),
        "",
        "| " + " | ".join(heads) + " |",
        "| --- | ---: | ---: | --- |" + " ---: |" * len(peers),
        *(
            _row(name, values, results["failed"].get(name, {}), peers, budgets)
            for name, values in rows.items()
            if name in BUDGETS
        ),
        "",
        *_against_others(rows),
        *beside(results),
    ]

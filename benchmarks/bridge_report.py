"""The tables that ``bridge.py --json`` gives, against the budgets, for report.py."""

from __future__ import annotations

from typing import Any

from run_report import Budget, Values, beside, measured, ratio

IN_C = ("passthrough_hp", "bindfs", "fuse-overlayfs")
"""The FUSE file systems whose best, in each row, is what the bridge is held against."""
BUDGET = Budget(1, 0.5)
PASSED_THROUGH = dict.fromkeys(("sequential read", "sequential write"), Budget(1 / 0.95, 1 / 0.99))
"""What the kernel does by itself, against native."""


def _row(name: str, values: Values) -> str:
    native, own = values["native"], values["bridge"]
    best = min((values[peer] for peer in IN_C if peer in values), key=lambda found: ratio(found, native), default=None)
    cells = [name, f"**{ratio(own, native):.2f}**", f"{ratio(best, native):.2f}" if best else ""]
    if name in PASSED_THROUGH:
        budget, value = PASSED_THROUGH[name], ratio(own, native)
        cells += [f"{value:.2f}", f"{budget.verdict(value)} (of native)"]
    elif best:
        value = ratio(own, best)
        cells += [f"{value:.2f}", BUDGET.verdict(value)]
    else:
        cells += ["", ""]
    return "| " + " | ".join(cells) + " |"


def tables(results: dict[str, Any]) -> list[str]:
    """What one run of bridge.py has measured, as lines of Markdown."""
    rows: dict[str, Values] = results["rows"]
    return [
        f"### {results['file_system']}, {results['files']:,} files",
        "",
        measured(results),
        "",
        f"| to native | bridge | best of {', '.join(IN_C)} | ratio | |",
        "| --- | ---: | ---: | ---: | --- |",
        *(_row(name, values) for name, values in rows.items()),
        "",
        *beside(results),
    ]

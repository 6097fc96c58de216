"""The list that ``bridge.py --json`` gives, against the budgets, for report.py."""

from __future__ import annotations

from typing import Any

from run_report import SEQUENTIAL, Budget, Values, beside, measured, ratio

IN_C = ("passthrough_hp", "bindfs", "fuse-overlayfs")
"""The FUSE file systems whose best, in each row, is what the bridge is held against."""
BUDGET = Budget(1, 0.5)
PASSED_THROUGH = Budget(1 / 0.95, 1 / 0.99)
"""What the kernel does by itself, against native."""


def _row(name: str, values: Values) -> str:
    native = values["native"]
    own = ratio(values["bridge"], native)
    best = min((ratio(values[peer], native) for peer in IN_C if peer in values), default=None)
    limit = PASSED_THROUGH if name in SEQUENTIAL else Budget(BUDGET.must * best, BUDGET.aim * best) if best else None
    other = f" ({best:.2f})" if best else ""
    return f"- {name}: {limit.shown(own) if limit else f'{own:.2f}'}{other}"


def tables(results: dict[str, Any]) -> list[str]:
    """What one run of bridge.py has measured, as lines of Markdown."""
    rows: dict[str, Values] = results["rows"]
    budget = f"{BUDGET} × that best; sequential 95 % (99 %) of native's speed"
    return [
        f"### {results['file_system']}, {results['files']:,} files",
        "",
        measured(results),
        "",
        f"Times as long as native (the best of {', '.join(IN_C)}). Budget (aim): {budget}. Bold misses it.",
        "",
        *(_row(name, values) for name, values in rows.items()),
        *beside(results),
    ]

"""The tables that ``bridge.py --json`` gives, against the budgets, for report.py."""

from __future__ import annotations

from typing import Any

from run_report import Budget, Values, beside, measured, ratio

PEERS = ("passthrough_hp", "bindfs", "fuse-overlayfs", "overlayfs")
IN_C = PEERS[:3]
"""The FUSE file systems whose best, in each row, is what the bridge is held against."""
BUDGET = Budget(1, 0.5)
PASSED_THROUGH = dict.fromkeys(("sequential read", "sequential write"), Budget(1 / 0.95, 1 / 0.99))
"""What the kernel does by itself, against native."""


def _row(name: str, values: Values, failed: dict[str, str], peers: list[str]) -> str:
    native, own = values["native"], values["bridge"]
    best = min((values[peer] for peer in IN_C if peer in values), key=lambda found: ratio(found, native), default=None)
    if name in PASSED_THROUGH:
        budget, value = PASSED_THROUGH[name], ratio(own, native)
        verdict = f"{value:.2f} | {budget.verdict(value)} (of native)"
    elif best:
        value = ratio(own, best)
        verdict = f"{value:.2f} | {BUDGET.verdict(value)}"
    else:
        verdict = " | "
    others = [f"{ratio(values[peer], native):.2f}" if peer in values else "failed" * (peer in failed) for peer in peers]
    return "| " + " | ".join([name, f"**{ratio(own, native):.2f}**", *others, verdict]) + " |"


def tables(results: dict[str, Any]) -> list[str]:
    """What one run of bridge.py has measured, as lines of Markdown."""
    rows: dict[str, Values] = results["rows"]
    peers = [peer for peer in PEERS if any(peer in values for values in rows.values())]
    heads = ["to native", "bridge", *peers]
    return [
        f"### {results['file_system']}, {results['files']:,} files",
        "",
        measured(results),
        "",
        "| " + " | ".join([*heads, "bridge to the best of C", ""]) + " |",
        "| --- | ---: |" + " ---: |" * len(peers) + " ---: | --- |",
        *(_row(name, values, results["failed"].get(name, {}), peers) for name, values in rows.items()),
        "",
        *beside(results),
    ]

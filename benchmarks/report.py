"""Turn what ``compare.py``, ``run.py``, ``bridge.py`` or ``snapshots.py`` wrote with ``--json`` into the tables and the plot of docs/internals/performance.md.

    python benchmarks/report.py COMPARED.json docs/internals/performance.md docs/internals/performance.svg
    python benchmarks/report.py RUN.json [RUN.json...] docs/internals/performance.md
    python benchmarks/report.py BRIDGE.json [BRIDGE.json...] docs/internals/performance.md
    python benchmarks/report.py SNAPSHOTS.json docs/internals/performance.md

Of ``run.py`` and of ``bridge.py`` there may be results for several file systems. Everything between the two markers of the
one in the page is replaced; the rest of it stays.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import bridge_report
import run_report
import snapshots_report

COMPARED = "measured"
"""What marks where the tables stand in the page; those of the other benchmarks' have their name after it."""
TABLES = {"run": run_report.tables, "bridge": bridge_report.tables, "snapshots": snapshots_report.tables}


def shown(row: str, value: float) -> str:
    return f"{value / 1000:,.1f} KB" if row.startswith("bytes") else f"{value * 1000:,.1f} ms"


def table(results: dict[str, Any], sizes: list[str]) -> list[str]:
    """What Holdfast took for each row, with the ratio to Git in brackets; then what has no row of Git's beside it."""
    cells: dict[str, list[str]] = {}
    for size in sizes:
        for row, values in results[size]["rows"].items():
            middle = {tool: statistics.median(found) for tool, found in values.items()}
            for tool in [tool for tool in middle if tool != "git"]:
                name = row if tool == "holdfast" else f"{row}, {tool}"
                cells.setdefault(name, []).append(
                    f"{shown(row, middle[tool])} (**{middle[tool] / middle['git']:.2f}**)"
                )
        for row, values in results[size]["engine"].items():
            cells.setdefault(f"{row}, engine", []).append(f"{statistics.median(values) * 1000:.2f} ms")
        cells.setdefault("peak memory of a first checkpoint", []).append(f"{results[size]['peak_memory_mb']:.0f} MB")
    return [
        "| work: time (to git) | " + " | ".join(f"{int(size):,} files" for size in sizes) + " |",
        "| --- |" + " ---: |" * len(sizes),
        *(f"| {row} | " + " | ".join(found) + " |" for row, found in cells.items()),
        "",
    ]


def plot(results: dict[str, Any], sizes: list[str]) -> str:
    """Ratios to Git as bars, one group a row, one bar a size; the line is Git itself."""
    rows = list(results[sizes[-1]]["rows"])
    left, bar, gap, width = 250, 13, 14, 560
    height = 56 + len(rows) * (len(sizes) * bar + gap)
    shades = ["#93c5fd", "#3b82f6", "#1e40af"][-len(sizes) :]
    scale = (width - 60) / 2.0
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width}" height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    out += [
        f'<rect x="{left + 150 * n}" y="8" width="12" height="12" fill="{shades[n]}"/><text x="{left + 150 * n + 18}" y="18">{int(size):,} files</text>'
        for n, size in enumerate(sizes)
    ]
    y = 36
    for row in rows:
        out.append(f'<text x="{left - 8}" y="{y + len(sizes) * bar / 2 + 4}" text-anchor="end">{row}</text>')
        for shade, size in zip(shades, sizes, strict=True):
            values = results[size]["rows"][row]
            ratio = statistics.median(values["holdfast"]) / statistics.median(values["git"])
            long = min(ratio, 2.0) * scale
            out.append(
                f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{bar - 2}" fill="{shade}"/><text x="{left + long + 5:.1f}" y="{y + bar - 3}" font-size="10">{ratio:.2f}</text>'
            )
            y += bar
        y += gap
    out.append(
        f'<line x1="{left + scale}" y1="28" x2="{left + scale}" y2="{height - 18}" stroke="#dc2626" stroke-dasharray="4 3"/><text x="{left + scale}" y="{height - 5}" text-anchor="middle" fill="#dc2626">git = 1</text></svg>'
    )
    return "\n".join(out) + "\n"


def fill(page: Path, marker: str, lines: list[str]) -> None:
    """Put ``lines`` between the two comments in ``page`` that ``marker`` names."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no {begin} with an {end} after it")
    page.write_text(before + begin + "\n" + "\n".join(lines) + end + after)


def compared(results: dict[str, Any], page: Path, picture: Path) -> None:
    sizes = [key for key in results if key.isdigit()]
    lines = [f"Measured on {results['date']}: {results['machine']}. Medians.", ""]
    lines += table(results, sizes)
    start = {name: statistics.median(values) * 1000 for name, values in results["start"].items()}
    lines += [", ".join(f"`{name}`: {value:.1f} ms" for name, value in start.items()) + ".", ""]
    fill(page, COMPARED, lines)
    picture.write_text(plot(results, sizes))


def main() -> None:
    names = [Path(name) for name in sys.argv[1:]]
    found = [json.loads(name.read_text()) for name in names if name.suffix == ".json"]
    rest = [name for name in names if name.suffix != ".json"]
    kinds = {results.get("benchmark") for results in found}
    if len(kinds) == 1 and kinds <= TABLES.keys() and len(rest) == 1:
        kind = kinds.pop()
        fill(rest[0], f"{COMPARED} {kind}", [line for results in found for line in TABLES[kind](results)])
    elif len(found) == 1 and kinds == {None} and len(rest) == 2:
        compared(found[0], rest[0], rest[1])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()

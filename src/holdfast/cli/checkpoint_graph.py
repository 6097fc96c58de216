"""Draws which checkpoint came from which, in columns of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def draw(nodes: Sequence[tuple[str, str | None]], rows: Mapping[str, str]) -> Iterator[str]:
    """Lines for ``nodes`` (id and parent, children before their parents), each with its row after the drawing.

    A column is a line of descent that waits for its next checkpoint; where lines meet in a common parent, those to the
    right end with ``/``. A parent that is not among the nodes ends its line, and so does one that came before its
    child, as a clock that was set back can make it.
    """
    ahead = {node for node, _ in nodes}
    columns: list[str] = []
    for node, parent in nodes:
        if node not in columns:
            columns.append(node)
        at = columns.index(node)
        others = [place for place, waiting in enumerate(columns) if waiting == node and place != at]
        if others:
            yield "".join("/ " if place in others else "| " for place in range(len(columns))).rstrip()
            columns = [waiting for place, waiting in enumerate(columns) if place not in others]
        yield "".join("* " if place == at else "| " for place in range(len(columns))) + rows[node]
        ahead.discard(node)
        if parent is not None and parent in ahead:
            columns[at] = parent
        else:
            del columns[at]

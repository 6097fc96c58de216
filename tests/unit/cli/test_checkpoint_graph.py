"""The drawing of which checkpoint came from which."""

from __future__ import annotations

from holdfast.cli.checkpoint_graph import draw


def _drawn(*nodes: tuple[str, str | None]) -> list[str]:
    return list(draw(nodes, {node: node for node, _ in nodes}))


def test_one_line_of_descent_is_one_column() -> None:
    assert _drawn(("c", "b"), ("b", "a"), ("a", None)) == ["* c", "* b", "* a"]


def test_lines_meet_in_their_common_parent() -> None:
    assert _drawn(("fork", "a"), ("c", "b"), ("b", "a"), ("a", None)) == ["* fork", "| * c", "| * b", "| /", "* a"]


def test_three_lines_meet_at_once() -> None:
    assert _drawn(("x", "a"), ("y", "a"), ("z", "a"), ("a", None)) == ["* x", "| * y", "| | * z", "| / /", "* a"]


def test_a_line_whose_parent_is_not_shown_ends() -> None:
    assert _drawn(("b", "gone"), ("a", None)) == ["* b", "* a"]
    assert _drawn(("top", "base"), ("b", "gone"), ("base", None)) == ["* top", "| * b", "* base"]


def test_a_parent_that_comes_first_is_not_waited_for() -> None:
    assert _drawn(("a", None), ("b", "a"), ("c", "b")) == ["* a", "* b", "* c"]

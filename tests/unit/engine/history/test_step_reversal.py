"""What changes to paths come to, one after the other."""

from __future__ import annotations

import pytest

from holdfast.engine.history._step_reversal import Effect, combine_effects, net_effect
from holdfast.model.entries import Entry
from holdfast.model.ids import Hash
from holdfast.undo.service import PathChange


def changed(*said: str) -> list[PathChange]:
    """``added P``, ``modified P``, ``deleted P`` or ``renamed P from S``."""
    words = [line.split() for line in said]
    return [
        PathChange(path=line[1].encode(), change=line[0], source=line[3].encode() if len(line) > 2 else None)  # pyright: ignore[reportArgumentType]
        for line in words
    ]


@pytest.mark.parametrize(
    ("steps", "backward", "written", "deleted"),
    [
        ([changed("added n", "modified m", "deleted d")], False, "m n", "d"),
        ([changed("added n", "modified m", "deleted d")], True, "d m", "n"),
        ([changed("renamed e from d", "modified e/f")], False, "e e/f", "d"),
        ([changed("renamed e from d", "modified e/f")], True, "d d/f", "e"),
        ([changed("renamed e from d", "renamed e/s from d/r", "metadata e/s/f")], True, "d d/r d/r/f", "e e/s"),
        ([changed("renamed e from f", "renamed f from e")], True, "e f", ""),
        ([changed("renamed e from f", "renamed f from e")], False, "e f", ""),
        ([changed("added d", "added d/n", "renamed e from d")], True, "d", "d/n e"),
        ([changed("deleted b", "renamed b from a")], True, "a b", ""),
        ([changed("deleted b", "renamed b from a")], False, "b", "a"),
        ([changed("added a", "renamed b from a")], True, "a", "b"),
        ([changed("added a", "renamed b from a")], False, "a b", ""),
        # Several steps, in the order in which they are taken back or made.
        ([changed("modified e/f"), changed("renamed e from d")], True, "d d/f", "e"),
        ([changed("renamed e from d"), changed("modified d/f")], True, "d d/f", "e"),
        ([changed("modified d/f"), changed("renamed e from d")], False, "e e/f", "d"),
        ([changed("renamed e from d"), changed("added d/n")], True, "d", "e"),
        ([changed("renamed h from g"), changed("added g")], True, "", "h"),
        ([changed("deleted g"), changed("added g")], True, "", ""),
        ([changed("added g"), changed("deleted g")], False, "", ""),
        ([changed("deleted g"), changed("added g")], False, "g", ""),
        ([changed("renamed a from b"), changed("deleted b", "renamed b from a")], True, "a b", ""),
        (
            [changed("modified d/f"), changed("deleted e/f"), changed("deleted e", "renamed e from d")],
            False,
            "e e/f",
            "d",
        ),
    ],
)
def test_effect(steps: list[list[PathChange]], backward: bool, written: str, deleted: str) -> None:
    found = net_effect(steps, backward=backward)
    assert tuple(" ".join(path.decode() for path in paths) for paths in found[:2]) == (written, deleted)


def test_what_was_written_in_a_directory_that_is_gone_then_is_not_there() -> None:
    first = Effect([b"e/f", b"ef"], [], {b"e/f": "A"})
    second = Effect([b"d"], [b"e"], {b"d": "T"})
    assert combine_effects([first, second]) == Effect([b"d", b"ef"], [b"e"], {b"d": "T"})
    assert combine_effects([second, first]) == Effect([b"d", b"e/f", b"ef"], [b"e"], {b"d": "T", b"e/f": "A"})


def test_what_is_foreseen_of_a_path_is_what_the_last_effect_on_it_foresees() -> None:
    one, other = (Entry(Hash(bytes(32)), size, 0o100644) for size in (1, 2))
    first = Effect([b"a", b"d/x", b"e"], [], {}, {b"a": one, b"d/x": one, b"d/": None, b"e": one})
    assert combine_effects([first, Effect([], [b"d"], {})]).foreseen == {b"a": one, b"e": one}
    second = Effect([b"a"], [b"d/x", b"e"], {}, {b"a": other, b"d/x": None})
    assert combine_effects([first, second]).foreseen == {b"a": other, b"d/x": None, b"d/": None}


def test_what_was_there_before_all_moves_is_modified_and_what_was_not_is_added() -> None:
    gone, back = Effect([], [b"f"], {}), Effect([b"f"], [], {b"f": "A"})
    assert combine_effects([gone, back]).letters == {}
    assert combine_effects([back, Effect([b"f"], [], {})]).letters == {b"f": "A"}

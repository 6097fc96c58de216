"""A dictionary by path, from which whole directories are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.paths import under
from holdfast.undo.journal.path_tree import PathTree

PATHS = st.lists(st.sampled_from([b"a", b"b", b"ab"]), min_size=1, max_size=3).map(b"/".join)


@given(st.lists(st.tuples(st.sampled_from(["put", "pop", "take", "move"]), PATHS, PATHS), max_size=40))
def test_what_is_taken_is_all_that_is_at_and_below_a_path(calls: list[tuple[str, bytes, bytes]]) -> None:
    tree, model = PathTree[int](), dict[bytes, int]()
    for number, (call, path, other) in enumerate(calls):
        if call == "put":
            tree[path] = model[path] = number
        elif call == "pop":
            assert tree.pop(path, None) == model.pop(path, None)
        else:
            taken = {each: model.pop(each) for each in list(model) if under(each, path)}
            assert tree.take(path) == taken
            for each, value in taken.items() if call == "move" else ():
                tree[other + each[len(path) :]] = model[other + each[len(path) :]] = value
        assert tree == model

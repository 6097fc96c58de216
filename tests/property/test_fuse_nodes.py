"""The table of nodes against a plain model of it, whatever the other side says (case 12)."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.vfs.file_system import TooManyError
from holdfast.vfs.node_table import Handles, Nodes

MOST = 6
COUNTS = st.integers(0, 4) | st.just((1 << 64) - 1)
NUMBERS = st.integers(0, 30) | st.just((1 << 64) - 1)


class Tables(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.nodes: Nodes[int] = Nodes("root", 0, MOST)
        self.lookups: dict[int, int] = {1: 0}
        self.kept: dict[int, int] = {1: 0}
        self.keys: dict[object, int] = {"root": 1}
        self.used = {0, 1}
        self.made = 0
        self.handles: Handles[int] = Handles(MOST)
        self.open: dict[int, tuple[int, int]] = {}
        self.used_handles: set[int] = set()

    def make(self) -> int:
        self.made += 1
        return self.made

    @rule(key=st.integers(0, 8) | st.just("root"))
    def look_up(self, key: object) -> None:
        if key not in self.keys and len(self.kept) == MOST:
            made = self.made
            try:
                self.nodes.enter(key, self.make)
            except TooManyError:
                assert made == self.made
                return
            raise AssertionError("there was no room")
        node = self.nodes.enter(key, self.make)
        if key in self.keys:
            assert node == self.keys[key]
            self.lookups[node] += 1
        else:
            assert node not in self.used
            self.used.add(node)
            self.keys[key] = node
            self.kept[node] = self.made
            self.lookups[node] = 1

    @rule(node=NUMBERS, count=COUNTS)
    def forget(self, node: int, count: int) -> None:
        had = self.lookups.get(node, 0)
        gone, excess = self.nodes.forget(node, count)
        assert excess == max(count - had, 0)
        if node in self.lookups:
            self.lookups[node] = max(had - count, 0)
        if node in self.kept and node != 1 and not self.lookups[node]:
            assert gone == self.kept.pop(node)
            del self.lookups[node]
            self.keys = {key: other for key, other in self.keys.items() if other != node}
        else:
            assert gone is None

    @rule(node=NUMBERS)
    def renew(self, node: int) -> None:
        self.nodes.renew(node)
        if node != 1:
            self.keys = {key: other for key, other in self.keys.items() if other != node}

    @rule(node=NUMBERS)
    def open_it(self, node: int) -> None:
        try:
            handle = self.handles.add(node, self.make())
        except TooManyError:
            assert len(self.open) == MOST
            return
        assert handle not in self.used_handles
        self.used_handles.add(handle)
        self.open[handle] = node, self.made

    @rule(handle=NUMBERS, node=NUMBERS)
    def release(self, handle: int, node: int) -> None:
        try:
            kept = self.handles.release(handle, node)
        except OSError:
            assert self.open.get(handle, (-1,))[0] != node
            return
        assert self.open.pop(handle) == (node, kept)

    @rule()
    def end(self) -> None:
        assert sorted(self.nodes.clear()) == sorted(kept for node, kept in self.kept.items() if node != 1)
        assert sorted(self.handles.clear()) == sorted(kept for _, kept in self.open.values())
        self.lookups, self.kept, self.keys, self.open = {1: 0}, {1: 0}, {"root": 1}, {}

    @invariant()
    def knows_what_it_should(self) -> None:
        assert len(self.nodes) == len(self.kept) <= MOST
        assert len(self.handles) == len(self.open) <= MOST
        for node in {*range(31), *self.kept}:
            try:
                assert self.nodes[node] == self.kept[node]
            except OSError:
                assert node not in self.kept


TestTables = Tables.TestCase

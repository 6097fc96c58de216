"""The state kept for the other side: nodes, until they are forgotten, and handles, until they are released.

The other side counts, so it can count wrongly; it can send any number. So each number is checked, every number is given
out once in a session, and the size of the tables has a limit. Thread-safe.
"""

from __future__ import annotations

import errno
import os
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from holdfast.vfs.file_system import ROOT, TooManyError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Kept = TypeVar("Kept")


class Forgotten(NamedTuple, Generic[Kept]):
    """The result of a FORGET."""

    gone: Kept | None
    """The record of the node, if this was the last lookup of the other side."""
    excess: int
    """Number of lookups given back in excess: an error of the peer, without other effects."""


class _Node(Generic[Kept]):
    __slots__ = ("kept", "key", "lookups")

    def __init__(self, key: Hashable, kept: Kept, lookups: int) -> None:
        self.key = key
        self.kept = kept
        self.lookups = lookups


class Nodes(Generic[Kept]):
    """Node ids, and a record for each: one id for one key (the identity of a file), while it is known.

    The root always exists. A reply with a node counts as a lookup: take it (`enter`) before replying, and give it back
    (`forget`) if the reply cannot be written.
    """

    __slots__ = ("_by_key", "_most", "_next", "_nodes", "_one_at_a_time")

    def __init__(self, root_key: Hashable, root: Kept, most: int) -> None:
        """At most ``most`` nodes, the root among them."""
        self._one_at_a_time = Lock()
        self._most = most
        self._next = ROOT + 1
        self._nodes = {ROOT: _Node(root_key, root, 0)}
        self._by_key: dict[Hashable, int] = {root_key: ROOT}

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, node: int) -> Kept:
        """The record of ``node``. Raises `OSError` (ESTALE) if that is unknown."""
        try:
            return self._nodes[node].kept
        except KeyError:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None

    def get(self, node: int) -> Kept | None:
        """The record of ``node``, if it is known."""
        found = self._nodes.get(node)
        return None if found is None else found.kept

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def items(self) -> list[tuple[int, Kept]]:
        """All nodes, and the record of each."""
        with self._one_at_a_time:
            return [(number, node.kept) for number, node in self._nodes.items()]

    def find(self, key: Hashable) -> int | None:
        """The node of ``key``, which is looked up no more often by that; None if it is not known."""
        return self._by_key.get(key)

    def enter_known(self, key: Hashable) -> int | None:
        """The node of ``key``, looked up once more, if it is known."""
        with self._one_at_a_time:
            number = self._by_key.get(key)
            if number is not None:
                self._nodes[number].lookups += 1
            return number

    def enter(self, key: Hashable, make: Callable[[], Kept]) -> int:
        """The node of ``key``, looked up once more; ``make`` returns the record of a new one.

        Raises `TooManyError` if there is no room for it, without having called ``make``, which must be quick and must
        not use this table.
        """
        with self._one_at_a_time:
            number = self._by_key.get(key)
            if number is not None:
                self._nodes[number].lookups += 1
                return number
            if len(self._nodes) >= self._most:
                raise TooManyError
            kept = make()
            number = self._next
            self._next += 1
            self._nodes[number] = _Node(key, kept, 1)
            self._by_key[key] = number
            return number

    def forget(self, number: int, lookups: int) -> Forgotten[Kept]:
        """Give ``lookups`` back; at most as many as exist, and none of an unknown node."""
        with self._one_at_a_time:
            node = self._nodes.get(number)
            if node is None:
                return Forgotten(None, lookups)
            excess = max(lookups - node.lookups, 0)
            node.lookups -= lookups - excess
            if node.lookups or number == ROOT:
                return Forgotten(None, excess)
            del self._nodes[number]
            self._by_key.pop(node.key, None)
            return Forgotten(node.kept, excess)

    def renew(self, number: int) -> None:
        """The key of the node gets another meaning: the next object found there is another node.

        For removed objects whose keys are reused, as inode numbers are. Harmless for an unknown node.
        """
        with self._one_at_a_time:
            node = self._nodes.get(number)
            if node is not None and number != ROOT:
                self._by_key.pop(node.key, None)
                node.key = node

    def clear(self) -> list[Kept]:
        """Forget all nodes but the root, as at the end of a session; returns their records."""
        with self._one_at_a_time:
            root = self._nodes.pop(ROOT)
            root.lookups = 0
            kept = [node.kept for node in self._nodes.values()]
            self._nodes = {ROOT: root}
            self._by_key = {root.key: ROOT}
            return kept


class Handles(Generic[Kept]):
    """Handles of open files and directories: each belongs to the node that was opened, and is good with that alone."""

    __slots__ = ("_handles", "_most", "_next", "_one_at_a_time")

    def __init__(self, most: int) -> None:
        """At most ``most`` at a time."""
        self._one_at_a_time = Lock()
        self._most = most
        self._next = 1
        self._handles: dict[int, tuple[int, Kept]] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def get(self, handle: int, node: int) -> Kept:
        """The record of ``handle``. Raises `OSError` (EBADF) if ``node`` has no such handle."""
        found = self._handles.get(handle)
        if found is None or found[0] != node:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found[1]

    def check_room(self) -> None:
        """Raises `TooManyError` if there is no room for one more: before anything is opened."""
        if len(self._handles) >= self._most:
            raise TooManyError

    def add(self, node: int, kept: Kept) -> int:
        """A new handle. Raises what `check_room` does."""
        with self._one_at_a_time:
            self.check_room()
            handle = self._next
            self._next += 1
            self._handles[handle] = node, kept
            return handle

    def release(self, handle: int, node: int) -> Kept:
        """Release a handle; returns its record. Raises the errors of `get`."""
        with self._one_at_a_time:
            kept = self.get(handle, node)
            del self._handles[handle]
            return kept

    def clear(self) -> list[Kept]:
        """Release all, as at the end of a session; returns their records."""
        with self._one_at_a_time:
            kept = [item for _, item in self._handles.values()]
            self._handles = {}
            return kept

"""The path of each inotify watch: a tree of nodes that the events rewrite."""

from __future__ import annotations


class Node:
    """A watched directory: its place in the tree, as far as the events told it."""

    __slots__ = ("children", "name", "parent", "wd")

    def __init__(self, wd: int) -> None:
        self.wd = wd
        self.name = b""
        self.parent: Node | None = None
        self.children: dict[bytes, Node] = {}


class Nodes:
    """All watches of one tree. A node that has lost its place is *loose* until `attach` finds it another."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._top: Node | None = None
        self._loose: set[Node] = set()

    def __contains__(self, wd: int) -> bool:
        """True if ``wd`` is one of the watches."""
        return wd in self._nodes

    def get(self, wd: int) -> Node | None:
        """The node of the watch ``wd``."""
        return self._nodes.get(wd)

    def descriptors(self) -> set[int]:
        """All watches."""
        return set(self._nodes)

    def path(self, node: Node) -> bytes | None:
        """The path of ``node``; None while it has no place."""
        parts: list[bytes] = []
        while node is not self._top:
            parts.append(node.name)
            if node.parent is None:
                return None
            node = node.parent
        parts.reverse()
        return b"/".join(parts)

    def attach(self, wd: int, path: bytes) -> bool:
        """Give the watch ``wd`` the path ``path``, in place of its old one.

        False if the directory above is unknown, or is below ``wd``: the events that explain this are still to come.
        """
        node = self._nodes.get(wd)
        if node is None:
            node = self._nodes[wd] = Node(wd)
        if not path:
            self._top = node
            return True
        *above, name = path.split(b"/")
        parent = self._top
        for part in above:
            parent = None if parent is None else parent.children.get(part)
        up = parent
        while up is not None and up is not node:
            up = up.parent
        if parent is None or up is node:
            if node.parent is None and node is not self._top:
                self._loose.add(node)
            return False
        self.detach(node)
        other = parent.children.get(name)
        if other is not None:
            self.detach(other)
        node.parent, node.name = parent, name
        parent.children[name] = node
        self._loose.discard(node)
        return True

    def detach(self, node: Node) -> None:
        """Let ``node`` have no place."""
        parent = node.parent
        if parent is not None:
            if parent.children.get(node.name) is node:
                del parent.children[node.name]
            node.parent = None
            self._loose.add(node)

    def remove(self, node: Node) -> None:
        """Remove ``node``, whose watch has ended; its children are loose."""
        del self._nodes[node.wd]
        self.detach(node)
        self._loose.discard(node)
        self._loose.update(self._orphans(node))

    def drop_loose(self) -> list[int]:
        """Forget the nodes that have found no place, and all below them; returns their watches."""
        dropped: list[int] = []
        loose, self._loose = self._loose, set()
        while loose:
            node = loose.pop()
            if node.parent is not None or self._nodes.get(node.wd) is not node:
                continue
            loose.update(self._orphans(node))
            del self._nodes[node.wd]
            dropped.append(node.wd)
        return dropped

    @staticmethod
    def _orphans(node: Node) -> list[Node]:
        children = list(node.children.values())
        node.children.clear()
        for child in children:
            child.parent = None
        return children

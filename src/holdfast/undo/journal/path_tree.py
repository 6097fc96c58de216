"""A dictionary by path that knows what lies at and below a directory without looking at everything else."""

from __future__ import annotations

from typing import TypeVar

V = TypeVar("V")


class PathTree(dict[bytes, V]):
    """See the module. Only ``tree[path] = value`` keeps the index up to date."""

    _inner: dict[bytes, dict[bytes, None]] | None = None
    """Known entries directly below a directory, built at the first use; some of them may be gone."""

    def __setitem__(self, path: bytes, value: V) -> None:
        """Put it there."""
        if self._inner is not None and path not in self:
            _enter(self._inner, path)
        super().__setitem__(path, value)

    def take(self, top: bytes) -> dict[bytes, V]:
        """Remove and return everything at and below ``top``. The time depends on its size."""
        if self._inner is None:
            self._inner = {}
            for path in self:
                _enter(self._inner, path)
        waiting, taken = [top], dict[bytes, V]()
        while waiting:
            path = waiting.pop()
            if path in self:
                taken[path] = self.pop(path)
            waiting.extend(self._inner.pop(path, ()))
        self._inner.get(top.rpartition(b"/")[0], {}).pop(top, None)
        return taken


def _enter(inner: dict[bytes, dict[bytes, None]], path: bytes) -> None:
    while path:
        above = path.rpartition(b"/")[0]
        known = inner.setdefault(above, {})
        if path in known:
            break
        known[path] = None
        path = above

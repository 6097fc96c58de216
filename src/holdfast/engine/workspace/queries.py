"""The part of a workspace's public face that looks: at its checkpoints, into them, and at how two states differ."""

from __future__ import annotations

import os

from holdfast.engine.workspace.opened import OpenedWorkspace
from holdfast.model.errors import UsageError
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engine.diffs.diff import Contents
    from holdfast.engine.diffs.text import FileStat
    from holdfast.engine.results import objects
    from holdfast.engine.results.results import Details, Diff, Log
    from holdfast.model.ids import CheckpointId


class LookedAt(OpenedWorkspace):
    """See the module."""

    def log(self, limit: int | None = None, *, everything: bool = False) -> Log:
        """The checkpoints, newest first, and what happened to the tree. ``everything``: of all workspaces in the
        home. ``limit`` is a number from 0; None means all.
        """
        from holdfast.engine.history.queries import log

        return log(self._context, limit, everything=everything)

    def show(self, name: str = "@") -> Details:
        """All that is kept about one checkpoint: its record, its changes, what it did not capture."""
        from holdfast.engine.history.queries import show

        return show(self._context, self.resolve(name))

    def resolve(self, name: str) -> CheckpointId:
        """The checkpoint that ``name`` means; raises `NotFoundError`, or `UsageError` if it means several."""
        from holdfast.engine.history.names import resolve

        return resolve(self._context, name)

    def cat(self, name: str, path: str | bytes) -> Iterator[bytes]:
        """The content of ``path`` in a checkpoint, in pieces (of a symbolic link: its target), verified."""
        from holdfast.engine.history.queries import cat

        return cat(self._context, self.resolve(name), os.fsencode(path))

    def diff(
        self, a: str | None = None, b: str | None = None, *, paths: Sequence[str | bytes] = (), renames: bool = True
    ) -> Diff:
        """How ``b`` (None: the tree as it is) differs from ``a`` (None: ``@``), limited to ``paths``."""
        from holdfast.engine.diffs.diff import diff

        target = None if b is None else self.resolve(b)
        base = self.resolve("@" if a is None else a)
        return diff(self._context, base, target, paths=encoded(paths), renames=renames)

    def patch(self, diff: Diff, *, context: int = 3, binary: bool = False) -> Iterator[bytes]:
        """The unified text of a diff, as ``git apply`` takes it; ``binary`` includes the content of binary files."""
        from holdfast.engine.diffs.text import patch

        return patch(diff, self._contents(diff).fetch, context=context, binary=binary)

    def diff_stat(self, diff: Diff) -> list[FileStat]:
        """How many lines each file of a diff gains and loses."""
        from holdfast.engine.diffs.text import stat

        return stat(diff, self._contents(diff).fetch)

    def diff_json(self, diff: Diff) -> objects.Diff:
        """A diff as the documented JSON object, with the text of each modified file."""
        from holdfast.engine.diffs.text import to_json

        return to_json(diff, self._contents(diff).fetch)

    def _contents(self, diff: Diff) -> Contents:
        from holdfast.engine.diffs.diff import Contents

        return Contents(self._context, diff)


def encoded(paths: Sequence[str | bytes]) -> list[bytes]:
    """Paths as the engine has them. One path where a list is meant would be taken for its letters."""
    if isinstance(paths, (str, bytes)):
        raise UsageError(f"{paths!r} is not a list of paths")
    return [os.fsencode(path) for path in paths]

"""What a saved state's own rule files leave out: asked where going back changes them and files come to light."""

from __future__ import annotations

from holdfast.engine.opening.saved_state import SavedState
from holdfast.files.gitconfig import MAX_RULES_BYTES
from holdfast.files.ignore import CHECKPOINTIGNORE, GITIGNORE, UNKNOWN_FINGERPRINT, DirectoryRules
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash

_RULE_FILES = (GITIGNORE, CHECKPOINTIGNORE)


def touches_rules(changes: Iterable[Change]) -> bool:
    """True if any of ``changes`` is about a rule file."""
    return any(change.path.rpartition(b"/")[2] in _RULE_FILES for change in changes)


def left_out(context: Context, root: Hash, paths: Iterable[bytes]) -> set[bytes]:
    """Those of ``paths`` that the rule files in the stored manifest ``root`` exclude.

    Rules from outside the tree are not asked: no restore changes them.
    """
    rules = _Rules(context, root)
    return {path for path in paths if rules.excluded(path)}


class _Rules:
    def __init__(self, context: Context, root: Hash) -> None:
        self._saved = SavedState(context, root)
        self._known: dict[bytes, DirectoryRules] = {}
        self._excluded: dict[bytes, bool] = {b"": False}

    def excluded(self, path: bytes) -> bool:
        parent, _, name = path.rpartition(b"/")
        return self._directory(parent) or self._in(parent).excluded(path, name, False)

    def _directory(self, path: bytes) -> bool:
        known = self._excluded.get(path)
        if known is None:
            parent, _, name = path.rpartition(b"/")
            known = self._excluded[path] = self._directory(parent) or self._in(parent).excluded(path, name, True)
        return known

    def _in(self, directory: bytes) -> DirectoryRules:
        known = self._known.get(directory)
        if known is None:
            gitignore, own = (self._read(directory, name) for name in _RULE_FILES)
            if directory:
                known = self._in(directory.rpartition(b"/")[0]).below(directory, gitignore, own)
            else:
                known = DirectoryRules(UNKNOWN_FINGERPRINT, (), (), {}).at_root(gitignore, own)
            self._known[directory] = known
        return known

    def _read(self, directory: bytes, name: bytes) -> bytes | None:
        return self._saved.read(directory + b"/" + name if directory else name, MAX_RULES_BYTES + 1)

"""The baseline of a scan: findings of earlier scans, and the content known to be stored."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.files.ignore.rules import DirectoryRules
    from holdfast.files.index.stat_index import StatIndex
    from holdfast.files.tree import EntryLookup
    from holdfast.model.ids import Hash


class ScanFindings:
    """The findings of scans in a tree besides the index. A watched tree keeps it from scan to scan."""

    def __init__(self) -> None:
        self.linked = False
        """Whether a file has several names (hard links): a process may write to it by one outside of the tree."""
        self.not_captured: dict[bytes, str] = {}
        self.rescan: set[bytes] = set()
        """Paths to look at in every scan: racy, written to right now, unreadable."""
        self.rules: dict[bytes, DirectoryRules] = {}
        """Of the root and every directory that has rule files."""

    def rules_above(self, path: bytes) -> DirectoryRules:
        """The rules that are in force in the parent directory of ``path`` (not the root)."""
        while path:
            path = path.rpartition(b"/")[0]
            if path in self.rules:
                return self.rules[path]
        return self.rules[b""]

    def settle(self, path: bytes) -> None:
        """Drop the findings about the file ``path``: it is scanned again."""
        self.not_captured.pop(path, None)
        self.rescan.discard(path)

    def forget(self, path: bytes) -> None:
        """Drop the findings about ``path`` and all below it."""
        below = path + b"/"
        for known in (self.not_captured, self.rules):
            for inner in [inner for inner in known if inner == path or inner.startswith(below)]:
                del known[inner]
        self.rescan.difference_update([inner for inner in self.rescan if inner == path or inner.startswith(below)])


class TrustedContent:
    """Which remembered hashes may be used without giving the content to the sink once more."""

    def __init__(
        self,
        index: StatIndex,
        *,
        hashes_only: bool,
        base: Hash | None,
        lookup: EntryLookup | None,
        full_hash: bool,
        beneath: EntryLookup | None = None,
    ) -> None:
        """``hashes_only``: the sink stores nothing, so it needs no content. ``beneath`` gives the entry of a path in
        the lower layer of an overlay, all of whose content is stored.
        """
        labelled = base is not None and index.root is not None
        self.nothing = full_hash or not (hashes_only or labelled)
        """All files are to be read."""
        self._beneath = beneath
        self._lookup = lookup if labelled and index.root != base and not hashes_only else None
        self._delta = {} if hashes_only else index.delta
        self.suspects = frozenset(path.rpartition(b"/")[0] for path in self._delta)
        """Directories that hold paths whose content the store may never have seen."""
        self.everywhere = not self.nothing and self._lookup is None
        """Outside of the suspects, every remembered hash is good."""

    def holds(self, path: bytes, value: Hash) -> bool:
        """True if the content of ``path``, remembered as ``value``, is stored, as far as the tree can know."""
        if self.nothing:
            return False
        if path in self._delta:
            lower = None if self._beneath is None else self._beneath(path)
            return lower is not None and lower.hash == value
        if self._lookup is None:
            return True
        stored = self._lookup(path)
        return stored is not None and stored.hash == value

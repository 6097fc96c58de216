"""Manifests: the sorted list path → entry of one state, kept as a persistent search tree of pages.

The boundaries of pages depend on the paths alone, so a set of entries has exactly one tree and root, whatever its
history: equal states have equal roots, and two manifests share every equal page. Such content-defined trees are also
called prolly trees (Noms, Dolt); docs/formats/manifest.md has the details.

This module is the interface of four others: `builder`, `_updater`, `_reader` and `_difference`.
"""

from __future__ import annotations

from holdfast.store.manifests._difference import diff
from holdfast.store.manifests._reader import (
    PageCache,
    PageSource,
    ReachablePage,
    get,
    get_many,
    iterate,
    pages_on_path,
    reachable,
    totals,
)
from holdfast.store.manifests._updater import update
from holdfast.store.manifests.builder import BuiltManifest, build, check
from holdfast.store.manifests.page_codec import EMPTY_PAGE, EMPTY_ROOT

__all__ = [
    "EMPTY_PAGE",
    "EMPTY_ROOT",
    "BuiltManifest",
    "PageCache",
    "PageSource",
    "ReachablePage",
    "build",
    "check",
    "diff",
    "get",
    "get_many",
    "iterate",
    "pages_on_path",
    "reachable",
    "totals",
    "update",
]

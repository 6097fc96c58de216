"""Manifests: the sorted list path → entry of one state, kept as a persistent search tree of pages.

Where one page ends and the next begins depends on the paths alone, so that a set of entries has one tree and one root,
whatever the history: equal states have equal roots, and two manifests share every page in which they agree. The idea is
that of content-defined trees (prolly trees, as in Noms and Dolt); docs/formats/manifest.md has the details.

This is the face of four modules: `builder`, `_updater`, `_reader` and `_difference`.
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

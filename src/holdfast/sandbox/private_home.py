"""A box's own home directory: the user's, read-only, except caches, which are the box's.

Programs that download dependencies write below the user's home, even at their first run. So its path has a directory of
the box, in which each of the user's entries is mounted read-only. An entry with a cache inside is a directory of the
box as well, in which its other entries are mounted. (An overlay would be one mount, but the kernel makes none on top of
another, and so none in most containers.)
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from holdfast.sandbox.policy import PrivateHome

CACHES: Final = (
    ".bun/install/cache", ".bundle/cache", ".cabal/packages", ".cache", ".cargo/.global-cache",
    ".cargo/.package-cache", ".cargo/.package-cache-mutate", ".cargo/git", ".cargo/registry", ".composer/cache",
    ".conda/pkgs", ".gradle/.tmp", ".gradle/caches", ".gradle/daemon", ".gradle/native", ".gradle/notifications",
    ".gradle/wrapper", ".hex", ".ivy2", ".local/share/NuGet", ".local/share/pnpm/store", ".local/share/virtualenv",
    ".local/state", ".m2/repository", ".m2/wrapper", ".node-gyp", ".npm", ".nuget/packages", ".pnpm-store",
    ".pub-cache", ".sbt", ".stack", ".yarn/berry", "go/pkg",
)  # fmt: skip
"""Below the user's directory: what programs can fetch or make again, and write to while they build."""

MOST_ENTRIES: Final = 500
"""bubblewrap reads the list of all mounts again for each mount that it makes: a thousand take a second."""


def make_private_home(home: bytes, origin: bytes, *, is_visible: bool = True) -> PrivateHome | None:
    """Prepare the directory ``origin`` (mode 0700) for a box to see at the path ``home``; None if that is no directory
    of the user, or has too many entries. Without ``is_visible`` it has none of the user's entries.

    May be repeated for the same ``origin``: a box's own files stay, and are not trusted. Raises `OSError`.
    """
    home = os.path.realpath(home)
    if home == b"/" or not os.path.isdir(home):
        return None
    os.makedirs(origin, mode=0o700, exist_ok=True)
    own: list[bytes] = [home]
    shown: list[bytes] = []
    caches = frozenset(os.path.join(home, os.fsencode(name)) for name in CACHES)
    above = {path for cache in caches for path in _between(home, cache)}
    for path in own:
        made = origin + path[len(home) :]
        for entry in os.scandir(path) if is_visible else ():
            its = os.path.join(made, entry.name)
            if entry.path in caches or os.path.islink(its):  # a box may have made the link, to redirect a mount
                continue
            is_own = (
                entry.path in above and entry.is_dir(follow_symlinks=False) and os.access(entry.path, os.R_OK | os.X_OK)
            )
            with suppress(FileExistsError):
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), its)
                    continue
                if is_own:
                    os.mkdir(its, 0o700)
            (own if is_own else shown).append(entry.path)
        if len(own) + len(shown) > MOST_ENTRIES:
            return None
    return PrivateHome(home, origin, tuple(own), tuple(shown))


def _between(home: bytes, path: bytes) -> list[bytes]:
    """The directories below the one, and above the other."""
    found: list[bytes] = []
    while (path := os.path.dirname(path)) != home:
        found.append(path)
    return found

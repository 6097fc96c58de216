"""A home directory of a box's own: the user's read-only, but for caches, which are the box's.

Programs that fetch dependencies write below the user's directory, also on a machine where they never ran. So what is
seen at its path is a directory of the box's own, in which each entry of the user's is mounted read-only; and where a
cache lies in one of these, that entry is a directory of the box's own as well, and what else it holds is mounted there.
(An overlay would be one mount, but the kernel makes none on top of another, and so none in most containers.)
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
    """Make the directory ``origin`` (mode 0700) what a box is to see at the path ``home``; None if that is no directory
    of a user's, or holds too much. Without ``is_visible`` nothing of the user's is in it.

    May be called again for the same ``origin``, which keeps what a box has written to it, and trusts none of that.
    Raises `OSError`.
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
            if entry.path in caches or os.path.islink(its):  # (A box may have made the link, to lead a mount out.)
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

"""Where a path leads, and what it means to change something there."""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from holdfast.engine.safety.words import ANY, SET, STAR, UNKNOWN
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.safety.shell import Shell
    from holdfast.engine.safety.words import Word
    from holdfast.model.session import Level

Kind = Literal[
    "nothing", "inside", "ignored", "git", "repository", "log", "workspace", "temporary", "outside", "network",
    "unknown", "empty", "keys", "system", "device", "home", "top",
]  # fmt: skip
Deed = Literal["write", "remove", "erase", "sweep"]
"""Write to one thing or make it, remove one thing, remove all that is below, change all that is below."""


class Verdict(NamedTuple):
    """What it means to do something to a path."""

    level: Level
    reversible: bool
    note: str


_FINE = Verdict("safe", True, "")
_PLAIN = Verdict("changes", True, "")


def _all(level: Level, note: str) -> tuple[Verdict, Verdict, Verdict, Verdict]:
    each = Verdict(level, False, note)
    return each, each, each, each


def _else(write: Verdict, level: Level, note: str) -> tuple[Verdict, Verdict, Verdict, Verdict]:
    each = Verdict(level, False, note)
    return write, each, each, each


def _risky(note: str) -> Verdict:
    return Verdict("risky", False, note)


_WITH_IGNORED = _risky("ignored files in it are in no checkpoint")
_REPOSITORY = "the Git repository itself, which is in no checkpoint"
_ABOVE = "a directory above the workspace, or one of the system"
_OUTSIDE = _risky("outside of the workspace")
_NOWHERE = "where that is cannot be told"

# From the least severe kind of place to the most; of each what writing, removing, erasing and sweeping mean there.
# A single path is taken to be captured unless its name says otherwise. What lies below a directory may be ignored.
VERDICTS: dict[Kind, tuple[Verdict, Verdict, Verdict, Verdict]] = {
    "nothing": _else(_FINE, "dangerous", "a device"),
    "inside": (_PLAIN, _PLAIN, _WITH_IGNORED, _WITH_IGNORED),
    "ignored": _all("risky", "such files are usually ignored, and then in no checkpoint"),
    "git": _all("risky", "a part of a Git repository, which is in no checkpoint"),
    "workspace": _else(_PLAIN, "risky", "all of the workspace, or most of it"),
    "temporary": _all("risky", "outside of the workspace"),
    "outside": (_OUTSIDE, _OUTSIDE, _OUTSIDE._replace(level="dangerous"), _OUTSIDE),
    "network": _all("risky", "a connection to somewhere else"),
    "unknown": _all("risky", _NOWHERE),
    "empty": _else(_risky(_NOWHERE), "dangerous", "far too much if the variable in it is empty"),
    "repository": _else(_risky(_REPOSITORY), "dangerous", _REPOSITORY),
    "log": _all("dangerous", "the undo log of Holdfast"),
    "keys": _all("dangerous", "keys and what they give access to"),
    "system": _all("dangerous", "a part of the system"),
    "device": _all("dangerous", "a device"),
    "home": _else(_risky("a home directory"), "dangerous", "a home directory"),
    "top": _else(_risky(_ABOVE), "dangerous", _ABOVE),
}
_DEEDS: dict[Deed, int] = {"write": 0, "remove": 1, "erase": 2, "sweep": 3}
_SEVERITY: dict[Kind, int] = {kind: rank for rank, kind in enumerate(VERDICTS)}

# What projects usually tell Git to ignore: names anywhere in a path, and patterns of the last name.
IGNORED_NAMES = frozenset(
    (
        "node_modules", "bower_components", "target", "build", "dist", "out", ".venv", "venv", "__pycache__", ".tox",
        ".nox", ".cache", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".next", ".nuxt", ".gradle", ".terraform",
        "coverage", ".env", ".DS_Store",
    )
)  # fmt: skip
IGNORED_PATTERNS = ("*.pyc", "*.pyo", "*.o", "*.so", "*.a", "*.class", "*.log", "*.swp", "*.egg-info", ".env.*")
_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr", "/var", "/run",
           "/System", "/Library", "/Applications", "/private/etc", "/private/var")  # fmt: skip
_TEMPORARY = ("/tmp", "/var/tmp", "/private/tmp", "/dev/shm")  # noqa: S108 - places to know, not to use
_LOCAL = ("/usr/local", "/var/log", "/var/folders", "/run/user")
_HARMLESS = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero", "/dev/full")
_TOPS = (
    *_SYSTEM,
    *_TEMPORARY,
    *_LOCAL,
    "/dev",
    "/home",
    "/mnt",
    "/media",
    "/opt",
    "/root",
    "/srv",
    "/Users",
    "/Volumes",
)
_KEYS = (".ssh", ".gnupg", ".aws", ".kube", ".password-store")
_WHOLE = {STAR, "." + STAR, STAR + STAR, "." + ANY + STAR, "." + SET + "!.]" + STAR, "." + SET + "^.]" + STAR}


def verdict(word: Word, deed: Deed, shell: Shell) -> Verdict:
    """What ``deed`` to what ``word`` names means: of all that it may name, the worst."""
    kind = max(kinds(word.shape, shell), key=_SEVERITY.__getitem__)
    return VERDICTS[kind][_DEEDS[deed]]


def kinds(shape: str, shell: Shell) -> Iterator[Kind]:
    """Where the path ``shape`` may be."""
    if UNKNOWN in shape:
        yield "unknown"
        # A variable may turn out to be empty, which makes of "$x/*" all that there is.
        rest = shape.replace(UNKNOWN, "")
        if rest and any(kind in ("top", "home") for kind in kinds(rest, shell)):
            yield "empty"
        return
    if shape.startswith("/"):
        yield _kind(shape, shell)
    elif not shape:
        yield "nothing"
    elif not shell.cwds:
        yield "unknown"
    for cwd in shell.cwds if shape and not shape.startswith("/") else ():
        yield _kind(f"{cwd}/{shape}", shell)


def _kind(shape: str, shell: Shell) -> Kind:
    names = [name for name in shape.split("/") if name not in ("", ".")]
    first = next((at for at, name in enumerate(names) if any(one <= SET for one in name)), None)
    if first is None:
        return _of_path(posixpath.normpath("/" + "/".join(names)), shell)
    if ".." in names[first:] or any(_is_parent(name) for name in names[first:]):
        return "unknown"
    base = posixpath.normpath("/" + "/".join(names[:first]))
    kind = _of_path(base, shell)
    last = names[-1].replace(STAR, "*").replace(ANY, "?").replace(SET, "[")
    if all(name in _WHOLE for name in names[first:]):
        # All that is in a directory is as good as the directory.
        return kind
    if base == "/":
        return "top"
    if kind in ("workspace", "inside"):
        return "ignored" if _usually_ignored([last]) else "inside"
    return "outside" if kind in ("home", "top") and not _below(base, _SYSTEM) else kind


def _is_parent(name: str) -> bool:
    """True for a pattern that names the directory above as well, as older shells read ``.*``."""
    return name not in _WHOLE and name.startswith(".") and name.strip("." + STAR + ANY) == ""


def _of_path(path: str, shell: Shell) -> Kind:
    path = path if path == "/" else "/" + path.lstrip("/")
    home, root = shell.env.get("HOME", ""), shell.root
    if path == root:
        return "workspace"
    if _below(path, (root,)):
        return _in_workspace(path[len(root.rstrip("/")) + 1 :].split("/"))
    if path in _HARMLESS or _below(path, ("/dev/fd", "/dev/pts")):
        return "nothing"
    if path == "/" or path in _TOPS or _below(root, (path,)):
        return "home" if path == home else "top"
    if _below(path, ("/dev/tcp", "/dev/udp")):
        return "network"
    if path == home or posixpath.dirname(path) in ("/home", "/Users"):
        return "home"
    if any(name in _KEYS for name in path.split("/")):
        return "keys"
    if _below(path, _TEMPORARY):
        return "temporary"
    if _below(path, _LOCAL):
        return "outside"
    if _below(path, ("/dev",)):
        return "device"
    return "system" if _below(path, _SYSTEM) else "outside"


def _in_workspace(names: list[str]) -> Kind:
    if names[-1] == ".git":
        return "repository"
    if ".git" in names:
        return "git"
    if names[0] == ".holdfast":
        return "log"
    return "ignored" if _usually_ignored(names) else "inside"


def _usually_ignored(names: list[str]) -> bool:
    return not IGNORED_NAMES.isdisjoint(names) or any(fnmatchcase(names[-1], one) for one in IGNORED_PATTERNS)


def _below(path: str, places: tuple[str, ...]) -> bool:
    return any(path.startswith(place.rstrip("/") + "/") for place in places)

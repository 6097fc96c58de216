"""Where Git keeps the exclude rules that lie outside a tree: found by reading files, without running Git.

Source: gitignore(5), git-config(1), gitrepository-layout(5).
"""

from __future__ import annotations

import os

from holdfast.files.linux.regular_file import read_bounded
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display

_LOG = Log(__name__)
_MAX_CONFIG_BYTES = 1 << 20
_MAX_CONFIG_FILES = 64
_MAX_INCLUDES = 10
_LEADS = b"gitdir: "
MAX_RULES_BYTES = 1 << 20
"""Limit for reading a rule file; a larger one is cut at the last whole line before it."""

# Compiled, and kept by `re`, when there is a file to read.
_SECTION = rb"\s*\[\s*([-.A-Za-z0-9]+)\s*(\"(?:[^\"\\]|\\.)*\")?\s*\]"
_VARIABLE = rb"\s*([A-Za-z][-A-Za-z0-9]*)\s*=\s*"
_WANTED = (b"excludesfile", b"include")
_ESCAPES = {0x6E: b"\n", 0x74: b"\t", 0x62: b"\b"}


class GitUser(NamedTuple):
    """Whose global excludes are obeyed."""

    home: bytes | None = None
    """The home directory; None: there is none, so no file of it is read."""
    config_home: bytes | None = None
    """``$XDG_CONFIG_HOME``; None for the default, ``.config`` in the home."""
    system_config: bytes | None = b"/etc/gitconfig"


class Repository(NamedTuple):
    """The Git repository of a directory."""

    worktree: bytes
    """The directory that holds ``.git``."""
    common: bytes
    """The Git directory that all of its work trees share."""
    own: bytes
    """The Git directory of this work tree: the same, except for an added one."""


def find_repository(directory: bytes) -> Repository | None:
    """The repository that ``directory`` (absolute) lies in, as Git finds it: on the same file system, and none above a
    file ``.git`` that leads nowhere.
    """
    at = directory
    try:
        device = os.stat(at).st_dev
        while True:
            found = _git_directories(_join(at, b".git"))
            if found is not None:
                return Repository(at, *found)
            if read_bounded(_join(at, b".git"), len(_LEADS)) == _LEADS:
                return None
            above = os.path.dirname(at)
            if above == at or os.stat(above).st_dev != device:
                return None
            at = above
    except OSError:
        return None


def _join(directory: bytes, path: bytes) -> bytes:
    return path if path.startswith(b"/") else directory + b"/" + path


def _git_directories(dot_git: bytes) -> tuple[bytes, bytes] | None:
    """The common directory behind ``.git``, and that of the work tree; None if it is neither a directory of Git, nor a
    file that points to one.
    """
    git_dir = dot_git
    if os.path.isfile(dot_git):
        link = read_bounded(dot_git, 4096 + 16)
        if link is None or not link.startswith(_LEADS):
            return None
        git_dir = _join(os.path.dirname(dot_git), link[len(_LEADS) :].rstrip(b"\r\n"))
    if not os.path.lexists(_join(git_dir, b"HEAD")):
        return None
    pointer = read_bounded(_join(git_dir, b"commondir"), 4096)
    common = git_dir if pointer is None else _join(git_dir, pointer.rstrip(b"\r\n"))
    if os.path.isdir(_join(common, b"objects")) and os.path.isdir(_join(common, b"refs")):
        return common, git_dir
    return None


def global_excludes(user: GitUser, repository: Repository | None) -> bytes | None:
    """The path of the user's global excludes file, whether it exists or not: ``core.excludesFile`` or its default."""
    config_home = user.config_home
    if not config_home and user.home is not None:
        config_home = _join(user.home, b".config")
    sources = [user.system_config]
    if config_home:
        sources.append(_join(config_home, b"git/config"))
    if user.home is not None:
        sources.append(_join(user.home, b".gitconfig"))
    if repository is not None:
        sources.append(_join(repository.common, b"config"))
    search = _Search(user.home)
    for source in sources:
        if source is not None:
            search.read(source)
    value = search.found
    if value is not None:
        if not value:
            return None
        path = _expand(value, user.home)
        if path is not None and not os.path.isabs(path):
            path = None if repository is None else _join(repository.worktree, path)
        return path
    return _join(config_home, b"git/ignore") if config_home else None


class _Search:
    """Looks for the last ``core.excludesFile`` in configuration files, which any user may have written: includes are
    limited in number of files and total bytes.
    """

    def __init__(self, home: bytes | None) -> None:
        self.found: bytes | None = None
        self._home = home
        self._files = _MAX_CONFIG_FILES
        self._bytes = _MAX_CONFIG_BYTES

    def read(self, path: bytes, includes: int = _MAX_INCLUDES) -> None:
        """Read the file ``path`` and its includes, up to ``includes`` levels deep."""
        if not self._files or not self._bytes:
            return
        text = read_bounded(path, self._bytes)
        if text is None:
            return
        self._files -= 1
        self._bytes -= len(text)
        if not self._files or not self._bytes:
            _LOG.warning(
                "the configuration of Git is obeyed up to %d files or %d bytes only, and ends in %s",
                _MAX_CONFIG_FILES,
                _MAX_CONFIG_BYTES,
                display(path),
            )
        text = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\\\n", b"")
        if not any(name in text.lower() for name in _WANTED):
            return  # as in most: then nothing has to be loaded
        import re

        section = b""
        for line in text.split(b"\n"):
            header = re.match(_SECTION, line)
            if header is not None:
                section = header[1].lower() if header[2] is None else b""
                line = line[header.end() :]
            variable = re.match(_VARIABLE, line)
            if variable is None:
                continue
            key = (section, variable[1].lower())
            if key == (b"core", b"excludesfile"):
                self.found = _value(line[variable.end() :])
            elif key == (b"include", b"path") and includes:
                included = _expand(_value(line[variable.end() :]), self._home)
                if included:
                    self.read(_join(os.path.dirname(path), included), includes - 1)


def _value(text: bytes) -> bytes:
    """The value of a variable: quotes and escapes resolved, a comment and the space around it removed."""
    out = bytearray()
    keep = 0
    quoted = False
    at = 0
    while at < len(text):
        byte = text[at]
        if byte == 0x22:
            quoted = not quoted
            keep = len(out)
        elif byte == 0x5C and at + 1 < len(text):
            at += 1
            out += _ESCAPES.get(text[at], text[at : at + 1])
            keep = len(out)
        elif byte in b"#;" and not quoted:
            break
        else:
            out.append(byte)
            if quoted or byte not in b" \t":
                keep = len(out)
        at += 1
    return bytes(out[:keep])


def _expand(path: bytes, home: bytes | None) -> bytes | None:
    """``path`` with a leading ``~`` or ``~user`` replaced; None if that home is not known."""
    if not path.startswith(b"~"):
        return path
    user, _, rest = path[1:].partition(b"/")
    if user:
        import pwd

        try:
            home = os.fsencode(pwd.getpwnam(os.fsdecode(user)).pw_dir)
        except (KeyError, ValueError):
            return None
    return None if home is None else _join(home, rest)

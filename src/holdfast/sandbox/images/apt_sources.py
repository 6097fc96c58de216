"""The sources of Debian packages: those of this host's apt, or a recipe's.

Formats: sources.list(5), both one-line and stanzas (deb822).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LINE: Final = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>[^#]*)")
_MAX_BYTES: Final = 1 << 20


class Source(NamedTuple):
    """One suite at one mirror."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""
    """The file of the keys that sign it, several with spaces between, or the key itself, lines with a line feed and a
    space between; empty: any that apt trusts.
    """

    def stanza(self) -> str:
        """The source as an apt stanza."""
        fields = {
            "Types": "deb",
            "URIs": self.uri,
            "Suites": self.suite,
            "Components": " ".join(self.components),
            "Signed-By": self.signed_by,
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def choose_sources(known: Iterable[Source], codename: str, *, suite: str = "", mirror: str = "") -> list[Source]:
    """The sources for a build: a distribution's own archive first, then its updates and security if known.

    ``known`` are the sources of the host's apt, ``codename`` the host's own release. ``suite`` and ``mirror`` replace
    them: a mirror is used alone. Raises `NotFoundError` if the host has no sources.
    """
    known = list(known)
    wanted = suite or codename
    # A host that also has another release's packages lists its own first.
    own = next((one for one in known if one.suite == codename and "main" in one.components), None)
    if mirror:
        if not wanted:
            raise NotFoundError("which release of the distribution to take is not known", hint="give --suite")
        return [Source(mirror, wanted, ("main",), own.signed_by if own else "")]
    found = [
        next((one for one in known if one.suite == name and "main" in one.components), None)
        for name in (wanted, f"{wanted}-updates", f"{wanted}-security", f"{wanted}/updates")
    ]
    if found[0] is None and own is not None and wanted:
        found = [own._replace(suite=wanted)]
    sources = [one for one in found if one is not None]
    if found[0] is None:
        raise NotFoundError(
            f"apt on this host is not configured with the packages of {wanted or 'a release'}",
            hint="give --suite and --mirror, such as those of Debian's stable release",
        )
    return sources


def host_codename(os_release: str) -> str:
    """The release's name in ``/etc/os-release``; empty without one."""
    for line in os_release.splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip().strip("'\"")
    return ""


def read_host_sources(directory: str = "/etc/apt") -> list[Source]:
    """Every source of apt's configuration there, in apt's order, without unreadable ones."""
    found: list[Source] = []
    for path in _source_files(directory):
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as stream:
                text = stream.read(_MAX_BYTES)
        except OSError:
            continue
        found += parse_stanzas(text) if path.endswith(".sources") else parse_lines(text)
    return found


def _source_files(directory: str) -> Iterator[str]:
    yield os.path.join(directory, "sources.list")
    parts = os.path.join(directory, "sources.list.d")
    try:
        names = sorted(os.listdir(parts))
    except OSError:
        return
    yield from (os.path.join(parts, name) for name in names if name.endswith((".list", ".sources")))


def parse_lines(text: str) -> Iterator[Source]:
    """The sources of a one-line file; other lines are skipped."""
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None:
            continue
        options: dict[str, str] = {}
        for option in (match["options"] or "").split():
            key, _, value = option.partition("=")
            options[key] = value
        yield Source(
            match["uri"],
            match["suite"],
            tuple(match["components"].split()),
            options.get("signed-by", "").replace(",", " "),
        )


def parse_stanzas(text: str) -> Iterator[Source]:
    """The sources of a file of stanzas; one that is not in use is passed over."""
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields = dict(_fields(stanza))
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        components = tuple(fields.get("components", "").split())
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri, suite, components, fields.get("signed-by", ""))


def _fields(stanza: str) -> Iterator[tuple[str, str]]:
    name, value = "", ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            value += "\n " + line.strip()
            continue
        if name:
            yield name, value.strip()
        name, _, value = line.partition(":")
        name = name.strip().lower()
    if name:
        yield name, value.strip()


def proxies(settings: str) -> dict[str, str]:
    """The proxy variables from the configuration of this host's apt, as printed by ``apt-config dump``: mmdebstrap
    starts an apt that does not read the host's configuration.
    """
    found = re.findall(r'^Acquire::(https?)::proxy "([^"]+)";', settings, re.MULTILINE | re.IGNORECASE)
    return {f"{kind.lower()}_proxy": url for kind, url in found if url != "DIRECT"}

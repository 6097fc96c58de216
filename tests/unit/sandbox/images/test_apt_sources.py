"""Where packages come from, by what a host's apt is configured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.model.errors import NotFoundError
from holdfast.sandbox.images.apt_sources import (
    Source,
    choose_sources,
    host_codename,
    parse_lines,
    parse_stanzas,
    proxies,
    read_host_sources,
)

LINES = """
# a comment
deb [arch=amd64 signed-by=/k.gpg,/l.gpg] http://mirror/debian bookworm main contrib # more
deb-src http://mirror/debian bookworm main
deb http://mirror/debian-security bookworm-security main
garbage
"""
STANZAS = """Types: deb deb-src
# a comment
URIs: http://mirror/debian http://second/debian
Suites: trixie trixie-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
Enabled: no
URIs: http://off/debian
Suites: trixie
Components: main

Types: deb-src
URIs: http://source/debian
Suites: trixie
Components: main
"""


def source(suite: str, uri: str = "http://mirror/debian", *components: str) -> Source:
    return Source(uri, suite, components or ("main",), "/k.gpg")


def test_files_of_lines() -> None:
    assert list(parse_lines(LINES)) == [
        Source("http://mirror/debian", "bookworm", ("main", "contrib"), "/k.gpg /l.gpg"),
        Source("http://mirror/debian-security", "bookworm-security", ("main",)),
    ]


def test_files_of_stanzas() -> None:
    found = list(parse_stanzas(STANZAS))
    assert [(one.uri, one.suite) for one in found] == [
        ("http://mirror/debian", "trixie"),
        ("http://mirror/debian", "trixie-updates"),
        ("http://second/debian", "trixie"),
        ("http://second/debian", "trixie-updates"),
    ]
    assert found[0].signed_by == "-----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc"


def test_a_stanza_says_the_same_again() -> None:
    for one in (*parse_lines(LINES), *parse_stanzas(STANZAS)):
        assert list(parse_stanzas(one.stanza())) == [one]


def test_both_kinds_of_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(LINES)
    (tmp_path / "sources.list.d/a.sources").write_text(STANZAS)
    (tmp_path / "sources.list.d/b.list.disabled").write_text(LINES)
    assert len(read_host_sources(str(tmp_path))) == 2 + 4
    assert read_host_sources(str(tmp_path / "none")) == []


def test_the_hosts_own_release_with_its_updates() -> None:
    known = [
        source("bookworm-pgdg"),
        source("bookworm-security"),
        source("bookworm", "http://docker", "stable"),
        source("bookworm"),
        source("bookworm", "http://second"),
        source("bookworm-updates"),
    ]
    found = choose_sources(known, "bookworm")
    assert [(one.uri, one.suite) for one in found] == [
        ("http://mirror/debian", "bookworm"),
        ("http://mirror/debian", "bookworm-updates"),
        ("http://mirror/debian", "bookworm-security"),
    ]


def test_another_release_comes_from_the_same_mirror() -> None:
    assert choose_sources([source("bookworm")], "bookworm", suite="trixie") == [source("trixie")]


def test_a_mirror_is_used_alone() -> None:
    known = [source("bookworm"), source("bookworm-updates")]
    assert choose_sources(known, "bookworm", mirror="http://m") == [Source("http://m", "bookworm", ("main",), "/k.gpg")]
    assert choose_sources([], "", suite="s", mirror="http://m") == [Source("http://m", "s", ("main",))]


def test_a_host_that_knows_none() -> None:
    for known, codename, suite, mirror in (([], "bookworm", "", ""), ([], "", "", "http://m"), ([], "", "sid", "")):
        with pytest.raises(NotFoundError) as raised:
            choose_sources(known, codename, suite=suite, mirror=mirror)
        assert "--suite" in str(raised.value.hint)


def test_the_name_of_the_release() -> None:
    assert host_codename('NAME="x"\nVERSION_CODENAME="bookworm"\n') == "bookworm"
    assert host_codename("NAME=Arch\n") == ""


def test_proxies() -> None:
    said = (
        'Acquire::http::Proxy "http://p:3128";\nAcquire::https::proxy "DIRECT";\nAcquire::http::Proxy::host "DIRECT";\n'
    )
    assert proxies(said) == {"http_proxy": "http://p:3128"}

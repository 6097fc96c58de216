"""What a policy takes, and what it refuses."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from holdfast.model.errors import UsageError
from holdfast.sandbox.policy import (
    AllowedConnections,
    ConnectionTarget,
    FileAccess,
    NoNetwork,
    OpenNetwork,
    SandboxPolicy,
    parse_network,
    parse_target,
)


@pytest.mark.parametrize(
    ("text", "range_", "port"),
    [
        ("192.0.2.7", "192.0.2.7/32", None),
        ("192.0.2.7:443", "192.0.2.7/32", 443),
        ("10.0.0.0/8", "10.0.0.0/8", None),
        ("10.0.0.0/8:65535", "10.0.0.0/8", 65535),
        ("0.0.0.0/0:443", "0.0.0.0/0", 443),
        ("2001:db8::7", "2001:db8::7/128", None),
        ("2001:db8::/32", "2001:db8::/32", None),
        ("[2001:db8::7]", "2001:db8::7/128", None),
        ("[2001:db8::7]:80", "2001:db8::7/128", 80),
        ("[2001:db8::]/32:80", "2001:db8::/32", 80),
    ],
)
def test_targets(text: str, range_: str, port: int | None) -> None:
    target = parse_target(text)
    assert target == ConnectionTarget(ip_network(range_), port)
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        "", "example.org", "example.org:443", "192.0.2.7/24", "192.0.2", "192.0.2.7:", "192.0.2.7:0", "192.0.2.7:65536",
        "192.0.2.7:x", "192.0.2.7:٤", "192.0.2.7:80:80", "[2001:db8::7", "[2001:db8::7]80", "[2001:db8::7]:",
        "127.0.0.1", "127.0.0.0/8:80", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:192.0.2.7",
        "10.0.0.0/8; flush ruleset", "10.0.0.0/8\n", "fe80::1%eth0",
    ],
)  # fmt: skip
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(UsageError, match="the address"):
        parse_target(text)


def test_networks() -> None:
    assert parse_network("open") == OpenNetwork()
    assert parse_network("disabled") == NoNetwork()
    server = ip_address("127.0.0.53")
    assert parse_network("allow", ["192.0.2.7:443"], ["127.0.0.53"]) == AllowedConnections(
        (ConnectionTarget(ip_network("192.0.2.7"), 443),), (server,)
    )
    assert parse_network("allow") == AllowedConnections(())


@pytest.mark.parametrize(
    ("mode", "allow", "dns"),
    [
        ("closed", (), ()),
        ("open", ("192.0.2.7",), ()),
        ("disabled", (), ("192.0.2.7",)),
        ("allow", (), ("example.org",)),
    ],
)
def test_what_is_no_network(mode: str, allow: tuple[str, ...], dns: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parse_network(mode, allow, dns)


def test_the_environment_is_let_through_by_name() -> None:
    policy = SandboxPolicy(FileAccess(b"/w"), environment=("PATH", "LC_*"))
    given = {b"PATH": b"/bin", b"PATHS": b"", b"LC_ALL": b"C", b"LC_": b"", b"AWS_SECRET": b"x", b"XLC_A": b""}
    assert set(policy.let_through(given)) == {b"PATH", b"LC_ALL", b"LC_"}


def test_by_default_no_secrets_are_let_through() -> None:
    given = {b"SSH_AUTH_SOCK": b"", b"AWS_SECRET_ACCESS_KEY": b"", b"DBUS_SESSION_BUS_ADDRESS": b"", b"LD_PRELOAD": b""}
    assert not SandboxPolicy(FileAccess(b"/w")).let_through(given)

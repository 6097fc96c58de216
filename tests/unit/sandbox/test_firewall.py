"""The rules of a network that lets some connections out, and the check that is made again outside."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from holdfast.sandbox._firewall import admits, nft_rules, resolver_file
from holdfast.sandbox.policy import AllowedConnections, parse_network


def allow(*targets: str, dns: tuple[str, ...] = ()) -> AllowedConnections:
    network = parse_network("allow", targets, dns)
    assert isinstance(network, AllowedConnections)
    return network


def test_what_is_not_redirected_is_refused() -> None:
    policy = allow("10.0.0.0/8:443", "[2001:db8::]/32", dns=("192.0.2.53", "127.0.0.53"))
    ports = {ip_address("192.0.2.53"): 5001, ip_address("127.0.0.53"): 5002}
    lines = nft_rules(policy, 5000, ports).splitlines()
    redirects = [line for line in lines if "redirect" in line and "chain" not in line]
    assert redirects == [
        "ip daddr 192.0.2.53 tcp dport 53 redirect to :5000",
        "ip daddr 192.0.2.53 udp dport 53 redirect to :5001",
        "ip daddr 127.0.0.53 tcp dport 53 redirect to :5000",
        "ip daddr 127.0.0.53 udp dport 53 redirect to :5002",
        "ip daddr 10.0.0.0/8 tcp dport 443 redirect to :5000",
        "ip6 daddr 2001:db8::/32 meta l4proto tcp redirect to :5000",
    ]
    assert "type filter hook output priority 0; policy drop;" in lines
    # The box's own loopback comes before the ranges that might take it in, and after the host's name server.
    assert lines.index("ip daddr 127.0.0.0/8 return") > lines.index(redirects[3])
    assert lines.index("ip daddr 127.0.0.0/8 return") < lines.index(redirects[4])


@pytest.mark.parametrize(
    ("address", "port", "admitted"),
    [
        ("10.1.2.3", 443, True),
        ("10.1.2.3", 80, False),
        ("11.1.2.3", 443, False),
        ("192.0.2.53", 53, True),
        ("192.0.2.53", 80, False),
        ("127.0.0.53", 53, True),
        ("127.0.0.1", 53, False),
        ("2001:db8::1", 22, True),
        ("2001:db9::1", 22, False),
    ],
)
def test_the_relay_asks_again(address: str, port: int, admitted: bool) -> None:
    policy = allow("10.0.0.0/8:443", "[2001:db8::]/32", dns=("192.0.2.53", "127.0.0.53"))
    assert admits(policy, address, port) is admitted


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.1"])
def test_everywhere_is_not_the_host_itself(address: str) -> None:
    assert not admits(allow("0.0.0.0/0", "::/0"), address, 80)


def test_the_resolver_is_told_of_the_servers_alone() -> None:
    assert (
        resolver_file(allow(dns=("192.0.2.53", "2001:db8::53"))) == b"nameserver 192.0.2.53\nnameserver 2001:db8::53\n"
    )
    assert resolver_file(allow()) == b""


def test_a_reset_tells_more_than_what_is_prohibited_where_qemu_is_told() -> None:
    policy = parse_network("allow", ["192.0.2.1"])
    assert isinstance(policy, AllowedConnections)
    plain, resetting = (nft_rules(policy, 5000, {}, resets=resets).splitlines() for resets in (False, True))
    at = plain.index("reject with icmpx type admin-prohibited")
    assert resetting == [*plain[:at], "meta l4proto tcp reject with tcp reset", *plain[at:]]

"""The rules of a network namespace that lets only some connections out, in the words of nft(8). Pure.

No interface leads out of that namespace. Every address is local to it, and allowed connections are redirected to
sockets there that belong to an outside process (`holdfast.sandbox._connection_relay`), which checks the address again
and makes the connection. All others are refused at once, so that programs need not wait. The namespace belongs to a
user namespace above the command's, so no process inside may change the rules.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.sandbox.policy import Address, AllowedConnections, Range

DNS_PORT = 53

ROUTES = (
    ("-4", "route", "add", "local", "default", "dev", "lo"),
    ("-6", "route", "add", "local", "default", "dev", "lo"),
)
"""Arguments of ip(8) by which every address is local. The second fails where there is no IPv6, which is as good."""


def nft_rules(
    allow: AllowedConnections, tcp_port: int, dns_ports: Mapping[Address, int], *, resets: bool = False
) -> str:
    """Rules for ``nft -f``: the relay listens on ``tcp_port`` for TCP, and for questions to each server on a port of
    its own. For ``resets`` see `AllowedConnections`.
    """
    questions = [
        f"{_one(server)} {protocol} dport {DNS_PORT} redirect to :{port}"
        for server in allow.dns
        for protocol, port in (("tcp", tcp_port), ("udp", dns_ports[server]))
    ]
    connections = [f"{_to(target.range)} {_ports(target.port)} redirect to :{tcp_port}" for target in allow.targets]
    return "\n".join(
        (
            "table inet holdfast {",
            "chain redirects {",
            "type nat hook output priority -100; policy accept;",
            *questions,
            "ip daddr 127.0.0.0/8 return",
            "ip6 daddr ::1 return",
            *connections,
            "}",
            "chain out {",
            "type filter hook output priority 0; policy drop;",
            "ct status dnat accept",
            "ct state established,related accept",
            "ip daddr 127.0.0.0/8 accept",
            "ip6 daddr ::1 accept",
            *(("meta l4proto tcp reject with tcp reset",) if resets else ()),
            "reject with icmpx type admin-prohibited",
            "}",
            "}",
            "",
        )
    )


def admits(allow: AllowedConnections, address: str, port: int) -> bool:
    """Whether the relay may connect to there: what the rules say, asked again outside."""
    to = ip_address(address)
    if port == DNS_PORT and to in allow.dns:
        return True
    if to.is_loopback or to.is_unspecified or (isinstance(to, IPv6Address) and to.ipv4_mapped):
        return False
    return any(target.covers(to, port) for target in allow.targets)


def resolver_file(allow: AllowedConnections) -> bytes:
    """The content of ``/etc/resolv.conf`` inside."""
    return "".join(f"nameserver {server}\n" for server in allow.dns).encode()


def _to(range_: Range) -> str:
    return f"{'ip' if range_.version == 4 else 'ip6'} daddr {range_}"


def _ports(port: int | None) -> str:
    return "meta l4proto tcp" if port is None else f"tcp dport {port}"


def _one(address: Address) -> str:
    return f"{'ip' if isinstance(address, IPv4Address) else 'ip6'} daddr {address}"

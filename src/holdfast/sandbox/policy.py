"""The files, network and resources of a box: values, checked when they are made. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Address: TypeAlias = IPv4Address | IPv6Address
Range: TypeAlias = IPv4Network | IPv6Network

_LARGEST_PORT = 65535


class ConnectionTarget(NamedTuple):
    """Whom connections may be made to."""

    range: Range
    port: int | None = None
    """None: every port."""

    def covers(self, address: Address, port: int) -> bool:
        """Whether a connection to there is one of these."""
        return address in self.range and self.port in (None, port)

    def __str__(self) -> str:
        """As `parse_target` takes it."""
        bare = f"[{self.range.network_address}]/{self.range.prefixlen}" if self.range.version == 6 else f"{self.range}"
        return bare if self.port is None else f"{bare}:{self.port}"


class OpenNetwork(NamedTuple):
    """The host's network, as every program has it."""


class NoNetwork(NamedTuple):
    """A loopback interface of its own, and nothing else."""


class AllowedConnections(NamedTuple):
    """TCP connections to some addresses, and questions to some name servers. Nothing else gets out, nothing in."""

    targets: tuple[ConnectionTarget, ...]
    dns: tuple[Address, ...] = ()
    """Name servers (port 53), those on the host's loopback interface too. Who may ask one may also tell it things:
    names are data that gets out.
    """
    resets: bool = False
    """Whether other TCP connections are refused as by a host without a listener (``ECONNREFUSED``), instead of as
    prohibited (``EHOSTUNREACH``): QEMU does not report the latter to its guest, which would wait for minutes.
    """


Network: TypeAlias = OpenNetwork | NoNetwork | AllowedConnections


class PrivateHome(NamedTuple):
    """A directory of the box's own at the path of the user's (`holdfast.sandbox.private_home`)."""

    path: bytes
    origin: bytes
    """The directory that is shown there."""
    own: tuple[bytes, ...] = ()
    """Which directories of it, ``path`` and below, are the box's own."""
    shown: tuple[bytes, ...] = ()
    """More of the user's entries, read-only."""


class FileAccess(NamedTuple):
    """The visible files of the host. All paths are absolute."""

    workspace: bytes | None
    """Writable, at its own path. None: no workspace, and neither Python nor Holdfast's modules for programs inside; so
    it must be a program of the system.
    """
    secret: tuple[bytes, ...] = ()
    """Never visible, whatever the other fields say: Holdfast's home, and its undo log if that is in another place."""
    hidden: tuple[bytes, ...] = ()
    """More invisible paths."""
    writable: tuple[bytes, ...] = ()
    """More writable paths. Their changes are not recorded, so no undo reverses them."""
    tmp: Literal["own", "shared"] = "own"
    """``/tmp`` and ``/var/tmp``: empty at first and gone afterwards, or the host's."""
    readable: tuple[bytes, ...] = ()
    """Directories that are always visible, except hidden parts, and never writable."""
    origin: bytes = b""
    """A directory that is shown at the workspace's path in its place; empty: the workspace itself is."""
    lent: tuple[bytes, ...] = ()
    """Directories and files that are visible although a parent is secret or hidden, and never writable."""
    credentials: tuple[bytes, ...] = ()
    """More invisible paths, where possible: not those in the workspace, nor ``visible`` or ``writable`` ones."""
    visible: tuple[bytes, ...] = ()
    """Paths that are visible although ``credentials`` includes them; in the user's home, also over the box's own."""
    home: PrivateHome | None = None
    """None: an ordinary directory. It is one also where the workspace, or a ``writable`` path, contains it."""
    devices: tuple[bytes, ...] = ()
    """Device files with the user's outside permissions, besides the harmless ones."""


class Quota(NamedTuple):
    """The resources of a box; 0: unlimited. See `holdfast.sandbox._resource_limits` for the place of each limit."""

    memory: int = 0
    """Bytes."""
    processes: int = 0
    """And threads."""
    disk: int = 0
    """Bytes of each temporary directory of the box's own, and of each file that is written."""


ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "LANG", "LANGUAGE",
    "LC_*", "TZ", "EDITOR", "VISUAL", "PAGER", "LESS", "HOLDFAST_RUN",
)  # fmt: skip
"""The variables that pass by default: none that holds a secret or the address of a socket."""


class SandboxPolicy(NamedTuple):
    """All of it."""

    files: FileAccess
    network: Network = OpenNetwork()
    environment: tuple[str, ...] = ENVIRONMENT
    """Names of variables that pass; a ``*`` at the end stands for any rest."""
    hostname: str = "holdfast"
    quota: Quota = Quota()

    def let_through(self, environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The variables that the policy names."""
        return let_through(self.environment, environment)


def let_through(names: Iterable[str], environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables with these names; a ``*`` at the end stands for any rest."""
    names = tuple(names)
    exact = {name.encode() for name in names if not name.endswith("*")}
    starts = tuple(name[:-1].encode() for name in names if name.endswith("*"))
    return {name: value for name, value in environment.items() if name in exact or name.startswith(starts)}


def parse_network(mode: str, allow: Iterable[str] = (), dns: Iterable[str] = ()) -> Network:
    """The network of ``open``, ``disabled`` or ``allow``. Raises `UsageError` with the fault."""
    allow, dns = tuple(allow), tuple(dns)
    if mode == "allow":
        return AllowedConnections(tuple(map(parse_target, allow)), tuple(map(_parse_server, dns)))
    if allow or dns:
        raise UsageError(f"addresses are allowed one by one only with the network `allow`, not with `{mode}`")
    if mode == "open":
        return OpenNetwork()
    if mode == "disabled":
        return NoNetwork()
    raise UsageError(f"there is no network `{mode}`", hint="it is one of open, disabled, allow")


def parse_target(text: str) -> ConnectionTarget:
    """``ADDRESS``, ``ADDRESS/BITS``, either with ``:PORT``; an IPv6 address with a port is in brackets.

    Raises `UsageError`.
    """
    address, port = text, None
    if text.startswith("["):
        address, bracket, rest = text[1:].partition("]")
        bits, colon, number = rest.partition(":")
        if not bracket or (bits and not bits.startswith("/")):
            raise _bad(text, "a bracket, and a colon before a port, are missing")
        address += bits
        port = _port(text, number) if colon else None
    elif text.count(":") == 1:
        address, _, number = text.partition(":")
        port = _port(text, number)
    try:
        found = ip_network(address)
    except ValueError as error:
        raise _bad(text, f"{error}; names are not taken, because their addresses change") from error
    _check(text, found)
    return ConnectionTarget(found, port)


def _parse_server(text: str) -> Address:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise UsageError(f"the name server {text!r}: {error}") from error
    _check(text, ip_network(address), loopback=True)
    return address


def _port(text: str, number: str) -> int:
    if not (number.isascii() and number.isdigit() and 0 < int(number[:6]) <= _LARGEST_PORT):
        raise _bad(text, f"a port is a number from 1 to {_LARGEST_PORT}")
    return int(number)


def _check(text: str, found: Range, *, loopback: bool = False) -> None:
    if isinstance(found, IPv6Network) and found.network_address.scope_id is not None:
        raise _bad(text, "inside, there is no such interface")
    # Loopback inside is the box's own; what a host means by it is not asked for by this name.
    if (
        (found.is_loopback and not loopback)
        or (found.is_unspecified and found.num_addresses == 1)
        or found.is_multicast
    ):
        raise _bad(text, "inside, that is the box itself or no address in particular")
    if isinstance(found, IPv6Network) and found.network_address.ipv4_mapped:
        raise _bad(text, "write it as the IPv4 address that it is")


def _bad(text: str, reason: str) -> UsageError:
    return UsageError(f"the address {text!r}: {reason}", hint="for example 192.0.2.7, 10.0.0.0/8:443, [2001:db8::]/32")

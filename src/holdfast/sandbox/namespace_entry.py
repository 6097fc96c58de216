"""The entry of a box: the program between the launcher and bubblewrap.

It makes a user namespace with the rights that a box needs; the command runs in another one below, which bubblewrap
makes. The upper one separates the mounts from the host's, so that later mounts do not appear inside, and has the
network namespace of a policy that permits some connections, whose rules no process inside may change. None of these has
a name: the kernel frees them when their last process has ended, however that happens.

It needs little of the standard library, and nothing else: every command waits for it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from holdfast.sandbox import _firewall
from holdfast.sandbox.policy import AllowedConnections, parse_network
from holdfast.supervisor.confinement import landlock, seccomp_notify

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED: Final = 125
"""The exit code if the box could not be made; the reason is on standard error."""

IGNORED: Final = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""Signals for the command that reach bubblewrap too, which would end at once, and the command with it."""

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40

_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from holdfast.sandbox.{0} import {1}; {1}(*sys.argv[1:])"

_libc = ctypes.CDLL(None, use_errno=True)


class EntryPlan(NamedTuple):
    """The settings of `enter`, beside the arguments of bubblewrap."""

    mode: str
    allow: Sequence[str] = ()
    dns: Sequence[str] = ()
    """Of the network, as `holdfast.sandbox.policy.parse_network` takes them."""
    ip: str = ""
    nft: str = ""
    """Programs, for the mode ``allow``."""
    keep: Sequence[int] = ()
    """Descriptors that stay open in addition to the standard ones."""
    group: str = ""
    """The control group to join; empty: none."""
    limits: Sequence[tuple[int, int]] = ()
    """Limits of each process: the resource, as for `resource.setrlimit`, and the value."""
    resets: bool = False
    """Of the network, see `AllowedConnections`."""


def arguments(way: EntryPlan, bwrap: Sequence[bytes]) -> list[bytes]:
    """The command line that enters a box. Neither environment nor working directory influence which code runs."""
    return [*_python("namespace_entry", "enter"), json.dumps(way).encode(), *bwrap]


def enter(way_text: str, *bwrap: str) -> NoReturn:
    """See `arguments`."""
    try:
        _enter(EntryPlan(*json.loads(way_text)), [os.fsencode(word) for word in bwrap])
    except OSError as error:
        sys.stderr.write(f"holdfast: the box could not be made: {error}\n")
    os._exit(FAILED)


def _enter(way: EntryPlan, bwrap: list[bytes]) -> None:
    _close_all_but(way.keep)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if way.group:
        with open(os.path.join(way.group, "cgroup.procs"), "w") as file:
            file.write("0")
    seccomp_notify.give_up_privileges()
    network = parse_network(way.mode, way.allow, way.dns)
    if isinstance(network, AllowedConnections):
        with _start_relay(way) as relay:
            _separate(_CLONE_NEWNET)
            _set_up(way, network, relay)
    else:
        _separate(0)
        if way.mode == "open":
            landlock.keep_abstract_sockets_apart()
    # Not earlier: in the host's user namespace, the user's other processes would count.
    for what, most in way.limits:
        resource.setrlimit(what, (most, most))
    os.execv(bwrap[0], bwrap)  # noqa: S606


def _close_all_but(keep: Sequence[int]) -> None:
    """Pass no descriptor on that the starting process has open by accident."""
    last = 2
    for fd in sorted(keep):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, 0x7FFFFFFF)
    for fd in keep:
        os.set_inheritable(fd, True)


def _separate(more: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | more), "user namespaces")
    # With uid 0, programs that are executed here keep the capabilities over this namespace.
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mounts of its own")


# The network ----------------------------------------------------------------------------------------------------------


def _start_relay(way: EntryPlan) -> socket.socket:
    """Start the process that stays in the host's network; returns where it waits for its sockets."""
    ours, its = socket.socketpair()
    os.set_inheritable(its.fileno(), True)
    words = [*_python("namespace_entry", "relay"), b"%d" % its.fileno(), json.dumps(way).encode(), b"%d" % os.getpid()]
    os.posix_spawn(words[0], words, {})
    its.close()
    return ours


def relay(channel: str, way_text: str, starter: str) -> None:
    """The work of that process."""
    from holdfast.sandbox._connection_relay import main

    way = EntryPlan(*json.loads(way_text))
    network = parse_network(way.mode, way.allow, way.dns)
    assert isinstance(network, AllowedConnections)
    os.closerange(int(channel) + 1, 0x7FFFFFFF)
    os.closerange(3, int(channel))
    main(int(channel), network, int(starter))


def _set_up(way: EntryPlan, network: AllowedConnections, channel: socket.socket) -> None:
    """Set up the new network namespace: routes, the sockets of the relay, the rules. No process inside can undo it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("=16sh14x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
    four, six = (_run([way.ip, *route]) for route in _firewall.ROUTES)
    if four:
        raise OSError(f"ip: {four}")
    tcp4 = _listening(socket.AF_INET, socket.SOCK_STREAM)
    tcp_port = tcp4.getsockname()[1]
    # One number for both families, as one rule redirects both. No other process here can have it.
    tcp6 = tcp4.dup() if six else _listening(socket.AF_INET6, socket.SOCK_STREAM, tcp_port)
    asked = [
        _listening(socket.AF_INET if server.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        for server in network.dns
    ]
    ports = {server: own.getsockname()[1] for server, own in zip(network.dns, asked, strict=True)}
    problem = _run([way.nft, "-f", "-"], _firewall.nft_rules(network, tcp_port, ports, resets=way.resets))
    if problem:
        raise OSError(f"nft: {problem}")
    sockets = [tcp4, tcp6, *asked]
    socket.send_fds(channel, [b"."], [own.fileno() for own in sockets])
    for own in sockets:
        own.close()


def _listening(family: socket.AddressFamily, kind: socket.SocketKind, port: int = 0) -> socket.socket:
    own = socket.socket(family, kind)
    if family == socket.AF_INET6:
        own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    # Redirected packets arrive here. An answer from another address would be ignored.
    own.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", port))
    if kind == socket.SOCK_STREAM:
        own.listen(128)
    return own


def _run(words: Sequence[str], text: str = "") -> str:
    """Run a program; returns its error message, or an empty text."""
    import subprocess

    # The entry of a box uses the standard library alone: no `holdfast.processes`.
    found = subprocess.run(words, input=text, capture_output=True, text=True, check=False, env={})
    return (found.stderr.strip() or f"exit code {found.returncode}") if found.returncode else ""


def _python(module: str, function: str) -> list[bytes]:
    above = os.fsencode(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    return [os.fsencode(sys.executable), b"-I", b"-S", b"-B", b"-c", _START.format(module, function).encode(), above]


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({what})")

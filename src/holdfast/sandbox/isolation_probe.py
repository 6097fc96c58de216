"""The isolation that this machine offers this user, with reasons for missing parts: found by trying it."""

from __future__ import annotations

import os
import shutil
import sys
from ipaddress import ip_network
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import UnsupportedError
from holdfast.processes.child import Limits, run
from holdfast.sandbox.namespace import SYSTEM_PATH, Namespace
from holdfast.sandbox.policy import (
    AllowedConnections,
    ConnectionTarget,
    FileAccess,
    NoNetwork,
    OpenNetwork,
    Quota,
    SandboxPolicy,
)
from holdfast.supervisor.confinement import landlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sandbox.policy import Network

_PATIENCE_SECONDS = 20.0
_ANY = os.fsencode(os.path.dirname(os.path.realpath(__file__)))
"""An existing directory. (A temporary one might be in the user's tree, by ``TMPDIR``, and would change a directory's
mtime there.)
"""
_NO_LIMITS = Quota()
_NOWHERE = ip_network("192.0.2.1/32")
_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "an AppArmor profile that allows userns, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""Files that disable users' namespaces, the values that do, and the commands that change them."""


class IsolationFinding(NamedTuple):
    """One thing that isolation can offer."""

    name: str
    works: bool
    reason: str = ""
    """If it does not work: why."""
    help: str = ""
    """If it does not work: what would change that."""


def probe() -> Sequence[IsolationFinding]:
    """The isolation that works here. Starts a command in a box several times, which takes some tenths of a second."""
    return (
        _try("namespace, network open", OpenNetwork()),
        _try("namespace, network disabled", NoNetwork()),
        _try("namespace, network allow", AllowedConnections((ConnectionTarget(_NOWHERE),))),
        _abstract_sockets(),
    )


def require_isolation(policy: SandboxPolicy) -> None:
    """Raise `UnsupportedError`, with the reason and what would help, if a box with such a network, and such limits,
    cannot be had.
    """
    found = _try("namespace", policy.network, policy.quota)
    if not found.works:
        raise UnsupportedError(f"isolation by namespaces cannot be had here: {found.reason}", hint=found.help or None)


def harmless_command() -> list[bytes]:
    """A command that does nothing and surely exists, whatever `PATH` names."""
    found = shutil.which("true", path=SYSTEM_PATH)
    # By its own name: it may be a link to a program with many commands.
    return [os.fsencode(found)] if found else [os.fsencode(sys.executable), b"-I", b"-S", b"-c", b""]


def _try(name: str, network: Network, quota: Quota = _NO_LIMITS) -> IsolationFinding:
    box = Namespace(SandboxPolicy(FileAccess(_ANY), network, quota=quota))
    try:
        with box.prepare(harmless_command(), directory=b"/", environment=os.environb) as prepared:
            found = run(
                prepared.arguments,
                Limits(_PATIENCE_SECONDS),
                environment=prepared.environment,
                pass_fds=prepared.descriptors,
            )
    except UnsupportedError as error:
        return IsolationFinding(name, works=False, reason=error.message, help=error.hint or "")
    if found.why:
        return IsolationFinding(name, works=False, reason=f"nothing happened for {_PATIENCE_SECONDS:.0f} seconds")
    if not found.code:
        return IsolationFinding(name, works=True)
    reason = found.errors.decode("utf-8", "replace").strip() or f"it ended with {found.code}"
    return IsolationFinding(name, works=False, reason=reason, help=_help())


def _help() -> str:
    for path, value, help_ in _SWITCHES:
        try:
            with open(path) as file:
                if file.read().strip() == value:
                    return help_
        except OSError:
            pass
    return "bubblewrap 0.8 or later, and a kernel with user namespaces"


def _abstract_sockets() -> IsolationFinding:
    name = "abstract Unix sockets kept apart in the open network"
    if landlock.version() >= landlock.SCOPES_SINCE:
        return IsolationFinding(name, works=True)
    return IsolationFinding(name, works=False, reason="the kernel's Landlock has no scopes", help="Linux 6.12 or later")

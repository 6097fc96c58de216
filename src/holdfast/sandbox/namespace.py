"""The box made of namespaces: user, mount, pid, IPC, host name and, as the policy says, network.

bubblewrap makes it, in a user namespace that `holdfast.sandbox.namespace_entry` has prepared. Needs no privileges where
the kernel lets users have namespaces of their own.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from holdfast.model.errors import UnsupportedError
from holdfast.sandbox import _firewall, _seccomp_filter, bubblewrap, namespace_entry
from holdfast.sandbox._resource_limits import check_quota, enforce_quota
from holdfast.sandbox.bubblewrap import HostFiles, SandboxMount
from holdfast.sandbox.policy import AllowedConnections, FileAccess, NoNetwork
from holdfast.supervisor.launch.sandbox_port import PreparedCommand

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from holdfast.sandbox.policy import SandboxPolicy

_RESOLVER = b"/etc/resolv.conf"
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


class Namespace:
    """Implements `Sandbox`: what the policy says holds for the command and all that it starts, and ends with it."""

    def __init__(self, policy: SandboxPolicy) -> None:
        """Nothing happens yet."""
        self._policy = policy

    @contextmanager
    def prepare(
        self,
        command: Sequence[bytes],
        *,
        directory: bytes,
        environment: Mapping[bytes, bytes],
        keep: Sequence[int] = (),
    ) -> Generator[PreparedCommand]:
        """See `Sandbox.prepare`. Raises `UsageError` for a policy that contradicts itself."""
        policy = self._policy
        network = policy.network
        check_quota(policy.quota, policy.files.tmp)
        files = _without_links(policy.files)
        with ExitStack() as context:

            def holding(content: bytes) -> int:
                fd = os.memfd_create("holdfast")
                context.callback(os.close, fd)
                os.write(fd, content)
                os.lseek(fd, 0, os.SEEK_SET)
                return fd

            filter_fd = holding(_seccomp_filter.program(os.uname().machine))
            fds = [filter_fd]
            resolver = None
            if isinstance(network, AllowedConnections) and os.path.exists(_RESOLVER):
                resolver = SandboxMount(os.path.realpath(_RESOLVER), "given", holding(_firewall.resolver_file(network)))
                fds.append(resolver.fd)
            needed = needed_places() if files.workspace is not None else []
            if resolver is None and not isinstance(network, NoNetwork):
                needed.append(os.path.realpath(_RESOLVER))
            questions = bubblewrap.paths_to_examine(files, needed)
            arguments = bubblewrap.arguments(
                os.fsencode(find_program("bwrap", "bubblewrap")),
                bubblewrap.mounts(files, needed, _look(questions), resolver),
                directory,
                policy,
                uid=os.geteuid(),
                gid=os.getegid(),
                filter_fd=filter_fd,
            )
            group, limits = context.enter_context(enforce_quota(policy.quota))
            way = _entry_plan(policy, [*keep, *fds])._replace(group=group, limits=limits)
            yield PreparedCommand(
                namespace_entry.arguments(way, [*arguments, *command]), policy.let_through(environment), fds
            )


def find_program(name: str, package: str, *, needed_by: str = "isolation by namespaces needs") -> str:
    """Where a program is. Raises `UnsupportedError` naming the package that has it."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        raise UnsupportedError(f"the program {name} is not installed, which {needed_by}", hint=f"install {package}")
    return os.path.realpath(found)


def _entry_plan(policy: SandboxPolicy, keep: Sequence[int]) -> namespace_entry.EntryPlan:
    network = policy.network
    if isinstance(network, AllowedConnections):
        return namespace_entry.EntryPlan(
            "allow",
            tuple(map(str, network.targets)),
            tuple(map(str, network.dns)),
            find_program("ip", "iproute2"),
            find_program("nft", "nftables"),
            keep,
            resets=network.resets,
        )
    return namespace_entry.EntryPlan("disabled" if isinstance(network, NoNetwork) else "open", keep=keep)


def needed_places() -> list[bytes]:
    """Where Python is, and this package: what runs inside before the command does needs them."""
    places = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    places.add(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    return sorted(os.fsencode(os.path.realpath(place)) for place in places)


def _without_links(files: FileAccess) -> FileAccess:
    """The same of what the paths lead to: hiding a link would hide nothing."""

    def real(paths: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return tuple(os.path.realpath(path) if path.startswith(b"/") else path for path in paths)

    return files._replace(
        workspace=None if files.workspace is None else os.path.realpath(files.workspace),
        secret=real(files.secret),
        hidden=real(files.hidden),
        writable=real(files.writable),
        readable=real(files.readable),
        lent=real(files.lent),
        credentials=real(files.credentials),
        visible=real(files.visible),
    )


def _look(paths: Iterable[bytes]) -> HostFiles:
    """The types of the paths; a link (``/var/run``) counts as neither, as its target has a path of its own."""
    directories: set[bytes] = set()
    others: set[bytes] = set()
    for path in paths:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode):
            directories.add(path)
        elif not stat.S_ISLNK(mode):
            others.add(path)
    return HostFiles(directories, others)

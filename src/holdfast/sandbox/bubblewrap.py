"""The arguments for bubblewrap that enforce a policy about files. Pure.

Source: bwrap(1). Mounts are made in the order of the arguments, so deeper ones come later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.model.errors import UsageError
from holdfast.model.paths import display
from holdfast.sandbox.policy import NoNetwork

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from holdfast.sandbox.policy import FileAccess, SandboxPolicy

TMP = (b"/tmp", b"/var/tmp")
SOCKETS = (b"/run", b"/var/run", b"/var/lib/lxd", b"/var/snap/lxd")
"""Directories of services' sockets; some services do as root what a client asks. A visible socket can be connected to,
however read-only it is.
"""

_KERNEL = (
    b"/proc/sys", b"/proc/sysrq-trigger", b"/proc/irq", b"/proc/bus", b"/proc/fs", b"/proc/acpi", b"/proc/scsi",
    b"/proc/driver", b"/proc/mtrr", b"/proc/asound", b"/proc/latency_stats", b"/proc/dynamic_debug",
)  # fmt: skip
"""Where root changes settings of the kernel without needing a capability, and root stays itself in a namespace."""

_PSEUDO = (b"/proc", b"/sys")
"""File systems in which the kernel shows itself, and the box."""

_Kind = Literal["readable", "shown", "shared", "writable", "own", "empty", "scratch", "blank", "given", "device"]


class HostFiles(NamedTuple):
    """The facts about the host's files, so that this module is pure."""

    directories: Collection[bytes]
    """Which of the paths in question are directories."""
    others: Collection[bytes]
    """Paths of other types."""


class SandboxMount(NamedTuple):
    """The object at a path."""

    path: bytes
    kind: _Kind
    fd: int = -1
    """With ``given``: the descriptor of the file's content."""
    origin: bytes = b""
    """With ``writable`` and ``own``: the outside path that is shown there, if it differs."""


def paths_to_examine(files: FileAccess, needed: Iterable[bytes]) -> tuple[bytes, ...]:
    """The paths that `mounts` wants to know of."""
    return (
        *TMP, *SOCKETS, *files.secret, *files.hidden, *files.writable, *files.readable, *files.lent, *needed,
        *files.credentials, *files.visible, *(files.home.shown if files.home is not None else ()), *files.devices,
    )  # fmt: skip


def mounts(
    files: FileAccess, needed: Sequence[bytes], host: HostFiles, resolver: SandboxMount | None = None
) -> list[SandboxMount]:
    """The parts of the box besides ``/``, ``/dev`` and ``/proc``, parents first.

    ``needed`` are directories that the box requires: where they would be hidden, they can be read. ``resolver``
    replaces the host's list of name servers. Raises `UsageError` for a contradictory policy.
    """
    _check(files, host)
    found: dict[bytes, SandboxMount] = {}

    def add(path: bytes, kind: _Kind) -> None:
        if path in host.directories:
            found[path] = SandboxMount(path, kind)
        elif path in host.others:
            found[path] = SandboxMount(path, "blank" if kind == "empty" else kind)

    for path in SOCKETS:
        add(path, "empty")
    for path in TMP:
        add(path, "scratch" if files.tmp == "own" else "shared")
    credentials = [path for path in files.credentials if _can_be_hidden(path, files, found.values())]
    home = None if files.home is None or _is_in(files.home.path, (*_workspace(files), *files.writable)) else files.home
    unseen = (*files.hidden, *files.secret, *credentials)
    if home is not None and not _covered(home.path, found.values()):
        for path in home.shown:
            if not _is_in(path, unseen):
                add(path, "shown")
    for path in (*files.hidden, *credentials):
        add(path, "empty")
    if home is not None:
        for path in home.own:
            if path == home.path or not _is_in(path, unseen):
                found[path] = SandboxMount(path, "own", origin=home.origin + path[len(home.path) :])
    for path in files.visible:
        is_own = home is not None and is_beneath(path, home.path) and _covered(path, found.values())
        if (is_own or _is_in(path, credentials)) and not _is_in(path, files.hidden):
            add(path, "readable")
    for path in needed:
        if _covered(path, found.values()):
            add(path, "readable")
    for path in files.writable:
        if not _is_in(path, files.readable):
            add(path, "writable")
    readable = [path for path in files.readable if not _is_in(path, (*files.hidden, *files.secret, *_PSEUDO))]
    for path in readable:
        add(path, "readable")
    for path in _between((*_workspace(files), *readable), TMP if files.tmp == "own" else ()):
        # A mount point cannot be renamed, which keeps the paths below it valid.
        if _covered(path, found.values()):
            found.setdefault(path, SandboxMount(path, "empty"))
    for path in _workspace(files):
        found[path] = SandboxMount(path, "writable", origin=files.origin)
    for path in files.secret:
        add(path, "empty")
    for path in files.lent:
        add(path, "readable")
    for path in files.devices:
        add(path, "device")
    if resolver is not None:
        found[resolver.path] = resolver
    return sorted(found.values(), key=lambda mount: mount.path.split(b"/"))


def arguments(
    bwrap: bytes,
    made: Sequence[SandboxMount],
    directory: bytes,
    policy: SandboxPolicy,
    *,
    uid: int,
    gid: int,
    filter_fd: int,
) -> list[bytes]:
    """The arguments that end where the command begins. ``uid`` and ``gid`` are what the command sees itself as;
    ``made`` are the `mounts` of the policy's files.
    """
    disk = policy.quota.disk
    found = [
        bwrap, b"--unshare-user", b"--uid", b"%d" % uid, b"--gid", b"%d" % gid, b"--disable-userns",
        b"--unshare-pid", b"--unshare-ipc", b"--unshare-cgroup-try",
        b"--unshare-uts", b"--hostname", policy.hostname.encode(),
        b"--cap-drop", b"ALL", b"--die-with-parent", b"--seccomp", b"%d" % filter_fd,
        b"--ro-bind", b"/", b"/", b"--dev", b"/dev", b"--proc", b"/proc",
    ]  # fmt: skip
    for path in _KERNEL:
        found += [b"--ro-bind-try", path, path]
    if isinstance(policy.network, NoNetwork):
        found.append(b"--unshare-net")
    closed: list[bytes] = []
    if disk:
        # Other files in /dev would have no limit.
        found += [*_sized(disk), b"--perms", b"1777", b"--tmpfs", b"/dev/shm"]
        closed += [b"--remount-ro", b"/dev"]
    for path, kind, fd, origin in made:
        if kind in ("writable", "shared", "own"):
            found += [b"--bind", origin or path, path]
        elif kind == "shown":
            # The user's programs go on: a path that was found may be gone.
            found += [b"--ro-bind-try", path, path]
        elif kind == "device":
            found += [b"--dev-bind", path, path]
        elif kind == "readable":
            found += [b"--ro-bind", path, path]
        elif kind == "scratch":
            found += [*_sized(disk), b"--perms", b"1777", b"--tmpfs", path]
        elif kind == "empty":
            found += [b"--perms", b"0555", b"--tmpfs", path]
            closed += [b"--remount-ro", path]
        elif kind == "blank":
            found += [b"--ro-bind", b"/dev/null", path]
        else:
            found += [b"--perms", b"0444", b"--ro-bind-data", b"%d" % fd, path]
    return [*found, *closed, b"--chdir", directory, b"--"]


def _sized(disk: int) -> list[bytes]:
    return [b"--size", b"%d" % disk] if disk else []


def is_beneath(path: bytes, above: bytes) -> bool:
    """Whether a path is another one, or lies beneath it."""
    return path == above or path.startswith(above.rstrip(b"/") + b"/")


def _between(paths: Iterable[bytes], tops: Sequence[bytes]) -> list[bytes]:
    """The directories above each of ``paths`` and below the one of ``tops`` that contains it, parents first."""
    return sorted({above for path in paths for above in _above(path) if above not in tops and _is_in(above, tops)})


def _above(path: bytes) -> Iterator[bytes]:
    while (path := path.rpartition(b"/")[0]) != b"":
        yield path


def _covered(path: bytes, made: Iterable[SandboxMount]) -> bool:
    """Whether the mount that contains a path shows no file of the host there."""
    around = max(
        (mount for mount in made if is_beneath(path, mount.path)), key=lambda mount: len(mount.path), default=None
    )
    return around is not None and around.kind in ("empty", "scratch", "own")


def _can_be_hidden(path: bytes, files: FileAccess, made: Iterable[SandboxMount]) -> bool:
    """Whether a path of `FileAccess.credentials` has to be hidden, and can be."""
    if path == b"/" or _is_in(
        path, (*_workspace(files), *files.visible, *files.hidden, *files.secret, b"/dev", *_PSEUDO)
    ):
        return False
    return not _covered(path, made) or _is_in(path, (*files.writable, *files.readable))


def _is_in(path: bytes, directories: Iterable[bytes]) -> bool:
    return any(is_beneath(path, each) for each in directories)


def _workspace(files: FileAccess) -> tuple[bytes, ...]:
    return () if files.workspace is None else (files.workspace,)


def _check(files: FileAccess, host: HostFiles) -> None:
    for path in (*_workspace(files), *files.secret, *files.hidden, *files.writable):
        if not path.startswith(b"/") or path == b"/":
            raise UsageError(f"{display(path)} is no path of something that can be hidden or written to in a box")
        if _is_in(path, (b"/dev", *_PSEUDO)):
            raise UsageError(f"{display(path)}: what lies there is the box's own")
    for path in files.hidden:
        if _is_in(path, _workspace(files)):
            raise UsageError(
                f"{display(path)} lies in the workspace: Holdfast could not tell hidden files there from removed ones",
                hint="hide paths outside of the workspace",
            )
    for path in files.writable:
        if path not in host.directories and path not in host.others:
            raise UsageError(f"{display(path)} is not there, so it cannot be made writable in a box")
        for hidden in (*files.hidden, *files.secret):
            if is_beneath(path, hidden):
                raise UsageError(f"{display(path)} cannot be writable where {display(hidden)} is hidden")

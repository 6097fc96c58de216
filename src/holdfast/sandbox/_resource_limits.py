"""The limits of a box's resources: a control group where one is delegated, else limits on each of its processes, and
the size of its temporary directories.

Sources: ``Documentation/admin-guide/cgroup-v2.rst`` (delegation containment), setrlimit(2), user_namespaces(7).
"""

from __future__ import annotations

import os
import resource
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from holdfast.sandbox.policy import Quota

_PREFIX: Final = "holdfast-"
_OWN: Final = 2
"""Processes of a box that are bubblewrap's, and not the command's."""
_MOUNTS: Final = "/proc/self/mountinfo"
_GROUP: Final = "/proc/self/cgroup"


@contextmanager
def enforce_quota(quota: Quota) -> Generator[tuple[str, list[tuple[int, int]]]]:
    """The control group that a box is to join (empty: none), and the limits of each process, as numbers of
    `resource.setrlimit` with their values; the group is gone afterwards. Raises `UnsupportedError` for what cannot be
    enforced.
    """
    limits = [(resource.RLIMIT_FSIZE, quota.disk)] if quota.disk else []
    with _group(quota) as group:
        if not group:
            if quota.memory:
                limits.append((resource.RLIMIT_AS, quota.memory))
            if quota.processes:
                if os.geteuid() == 0:
                    raise UnsupportedError(
                        "isolation.processes needs a delegated control group (version 2) with the "
                        "controller `pids`: without it the kernel does not limit root's processes",
                        hint="run it as another user, or by `systemd-run --scope -p Delegate=yes`",
                    )
                limits.append((resource.RLIMIT_NPROC, quota.processes + _OWN))
        yield group, limits


def check_quota(quota: Quota, tmp: str) -> None:
    """Raise `UsageError` where a limit could be got round."""
    if quota.disk and tmp != "own":
        raise UsageError(
            "isolation.disk limits the box's own temporary directories, and these are the host's",
            hint='`tmp = "own"`, or no limit',
        )


@contextmanager
def _group(quota: Quota) -> Generator[str]:
    values: dict[str, dict[str, int]] = {}
    if quota.memory:
        values["memory"] = {"memory.max": quota.memory, "memory.swap.max": 0}
    if quota.processes:
        values["pids"] = {"pids.max": quota.processes + _OWN}
    above = _delegated(values.keys()) if values else ""
    path = _made(above, {name: value for files in values.values() for name, value in files.items()}) if above else ""
    try:
        yield path
    finally:
        if path:
            with suppress(OSError):  # an ended process may still be in it: the next run removes it
                os.rmdir(path)


def _made(above: str, values: dict[str, int]) -> str:
    """A new group with these limits; empty where there can be none."""
    _sweep(above)
    path = os.path.join(above, f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        os.mkdir(path)
    except OSError:
        return ""
    try:
        for name, value in values.items():
            if name == "memory.swap.max" and not os.path.exists(os.path.join(path, name)):
                continue  # a kernel without swap
            with open(os.path.join(path, name), "w") as file:
                file.write(str(value))
    except OSError:
        with suppress(OSError):
            os.rmdir(path)
        return ""
    return path


def _sweep(above: str) -> None:
    """Remove the empty groups that killed processes have left."""
    with suppress(OSError):
        for name in os.listdir(above):
            pid = name.removeprefix(_PREFIX).partition("-")[0] if name.startswith(_PREFIX) else ""
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                with suppress(OSError):
                    os.rmdir(os.path.join(above, name))


def _delegated(controllers: Collection[str]) -> str:
    """The nearest control group around this process's in which a group with these controllers can be made and joined;
    empty without one.
    """
    top, own = _mounted(), _own()
    if not top or own is None:
        return ""
    at = os.path.normpath(f"{top}/{own}")
    while at == top or at.startswith(top + "/"):
        if os.access(at, os.W_OK) and os.access(f"{at}/cgroup.procs", os.W_OK):
            with suppress(OSError), open(f"{at}/cgroup.subtree_control") as file:
                if set(file.read().split()).issuperset(controllers):
                    return at
        at = os.path.dirname(at)
    return ""


def _mounted() -> str:
    """Where all control groups of version 2 are seen."""
    with suppress(OSError), open(_MOUNTS) as file:
        for line in file:
            fields, _, of = line.partition(" - ")
            if of.startswith("cgroup2 ") and fields.split(" ")[3] == "/":
                return fields.split(" ")[4]
    return ""


def _own() -> str | None:
    with suppress(OSError), open(_GROUP) as file:
        for line in file:
            if line.startswith("0::/"):
                return line[4:].rstrip("\n")
    return None

"""Where a command that is run runs: what the settings say of isolation, as a box for the supervisor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.engine.opening.home import own_directories
from holdfast.model.errors import UsageError
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.config.settings import Isolation
    from holdfast.sandbox.policy import FileAccess
    from holdfast.supervisor.launch.sandbox_port import Sandbox


def adjust(configured: Isolation, said: Mapping[str, Any]) -> Isolation:
    """The configured isolation, changed by ``said``; hidden and visible paths are added.

    ``allow`` or ``dns`` mean the network ``allow``. Raises `UsageError` for options that need isolation where there is
    none, and for an assignment among the names of the ``environment``.
    """
    given = dict(said)
    if given.keys() & {"allow", "dns"}:
        given.setdefault("network", "allow")
    if given.get("level", configured.level) == "none" and given.keys() - {"level"}:
        raise UsageError(
            "network, paths and variables can be restricted only with isolation", hint="--isolation namespace"
        )
    if given.get("network", "allow") != "allow":
        # The configured hosts are for another network.
        given = {"allow": (), "dns": ()} | given
    if given.get("level") == "none":
        given = {"memory": 0, "processes": 0, "disk": 0} | given  # the configured limits are for namespaces
    lists = {name: tuple(value) for name, value in given.items() if not isinstance(value, str | int)}
    if "environment" in lists:
        _check_names(lists["environment"])
    for name in ("hidden", "visible", "environment"):
        if name in lists:
            lists[name] = (*getattr(configured, name), *lists[name])
    return configured._replace(**(given | lists))


def _check_names(names: Sequence[str]) -> None:
    from holdfast.model.config.values import parse_value

    try:
        parse_value("isolation.environment", names)
    except ValueError as error:
        raise UsageError(f"isolation.environment: {error}") from error


def make_box(
    context: Context, isolation: Isolation, *, directory: bytes, log: bytes, readable: Sequence[bytes] = ()
) -> Sandbox | None:
    """The box that ``isolation`` asks for; None if it asks for none.

    ``directory`` is the command's working directory, ``log`` that of the undo log; ``readable`` are more directories
    that it sees and cannot change. Raises, before anything starts, `UnsupportedError` if such a box is impossible here,
    with the reason and the remedy, and `UsageError` for contradictory settings.
    """
    limits = isolation.memory, isolation.processes, isolation.disk
    if isolation.level == "none":
        if any(limits):
            raise UsageError(
                "isolation.memory, isolation.processes and isolation.disk need the isolation namespace",
                hint="--isolation namespace, or --isolation none to run without any limit",
            )
        return None
    from holdfast.sandbox.bubblewrap import is_beneath
    from holdfast.sandbox.isolation_probe import harmless_command, require_isolation
    from holdfast.sandbox.namespace import Namespace
    from holdfast.sandbox.policy import ENVIRONMENT, FileAccess, Quota, SandboxPolicy, parse_network
    from holdfast.sandbox.secret_places import secret_places

    own = own_directories(context.home, context.settings)
    files = FileAccess(
        context.workspace.path,
        secret=own if any(is_beneath(os.path.realpath(log), path) for path in own) else (*own, log),
        hidden=absolute_paths(isolation.hidden),
        writable=absolute_paths(isolation.writable),
        readable=tuple(readable),
        tmp=isolation.tmp,
        lent=_lent_objects(context.workspace.path, own),
        credentials=secret_places(os.environ, (context.workspace.path, *own, log)),
        visible=absolute_paths(isolation.visible),
    )
    network = parse_network(isolation.network, isolation.allow, isolation.dns)
    policy = SandboxPolicy(files, network, (*ENVIRONMENT, *isolation.environment), quota=Quota(*limits))
    box = Namespace(policy)
    _check_directory(os.path.realpath(directory), files)
    with box.prepare(harmless_command(), directory=directory, environment={}):
        pass  # the error explains the contradiction or the lack
    require_isolation(policy)
    return box


def _lent_objects(workspace: bytes, own: Sequence[bytes]) -> tuple[bytes, ...]:
    """Of the home, what a fork by `git` borrows objects from."""
    from holdfast.sandbox.bubblewrap import is_beneath
    from holdfast.snapshot.git.fork_objects import lent_to

    workspace = os.path.realpath(workspace)
    if not any(is_beneath(workspace, path) for path in own):
        return ()
    return tuple(path for path in lent_to(workspace)[1:] if os.path.isdir(path))


def absolute_paths(texts: Sequence[str]) -> tuple[bytes, ...]:
    """The paths that texts of the settings mean. Raises `UsageError` for one that is not absolute."""
    found = tuple(os.fsencode(os.path.expanduser(text)) for text in texts)
    for path in found:
        if not os.path.isabs(path):
            raise UsageError(
                f"isolation: {display(path)} is no absolute path", hint="write it from / on, or from the user's ~"
            )
    return found


def _check_directory(directory: bytes, files: FileAccess) -> None:
    """Raise `UsageError` if the command's directory would be missing."""
    from holdfast.sandbox.bubblewrap import TMP, is_beneath

    if any(path is not None and is_beneath(directory, path) for path in (files.workspace, *files.writable)):
        return
    if any(
        is_beneath(directory, path)
        for path in (*files.secret, *files.hidden, *files.credentials, *(TMP if files.tmp == "own" else ()))
        if not any(is_beneath(directory, shown) for shown in files.visible)
    ):
        raise UsageError(
            f"isolation: the command is to run in {display(directory)}, which is not visible inside",
            hint="run it in the workspace",
        )

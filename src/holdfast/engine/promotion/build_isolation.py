"""Where the commands of a promotion run: the copy, seen at production's own path, with what the settings let through.

At that path what a build writes down of where it is (as virtual environments and caches do) is right after the swap.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from holdfast.engine.opening.home import own_directories
from holdfast.engine.promotion import _build_directory as build_directory
from holdfast.engine.running.isolation import absolute_paths
from holdfast.model.errors import StorageError, UnsupportedError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display, under
from holdfast.processes.helper_process import program_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.promotion._job_context import PromotionJob
    from holdfast.sandbox.policy import PrivateHome
    from holdfast.supervisor.launch.sandbox_port import Sandbox

_LOG = Log(__name__)


class BuildIsolation(NamedTuple):
    """Where commands of promotions run on this machine."""

    level: Literal["namespace", "none", "refused"]
    """``refused``: they do not run, since they cannot be isolated as requested."""
    reason: str = ""
    """The reason, except for ``namespace``."""
    help: str = ""
    """A change that would allow it."""


def find_isolation(isolation: str, network: str) -> BuildIsolation:
    """Where commands run by these settings (``promote.isolation``, ``promote.network``): found out by trying it."""
    if isolation == "none":
        return BuildIsolation("none", "promote.isolation is none")
    from holdfast.sandbox.isolation_probe import require_isolation
    from holdfast.sandbox.policy import FileAccess, SandboxPolicy, parse_network

    try:
        require_isolation(SandboxPolicy(FileAccess(b"/nowhere"), parse_network(network)))
    except UnsupportedError as error:
        # The settings disable the network: commands that would still reach it must not run.
        is_enough = isolation == "auto" and network == "open"
        return BuildIsolation("none" if is_enough else "refused", error.message, error.hint or "")
    return BuildIsolation("namespace")


def decide_isolation(job: PromotionJob) -> None:
    """Decide where the promotion's commands run, record it, and report if they are not isolated. The decision stays,
    also when another process continues the promotion.

    Raises `UnsupportedError`, with the reason and the remedy, if they cannot be isolated as requested.
    """
    spec, facts = job.spec, job.facts
    if facts.isolation or not spec.runs_commands:
        return
    found = find_isolation(spec.isolation, spec.network)
    if found.level == "refused":
        raise UnsupportedError(found.reason, hint=found.help or None)
    facts.isolation, facts.isolation_reason = found.level, found.reason
    job.save()
    if found.level == "none" and spec.isolation != "none":
        _LOG.warning("the build is not isolated, and can do all that you can: %s", found.reason)


def make_box(job: PromotionJob, tree: bytes) -> Sandbox | None:
    """The box for ``tree``; None if commands are not isolated. Raises `UnsupportedError` and `StorageError`."""
    spec = job.spec
    decide_isolation(job)
    if job.facts.isolation == "none":
        return None
    from holdfast.sandbox.namespace import Namespace
    from holdfast.sandbox.policy import ENVIRONMENT, FileAccess, SandboxPolicy, parse_network
    from holdfast.sandbox.secret_places import secret_places

    own = own_directories(job.opener.home, job.context.settings)
    hidden = absolute_paths(spec.hidden)
    files = FileAccess(
        job.context.workspace.path,
        secret=own,
        hidden=hidden,
        writable=absolute_paths(spec.writable),
        origin=tree,
        credentials=secret_places(job.site.environ, (job.context.workspace.path, *own), agents=True),
        visible=absolute_paths(spec.visible),
        home=_private_home(job, hidden),
    )
    return Namespace(SandboxPolicy(files, parse_network(spec.network), (*ENVIRONMENT, *spec.environment)))


def _private_home(job: PromotionJob, hidden: Sequence[bytes]) -> PrivateHome | None:
    from holdfast.sandbox.private_home import make_private_home

    home = os.path.realpath(os.path.expanduser(b"~"))
    try:
        found = make_private_home(
            home,
            build_directory.home_of(job),
            is_visible=not any(under(home, os.path.realpath(path)) for path in hidden),
        )
    except OSError as error:
        raise StorageError(
            f"cannot make a directory for the build at {display(home)}: {error.strerror}", hint=room_hint(error)
        ) from error
    if found is None:
        _LOG.info("builds see %s as it is, and cannot write there", display(home))
    return found


def signal_reset_prefix() -> list[bytes]:
    """The prefix of a command that makes it ignore no signal."""
    from holdfast.sandbox import limited_command

    program = os.path.join(os.path.dirname(os.path.abspath(limited_command.__file__)), "default_signals.py")
    return list(map(os.fsencode, program_words(program)))


def environment_of(job: PromotionJob) -> dict[bytes, bytes]:
    """The environment of a command, isolated or not: the usual variables and those that the settings name, but none of
    Holdfast's own. A server's environment has secrets.
    """
    from holdfast.sandbox.policy import ENVIRONMENT, let_through

    given = {
        os.fsencode(name): os.fsencode(value) for name, value in job.site.environ.items() if name[:9] != "HOLDFAST_"
    }
    return let_through((*ENVIRONMENT, "TMPDIR", *job.spec.environment), given)

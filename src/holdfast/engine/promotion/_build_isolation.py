"""Where the commands of a promotion run: the copy, seen at production's own path, with what the settings let through.

At that path what a build writes down of where it is (as virtual environments and caches do) is right after the swap.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.opening.home import own_directories
from holdfast.engine.running.isolation import absolute_paths
from holdfast.processes.helper_process import program_words

if TYPE_CHECKING:
    from holdfast.engine.promotion._job_context import PromotionJob
    from holdfast.supervisor.launch.sandbox_port import Sandbox


def make_box(job: PromotionJob, tree: bytes) -> Sandbox | None:
    """The box for ``tree``; None if none was asked for. Raises `UnsupportedError` if it cannot be had here."""
    spec = job.spec
    if spec.isolation == "none":
        return None
    from holdfast.sandbox.namespace import Namespace
    from holdfast.sandbox.policy import ENVIRONMENT, FileAccess, SandboxPolicy, parse_network
    from holdfast.sandbox.secret_places import secret_places

    own = own_directories(job.opener.home, job.context.settings)
    files = FileAccess(
        job.context.workspace.path,
        secret=own,
        hidden=absolute_paths(spec.hidden),
        writable=absolute_paths(spec.writable),
        origin=tree,
        credentials=secret_places(job.site.environ, (job.context.workspace.path, *own)),
        visible=absolute_paths(spec.visible),
    )
    return Namespace(SandboxPolicy(files, parse_network(spec.network), (*ENVIRONMENT, *spec.environment)))


def check_possible(job: PromotionJob) -> None:
    """Raise `UnsupportedError`, saying why and what would help, if commands cannot be isolated here as asked for."""
    spec = job.spec
    if spec.isolation == "none" or not (spec.setup or spec.build or spec.start or spec.health):
        return
    from holdfast.sandbox.isolation_probe import require_isolation
    from holdfast.sandbox.policy import FileAccess, SandboxPolicy, parse_network

    require_isolation(SandboxPolicy(FileAccess(job.context.workspace.path), parse_network(spec.network)))


def signal_reset_prefix() -> list[bytes]:
    """What to put before a command so that no signal is ignored in it."""
    from holdfast.sandbox import limited_command

    program = os.path.join(os.path.dirname(os.path.abspath(limited_command.__file__)), "default_signals.py")
    return list(map(os.fsencode, program_words(program)))


def environment_of(job: PromotionJob) -> dict[bytes, bytes]:
    """What a command gets of the environment, isolated or not: the usual variables and those that the settings name,
    and nothing that is Holdfast's own. A server's has secrets in it.
    """
    from holdfast.sandbox.policy import ENVIRONMENT, let_through

    given = {
        os.fsencode(name): os.fsencode(value) for name, value in job.site.environ.items() if name[:9] != "HOLDFAST_"
    }
    return let_through((*ENVIRONMENT, "TMPDIR", *job.spec.environment), given)

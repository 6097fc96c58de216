"""Commands of the user's that are run before and after a session is saved, forked, or given a branch.

One that comes before can refuse: it ends with another code than 0, or not in time. One that comes after can only be
heard.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from holdfast.model.errors import RefusedError
from holdfast.model.log import Log
from holdfast.model.visible import visible

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator, Mapping, Sequence

    from holdfast.engine.context import Context
    from holdfast.model.config import Hooks

_LOG = Log(__name__)

Event = Literal["before_checkpoint", "after_checkpoint", "before_fork", "after_fork", "before_branch", "after_branch"]
"""When a hook is run, which is the name of the setting that holds its command as well."""

_MAX_SAID = 300
_MAX_OUTPUT = 64 << 10


What = Literal["checkpoint", "fork", "branch"]


@contextmanager
def hooked(
    context: Context, what: What, about: Mapping[str, object], *, may_refuse: bool = True
) -> Generator[dict[str, Any]]:
    """Run the hooks for ``what``, which is done in the block: one before it, one after it, unless it fails.

    Both are told ``about`` it, and the one behind what the block has put into the dictionary that it is given as well.
    Raises `RefusedError` (code ``hook_refused``); unless the first ``may_refuse``, that is logged, and the block done.
    """
    runner = HookRunner(context.settings.hooks, context.workspace.path)
    before, after = _EVENTS[what]
    if may_refuse:
        runner.before(before, about)
    else:
        runner.after(before, about)
    told: dict[str, Any] = {}
    yield told
    runner.after(after, {**about, **told})


_EVENTS: dict[What, tuple[Event, Event]] = {
    "checkpoint": ("before_checkpoint", "after_checkpoint"),
    "fork": ("before_fork", "after_fork"),
    "branch": ("before_branch", "after_branch"),
}


class HookRunner:
    """Runs the hooks of the settings, in the directory of a session."""

    def __init__(self, hooks: Hooks, directory: bytes) -> None:
        self._hooks = hooks
        self._directory = directory

    def wanted(self, event: Event) -> bool:
        """Whether there is a hook for ``event``."""
        return bool(getattr(self._hooks, event))

    def before(self, event: Event, about: Mapping[str, object]) -> None:
        """Run the hook for ``event``, if there is one, with ``about`` as JSON on its standard input.

        Raises `RefusedError` (code ``hook_refused``) if it refuses; then nothing is to be done.
        """
        if (failure := self._run(event, about)) is not None:
            raise RefusedError(
                f"the hook {event} refuses: {failure}",
                hint=f"its command is hooks.{event} in config.toml in the home",
                code="hook_refused",
            )

    def after(self, event: Event, about: Mapping[str, object]) -> None:
        """The same for what is done already: a failure is logged."""
        if (failure := self._run(event, about)) is not None:
            _LOG.warning("the hook %s failed: %s", event, failure)

    def _run(self, event: Event, about: Mapping[str, object]) -> str | None:
        """Why it failed; None if it did not, or there is none."""
        command: Sequence[str] = getattr(self._hooks, event)
        if not command:
            return None
        import json
        import subprocess

        given = json.dumps({"event": event, **about}).encode() + b"\n"
        try:
            child = subprocess.Popen(
                command,
                cwd=self._directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return f"{visible(command[0])} cannot be run: {error.strerror or error}"
        try:
            _, errors = child.communicate(given, timeout=self._hooks.timeout)
        except subprocess.TimeoutExpired:
            return f"it took longer than hooks.timeout, {self._hooks.timeout:g} s"
        finally:
            _end(child)
        if child.returncode == 0:
            return None
        how = f"it ended with {child.returncode}" if child.returncode > 0 else f"signal {-child.returncode} ended it"
        said = errors[-_MAX_OUTPUT:].decode("utf-8", "replace").strip().splitlines()
        return f"{visible(said[-1])[:_MAX_SAID]} ({how})" if said else how


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave nothing of a hook behind."""
    import os
    import signal

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()

"""Commands of the user's that are run before and after a session is saved, forked, or given a branch.

One that comes before can refuse: it ends with another code than 0, or not in time. A later hook is only a notification.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from holdfast.engine.sessions.identifiers import AGENT_VARIABLE, HOOK_VARIABLE, SESSION_VARIABLE
from holdfast.model.errors import HoldfastError, RefusedError, UnsupportedError
from holdfast.model.log import Log
from holdfast.model.message_text import visible
from holdfast.processes.child_environment import inherited_environment

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Generator, Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.sessions.holder.request_server import RequestServer, Served
    from holdfast.processes.child import Ended

_LOG = Log(__name__)

HookEvent = Literal[
    "before_checkpoint", "after_checkpoint", "before_fork", "after_fork", "before_branch", "after_branch"
]
"""When a hook is run, which is the name of the setting that holds its command as well."""

_MAX_SAID = 300
_MOST_ERRORS = 64 << 10
_MISSING = "holdfast: cannot run {}: "
_NOT_RUN, _BY_SIGNAL = 127, range(129, 193)
"""Exit codes of a missing program, and of one that a signal ended."""


HookedAction = Literal["checkpoint", "fork", "branch"]


@contextmanager
def with_hooks(
    context: Context,
    what: HookedAction,
    about: Mapping[str, object],
    *,
    may_refuse: bool = True,
    records: Callable[[], bool] = lambda: False,
    door: Callable[[], RequestServer | None] = lambda: None,
) -> Generator[dict[str, Any]]:
    """Run the hooks for ``what``, which the block does: one before it, and one after it, unless it fails.

    Both receive ``about``; the second also receives the values that the block puts into the dictionary. Raises
    `RefusedError` (code ``hook_refused``); if the first hook must not refuse (``may_refuse``), that is logged and the
    block runs. Requests of a hook to the session come through ``door``, and run no hooks themselves. If the session
    ``records`` its commands' changes, a hook's changes are a step.
    """
    runner = HookRunner(context, records, door)
    before, after = _EVENTS[what]
    told: dict[str, Any] = {}
    if (runner.wanted(before) or runner.wanted(after)) and (found := door()) is not None and found.in_hook:
        yield told
        return
    if may_refuse:
        runner.before(before, about)
    else:
        runner.after(before, about)
    yield told
    runner.after(after, {**about, **told})


_EVENTS: dict[HookedAction, tuple[HookEvent, HookEvent]] = {
    "checkpoint": ("before_checkpoint", "after_checkpoint"),
    "fork": ("before_fork", "after_fork"),
    "branch": ("before_branch", "after_branch"),
}


def has_hooks(context: Context, what: HookedAction) -> bool:
    """Whether there is a hook before or after ``what``."""
    runner = HookRunner(context)
    return any(runner.wanted(event) for event in _EVENTS[what])


class HookRunner:
    """Runs the hooks of the settings, in the directory of a session."""

    def __init__(
        self,
        context: Context,
        records: Callable[[], bool] = lambda: False,
        door: Callable[[], RequestServer | None] = lambda: None,
    ) -> None:
        """``records`` tells whether hooks' changes are recorded; ``door`` answers hooks' requests to the session; None:
        nothing does.
        """
        self._context = context
        self._hooks = context.settings.hooks
        self._records = records
        self._door = door

    def wanted(self, event: HookEvent) -> bool:
        """Whether there is a hook for ``event``."""
        return bool(getattr(self._hooks, event))

    def before(self, event: HookEvent, about: Mapping[str, object]) -> None:
        """Run the hook for ``event``, if there is one, with ``about`` as JSON on its standard input.

        Raises `RefusedError` (code ``hook_refused``) if it refuses; the caller must then stop.
        """
        if (failure := self._run(event, about)) is not None:
            raise RefusedError(
                f"the hook {event} refuses: {failure}",
                hint=f"its command is hooks.{event} in config.toml in the home",
                code="hook_refused",
            )

    def after(self, event: HookEvent, about: Mapping[str, object]) -> None:
        """As `before`, for an event that has happened: a failure is logged."""
        if (failure := self._run(event, about)) is not None:
            _LOG.warning("the hook %s failed: %s", event, failure)

    def _run(self, event: HookEvent, about: Mapping[str, object]) -> str | None:
        """Why it failed; None if it succeeded, or there is no hook."""
        command: Sequence[str] = getattr(self._hooks, event)
        if not command:
            return None
        import json
        from contextlib import nullcontext

        given = json.dumps({"event": event, **about}).encode() + b"\n"
        door = self._door()
        with nullcontext("") if door is None else door.hook() as word:
            environment, records = _environment(about, word), self._records()
            try:
                try:
                    return self._run_child(command, given, environment, door, records=records)
                except UnsupportedError as error:
                    # It has not run.
                    _LOG.warning("%s; the changes of the hook %s are no step", error.message, event)
                    return self._run_child(command, given, environment, door, records=False)
            except HoldfastError as error:
                return error.message  # it could not be recorded

    def _run_child(
        self,
        command: Sequence[str],
        given: bytes,
        environment: Mapping[str, str],
        door: RequestServer | None,
        *,
        records: bool,
    ) -> str | None:
        import os

        from holdfast.engine.running.child_start import ChildStart, recorded_where
        from holdfast.engine.sessions.holder.request_server import servers_for
        from holdfast.processes import child

        context = self._context
        surroundings = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        hook = ChildStart(tuple(map(os.fsencode, command)), context.workspace.path, surroundings)
        limits = child.Limits(self._hooks.timeout, errors=_MOST_ERRORS)
        # A recorded tree's parent ends its processes itself; its keeper, which may go on, must not be ended here.
        run = child.run if records else child.run_contained
        record = recorded_where(context if records else None, hook, ends_whole=True)
        with record as start, servers_for(door, start) as servers:

            def attempt(stop: threading.Event | None = None) -> Ended:
                try:
                    return run(
                        start.words,
                        limits,
                        stdin=given,
                        cwd=start.directory,
                        environment=start.environment,
                        pass_fds=start.descriptors,
                        stop=stop,
                    )
                except OSError as error:
                    return child.Ended(
                        _NOT_RUN, errors=f"{_MISSING.format(command[0])}{error.strerror or error}".encode()
                    )

            ended = _serving(servers, attempt) if servers else attempt()
        if ended.why == "time":
            return f"it took longer than hooks.timeout, {self._hooks.timeout:g} s"
        return None if ended.exit_code == 0 else _failure(command[0], ended.exit_code, ended.errors)


def _failure(program: str, code: int, errors: bytes) -> str:
    """Why a hook failed that ended with ``code``."""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    missing = _MISSING.format(program)
    if code == _NOT_RUN and lines and lines[-1].startswith(missing):
        return f"{visible(program)} cannot be run: {lines[-1].removeprefix(missing)}"
    how = f"signal {code - 128} ended it" if code in _BY_SIGNAL else f"it ended with {code}"
    return f"{visible(lines[-1])[:_MAX_SAID]} ({how})" if lines else how


def _environment(about: Mapping[str, object], word: str) -> dict[str, str]:
    """The environment of a hook."""
    import os

    own = {HOOK_VARIABLE: word} if word else {}
    if isinstance(session := about.get("session"), str):
        own[SESSION_VARIABLE] = session
    if isinstance(agent := about.get("agent"), str):
        own[AGENT_VARIABLE] = agent
    return {**inherited_environment(os.environ), **own}


def _serving(servers: Sequence[Served], run: Callable[[threading.Event], Ended]) -> Ended:
    """The result of ``run``, which its event ends; meanwhile this thread serves requests to the ``servers``."""
    import os
    import select
    import threading
    from concurrent.futures import ThreadPoolExecutor

    stop = threading.Event()
    over = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        with ThreadPoolExecutor(1) as other:
            running = other.submit(run, stop)
            running.add_done_callback(lambda _: os.eventfd_write(over, 1))
            try:
                poll = select.poll()
                poll.register(over, select.POLLIN)
                for server in servers:
                    poll.register(server.fileno(), select.POLLIN)
                while not running.done():
                    ready = dict(poll.poll())
                    for server in servers:
                        if server.fileno() in ready:
                            server.serve()
                return running.result()
            finally:
                stop.set()
    finally:
        os.close(over)

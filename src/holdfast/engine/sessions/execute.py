"""A command in a session: journalled, run by a real shell, and journalled again with how it ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.sessions import carrying
from holdfast.engine.sessions.carrying import OWN
from holdfast.engine.sessions.judging import judge
from holdfast.engine.sessions.naming import AGENT_VARIABLE, SESSION_VARIABLE
from holdfast.engine.sessions.process import run_command
from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log
from holdfast.model.session import CommandResult
from holdfast.model.visible import visible

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from holdfast.engine.sessions.carrying import Carried
    from holdfast.engine.sessions.process import StreamName
    from holdfast.engine.sessions.session import Session
    from holdfast.model.session import CommandEntry

_LOG = Log(__name__)
_KILLED = 137
_NOT_STARTED = 126


def execute(
    session: Session,
    command: str,
    *,
    input: str | None = None,  # noqa: A002 - the name of the entry's field
    generated: bool = False,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
    output: Callable[[StreamName, bytes], None] | None = None,
    stop: threading.Event | None = None,
) -> CommandEntry:
    """Run ``command`` in ``session`` until it has ended; its entry in the history, with its result.

    It begins in the directory and with the exported variables that the last command has left. ``input`` is what was
    asked for, if that is something else, and ``generated`` whether a model has made the one from the other. ``timeout``
    (seconds; None: as the session is configured, 0: none) and ``stop`` end it, with all of its process group.
    ``env`` are variables for it alone, but for the session's name. For ``stdin`` and ``output`` see `run_command`.

    The entry is durable before it starts, and again when this returns. What `run_command` and ``output`` raise is
    raised once the end is journalled; so is `KeyboardInterrupt`, if there was one, which the command has got.
    """
    directory = carrying.existing(session.directory(), session.root)
    # (What is left running is known by the session's name.)
    alone = {name: value for name, value in (env or {}).items() if name != SESSION_VARIABLE}
    environment = shell_environment(session, directory) | alone
    level = judge(session, command, cwd=directory, environment=environment)
    entry = session.begin(command, input=input, generated=generated, level=level)
    seconds = session.config.timeout_seconds if timeout is None else timeout
    try:
        ran = run_command(
            command,
            shell=session.config.shell,
            cwd=directory,
            environment=environment,
            timeout=seconds,
            max_output_bytes=session.config.max_output_bytes,
            stdin=stdin,
            output=output,
            stop=stop,
            door=session.door(),
            noted=session.in_flight(),
        )
    except BaseException as error:
        code, words = (_NOT_STARTED, error.message) if isinstance(error, HoldfastError) else (_KILLED, "")
        result = CommandResult(exit_code=code, stdout="", stderr=words)
        session.end(entry, result, cwd=session.state.cwd, env=session.environment(), duration_ms=0)
        raise
    left = session.environment(), session.state.cwd
    if ran.carried is not None:
        left = exported(session, ran.carried, alone), carrying.relative(ran.carried.cwd, session.root)
    ended = session.end(entry, ran.result, env=left[0], cwd=left[1], duration_ms=ran.duration_ms)
    if ran.interrupted:
        raise KeyboardInterrupt
    return ended


def shell_environment(session: Session, directory: bytes) -> dict[str, str]:
    """What a shell of the session is started with in ``directory``."""
    own = {"PWD": os.fsdecode(directory), SESSION_VARIABLE: session.id, AGENT_VARIABLE: session.agent}
    return {name: value for name, value in session.environment().items() if name != "_"} | own


def exported(session: Session, carried: Carried, alone: Mapping[str, str]) -> dict[str, str]:
    """All that the session exports after a shell has left ``carried``; it had ``alone`` besides, for itself.

    What no program can be started with stays what it was before, and is told once.
    """
    before = session.environment()
    env = dict(carried.env)
    _tell_too_long(session, carried)
    env.update((name, before[name]) for name in carried.too_long if name in before)
    for name, value in before.items():
        # What is no name in a shell, some do not hand on to what they start: they have not taken it away.
        if name in OWN or (name not in env and not name.isidentifier()):
            env[name] = value
    for name, value in alone.items():
        if env.get(name) == value:
            env.pop(name)
            if name in before:
                env[name] = before[name]
    return env


def _tell_too_long(session: Session, carried: Carried) -> None:
    new = [name for name in carried.too_long if name not in session.too_long]
    session.too_long += new
    for name in new:
        _LOG.warning(
            "the variable %s is longer than any that a program can be started with: the session does not keep it",
            visible(name),
            session=session.id,
        )

"""The work of a client's hook: save the state at every prompt, record the prompt in the history, and make one step of
each tool call in a run.

A step's label tells which call it belongs to, so no state is kept between hooks. Of overlapping calls the first one
opens the step, and its end closes it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.engine.opening.current_run import current_run
from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.undo_log import find_open_step, open_service
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import RefusedError
from holdfast.model.ids import hash_bytes
from holdfast.model.log import Log
from holdfast.model.message_text import first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.engine.integrations.client import Action
    from holdfast.engine.integrations.hook_input import HookEvent
    from holdfast.engine.opening.context import Context
    from holdfast.undo.service import UndoService

_LOG = Log(__name__)

_WAIT_SECONDS = 10.0
"""For another process that has the workspace; a client waits longer for a hook."""
_MOST_OF_TEXT = 200
_MOST_OF_NAME = 64


def perform(client: str, action: Action, event: HookEvent, *, home: bytes | None, environ: Mapping[str, str]) -> str:
    """Handle a client's event in the workspace that it names. Returns a message for people.

    Raises as `Workspace`. A step is opened only in the run that this process belongs to, and only if none is open.
    """
    flags = {"lock.timeout": _WAIT_SECONDS}
    opener = Opener(home=home, environ=environ, flags=flags, lenient=True)
    try:
        context = opener.open(event.directory)
        run = current_run(context)
        said = _group(context, client, action, event, run) if run is not None else ""
        return _save(Workspace(opener, context), client, event, run) if action == "prompt" else said
    finally:
        opener.close()


def _save(workspace: Workspace, client: str, event: HookEvent, run: str | None) -> str:
    estimate = workspace.estimate()
    if estimate is not None:
        raise RefusedError(
            f"nothing was saved before this prompt: the directory holds {estimate.files} files or more, and was never "
            "saved",
            hint="`holdfast checkpoint` saves it; first list files to leave out in .checkpointignore",
            code="huge",
        )
    done = workspace.prompt(event.prompt, author=client)
    state = "saved" if done.created else "nothing has changed since"
    # A watcher that an earlier version has started records no prompts.
    way = "" if done.prompt is None else f"; `holdfast undo --to prompt:{done.prompt}` goes back to before this prompt"
    steps = "" if run is not None else "; no steps are recorded outside `holdfast run`"
    return f"{state} {done.checkpoint.id[:12]}{way}{steps}"


def _group(context: Context, client: str, action: Action, event: HookEvent, run: str) -> str:
    with open_service(context) as service:
        if service is None or not _serves(service, run):
            raise RefusedError(
                f"the run {run} records nothing here: its steps are those of another workspace",
                hint="start the client with `holdfast run` in this one",
                code="other_run",
            )
        session = f"[{client}:{_name(event.session)}/"
        mark = f"{session}{_name(event.call)}]"
        opened = find_open_step(service, run)
        if action == "begin":
            if opened is not None:
                return f"step {opened.id} is open: the call belongs to it"
            return f"began step {service.begin(f'{client} {first_line(event.title, _MOST_OF_TEXT)} {mark}')}"
        label = "" if opened is None else b" ".join(opened.command).decode("utf-8", "replace")
        if opened is None or not (label.endswith(mark) if action == "end" else session in label):
            return ""
        info = service.commit(opened.id)
        return f"closed step {info.id}: {info.paths} changed"


def _serves(service: UndoService, run: str) -> bool:
    from holdfast.supervisor.control.remote_service import RemoteUndoService

    return isinstance(service, RemoteUndoService) and service.serves(run)


def _name(text: str) -> str:
    """The form of an id in a label: the id if it is valid there, else its hash."""
    if len(text) <= _MOST_OF_NAME and re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        return text
    return hash_bytes(text.encode("utf-8", "surrogateescape")).hex()[:24]

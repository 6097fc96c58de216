"""The details of an error beside its message, the same for every interface."""

from __future__ import annotations

import re
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from holdfast.model.answers.steps import Barriers
from holdfast.model.errors import HoldfastError
from holdfast.model.json_encoder import encode

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from holdfast.engine.hosting.working_directory import HostedDirectory

_SHOWN_BARRIERS = 20


@contextmanager
def with_details(hosted: HostedDirectory) -> Generator[None]:
    """In this block errors get their details: one by edits of others, the latest of those."""
    try:
        yield
    except HoldfastError as error:
        if error.code == "barrier":
            with hosted.undo_log() as log:
                latest = () if log is None else log.barriers()[-_SHOWN_BARRIERS:]
            error.data = {**encode(Barriers, barriers=latest), **(error.data or {})}
        raise


# Advice for clients of the interfaces, who have no command line; it replaces the hint of the engine.

FOR_FRONTENDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "barrier": ("force takes it back all the same, with the changes of other processes; redo brings those back"),
        "steps_connected": "step_ids takes several steps: all of data.together at once, or those of data.first before",
        "open_step": "step.commit or step.rollback closes the step that step.begin opened",
        "no_open_step": "step.begin opens one",
        "step_open": "wait until it ends; without step_id, force takes back its finished part",
        "others_since": "undo those first, or force takes all of it back",
        "steps_forgotten": "force takes back the steps that are left, and the rest by the run's first checkpoint",
        "changed_since_undo": "redo with step_id or step_ids brings others forward; undo.rollback first takes "
        "back later changes of steps, but none of other processes",
        "inside_run": "a person does it from another terminal",
        "keeper_gone": "the step that was open is rolled back when the undo log is used next; event.recovery names it, "
        "and redo with that step_id brings it forward",
        "parent_gone": "what the command had done until then is a step like any other, unless event.recovery names it",
        "unfinished_restore": "checkpoint.restore_continue finishes it, "
        "checkpoint.restore_abort goes back to the state before",
        "undo_version_mismatch": "only that version can undo its steps; checkpoints lead back past them, and "
        "undo.discard forgets them",
    }
)
"""By the code of the error."""

FOR_MODELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "barrier": "only a person goes past it; get_undo_history lists the steps, and undo takes back those "
        "(step, steps) whose files no other process has changed since",
        "steps_connected": "undo and redo take several steps at once (steps): all that the message names, and this one",
        "open_step": "commit_step or rollback_step closes what begin_step has opened",
        "no_open_step": "begin_step opens one",
        "step_open": "wait until it ends",
        "others_since": "undo those first",
        "steps_forgotten": "undo with step or steps takes back those that are left; only a person goes past it",
        "changed_since_undo": "redo with step or steps brings those forward beside them; undo first takes back later "
        "changes of steps, but none of other processes",
        "keeper_gone": "the step that was open is rolled back when the undo log is used next; get_session_status names "
        "it (recovered), and redo with that step brings it forward",
        "parent_gone": "what the command had done until then is a step like any other, unless get_session_status names "
        "it (recovered)",
        "inside_run": "a person does it from another terminal, or by a server that was started outside",
        "unfinished_restore": "a person has to finish it, or take it back, first",
        "undo_version_mismatch": "only a person goes past it; undo with step or steps takes back later steps",
        "no_undo_log": "execute_command, write_file and edit_file record their changes",
    }
)
"""By the code of the error."""

FOR_CLIENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "barrier": FOR_FRONTENDS["barrier"],
        "step_open": "wait until it ends; force takes back its finished part",
        "still_written": "end what writes it first; force goes ahead with what it has written so far",
        "others_since": FOR_FRONTENDS["others_since"],
        "steps_forgotten": FOR_FRONTENDS["steps_forgotten"],
        "unwritable": "force goes ahead with the rest",
        "unfinished_restore": "POST …/recover finishes it (continue), or goes back to the state before (abort)",
        "changed_since_undo": "POST …/undo saves those changes and takes them back",
        "changed_meanwhile": "look at the present state, and try again",
        "nothing_to_undo": "GET …/checkpoints lists the states",
        "nothing_to_redo": "GET …/checkpoints lists the states",
        "no_such_path": "GET /api/checkpoints/{id}/files lists the files of a checkpoint",
        "no_session": "GET …/sessions lists those that are there",
        "session_exists": "choose another id; GET …/sessions lists those of the workspace",
        "no_snapshot": "GET …/snapshots lists them",
        "not_overlapping": "POST /api/merge lists the files that do",
        "promotion_busy": "try again later; promote.wait sets how long to wait",
        "promotion_stopped": "the same request with its Idempotency-Key continues it; the next promotion takes it back",
    }
)
"""By the code of the error, for clients of the REST API."""

_COMMAND_LINE = re.compile(r"\bholdfast |(?<![\w-])--[a-z]|\bcurrent directory\b")


def hint(error: HoldfastError, known: Mapping[str, str]) -> str | None:
    """The hint of an error: from ``known``, else the error's own. None for a hint that names commands or options."""
    said = known.get(error.code, error.hint)
    return None if said is None or _COMMAND_LINE.search(said) else said

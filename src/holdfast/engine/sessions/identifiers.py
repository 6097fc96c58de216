"""Valid names of sessions, branches and agents, and the name of the caller."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.model.errors import RefusedError, UsageError
from holdfast.model.session_types import SessionId
from holdfast.snapshot.port import ASKED_FOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.model.config.settings import Settings
    from holdfast.model.ids import WorkspaceId
    from holdfast.model.session_results import SessionInfo
    from holdfast.store.catalog.session_rows import SessionRecord

AGENT_VARIABLE = "HOLDFAST_AGENT"
"""In the environment of a session's commands and hooks: who uses it."""
SESSION_VARIABLE = "HOLDFAST_SESSION"
"""In the environment of a session's commands and hooks: its id."""
HOOK_VARIABLE = "HOLDFAST_HOOK"
"""In a hook's environment: identifies the hook's requests to the process that runs it."""
BEFORE_CHECKOUT = "_auto/before-checkout"
"""How the branches begin that a checkout makes of the state before it."""
MAX_TEXT = 10_000
"""Characters of a message, or of a value of metadata."""
MAX_METADATA = 32

_MAX_ID = 64
_WORKSPACE_DIGITS = 8
_MAX_BRANCH = 200
_MAX_AGENT = 100
_PART = r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*"
_OTHERS = frozenset(("sessions", "branches", "forks", "experiments"))
_LEAST_DIGITS = 4
"""Of a hash, for it to name a state."""
_ID = re.compile(rf"{_PART}\Z")
_BRANCH = re.compile(rf"{_PART}(?:/{_PART})*\Z")
PROCESS = "process"
"""In the metadata of an experiment's reference: who makes it, as `work_lease` names a process."""


def check_id(text: str) -> SessionId:
    """``text``, if a session can be called so. Raises `UsageError`."""
    if len(text) > _MAX_ID or not _ID.match(text) or text.endswith(".lock") or text == ASKED_FOR:
        raise UsageError(
            f"{text[: _MAX_ID + 1]!r} is no name for a session",
            hint=f"letters, digits, '_', '-', and '.' between others, {_MAX_ID} at most; and not {ASKED_FOR}",
        )
    return SessionId(text)


def own_id(name: str, workspace: WorkspaceId) -> SessionId:
    """The id of a workspace's session ``name`` if another workspace has a session of that name."""
    return SessionId(f"{name[: _MAX_ID - _WORKSPACE_DIGITS - 1]}.{workspace[:_WORKSPACE_DIGITS]}")


def check_branch(text: str) -> str:
    """``text``, if a branch can be called so. Raises `UsageError`."""
    if len(text) > _MAX_BRANCH or not _BRANCH.match(text):
        raise UsageError(
            f"{text[: _MAX_BRANCH + 1]!r} is no name for a branch",
            hint=f"letters, digits, '_', '-', '.' between others, in parts with '/' between, {_MAX_BRANCH} at most",
        )
    return text


def check_new_branch(text: str) -> str:
    """``text``, if it is valid as a state's name and has no other meaning there. Raises `UsageError` with the other
    meaning.
    """
    check_branch(text)
    first = text.partition("/")[0]
    if text.lower() == "head" or text.lower().endswith("/head"):
        reason = "HEAD is the newest saved state of a session"
    elif "/" in text and first in _OTHERS:
        reason = f"{first}/… names what belongs to other sessions, or the newest state of a fork"
    elif text.startswith(BEFORE_CHECKOUT):
        reason = f"{BEFORE_CHECKOUT}… are names that Holdfast gives and removes"
    elif len(text) >= _LEAST_DIGITS and all(letter in "0123456789abcdef" for letter in text.lower()):
        reason = "it could be the beginning of a saved state's hash"
    else:
        return text
    raise UsageError(f"{text!r} is no name for a branch: {reason}", hint="choose another name")


def check_agent(text: str) -> str:
    """``text``, if an agent or a user can be called so. Raises `UsageError`."""
    if not text or len(text) > _MAX_AGENT or not text.isprintable() or text != text.strip():
        raise UsageError(
            f"{text[: _MAX_AGENT + 1]!r} is no name for an agent",
            hint=f"1 to {_MAX_AGENT} characters that can be printed, with no space around them",
        )
    return text


def check_message(text: str) -> str:
    """``text``, if it is valid as a state's message. Raises `UsageError`."""
    if len(text) > MAX_TEXT or "\0" in text or not _is_text(text):
        raise UsageError(f"a message is a text of at most {MAX_TEXT} characters, without NUL")
    return text


def check_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """``variables``, if a program can be given them. Raises `UsageError`."""
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value or not _is_text(name) or not _is_text(value):
            raise UsageError(f"there can be no variable {name[:100]!a} with this value")
    return dict(variables)


def check_metadata(texts: Mapping[str, str]) -> dict[str, str]:
    """``texts``, if they are valid as a state's metadata. Raises `UsageError`."""
    if len(texts) > MAX_METADATA or not all(
        name and len(name) <= 100 and len(value) <= MAX_TEXT and _is_text(name) and _is_text(value)
        for name, value in texts.items()
    ):
        raise UsageError(f"metadata are at most {MAX_METADATA} texts by name, of at most {MAX_TEXT} characters each")
    return dict(texts)


def new_id(prefix: str, random: Callable[[int], bytes]) -> SessionId:
    """A fresh name."""
    return SessionId(f"{prefix}-{random(5).hex()}")


def agent_of(given: str | None, environ: Mapping[str, str], settings: Settings) -> str:
    """Who is asking: ``given``, else ``HOLDFAST_AGENT``, else ``identity.author``, else the user's name."""
    for name in (given, environ.get(AGENT_VARIABLE), settings.identity.author):
        if name:
            return check_agent(name)
    return check_agent(_user())


def _user() -> str:
    import os
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user-{os.geteuid()}"


def _is_text(text: str) -> bool:
    """False if it holds what no UTF-8 says."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


# Whose a session is. Names, not authentication: a process that can write the home can take any name.


def check_may_use(record: SessionRecord | SessionInfo, agent: str) -> None:
    """Raise `RefusedError` (code ``not_owner``) if ``agent`` may not use the session."""
    if agent != record.owner and agent not in record.shared:
        raise RefusedError(
            f"the session {record.id} is {record.owner}'s, and not shared with {agent}",
            hint=f"{record.owner} can share it: holdfast session share {agent}; or name yourself with HOLDFAST_AGENT",
            code="not_owner",
        )


def check_is_owner(record: SessionRecord, agent: str) -> None:
    """Raise `RefusedError` (code ``not_owner``) if the session is not ``agent``'s own."""
    if agent != record.owner:
        raise RefusedError(
            f"the session {record.id} is {record.owner}'s: only {record.owner} can share or delete it",
            hint="name yourself with HOLDFAST_AGENT if that is you",
            code="not_owner",
        )

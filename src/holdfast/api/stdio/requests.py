"""All that a client can ask for."""

from __future__ import annotations

from typing import Final

from holdfast.api.stdio import messages, results
from holdfast.api.stdio.operations import OPERATIONS

HELLO: Final = "hello"

REQUESTS: dict[str, tuple[type[messages.Payload], type[object]]] = {
    HELLO: (messages.Hello, results.Welcome),
    "session.start": (messages.SessionStart, results.SessionStatus),
    "session.stop": (messages.Nothing, results.Done),
    "session.reset": (messages.Nothing, results.SessionStatus),
    "session.status": (messages.Nothing, results.SessionStatus),
    "agent.execute": (messages.AgentExecute, results.Executed),
    "agent.prompt": (messages.AgentPrompt, results.Executed),
    "agent.cancel": (messages.AgentCancel, results.Cancelled),
    "safeguard.confirm": (messages.SafeguardConfirm, results.Answered),
    **{name: (operation.payload, operation.result) for name, operation in OPERATIONS.items()},
}
"""All that can be asked for: what it is asked with, and what it is answered with."""
